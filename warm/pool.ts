/**
 * Connections to PostgreSQL, behind one file: the only place of this tier that imports `pg` and what belongs to it.
 *
 * Nothing here retries. Every error leaves as a VarveError (warm/sqlstate.ts). A connection that dies, idle or lent,
 * never ends the process: who uses it gets WARM_UNAVAILABLE, an idle one is replaced and counted.
 *
 * What rows hold: warm/values.ts. A Buffer among the values is sent in binary format, as bytea or whatever the statement
 * casts it to; everything else goes as text.
 */
import type { Socket } from 'node:net';
import { Client, type ClientBase, DatabaseError, Pool, type PoolConfig, type QueryResult, types } from 'pg';
import { to as copyTo } from 'pg-copy-streams';
import { type ErrorCode, invariant, VarveError } from '../schemas/errors.ts';
import { MAJOR_MIN } from './binaries.ts';
import { type CopiedRow, copiedRows } from './copy-out.ts';
import { fromServerError } from './sqlstate.ts';
import { PARSERS } from './values.ts';

export type PoolOptions = {
  /** Most connections. @default 8 */
  readonly max?: number;
  /** Longest a statement may run, in milliseconds; then WARM_TIMEOUT. 0: for ever. @default 60000 */
  readonly statementTimeoutMs?: number;
  /** Longest a statement may wait for a lock, in milliseconds; then WARM_LOCKED. 0: for ever. @default 10000 */
  readonly lockTimeoutMs?: number;
  /** Longest wait for a connection, new or free, in milliseconds; then WARM_UNAVAILABLE. @default 10000 */
  readonly connectTimeoutMs?: number;
  /** What pg_stat_activity shows. @default 'varve' */
  readonly applicationName?: string;
};

export type Value = string | number | bigint | boolean | null | Buffer | readonly Value[];

/** A prepared statement. Its name is unique; list its columns, since `*` breaks it when a migration adds one. */
export type Statement<Row> = { readonly name: string; readonly text: string; readonly row?: Row };

export type Tx = Pick<Session, 'query' | 'execute' | 'exec'>;

type Settings = Required<PoolOptions>;

const DEFAULTS = {
  max: 8,
  statementTimeoutMs: 60_000,
  lockTimeoutMs: 10_000,
  connectTimeoutMs: 10_000,
  applicationName: 'varve',
} as const satisfies Settings;

/** PostgreSQL cuts longer names, and two could become one. */
const NAME_BYTES_MAX = 63;
const KEEP_ALIVE_MS = 10_000;
/** How long the server keeps the locks of a client that sleeps inside a transaction. */
const IDLE_IN_TRANSACTION_MS = 60_000;
/** The server ends a slow statement; this much later the client takes the server for gone. */
const SILENCE_MS = 5_000;
const LEAST = { max: 1, statementTimeoutMs: 0, lockTimeoutMs: 0, connectTimeoutMs: 1 } as const;
/** Where PostgreSQL's settings and Node's timers end. */
const OPTION_MAX = 2 ** 31 - 1 - SILENCE_MS;

/** After these a connection is gone, of unknown state, or leads to a server that is no longer the right one. */
const BREAKING: ReadonlySet<ErrorCode> = new Set(['WARM_UNAVAILABLE', 'WARM_OUTCOME_UNKNOWN', 'WARM_READ_ONLY']);

export function statement<Row = never>(name: string, text: string): Statement<Row> {
  invariant(Buffer.byteLength(name) <= NAME_BYTES_MAX, `the statement's name ${name} is too long`);
  return { name, text };
}

const isSetUp = new WeakSet<ClientBase>();

/** One connection, while it is lent. */
export class Session {
  readonly #client: ClientBase;
  #broken = false;

  constructor(client: ClientBase) {
    this.#client = client;
  }

  /** It must not be lent again. */
  get broken(): boolean {
    return this.#broken;
  }

