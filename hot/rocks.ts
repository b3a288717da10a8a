/**
 * RocksDB, behind one file: the only place that imports the binding.
 *
 * The package `rocksdb` is an alias of a build of that binding which loads on Node 20, 22 and 24. What it promises and
 * what it does not (both measured): a write with `sync` is an fdatasync of the WAL before its callback; after a failed
 * write it goes on acknowledging, so callers must stop at the first error; iterators skip block checksums; nothing
 * limits a batch. Errors leave this file as `RocksError`, whose text is for people only.
 */
import { createRequire } from 'node:module';

type Opaque = { readonly opaque: unique symbol };
type Done = (error: Error | null) => void;

/** The binding's C functions that are used here. */
type Binding = {
  batch_init(db: Opaque): Opaque;
  batch_put(batch: Opaque, key: Uint8Array, value: Uint8Array): void;
  batch_del(batch: Opaque, key: Uint8Array): void;
  batch_write(batch: Opaque, options: { sync: boolean }, done: Done): void;
  db_get(db: Opaque, key: Uint8Array, options: object, done: (error: Error | null, value?: Buffer) => void): void;
  db_compact_range(db: Opaque, start: Uint8Array, end: Uint8Array, done: Done): void;
  iterator_init(db: Opaque, options: object): Opaque;
  db_get_property(db: Opaque, property: string): string;
  iterator_seek(iterator: Opaque, target: Uint8Array): void;
  iterator_next(iterator: Opaque, done: (error: Error | null, rows: Buffer[], finished: boolean) => void): void;
  iterator_end(iterator: Opaque, done: () => void): void;
};
type Database = {
  readonly context: Opaque;
  open(options: object, done: Done): void;
  close(done: Done): void;
};

const require = createRequire(import.meta.url);
const openDatabase = require('rocksdb') as (location: string) => Database;
const binding = require('rocksdb/binding') as Binding;

/** A file of the database, by the name it has beside the others. */
export type Table = { readonly name: string; readonly bytes: number };

export class RocksError extends Error {
  override readonly name = 'RocksError';
}

/** RocksDB's own words for a LOCK that another process (or another handle of this one) holds. */
export function isLockHeld(error: unknown): boolean {
  return error instanceof RocksError && /lock (hold|held)|While lock file|No locks available/i.test(error.message);
}

export type RocksOptions = {
  readonly readOnly: boolean;
  readonly createIfMissing: boolean;
  /** Memtable size in bytes; a WAL is about as large. */
  readonly writeBufferBytes: number;
};

export type Range = {
  readonly gte: Uint8Array;
  readonly lte: Uint8Array;
  readonly reverse?: boolean;
  /** Most bytes of a page. @default 1 MiB */
  readonly pageBytes?: number;
};

export type Row = readonly [key: Buffer, value: Buffer];

/** One atomic write. The bytes are copied when they are put. */
export class WriteBatch {
  readonly #batch: Opaque;

  constructor(db: Opaque) {
    this.#batch = binding.batch_init(db);
  }

