/**
 * Notes of more things than memory may hold, in scratch files: taken in any order, given back so that those with one key
 * come together.
 *
 * They go into one of 256 files by a hash of their key, and come back file by file, each sorted in memory: so 25 million
 * notes take what a hundred thousand do. (DuckDB's own sort of a gigabyte does not fit into 128 MiB.)
 */
import { appendFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { refuseAborted } from './body.ts';
import { errnoOf, FILE_MODE, fileError } from './files.ts';
import type { CallOptions } from './object-store.ts';

const FILES = 256;
/** Of all files together; then they are written. */
const PENDING_CHARS = 4 * 1024 * 1024;

export class Ledger<Note extends object> {
  readonly #prefix: string;
  readonly #keyOf: (note: Note) => string;
  readonly #pending: string[][] = Array.from({ length: FILES }, () => []);
  #pendingChars = 0;
  #notes = 0;

  /** @param name of its files, of which none is there yet, in a folder of the caller's, who removes it */
  constructor(folder: string, name: string, keyOf: (note: Note) => string) {
    this.#prefix = join(folder, name);
    this.#keyOf = keyOf;
  }

  get notes(): number {
    return this.#notes;
  }

  /** @throws VarveError STORE_FULL and others: the scratch folder failed */
  add(note: Note): void {
    const text = `${JSON.stringify(note)}\n`;
    this.#pending[fileOf(this.#keyOf(note))]?.push(text);
    this.#pendingChars += text.length;
    this.#notes += 1;
    if (this.#pendingChars >= PENDING_CHARS) this.#flush();
  }

  /** Every note once, in blocks: all with one key are in one block, which is sorted. */
  async *sorted(compare: (a: Note, b: Note) => number, options: CallOptions = {}): AsyncGenerator<Note[], void, void> {
    this.#flush();
    for (let file = 0; file < FILES; file++) {
      refuseAborted(options.signal);
      const notes = await this.#read(file);
      if (notes.length > 0) yield notes.toSorted(compare);
    }
  }

  async #read(file: number): Promise<Note[]> {
    try {
      const text = await readFile(this.#pathOf(file), 'utf8');
      return text
        .split('\n')
        .slice(0, -1)
        .map((line) => JSON.parse(line) as Note);
    } catch (error) {
      if (errnoOf(error) === 'ENOENT') return [];
      throw fileError(error, 'scratch folder');
    }
  }

  #flush(): void {
    try {
      for (const [file, texts] of this.#pending.entries()) {
        if (texts.length > 0) appendFileSync(this.#pathOf(file), texts.join(''), { mode: FILE_MODE });
        texts.length = 0;
      }
    } catch (error) {
      throw fileError(error, 'scratch folder');
    }
    this.#pendingChars = 0;
  }

  #pathOf(file: number): string {
    return `${this.#prefix}-${file}.ndjson`;
  }
}

/** FNV-1a over the key's characters. */
function fileOf(key: string): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < key.length; i++) hash = Math.imul(hash ^ key.charCodeAt(i), 0x01000193);
  return (hash ^ (hash >>> 15)) & (FILES - 1);
}
