/**
 * The columns of `schemas/parquet.ts` in DuckDB's terms: their types, a row as a line of JSON for DuckDB to parse, and
 * the fingerprint by which a file is proven to hold the rows that were meant.
 *
 * The fingerprint of a file is the XOR, over its rows, of the first 64 bits of SHA-256(row number and every column, each
 * in a form without ambiguity; the payload by its own SHA-256). It is computed here from the rows, and by DuckDB from
 * the file, so neither the parser of the lines nor the writer of the file is trusted. It finds what went wrong, also a
 * row that moved; against somebody who forges files stands the SHA-256 of the file itself.
 */
import { hash } from 'node:crypto';
import { COLUMNS, type ColdRow, type Column, type ColumnType } from '../schemas/parquet.ts';

export const DUCK_TYPES = {
  string: 'VARCHAR',
  long: 'BIGINT',
  integer: 'INTEGER',
  double: 'DOUBLE',
  boolean: 'BOOLEAN',
  timestamp: 'TIMESTAMPTZ',
  date: 'DATE',
  strings: 'VARCHAR[]',
} as const satisfies Record<ColumnType, string>;

/** The columns in their order, for a SELECT. */
export const COLUMN_NAMES: string = COLUMNS.map(({ name }) => `"${name}"`).join(', ');

/** For `columns = …` of read_json. */
export const COLUMN_TYPES: string = `{${COLUMNS.map(({ name, type }) => `"${name}": '${DUCK_TYPES[type]}'`).join(', ')}}`;

/** Text of these columns has nothing to escape: ids, hashes, times. */
const PLAIN: ReadonlySet<keyof ColdRow> = new Set([
  'trajectory_id',
  'created_at',
  'payload_sha256',
  'cryptographic_hash',
  'date',
]);

type Written = { readonly name: keyof ColdRow; readonly before: string; readonly how: 'plain' | 'text' | 'number' };

/** What stands before each value, and how it is written; fixed once, since a line is made for every event. */
const WRITTEN: readonly Written[] = (COLUMNS as readonly Column[])
  .filter(({ name }) => name !== 'payload')
  .map(({ name, type }) => {
    const isText = type === 'string' || type === 'strings';
    return { name, before: `"${name}":`, how: PLAIN.has(name) ? 'plain' : isText ? 'text' : 'number' };
  });

/**
 * A row as a line of JSON, in two pieces: everything but the payload, and the payload, which is most of it. Written one
 * behind the other they cost half of what joining them does. Columns that are null are left out.
 */
export function lineOf(row: ColdRow): readonly [rest: string, payload: string] {
  let rest = '{';
  for (const { name, before, how } of WRITTEN) {
    const value = row[name];
    if (value === null) continue;
    if (how === 'number') rest += `${before}${value as number},`;
    else if (how === 'plain') rest += `${before}"${value as string}",`;
    else rest += `${before}${JSON.stringify(value)},`;
  }
  return [`${rest}"payload":`, `${JSON.stringify(row.payload)}}\n`];
}

/** The row's part of the fingerprint. `payload_sha256` is that of the payload as it stands in the row. */
export function fingerprintOf(row: ColdRow, rowNumber: number, payloadSha256: string): bigint {
  let text = String(rowNumber);
  for (const column of COLUMNS) text += `;${column.name === 'payload' ? payloadSha256 : formOf(column, row)}`;
  return BigInt(`0x${hash('sha256', text, 'hex').slice(0, 16)}`);
}

function formOf({ name, type }: Column, row: ColdRow): string {
  const value = row[name];
  if (value === null) return '-';
  switch (type) {
    case 'string':
      return counted(value as string);
    case 'long':
    case 'integer':
    case 'boolean':
    case 'date':
      return String(value);
    case 'double':
      return exponentialOf(value as number);
    case 'timestamp':
      return String(Date.parse(value as string));
    case 'strings':
      return `[${(value as readonly string[]).map(counted).join(',')}]`;
  }
}

function counted(text: string): string {
  return `${Buffer.byteLength(text)}:${text}`;
}

/** 17 significant digits name a double exactly; C writes exponents with two digits at least. */
function exponentialOf(value: number): string {
  return value.toExponential(16).replace(/e([+-])(\d)$/, 'e$10$2');
}

/** The same forms in SQL. */
const SQL_FORMS = {
  string: (name) => `strlen(${name}) || ':' || ${name}`,
  long: (name) => `CAST(${name} AS VARCHAR)`,
  integer: (name) => `CAST(${name} AS VARCHAR)`,
  boolean: (name) => `CAST(${name} AS VARCHAR)`,
  double: (name) => `format('{:.16e}', ${name})`,
  timestamp: (name) => `CAST(epoch_ms(${name}) AS VARCHAR)`,
  date: (name) => `strftime(${name}, '%Y-%m-%d')`,
  strings: (name) => `'[' || array_to_string(list_transform(${name}, lambda e: strlen(e) || ':' || e), ',') || ']'`,
} as const satisfies Record<ColumnType, (name: string) => string>;

const ROW_TEXT = [
  'CAST(file_row_number AS VARCHAR)',
  ...COLUMNS.map(({ name, type }) => {
    const form = name === 'payload' ? 'sha256(payload)' : SQL_FORMS[type](`"${name}"`);
    return `coalesce(${form}, '-')`;
  }),
].join(` || ';' || `);

/** An aggregate over a file that is read with `file_row_number = true`: the fingerprint, a UBIGINT. */
export const FINGERPRINT: string = `bit_xor(CAST('0x' || left(sha256(${ROW_TEXT}), 16) AS UBIGINT))`;
