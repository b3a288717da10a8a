/**
 * Queries over one snapshot of the events table and its derived files, by DuckDB: SQL of users, which may read the views
 * of `query-sql.ts` and nothing else.
 *
 * Every view reads an explicit list of files that the snapshot names; a file that is not there is an error, never fewer
 * rows. Files of a `file:` store are read where they lie; objects of other stores are taken through the cache
 * (`object-cache.ts`) when a query first names their view, and stay in use until `close`.
 *
 * DuckDB is confined to those files and to its folder for spilling, so no SQL can read or write anything else; and only
 * one statement that reads is taken, so none can write those either.
 */
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { type CellBlock, DuckDb, safeNumber, sqlText } from './duckdb.ts';
import { errnoOf, fileError } from './files.ts';
import { CacheUser } from './object-cache.ts';
import type { CallOptions, ObjectStore } from './object-store.ts';
import { type FiledView, type FileFilter, filesOf, type QueryFile, type QueryFiles } from './query-files.ts';
import { type Locations, unloadedView, viewSql, viewsScript } from './query-sql.ts';
import { type SnapshotAt, TableLog } from './table-log.ts';
import type { Snapshot } from './table-log-plan.ts';

export type ColdQueryOptions = CallOptions & {
  /** Folder for spilling and for objects that are not local. */
  readonly cacheDirectory: string;
  /** Most bytes of such objects. */
  readonly cacheBytes: number;
  /** What DuckDB may hold, in bytes; then it spills. @default 256 MiB */
  readonly memoryLimitBytes?: number | undefined;
  /** @default 1 */
  readonly threads?: number | undefined;
  /** @default the newest version */
  readonly at?: SnapshotAt | undefined;
  /** @default all files */
  readonly filter?: FileFilter | undefined;
  /** Absolute paths that `copy` may write. @default none */
  readonly outputs?: readonly string[] | undefined;
};

export type ExportCompression = 'zstd' | 'snappy' | 'gzip';

const FILED: readonly FiledView[] = ['events', 'trajectories', 'imports'];
/**
 * Rows in a row group of an export: the writer holds one for each thread. Where memory is too small for the first, the
 * next is tried: 1,600 rows of 900 KiB go through 256 MiB in groups of 16.
 */
const ROW_GROUPS = [10_240, 512, 16] as const;
/** Files that are looked for at once. */
const LOOKS = 64;

export class ColdQuery implements AsyncDisposable {
  /** What the snapshot and the filter name. */
  readonly files: QueryFiles;
  readonly #store: ObjectStore;
  readonly #cache: CacheUser;
  readonly #duck: DuckDb;
  readonly #loaded = new Set<FiledView>();

  private constructor(store: ObjectStore, files: QueryFiles, cache: CacheUser, duck: DuckDb) {
    this.#store = store;
    this.files = files;
    this.#cache = cache;
    this.#duck = duck;
  }

  /**
   * The snapshot is read, no data file yet. The store is not closed with it.
   * @throws VarveError COLD_NO_TABLE, COLD_NO_VERSION, COLD_LOG_INVALID, COLD_TABLE_NEWER
   */
  static async open(store: ObjectStore, options: ColdQueryOptions): Promise<ColdQuery> {
    const { cacheDirectory, cacheBytes, memoryLimitBytes, threads, filter, outputs = [] } = options;
    const cache = await CacheUser.open(cacheDirectory, cacheBytes);
    try {
      const files = filesOf(await snapshotOf(store, cache.spillDir, options), filter);
      const local = isLocal(store) ? FILED.flatMap((view) => files[view].map(({ key }) => locationOf(store, key))) : [];
      const duck = await DuckDb.open({
        tempDir: cache.spillDir,
        memoryLimitBytes,
        threads,
        confinedTo: { files: [...local, ...outputs], folders: isLocal(store) ? [] : [`${cache.folder}/`] },
      });
      const query = new ColdQuery(store, files, cache, duck);
      await duck.run(viewSql('annotations', []));
      for (const view of FILED) await duck.run(files[view].length === 0 ? viewSql(view, []) : unloadedView(view));
      return query;
    } catch (error) {
      await cache.close();
      throw error;
    }
  }

