/**
 * DuckDB, behind one file (and `duckdb-cells.ts`, for values of any type): nothing else imports the binding.
 *
 * An instance lives in memory, beside files that it is told to read and write. It never loads or installs an extension,
 * spills to a folder of its caller, and keeps its settings. Time is UTC. The order in which rows are read is the order
 * in which they are written, whatever the number of threads.
 *
 * Values: BIGINT and wider integers are bigint (`safeNumber` makes a number of one, or throws); TIMESTAMPTZ and DATE are
 * Date, exact to the millisecond; lists are arrays, structs objects, BLOBs Uint8Array.
 *
 * Errors leave as VarveErrors. DuckDB's own text may quote what a file holds, so it is only their `cause`; but for SQL
 * of users, who wrote it and may read what it reads.
 */
import type {
  DuckDBConnection,
  DuckDBDataChunk,
  DuckDBInstance,
  DuckDBPreparedStatement,
  DuckDBResult,
  JS,
} from '@duckdb/node-api';
import { type ErrorCode, VarveError } from '../schemas/errors.ts';
import { MIB } from '../schemas/limits.ts';
import { refuseAborted } from './body.ts';
import { type Cell, CellReader } from './duckdb-cells.ts';
import { makeFolder, scratchError } from './files.ts';

export type DuckDbOptions = {
  /** Folder for what does not fit into memory. Made where it is missing. */
  readonly tempDir: string;
  /**
   * What DuckDB may hold, in bytes; then it spills, or COLD_OUT_OF_MEMORY. The process takes more: allocators keep what
   * was freed. @default 256 MiB
   */
  readonly memoryLimitBytes?: number | undefined;
  /** More than one makes scans faster and files no longer reproducible. @default 1 */
  readonly threads?: number | undefined;
  /** The only files and folders that statements may name, but for what is spilled. @default all */
  readonly confinedTo?: { readonly files: readonly string[]; readonly folders: readonly string[] } | undefined;
};

export type DuckValue = JS;
export type DuckRow = { readonly [column: string]: DuckValue };
export type DuckParameter = string | number | bigint | boolean | null;

export type QueryOptions = {
  readonly values?: readonly DuckParameter[] | undefined;
  /** Interrupts the statement. */
  readonly signal?: AbortSignal | undefined;
  /** The SQL is a user's: what DuckDB says against it is COLD_QUERY_REFUSED, in DuckDB's words. @default false */
  readonly ofUser?: boolean | undefined;
};

export type ResultColumn = {
  readonly name: string;
  /** As DuckDB writes it. */
  readonly type: string;
};

/** Some rows of a result. */
export type CellBlock = {
  readonly columns: readonly ResultColumn[];
  readonly rows: number;
  /** Row by row, made as they are asked for; once. */
  readonly cells: () => Generator<Cell[], void>;
};

/** An instance, or a way to one that is taken when it is needed, and may be taken again. */
export type DuckSource = DuckDb | (() => Promise<DuckDb>);

const INTERRUPT_EVERY_MS = 20;
const DEFAULTS = { memoryLimitBytes: 256 * MIB, threads: 1 } as const;

export class DuckDb implements AsyncDisposable {
  readonly #instance: DuckDBInstance;
  readonly #connection: DuckDBConnection;
  #closed = false;
  /** Statements run one after the other: an interrupt would hit whichever is under way. */
  #last: Promise<unknown> = Promise.resolve();

  private constructor(instance: DuckDBInstance, connection: DuckDBConnection) {
    this.#instance = instance;
    this.#connection = connection;
  }

  /** @throws VarveError COLD_SQL: an option that DuckDB does not take */
  static async open(options: DuckDbOptions): Promise<DuckDb> {
    const memoryLimitBytes = options.memoryLimitBytes ?? DEFAULTS.memoryLimitBytes;
    try {
      // For its owner alone: what is spilled are payloads.
      await makeFolder(options.tempDir).catch((error: unknown) => {
        throw scratchError(error);
      });
      // Loaded when it is needed: the binding takes 30 MB of memory, which most commands do without.
      const { DuckDBInstance } = await import('@duckdb/node-api');
      const instance = await DuckDBInstance.create(':memory:', {
        autoinstall_known_extensions: 'false',
        autoload_known_extensions: 'false',
        allow_community_extensions: 'false',
        memory_limit: `${Math.floor(memoryLimitBytes / 1024)}KiB`,
        threads: String(options.threads ?? DEFAULTS.threads),
        temp_directory: options.tempDir,
        preserve_insertion_order: 'true',
      });
      const connection = await instance.connect();
      await connection.run(settingsOf(options));
      return new DuckDb(instance, connection);
    } catch (error) {
      throw coldError(error);
    }
  }

