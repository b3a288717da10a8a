/**
 * Lines of JSON in a scratch file: what is noted of more things than memory may hold, to be read back in another order.
 * DuckDB sorts them, on disk where they are many.
 */
import { appendFileSync } from 'node:fs';
import { type DuckDb, type DuckRow, sqlText } from './duckdb.ts';
import { FILE_MODE, fileError } from './files.ts';
import type { CallOptions } from './object-store.ts';

const WRITE_CHARS = 256 * 1024;
/** Of one line, in bytes. */
const LINE_BYTES_MAX = 64 * 1024;

export class Ledger<Line extends object> {
  readonly #path: string;
  /** DuckDB's type of each member. */
  readonly #types: Readonly<Record<keyof Line & string, string>>;
  #pending: string[] = [];
  #chars = 0;
  #lines = 0;

  /** @param path of a file that is not there yet, in a folder of the caller's, who removes it */
  constructor(path: string, types: Readonly<Record<keyof Line & string, string>>) {
    this.#path = path;
    this.#types = types;
  }

  get lines(): number {
    return this.#lines;
  }

  add(line: Line): void {
    const text = `${JSON.stringify(line)}\n`;
    this.#pending.push(text);
    this.#chars += text.length;
    this.#lines += 1;
    if (this.#chars >= WRITE_CHARS) this.#flush();
  }

  /** All lines, block by block. @param order of SQL */
  async *sorted(duck: DuckDb, order: string, options: CallOptions = {}): AsyncGenerator<DuckRow[], void, void> {
    this.#flush();
    if (this.#lines === 0) return;
    const columns = Object.entries(this.#types).map(([name, type]) => `"${name}": '${String(type)}'`);
    const source = `read_json([${sqlText(this.#path)}], format = 'newline_delimited', auto_detect = false,
      maximum_object_size = ${LINE_BYTES_MAX}, columns = {${columns.join(', ')}})`;
    yield* duck.blocks(`SELECT * FROM ${source} ORDER BY ${order}`, options);
  }

  #flush(): void {
    try {
      appendFileSync(this.#path, this.#pending.join(''), { mode: FILE_MODE });
    } catch (error) {
      throw fileError(error, 'scratch folder');
    }
    this.#pending = [];
    this.#chars = 0;
  }
}