  /**
   * Resolves when every file is there that the SQL may need. `run` and `copy` do it first; after an error that a retry
   * can mend it may be called again, and they not.
   * @throws VarveError STORE_MISSING, naming the file; those of the cache
   */
  async prepare(sql: string, options: CallOptions = {}): Promise<void> {
    for (const view of FILED) {
      if (!this.#loaded.has(view) && isNamed(view, sql)) await this.#load(view, options);
    }
  }

  /**
   * The rows, in blocks; the first one is there also where there are none. One query at a time.
   * @throws VarveError COLD_QUERY_REFUSED: not one statement that reads, or wrong, in DuckDB's own words
   */
  async *run(sql: string, options: CallOptions = {}): AsyncGenerator<CellBlock, void> {
    await this.prepare(sql, options);
    const blocks = this.#duck.readingBlocks(sql, options);
    try {
      for (;;) {
        const next = await this.#inTermsOfFiles(() => blocks.next());
        if (next.done === true) return;
        yield next.value;
      }
    } finally {
      await blocks.return();
    }
  }

  /**
   * Writes the rows as Parquet to one of the `outputs`; how many, when the file is whole. It is not yet durable.
   * @throws VarveError COLD_OUT_OF_MEMORY: also in the smallest row groups; a sort of large payloads may need it all
   */
  async copy(sql: string, path: string, compression: ExportCompression, options: CallOptions = {}): Promise<number> {
    await this.prepare(sql, options);
    await this.#inTermsOfFiles(() => this.#duck.requireReading(sql, options));
    const source = await this.#asSubquery(sql, options);
    const copy = async ([rows, ...smaller]: readonly [number, ...number[]]): Promise<number> => {
      const format = `FORMAT parquet, COMPRESSION ${compression}, PARQUET_VERSION v1, ROW_GROUP_SIZE ${rows}, USE_TMP_FILE false`;
      const statement = `COPY (SELECT * FROM (\n${source}\n)) TO ${sqlText(path)} (${format})`;
      try {
        const [row] = await this.#inTermsOfFiles(() => this.#duck.rows(statement, { ...options, ofUser: true }));
        return safeNumber(row?.['Count']);
      } catch (error) {
        const [next, ...rest] = smaller;
        if (next === undefined || !isVarveError(error, 'COLD_OUT_OF_MEMORY')) throw error;
        return await copy([next, ...rest]);
      }
    };
    return await copy(ROW_GROUPS);
  }

  /** SQL after which another DuckDB sees the same views, by the store's own paths or URLs. */
  script(): string {
    return viewsScript(this.files, this.locations());
  }

  /** Where the files of each view lie: paths of a `file:` store, URLs of others. */
  locations(): Locations {
    const of = (view: FiledView) => this.files[view].map(({ key }) => locationOf(this.#store, key));
    return { events: of('events'), trajectories: of('trajectories'), imports: of('imports') };
  }

  /** Idempotent. */
  async close(): Promise<void> {
    await this.#duck.close();
    await this.#cache.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #load(view: FiledView, options: CallOptions): Promise<void> {
    const files = this.files[view];
    if (isLocal(this.#store)) await this.#requireThere(view);
    else await this.#named(() => this.#cache.take(this.#store, files, options));
    const paths = files.map((file) =>
      isLocal(this.#store) ? locationOf(this.#store, file.key) : this.#cache.pathOf(file),
    );
    await this.#duck.run(viewSql(view, paths), options);
    this.#loaded.add(view);
  }

  /** Of a `file:` store. */
  async #requireThere(view: FiledView): Promise<void> {
    const files = this.files[view];
    for (let i = 0; i < files.length; i += LOOKS) {
      await Promise.all(files.slice(i, i + LOOKS).map((file) => this.#requireFile(file)));
    }
  }

  async #requireFile({ key, bytes }: QueryFile): Promise<void> {
    const status = await stat(locationOf(this.#store, key)).catch((error: unknown) => {
      if (errnoOf(error) === 'ENOENT') throw this.#missing(key);
      throw fileError(error, key);
    });
    if (status.size === (bytes ?? status.size)) return;
    throw new VarveError('COLD_FILE_DIFFERS', `${key} has ${status.size} bytes and the table log says ${bytes}`, {
      key,
    });
  }

  async #named<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      const key = isVarveError(error, 'STORE_MISSING') ? error.details['key'] : undefined;
      throw typeof key === 'string' ? this.#missing(key, error) : error;
    }
  }

  #missing(key: string, cause?: unknown): VarveError {
    const { version } = this.files;
    const text = `${key} is not in the store any more; version ${version} of the table names it. Ask for a newer version (--at), or for tenants and days without it`;
    return new VarveError('STORE_MISSING', text, { key, version }, cause);
  }

  /** A file that went while it was being read is named as what it is: gone. */
  async #inTermsOfFiles<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      // Where a file is not, DuckDB looks for a folder of that name, which it may not.
      const isOfFiles = isVarveError(error, 'COLD_FILE_UNREADABLE') || isForbidden(error);
      if (isOfFiles && isLocal(this.#store)) {
        for (const view of this.#loaded) await this.#requireThere(view);
      }
      throw error;
    }
  }

  /** Without the semicolon that may end a statement, and what may follow it. */
  async #asSubquery(sql: string, options: CallOptions): Promise<string> {
    const bare = sql.replace(/;(?:\s|;|--[^\n]*(?:\n|$)|\/\*[^*]*\*\/)*$/, '');
    // What looks like that end may stand in a text: then nothing is a statement any more.
    const isWhole = await this.#duck.requireReading(bare, options).then(
      () => true,
      () => false,
    );
    return isWhole ? bare : sql;
  }
}

async function snapshotOf(store: ObjectStore, scratchDir: string, { at, signal }: ColdQueryOptions): Promise<Snapshot> {
  await using duck = await DuckDb.open({ tempDir: scratchDir });
  const log = await TableLog.open(store, { duck, scratchDir, signal });
  if (at === undefined) return await log.snapshot({ signal });
  return await log.snapshotAt(at, { signal }).catch((error: unknown) => {
    if (at.timeMs === undefined || !isVarveError(error, 'COLD_NO_VERSION')) throw error;
    const text = `the table is younger than ${new Date(at.timeMs).toISOString()}`;
    throw new VarveError('COLD_NO_VERSION', text, error.details, error);
  });
}

/** May the text read the view? A name that only a comment or a column has costs a download; it cannot be the other way. */
function isNamed(view: FiledView, sql: string): boolean {
  return sql.toLowerCase().includes(view);
}

function isForbidden(error: unknown): boolean {
  return isVarveError(error, 'COLD_QUERY_REFUSED') && error.details['kind'] === 'Permission Error';
}

function isLocal(store: ObjectStore): boolean {
  return store.url.startsWith('file:');
}

function locationOf(store: ObjectStore, key: string): string {
  return isLocal(store) ? join(fileURLToPath(store.url), key) : `${store.url}${key}`;
}