  put(key: Uint8Array, value: Uint8Array): void {
    binding.batch_put(this.#batch, key, value);
  }

  del(key: Uint8Array): void {
    binding.batch_del(this.#batch, key);
  }

  /** With `sync`, `done(null)` means: an fdatasync that covers the batch has returned. */
  write(sync: boolean, done: Done): void {
    binding.batch_write(this.#batch, { sync }, done);
  }
}

export class Rocks {
  readonly #db: Database;
  readonly #cursors = new Set<Cursor>();
  readonly #refuges: Buffer[] = [];
  #abandoned = false;
  /** The binding crashes the process when it is asked after its close. */
  #closed = false;

  private constructor(db: Database) {
    this.#db = db;
  }

  /** @throws RocksError; see `isLockHeld`. */
  static async open(location: string, options: RocksOptions): Promise<Rocks> {
    const db = openDatabase(location);
    const settings = {
      readOnly: options.readOnly,
      createIfMissing: options.createIfMissing,
      writeBufferSize: options.writeBufferBytes,
      // Random text and base64 gain little, and the barrier is what counts.
      compression: false,
      infoLogLevel: null,
    };
    await new Promise<void>((resolve, reject) => {
      db.open(settings, (error) => (error ? reject(toRocksError(error)) : resolve()));
    });
    return new Rocks(db);
  }

  /** The caller's part of the hot path: no promise, no copy beyond the batch itself. */
  batch(): WriteBatch {
    return new WriteBatch(this.#db.context);
  }

  write(fill: (batch: WriteBatch) => void, sync: boolean): Promise<void> {
    if (this.#closed) return Promise.reject(closedError());
    const batch = this.batch();
    fill(batch);
    return new Promise((resolve, reject) => {
      batch.write(sync, (error) => (error ? reject(toRocksError(error)) : resolve()));
    });
  }

  get(key: Uint8Array): Promise<Buffer | undefined> {
    if (this.#closed) return Promise.reject(closedError());
    return new Promise((resolve, reject) => {
      binding.db_get(this.#db.context, key, { asBuffer: true, fillCache: false }, (error, value) => {
        if (error === null) {
          if (this.#refuges.length === 0) this.#refuges.push(Buffer.from(key));
          resolve(value);
        } else if (/notfound/i.test(error.message)) resolve(undefined);
        else reject(toRocksError(error));
      });
    });
  }

  /** Rows of a range in key order, page by page, on one snapshot taken at the first page. */
  async *pages(range: Range): AsyncGenerator<Row[]> {
    if (this.#closed) throw closedError();
    const cursor = new Cursor(this.#db.context, range, this.#refuges);
    this.#cursors.add(cursor);
    try {
      for (let finished = false; !finished; ) {
        const page = await cursor.next();
        finished = page.finished;
        if (page.rows.length > 0) yield page.rows;
      }
    } finally {
      // One that cannot be ended is kept: it forbids closing.
      if (await cursor.end()) this.#cursors.delete(cursor);
    }
  }

  compactRange(start: Uint8Array, end: Uint8Array): Promise<void> {
    if (this.#closed) return Promise.reject(closedError());
    return new Promise((resolve, reject) => {
      binding.db_compact_range(this.#db.context, start, end, (error) =>
        error ? reject(toRocksError(error)) : resolve(),
      );
    });
  }

  /** Table files that the database consists of, with the sizes that it expects. Reads none of them. */
  tables(): Table[] {
    const listing = binding.db_get_property(this.#db.context, 'rocksdb.sstables');
    return Array.from(listing.matchAll(/^ (\d+):(\d+)\[/gm), ([, number, bytes]) => ({
      name: `${(number as string).padStart(6, '0')}.sst`,
      bytes: Number(bytes),
    }));
  }

  /** A write never came back: closing would wait for it for ever. */
  abandon(): void {
    this.#abandoned = true;
  }

  /**
   * Ends open iterators first (their readers get a RocksError): the engine aborts the process when it is closed under
   * one. With an iterator that cannot be ended it stays open, and its lock is held, until the process ends.
   */
  async close(): Promise<void> {
    this.#closed = true;
    const ended = await Promise.all(Array.from(this.#cursors, (cursor) => cursor.end()));
    if (this.#abandoned || ended.includes(false)) {
      keepOpen(this.#db);
      return;
    }
    await new Promise<void>((resolve, reject) => {
      this.#db.close((error) => (error ? reject(toRocksError(error)) : resolve()));
    });
  }
}

const REFUGES_MAX = 16;

const keptOpen = new Set<Database>();

/**
 * The engine aborts the process when a database with a live iterator is destroyed: by the garbage collector, or when
 * Node takes its environment down at the end. So the handle is kept, and the process exits without taking it down.
 */
function keepOpen(db: Database): void {
  if (keptOpen.size === 0) {
    const self = process as unknown as { reallyExit(code: number): never };
    process.once('exit', (code) => self.reallyExit(code));
  }
  keptOpen.add(db);
}

class Cursor {
  readonly #iterator: Opaque;
  /** false: it cannot be ended. */
  #ended: Promise<boolean> | undefined;
  readonly #range: Range;
  /** Keys that were read, of each range the last one. */
  readonly #refuges: Buffer[];
  #lastKey: Buffer | undefined;

  constructor(db: Opaque, range: Range, refuges: Buffer[]) {
    this.#range = range;
    this.#refuges = refuges;
    this.#iterator = binding.iterator_init(db, {
      gte: range.gte,
      lte: range.lte,
      reverse: range.reverse === true,
      highWaterMark: range.pageBytes ?? 1024 * 1024,
      fillCache: false,
    });
  }

  next(): Promise<{ rows: Row[]; finished: boolean }> {
    if (this.#ended !== undefined) return Promise.reject(closedError());
    return new Promise((resolve, reject) => {
      binding.iterator_next(this.#iterator, (error, flat, finished) => {
        if (error) {
          this.#mend()
            .then(() => reject(toRocksError(error)))
            .catch(reject);
          return;
        }
        // The binding hands a page over back to front: value, key, value, key.
        const rows: Row[] = [];
        for (let i = flat.length - 1; i > 0; i -= 2) rows.push([flat[i] as Buffer, flat[i - 1] as Buffer]);
        this.#remember(rows.at(-1)?.[0]);
        resolve({ rows, finished });
      });
    });
  }

  #remember(key: Buffer | undefined): void {
    if (key === undefined) return;
    const at = this.#lastKey === undefined ? -1 : this.#refuges.lastIndexOf(this.#lastKey);
    if (at >= 0) this.#refuges.splice(at, 1);
    this.#refuges.push(key);
    if (this.#refuges.length > REFUGES_MAX) this.#refuges.shift();
    this.#lastKey = key;
  }

  /** false: it cannot be ended, and the database not closed. */
  end(): Promise<boolean> {
    this.#ended ??= new Promise<boolean>((resolve) => {
      binding.iterator_end(this.#iterator, () => resolve(true));
    });
    return this.#ended;
  }

  /**
   * After a failed read the binding takes the iterator for one that is still reading, and its end never comes. A read
   * that succeeds sets it right. Only a key of the range that was read before will do: for any other the binding may
   * step on from a place that is none, and the engine aborts the process.
   */
  async #mend(): Promise<void> {
    const { gte, lte } = this.#range;
    const refuge = this.#refuges.findLast((key) => Buffer.compare(key, gte) >= 0 && Buffer.compare(key, lte) <= 0);
    if (refuge !== undefined) {
      binding.iterator_seek(this.#iterator, refuge);
      const isMended = await new Promise<boolean>((resolve) => {
        binding.iterator_next(this.#iterator, (error) => resolve(!error));
      });
      if (isMended) return;
    }
    this.#ended = Promise.resolve(false);
  }
}

function closedError(): RocksError {
  return new RocksError('the database was closed under this reader');
}

function toRocksError(error: Error): RocksError {
  return new RocksError(error.message, { cause: error });
}

export function isRocksError(error: unknown): error is RocksError {
  return error instanceof RocksError;
}