  /** What a COPY writes is in its file when this resolves, but not yet durable. */
  async run(sql: string, options: QueryOptions = {}): Promise<void> {
    await this.#exclusively(options, async (values) => {
      await this.#connection.run(sql, values);
    });
  }

  /** All rows at once. */
  async rows<Row extends DuckRow = DuckRow>(sql: string, options: QueryOptions = {}): Promise<Row[]> {
    return await this.#exclusively(options, async (values) => {
      const reader = await this.#connection.runAndReadAll(sql, values);
      return reader.getRowObjectsJS() as unknown as Row[];
    });
  }

  /** The rows in blocks of at most 2,048, as DuckDB makes them. No other statement runs until it ends. */
  async *blocks<Row extends DuckRow = DuckRow>(sql: string, options: QueryOptions = {}): AsyncGenerator<Row[], void> {
    const turn = this.#takeTurn();
    await turn.before;
    try {
      const result = await this.#guarded(options, (values) => this.#connection.stream(sql, values));
      const blocks = result.yieldRowObjectJs();
      for (;;) {
        const next = await this.#guarded(options, () => blocks.next());
        if (next.done === true) return;
        yield next.value as unknown as Row[];
      }
    } finally {
      turn.end();
    }
  }

  /** The rows as texts. The first block is there also where the result is empty. */
  cellBlocks(sql: string, options: QueryOptions = {}): AsyncGenerator<CellBlock, void> {
    return this.#cellBlocks(options, (values) => this.#connection.stream(sql, values));
  }

  /**
   * The same for SQL of a user: one statement that reads, which is SELECT and its kin, or EXPLAIN of one.
   * @throws VarveError COLD_QUERY_REFUSED
   */
  readingBlocks(sql: string, options: QueryOptions = {}): AsyncGenerator<CellBlock, void> {
    return this.#cellBlocks({ ...options, ofUser: true }, async () => await (await this.#prepareReading(sql)).stream());
  }

  /** Resolves if `readingBlocks` takes it. @throws VarveError COLD_QUERY_REFUSED */
  async requireReading(sql: string, options: QueryOptions = {}): Promise<void> {
    await this.#exclusively({ ...options, ofUser: true }, () => this.#prepareReading(sql));
  }

  async #prepareReading(sql: string): Promise<DuckDBPreparedStatement> {
    const statements = await this.#connection.extractStatements(sql);
    const only = statements.count === 1 ? await statements.prepare(0) : undefined;
    const { StatementType } = await import('@duckdb/node-api');
    if (only?.statementType === StatementType.SELECT) return only;
    // EXPLAIN ANALYZE runs what it explains.
    const explained = only?.statementType === StatementType.EXPLAIN ? EXPLAIN.exec(sql)?.[1] : undefined;
    if (only !== undefined && explained !== undefined) {
      await this.#prepareReading(explained);
      return only;
    }
    const text = 'one statement that reads is needed: a SELECT (in a PIVOT, name the values: ON column IN (…))';
    throw new VarveError('COLD_QUERY_REFUSED', text);
  }

  async *#cellBlocks(
    options: QueryOptions,
    start: (values: DuckParameter[]) => Promise<DuckDBResult>,
  ): AsyncGenerator<CellBlock, void> {
    const turn = this.#takeTurn();
    await turn.before;
    try {
      const result = await this.#guarded(options, start);
      const reader = new CellReader(await import('@duckdb/node-api'));
      // Names that differ, for rows that become objects.
      const types = result.columnTypes();
      const columns = result.deduplicatedColumnNames().map((name, i) => ({ name, type: String(types[i]) }));
      let chunk = await this.#guarded(options, () => result.fetchChunk());
      yield blockOf(columns, chunk, reader);
      while (chunk !== null && chunk.rowCount > 0) {
        chunk = await this.#guarded(options, () => result.fetchChunk());
        if (chunk !== null && chunk.rowCount > 0) yield blockOf(columns, chunk, reader);
      }
    } finally {
      turn.end();
    }
  }

  /** Idempotent. Waits for the statement under way. */
  async close(): Promise<void> {
    const turn = this.#takeTurn();
    await turn.before;
    if (!this.#closed) {
      this.#closed = true;
      this.#connection.closeSync();
      this.#instance.closeSync();
    }
    turn.end();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #exclusively<T>(options: QueryOptions, work: (values: DuckParameter[]) => Promise<T>): Promise<T> {
    const turn = this.#takeTurn();
    await turn.before;
    try {
      return await this.#guarded(options, work);
    } finally {
      turn.end();
    }
  }

  async #guarded<T>(options: QueryOptions, work: (values: DuckParameter[]) => Promise<T>): Promise<T> {
    const { signal, values = [] } = options;
    refuseAborted(signal);
    if (this.#closed) throw new VarveError('COLD_CLOSED', 'this instance of DuckDB is closed');
    const end = this.#interruptOnAbort(signal);
    try {
      return await work([...values]);
    } catch (error) {
      refuseAborted(signal);
      throw coldError(error, options.ofUser);
    } finally {
      end();
    }
  }

  /** Until the returned function is called. */
  #interruptOnAbort(signal: AbortSignal | undefined): () => void {
    let timer: NodeJS.Timeout | undefined;
    // Again and again: an interrupt before the statement runs is lost.
    const interrupt = () => {
      timer ??= setInterval(interrupt, INTERRUPT_EVERY_MS);
      this.#connection.interrupt();
    };
    signal?.addEventListener('abort', interrupt, { once: true });
    return () => {
      signal?.removeEventListener('abort', interrupt);
      clearInterval(timer);
    };
  }

  #takeTurn(): { readonly before: Promise<unknown>; readonly end: () => void } {
    const before = this.#last;
    let end: () => void = () => undefined;
    this.#last = new Promise<void>((resolve) => {
      end = resolve;
    });
    return { before, end };
  }
}

