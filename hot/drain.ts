/**
 * Reading a log whose writer is gone.
 *
 * `LogDrain` takes the log's lock, so that nobody writes meanwhile, and hands out what is behind a cursor with the same
 * checks as the tail. It listens on the tail socket: a writer that wants the log gets it after the batch under way. A
 * damaged log is never opened for that; `readPrefix` hands out what stands verified before the damage.
 */
import { EventEmitter } from 'node:events';
import { resolve } from 'node:path';
import { VarveError } from '../schemas/errors.ts';
import { MIB } from '../schemas/limits.ts';
import { checkCursor } from './cursor.ts';
import { HotLog } from './log.ts';
import { readLogFile, readMeta } from './meta.ts';
import { databasePath } from './open.ts';
import { ReadCheck, type TailBatch, type TailItem } from './read-check.ts';
import { Rocks } from './rocks.ts';
import { type Damage, headsAtFloor, Scan } from './scan.ts';
import { brokenTable } from './table-files.ts';
import { type Ack, type Cursor, START } from './tail-protocol.ts';

export type DrainOptions = {
  /** Last record that was taken over. @default the start of the log */
  readonly cursor?: Cursor;
  /** The log that the cursor is of; another one is refused. @default any */
  readonly log_id?: string;
  /** Longest wait for the log's lock, in milliseconds. @default 5000 */
  readonly lockTimeoutMs?: number;
  /** Socket to listen on for a writer that wants the log, where the directory's name is too long. @default `tail.sock` in the directory */
  readonly socketPath?: string;
};

/** A batch ends with the item that reaches either. */
const ITEMS_AT_ONCE = 512;
const BYTES_AT_ONCE = MIB;

export class LogDrain implements AsyncIterable<TailBatch> {
  readonly #log: HotLog;
  readonly #check: ReadCheck;
  #yielding = false;
  #isReading = false;

  private constructor(log: HotLog, cursor: Cursor) {
    this.#log = log;
    this.#check = new ReadCheck(cursor);
  }

  /** @throws VarveError as `HotLog.open`, and TAIL_CURSOR_UNKNOWN, TAIL_CURSOR_AHEAD */
  static async open(dir: string, options: DrainOptions = {}): Promise<LogDrain> {
    const cursor = options.cursor ?? START;
    const yields = new EventEmitter();
    const { lockTimeoutMs = 5000, socketPath } = options;
    const tail = socketPath === undefined ? true : { socketPath };
    const log = await HotLog.open(
      dir,
      { create: false, lockTimeoutMs, tail },
      { role: 'drain', onYield: () => yields.emit('yield') },
    );
    try {
      await checkCursor(log.cursorSource, log.logId, cursor, options.log_id);
    } catch (error) {
      await log.close();
      throw error;
    }
    const drain = new LogDrain(log, cursor);
    yields.on('yield', () => drain.#yield());
    return drain;
  }

  get log_id(): string {
    return this.#log.logId;
  }

  get epoch(): string {
    return this.#log.epoch;
  }

  get cursor(): Cursor {
    return this.#check.cursor;
  }

  /** Where the log ends: nobody writes it meanwhile. */
  get durableLsn(): number {
    return Number(this.#log.durableLsn);
  }

  /** A writer has asked for the log: the iteration ends after the batch under way. */
  get yielding(): boolean {
    return this.#yielding;
  }

  /** Ends when everything was handed out, or a writer asked for the log, which is then given up. */
  async *[Symbol.asyncIterator](): AsyncGenerator<TailBatch> {
    this.#isReading = true;
    try {
      let records: TailItem[] = [];
      let bytes = 0;
      for await (const item of this.#log.readLog(this.#check.cursor.lsn)) {
        records.push(this.#check.take(item));
        if (item.kind === 'event') bytes += item.event.payload_bytes.length;
        if (records.length < ITEMS_AT_ONCE && bytes < BYTES_AT_ONCE) continue;
        yield { records, cursor: this.#check.cursor };
        records = [];
        bytes = 0;
        if (this.#yielding) return;
      }
      if (records.length > 0) yield { records, cursor: this.#check.cursor };
    } finally {
      this.#isReading = false;
      if (this.#yielding) await this.close();
    }
  }

  ack(ack: Ack): Promise<void> {
    return this.#log.acknowledge(ack);
  }

  /** Gives the log up. */
  close(): Promise<void> {
    return this.#log.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #yield(): void {
    this.#yielding = true;
    // A failed close is seen by whoever closes next: it is the same promise.
    if (!this.#isReading) this.close().catch(() => {});
  }
}

/**
 * Records of a log up to its first damage, without opening anything for writing. Returns the damage, undefined where
 * there is none.
 *
 * @throws VarveError HOT_NOT_A_LOG, HOT_DAMAGED where the database does not open at all
 */
export async function* readPrefix(dir: string, signal?: AbortSignal): AsyncGenerator<TailBatch, Damage | undefined> {
  const path = resolve(dir);
  if ((await readLogFile(path)) === undefined) {
    throw new VarveError('HOT_NOT_A_LOG', `${path} is not a varve log: it has no log.json`, { dir: path });
  }
  const options = { readOnly: true, createIfMissing: false, writeBufferBytes: 16 * 1024 * 1024 };
  const db = await Rocks.open(databasePath(path), options).catch((error: unknown) => {
    throw new VarveError('HOT_DAMAGED', `the database of ${path} does not open`, { dir: path }, error);
  });
  try {
    const table = await brokenTable(db, databasePath(path));
    if (table !== undefined) throw new VarveError('HOT_DAMAGED', `${path} is damaged: ${table}`, { dir: path });
    const meta = await readMeta(db);
    const scan = new Scan(meta, { heads: headsAtFloor(meta), tip: meta.floor });
    for await (const records of scan.records(db, signal)) {
      const last = records.at(-1);
      if (last !== undefined) yield { records, cursor: { lsn: Number(last.lsn), hash: last.hash } };
    }
    return scan.damage;
  } finally {
    await db.close();
  }
}
