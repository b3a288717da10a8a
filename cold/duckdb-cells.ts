/**
 * Values of any type of DuckDB as texts that lose nothing: what exports and tables show. Beside `duckdb.ts` the only
 * file that knows the binding.
 *
 *   text                        itself
 *   numbers, booleans           literals: all digits of BIGINT, HUGEINT, DECIMAL; what a DOUBLE needs to be read back
 *   NaN, ±Infinity              the texts NaN, Infinity, -Infinity: JSON has no such numbers
 *   TIMESTAMPTZ, TIMESTAMP      2025-01-31T23:59:59.123Z, without Z; six or nine digits where three are not exact
 *   lists, structs, maps        literals of JSON, made of the same; a map is a list of {key, value}
 *   everything else             DuckDB's own text
 */
import type * as Binding from '@duckdb/node-api';
import type { DuckDBValue } from '@duckdb/node-api';

/** A text that stands in JSON as it is. */
export class Literal {
  readonly text: string;
  readonly isNumber: boolean;

  constructor(text: string, isNumber = false) {
    this.text = text;
    this.isNumber = isNumber;
  }
}

/** null is NULL, and nothing else is. */
export type Cell = string | Literal | null;

export function jsonOf(cell: Cell): string {
  if (cell === null) return 'null';
  return cell instanceof Literal ? cell.text : JSON.stringify(cell);
}

/** Of the binding, which is loaded when the first instance is. */
export class CellReader {
  readonly #binding: typeof Binding;

  constructor(binding: typeof Binding) {
    this.#binding = binding;
  }

  cellOf(value: DuckDBValue): Cell {
    if (value === null) return null;
    if (typeof value === 'string') return value;
    if (typeof value === 'bigint') return new Literal(String(value), true);
    if (typeof value === 'boolean') return new Literal(String(value));
    if (typeof value === 'number') return numberCell(value);
    if (value instanceof this.#binding.DuckDBDecimalValue) return new Literal(value.toString(), true);
    return this.#timeOf(value) ?? this.#nestedOf(value) ?? value.toString();
  }

  #timeOf(value: DuckDBValue): string | undefined {
    if (value instanceof this.#binding.DuckDBTimestampTZValue) return instantOf(value.micros * 1000n, 'Z');
    if (value instanceof this.#binding.DuckDBTimestampValue) return instantOf(value.micros * 1000n, '');
    if (value instanceof this.#binding.DuckDBTimestampNanosecondsValue) return instantOf(value.nanos, '');
    if (value instanceof this.#binding.DuckDBTimestampMillisecondsValue)
      return instantOf(value.millis * 1_000_000n, '');
    if (value instanceof this.#binding.DuckDBTimestampSecondsValue)
      return instantOf(value.seconds * 1_000_000_000n, '');
    return undefined;
  }

  #nestedOf(value: DuckDBValue): Literal | undefined {
    if (value instanceof this.#binding.DuckDBListValue || value instanceof this.#binding.DuckDBArrayValue)
      return new Literal(this.#listOf(value.items));
    if (value instanceof this.#binding.DuckDBStructValue)
      return new Literal(this.#objectOf(Object.entries(value.entries)));
    if (value instanceof this.#binding.DuckDBMapValue) {
      const entries = value.entries.map((entry) =>
        this.#objectOf([['key', entry.key] as const, ['value', entry.value]]),
      );
      return new Literal(`[${entries.join(',')}]`);
    }
    if (value instanceof this.#binding.DuckDBUnionValue) return new Literal(this.#objectOf([[value.tag, value.value]]));
    return undefined;
  }

  #listOf(items: readonly DuckDBValue[]): string {
    return `[${items.map((item) => jsonOf(this.cellOf(item))).join(',')}]`;
  }

  #objectOf(entries: readonly (readonly [string, DuckDBValue])[]): string {
    return `{${entries.map(([name, value]) => `${JSON.stringify(name)}:${jsonOf(this.cellOf(value))}`).join(',')}}`;
  }
}

function numberCell(value: number): Cell {
  if (!Number.isFinite(value)) return String(value);
  return new Literal(Object.is(value, -0) ? '-0.0' : String(value), true);
}

/** undefined past the years of ISO 8601, and for infinity. */
function instantOf(nanos: bigint, zone: string): string | undefined {
  const below = ((nanos % 1_000_000n) + 1_000_000n) % 1_000_000n;
  const date = new Date(Number((nanos - below) / 1_000_000n));
  const [, text] = /^(\d{4}-.*)Z$/.exec(Number.isNaN(date.getTime()) ? '' : date.toISOString()) ?? [];
  if (text === undefined) return undefined;
  const digits = String(below).padStart(6, '0');
  const more = below === 0n ? '' : digits.endsWith('000') ? digits.slice(0, 3) : digits;
  return `${text}${more}${zone}`;
}