  async query<Row>(what: Statement<Row>, values: readonly Value[] = []): Promise<Row[]> {
    return (await this.#send(what, values)).rows as Row[];
  }

  /** Resolves to the number of rows that it touched. */
  async execute(what: Statement<never>, values: readonly Value[] = []): Promise<number> {
    return (await this.#send(what, values)).rowCount ?? 0;
  }

  /** Text as it is, also several statements; nothing of it is prepared. For migrations, DDL and settings. */
  async exec(text: string, doing = 'exec'): Promise<void> {
    await this.#run(doing, () => this.#client.query(text));
  }

  /**
   * What every session relies on, whatever the role's and the database's defaults are; once per connection. What is
   * acknowledged upstream counts on a commit that is on disk; where commits promise more than that, they still do.
   */
  async setUp(settings: Settings): Promise<void> {
    if (isSetUp.has(this.#client)) return;
    const text = `
      SET TIME ZONE 'UTC'; SET datestyle = 'ISO, YMD'; SET bytea_output = 'hex';
      SET statement_timeout = ${settings.statementTimeoutMs}; SET lock_timeout = ${settings.lockTimeoutMs};
      SET idle_in_transaction_session_timeout = ${IDLE_IN_TRANSACTION_MS};
      SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3;
      SET tcp_user_timeout = 30000;
      SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'`;
    await this.exec(text, 'set up a session');
    isSetUp.add(this.#client);
  }

  /** BEGIN, `work`, COMMIT; see the function `transaction`. */
  async transaction<T>(work: (tx: Tx) => Promise<T>): Promise<T> {
    await this.exec('BEGIN', 'begin');
    let result: T;
    try {
      result = await work(this);
    } catch (error) {
      // A broken connection's transaction is rolled back by the server, and the first error is the one that counts.
      if (!this.#broken) await this.exec('ROLLBACK', 'rollback').catch(() => undefined);
      throw error;
    }
    const answer = await this.#run('commit', () => this.#client.query('COMMIT'), 'WARM_OUTCOME_UNKNOWN');
    // PostgreSQL answers COMMIT of a failed transaction with success, and rolls back.
    invariant(answer.command === 'COMMIT', 'a failed transaction was committed: somebody swallowed its error');
    return result;
  }

  async #send({ name, text }: Statement<unknown>, values: readonly Value[]): Promise<QueryResult> {
    return await this.#run(name, () => this.#client.query({ name, text, values: values as Value[] }));
  }

  async #run<T>(doing: string, send: () => Promise<T>, ifLost: ErrorCode = 'WARM_UNAVAILABLE'): Promise<T> {
    try {
      return await send();
    } catch (error) {
      const refusal = fromDriver(error, doing, ifLost);
      this.#broken ||= BREAKING.has(refusal.code);
      throw refusal;
    }
  }
}

export class WarmPool {
  /** Host, port and database, for people. Never the password. */
  readonly server: string;
  readonly #config: PoolConfig;
  readonly #settings: Settings;
  readonly #pool: Pool;
  #lost = 0;
  #closed: Promise<void> | undefined;

  /** For `openPool`, which also sees that there is a server. @throws what the driver thinks of the URL */
  constructor(config: PoolConfig, settings: Settings) {
    const { host, port, database } = new Client(config);
    this.server = `${host}:${port}/${database}`;
    this.#config = config;
    this.#settings = settings;
    this.#pool = new Pool({ ...config, max: settings.max });
    this.#pool.on('error', () => (this.#lost += 1));
  }

  /** `lost`: idle connections that have died so far. */
  get counts(): { open: number; idle: number; waiting: number; lost: number } {
    const { totalCount, idleCount, waitingCount } = this.#pool;
    return { open: totalCount, idle: idleCount, waiting: waitingCount, lost: this.#lost };
  }

  /** Lends a connection while `work` runs. Outside a transaction a lost connection leaves open what took place. */
  async lend<T>(work: (session: Session) => Promise<T>): Promise<T> {
    this.#refuseClosed();
    const client = await this.#pool.connect().catch((error: unknown) => {
      throw fromDriver(error, `connect to ${this.server}`);
    });
    // The driver's pool listens only while a connection is idle; unheard, its error would end the process.
    let died = false;
    const onError = (): boolean => (died = true);
    client.on('error', onError);
    const session = new Session(client);
    try {
      await session.setUp(this.#settings);
      return await work(session);
    } finally {
      client.release(died || session.broken);
      client.off('error', onError);
    }
  }

  /** A connection of its own, closed afterwards: for session locks and settings, which must not come back to the pool. */
  async dedicate<T>(
    limits: Pick<PoolOptions, 'statementTimeoutMs' | 'lockTimeoutMs'>,
    work: (session: Session) => Promise<T>,
  ): Promise<T> {
    this.#refuseClosed();
    const settings = { ...this.#settings, ...limits };
    const client = new Client({ ...this.#config, query_timeout: silenceMs(settings) });
    client.on('error', () => undefined);
    try {
      await client.connect().catch((error: unknown) => {
        throw fromDriver(error, `connect to ${this.server}`);
      });
      const session = new Session(client);
      await session.setUp(settings);
      return await work(session);
    } finally {
      await client.end().catch(() => undefined);
    }
  }

  /**
   * Rows of a `COPY … TO STDOUT (FORMAT binary)`, at the consumer's pace, on a connection of its own with these settings.
   * Who stops reading closes the connection, which ends the copy.
   */
  async *copyOut(settings: string, sql: string): AsyncGenerator<CopiedRow[], void, void> {
    this.#refuseClosed();
    const client = new Client({ ...this.#config, query_timeout: 0 });
    client.on('error', () => undefined);
    let isOver = false;
    try {
      await client.connect();
      const session = new Session(client);
      await session.setUp({ ...this.#settings, statementTimeoutMs: 0 });
      // A consumer may take its time: data that waits to be sent does not mean that nobody is there.
      await session.exec(`SET tcp_user_timeout = 0; ${settings}`);
      yield* copiedRows(client.query(copyTo(sql)));
      isOver = true;
    } catch (error) {
      throw fromDriver(error, 'copy rows out');
    } finally {
      // In the middle of a copy nobody reads the connection, so its end would never be seen.
      if (!isOver) (client as unknown as { connection: { stream: Socket } }).connection.stream.destroy();
      await client.end().catch(() => undefined);
    }
  }

  /** Waits until everything that is lent is back. */
  close(): Promise<void> {
    this.#closed ??= this.#pool.end();
    return this.#closed;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #refuseClosed(): void {
    if (this.#closed !== undefined) throw new VarveError('WARM_CLOSED', 'this pool is closed');
  }
}

/**
 * When it resolves, the server has been reached and is new enough.
 * @param url `postgresql://user:password@host:port/database`, or with `?host=/folder/of/its/socket`
 * @throws VarveError INVALID_OPTION, WARM_UNAVAILABLE, WARM_REFUSED_LOGIN, WARM_SERVER_TOO_OLD
 */
export async function openPool(url: string, options: PoolOptions = {}): Promise<WarmPool> {
  const settings = { ...DEFAULTS, ...options };
  for (const name of ['max', 'statementTimeoutMs', 'lockTimeoutMs', 'connectTimeoutMs'] as const) {
    if (Number.isInteger(settings[name]) && settings[name] >= LEAST[name] && settings[name] <= OPTION_MAX) continue;
    const message = `${name} is ${settings[name]}; it is an integer from ${LEAST[name]} to ${OPTION_MAX}`;
    throw new VarveError('INVALID_OPTION', message, { name });
  }
  const pool = makePool(url, settings);
  try {
    await pool.lend(checkVersion);
  } catch (error) {
    await pool.close();
    throw error;
  }
  return pool;
}

/**
 * When it resolves, what `work` did is committed; when it rejects, nothing of it is, except with WARM_OUTCOME_UNKNOWN.
 * The signal keeps it from being started (ABORTED); once started it is finished. The isolation is READ COMMITTED.
 */
export async function transaction<T>(
  pool: WarmPool,
  work: (tx: Tx) => Promise<T>,
  options: { readonly signal?: AbortSignal } = {},
): Promise<T> {
  refuseAborted(options.signal);
  return await pool.lend((session) => {
    refuseAborted(options.signal);
    return session.transaction(work);
  });
}

function refuseAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted === true) throw new VarveError('ABORTED', 'aborted before a transaction was started');
}

function makePool(url: string, settings: Settings): WarmPool {
  const parsers = {
    getTypeParser: ((oid, format) =>
      (format === 'binary' ? undefined : PARSERS.get(oid)) ??
      types.getTypeParser(oid, format)) as typeof types.getTypeParser,
  };
  try {
    return new WarmPool(
      {
        connectionString: url,
        application_name: settings.applicationName,
        connectionTimeoutMillis: settings.connectTimeoutMs,
        query_timeout: silenceMs(settings),
        keepAlive: true,
        keepAliveInitialDelayMillis: KEEP_ALIVE_MS,
        types: parsers,
      },
      settings,
    );
  } catch {
    // What the driver says of it may quote the password.
    throw new VarveError('INVALID_OPTION', 'this is no URL of a database; one is like postgresql://user@host/database');
  }
}

function silenceMs(settings: Settings): number {
  return settings.statementTimeoutMs === 0 ? 0 : settings.statementTimeoutMs + SILENCE_MS;
}

const VERSION = statement<{ version: string }>(
  'pool.version',
  `SELECT current_setting('server_version_num') AS version`,
);

async function checkVersion(session: Session): Promise<void> {
  const [row] = await session.query(VERSION);
  const major = Math.floor(Number(row?.version) / 10_000);
  if (major >= MAJOR_MIN) return;
  throw new VarveError('WARM_SERVER_TOO_OLD', `the server is PostgreSQL ${major}; ${MAJOR_MIN} or newer is needed`);
}

function fromDriver(error: unknown, doing: string, ifLost: ErrorCode = 'WARM_UNAVAILABLE'): VarveError {
  if (error instanceof VarveError) return error;
  if (error instanceof DatabaseError) return fromServerError(error, doing, ifLost);
  // Without an errno or a server's word these are bugs, and no lost connection.
  if (!(error instanceof Error) || error instanceof TypeError || error instanceof RangeError) throw error;
  return new VarveError(ifLost, `${doing}: ${error.message}`, { doing }, error);
}