/** A text as a literal of SQL: for COPY and table functions, which take no parameters. */
export function sqlText(text: string): string {
  if (text.includes('\0')) throw new VarveError('INVALID_OPTION', 'a literal of SQL cannot hold U+0000');
  return `'${text.replaceAll("'", "''")}'`;
}

/** A file's path as a literal of SQL, where DuckDB would read a pattern: brackets make a character stand for itself. */
export function sqlFile(path: string): string {
  return sqlText(path.replaceAll(/[[*?]/g, '[$&]'));
}

/** A 64-bit integer as a number. @throws VarveError COLD_FILE_DIFFERS past 2^53 − 1, where it would be another one */
export function safeNumber(value: DuckValue | undefined): number {
  const number = typeof value === 'bigint' ? Number(value) : value;
  if (typeof number === 'number' && Number.isSafeInteger(number)) return number;
  throw new VarveError('COLD_FILE_DIFFERS', `an integer up to 2^53 − 1 was expected, not a ${typeof value}`);
}

/** DuckDB names the kind of an error only in its text; this table is all that reads it. */
const KINDS: readonly (readonly [RegExp, ErrorCode, string])[] = [
  [/No space left on device|failed to offload|max_temp_directory_size/i, 'COLD_DISK_FULL', 'the disk is full'],
  [/^Out of Memory Error/, 'COLD_OUT_OF_MEMORY', 'the memory limit is too small for this'],
  [/^IO Error|^Permission Error|too small to be a Parquet|No magic bytes/, 'COLD_FILE_UNREADABLE', 'a file'],
  [/^(INTERNAL|FATAL) Error/, 'COLD_ENGINE_FAILED', 'DuckDB failed in itself'],
];

const ANY_OTHER = [/(?:)/, 'COLD_SQL', 'refused'] as const;

const EXPLAIN = /^\s*EXPLAIN(?:\s+ANALYZE)?\s+(?!ANALYZE\b)(.*)$/is;

function coldError(error: unknown, ofUser = false): unknown {
  if (!(error instanceof Error) || error instanceof VarveError) return error;
  const kind = /^(?:Failed to extract statements: )?([A-Za-z ]+ Error):/.exec(error.message)?.[1] ?? 'error';
  const [, code, text] = KINDS.find(([pattern]) => pattern.test(error.message)) ?? ANY_OTHER;
  if (ofUser && isOfSql(kind, code)) return new VarveError('COLD_QUERY_REFUSED', wordsOf(error), { kind }, error);
  // The first line of an IO error names the file and the reason, and nothing of its content.
  const more = kind === 'IO Error' ? `: ${(error.message.split('\n')[0] as string).slice(0, 400)}` : '';
  return new VarveError(code, `DuckDB, ${kind}: ${text}${more}`, { kind }, error);
}

/** Is it the SQL that is wrong, and not a file, the disk, the memory or DuckDB? */
function isOfSql(kind: string, code: ErrorCode): boolean {
  return code === 'COLD_SQL' || kind === 'Permission Error';
}

function wordsOf({ message }: Error): string {
  // Of a text without a statement the binding says nothing that helps.
  if (message === 'Error in native callback') return 'there is no statement in it';
  return message.replace(/^Failed to extract statements: /, '');
}

function settingsOf({ confinedTo }: DuckDbOptions): string {
  const settings = ["SET TimeZone = 'UTC'"];
  if (confinedTo !== undefined) {
    const { files, folders } = confinedTo;
    settings.push(
      `SET allowed_paths = ${allowedList(files)}`,
      `SET allowed_directories = ${allowedList(folders)}`,
      // These files never change under their names, and a statement is bound before it is run.
      'SET parquet_metadata_cache = true',
      'SET enable_external_access = false',
    );
  }
  return [...settings, 'SET lock_configuration = true'].join('; ');
}

/** DuckDB asks for the pattern of a path as well as for the path. */
function allowedList(paths: readonly string[]): string {
  const texts = paths.flatMap((path) => [sqlText(path), sqlFile(path)]);
  return `[${[...new Set(texts)].join(', ')}]`;
}

function blockOf(columns: readonly ResultColumn[], chunk: DuckDBDataChunk | null, reader: CellReader): CellBlock {
  return {
    columns,
    rows: chunk?.rowCount ?? 0,
    *cells() {
      for (let i = 0; i < (chunk?.rowCount ?? 0); i++) {
        yield (chunk as DuckDBDataChunk).getRowValues(i).map((value) => reader.cellOf(value));
      }
    },
  };
}
