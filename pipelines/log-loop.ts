/**
 * One log's replication, over and over, for as long as a sidecar runs.
 *
 *   connecting   looking for the log's writer
 *   standby      another sidecar follows this log; this one takes over when that one is gone
 *   following    a writer serves its tail
 *   draining     the writer is gone; this sidecar has the log's lock until everything is out, or a writer asks for it
 *   idle         the writer is gone and everything is out
 *   retrying     something failed that may work later
 *   refused      something failed that needs a person: a log that was restored, a database that is not migrated
 */
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ObjectStore } from '../cold/object-store.ts';
import { LogDrain } from '../hot/drain.ts';
import { errnoOf } from '../hot/files.ts';
import { readWriterFile } from '../hot/holder.ts';
import { readLogFile } from '../hot/meta.ts';
import type { Cursor } from '../hot/tail-protocol.ts';
import { TailReader } from '../hot/tail-reader.ts';
import { askTail } from '../hot/tail-server.ts';
import type { Config } from '../schemas/config.ts';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { statement, type WarmPool } from '../warm/pool.ts';
import type { HeldSummary } from '../warm/quarantine-rows.ts';
import { type Backlog, followLog, type HotSource, needsAPerson, type Progress } from './follow-log.ts';
import type { Logger } from './logger.ts';
import { retry } from './retry.ts';
import type { SidecarMetrics } from './sidecar-metrics.ts';

export type LogState = 'connecting' | 'standby' | 'following' | 'draining' | 'idle' | 'retrying' | 'refused';

export type LogStatus = {
  readonly directory: string;
  readonly log_id: string | undefined;
  readonly state: LogState;
  /** Code and text of what stands in the way. */
  readonly error: { readonly code: string; readonly message: string } | undefined;
  readonly replicated_lsn: number;
  readonly durable_lsn: number;
  /** Records received that are not in the database, their bytes, and how long the oldest has waited, in milliseconds. */
  readonly queued: number;
  readonly queued_bytes: number;
  readonly oldest_ms: number;
  readonly held: readonly HeldSummary[];
  /** When a batch went through last, or nothing was left to do; milliseconds since the epoch. */
  readonly progressed_at: number;
  /** How long nothing has gone through while something should have, in milliseconds. */
  readonly stalled_ms: number;
};

export type SidecarParts = {
  readonly config: Config;
  readonly pool: WarmPool;
  readonly store: ObjectStore;
  readonly logger: Logger;
};

const STANDBY_EVERY_MS = 500;
const IDLE_EVERY_MS = 250;
const ASK_TIMEOUT_MS = 1000;
const RECONNECT_MS = 100;
const REFUSED_EVERY_MS = 5000;

const TRY_LOCK = statement<{ locked: boolean }>(
  'sidecar.try_lock',
  `SELECT pg_try_advisory_lock(hashtextextended('varve sidecar ' || $1, 0)) AS locked`,
);

/** Without what is computed when it is asked for. */
type SetStatus = Omit<LogStatus, 'stalled_ms'>;

export class LogLoop {
  #status: SetStatus;
  /** Of the session under way. */
  #backlog: (() => Backlog) | undefined;
  /** Since when every try has failed, in milliseconds of `performance.now()`. */
  #failingSince: number | undefined;
  readonly #directory: string;
  readonly #parts: SidecarParts;
  readonly #metrics: SidecarMetrics;
  /** What the log looked like when it was last drained to its end. */
  #drained = '';

  constructor(directory: string, parts: SidecarParts, metrics: SidecarMetrics) {
    this.#directory = directory;
    this.#parts = parts;
    this.#metrics = metrics;
    this.#status = {
      directory,
      log_id: undefined,
      state: 'connecting',
      error: undefined,
      replicated_lsn: 0,
      durable_lsn: 0,
      queued: 0,
      queued_bytes: 0,
      oldest_ms: 0,
      held: [],
      progressed_at: Date.now(),
    };
  }

  get status(): LogStatus {
    const failing_ms = this.#failingSince === undefined ? 0 : performance.now() - this.#failingSince;
    const backlog = this.#backlog?.();
    if (backlog === undefined) return { ...this.#status, stalled_ms: failing_ms };
    return {
      ...this.#status,
      durable_lsn: Math.max(this.#status.durable_lsn, backlog.durable_lsn),
      queued: backlog.records,
      queued_bytes: backlog.bytes,
      oldest_ms: backlog.oldest_ms,
      stalled_ms: Math.max(failing_ms, backlog.oldest_ms),
    };
  }

  async run(signal: AbortSignal): Promise<void> {
    let failures = 0;
    while (!signal.aborted) {
      try {
        await this.#session(signal, false);
        failures = 0;
        await pause(RECONNECT_MS, signal);
      } catch (error) {
        failures += 1;
        await pause(this.#failed(error, failures), signal);
      }
    }
  }

  /** @returns is everything out? */
  async drain(signal: AbortSignal): Promise<boolean> {
    for (let failures = 1; !signal.aborted; failures++) {
      try {
        await this.#session(signal, true);
        const { state, durable_lsn, replicated_lsn } = this.status;
        if (state === 'idle' || (state === 'following' && replicated_lsn >= durable_lsn)) return true;
      } catch (error) {
        const pauseMs = this.#failed(error, failures);
        if (this.#status.state === 'refused') throw error;
        await pause(pauseMs, signal);
      }
    }
    return false;
  }

  /** Returns how long to wait, in milliseconds. */
  #failed(error: unknown, failures: number): number {
    if (isVarveError(error, 'ABORTED')) return 0;
    const { logger, config } = this.#parts;
    const isLost = isVarveError(error, 'TAIL_LOST') || isVarveError(error, 'TAIL_NO_WRITER');
    if (isLost) {
      this.#set({ state: 'connecting' });
      return RECONNECT_MS;
    }
    const known = this.#known(error);
    this.#failingSince ??= performance.now();
    const state = needsAPerson(known) ? 'refused' : 'retrying';
    this.#set({ state, error: { code: known.code, message: known.message } });
    this.#metrics.retried(this.#directory, known.code);
    logger.failure('sidecar.session', known, { log: this.#directory });
    if (state === 'refused') return REFUSED_EVERY_MS;
    return Math.random() * Math.min(config.sidecar.retryMaxMs, RECONNECT_MS * 2 ** failures);
  }

  /** What the disk says of a log is that log's trouble alone; anything else that has no code is a bug. */
  #known(error: unknown): VarveError {
    if (isVarveError(error)) return error;
    const errno = errnoOf(error);
    if (errno === undefined) throw error;
    const dir = this.#directory;
    return new VarveError('HOT_UNWRITABLE', `${dir} cannot be used (${errno})`, { dir, errno }, error);
  }

  /** One sidecar per log: the lock lasts as long as the connection that took it. */
  async #session(signal: AbortSignal, once: boolean): Promise<void> {
    const file = await readLogFile(this.#directory);
    if (file?.state !== 'ready') {
      this.#set({ state: 'connecting' });
      return;
    }
    this.#set({ log_id: file.log_id });
    await this.#parts.pool.dedicate({ statementTimeoutMs: 0 }, async (session) => {
      const [row] = await session.query(TRY_LOCK, [file.log_id]);
      if (row?.locked !== true) {
        this.#failingSince = undefined;
        this.#set({ state: 'standby', error: undefined, progressed_at: Date.now() });
        await pause(STANDBY_EVERY_MS, signal);
        return;
      }
      await this.#follow(file.log_id, signal, once);
    });
  }

  async #follow(log_id: string, signal: AbortSignal, once: boolean): Promise<void> {
    const { pool, store, config } = this.#parts;
    const { batchEvents, batchBytes, retryMaxMs } = config.sidecar;
    const before = await this.#signature();
    let ended: 'ended' | 'moved';
    try {
      ended = await followLog(this.#directory, log_id, pool, store, (cursor) => this.#open(cursor, log_id, before), {
        batchEvents,
        batchBytes,
        once,
        signal,
        retry: (work) =>
          retry(work, signal, {
            attempts: Number.POSITIVE_INFINITY,
            withinMs: Number.POSITIVE_INFINITY,
            longestPauseMs: retryMaxMs,
            onRetry: ({ error }) => this.#retried(error),
          }),
        onBegun: (cursor, backlog) => this.#begun(cursor, backlog),
        onProgress: (progress) => this.#progressed(progress),
        onHeld: (held) => this.#set({ held }),
      });
    } catch (error) {
      if (!(error instanceof NothingNew)) throw error;
      this.#idle();
      if (!once) await this.#untilNews(before, signal);
      return;
    } finally {
      this.#endBacklog();
    }
    const { state, durable_lsn, replicated_lsn } = this.#status;
    // One that gave the log up to a writer, or was aborted, may have left something.
    if (ended !== 'ended' || state !== 'draining' || replicated_lsn < durable_lsn) return;
    // The drain's own opening and closing changed the directory: what it looks like now is what was drained.
    this.#drained = await this.#signature();
    this.#idle();
  }

  #idle(): void {
    this.#failingSince = undefined;
    this.#set({ state: 'idle', error: undefined, progressed_at: Date.now() });
  }

  /** Nobody writes the log, and all of it is out: waits until somebody has it open or has changed it. */
  async #untilNews(before: string, signal: AbortSignal): Promise<void> {
    while (!signal.aborted && (await this.#signature()) === before) await pause(IDLE_EVERY_MS, signal);
  }

  async #open(cursor: Cursor, log_id: string, signature: string): Promise<HotSource> {
    try {
      const reader = await TailReader.connect(this.#directory, { cursor, log_id });
      this.#set({ state: 'following', durable_lsn: reader.durableLsn });
      return Object.assign(reader, { askDurableLsn: () => this.#askDurableLsn() });
    } catch (error) {
      if (!isVarveError(error, 'TAIL_NO_WRITER')) throw error;
    }
    if (signature === this.#drained) throw new NothingNew();
    const drain = await LogDrain.open(this.#directory, { cursor, log_id, lockTimeoutMs: 0 });
    this.#set({ state: 'draining', durable_lsn: drain.durableLsn });
    return drain;
  }

  async #askDurableLsn(): Promise<number | undefined> {
    const path = (await readWriterFile(this.#directory))?.socket ?? join(this.#directory, 'tail.sock');
    return (await askTail(path, 'who', ASK_TIMEOUT_MS))?.durable.lsn;
  }

  #begun(cursor: Cursor, backlog: () => Backlog): void {
    this.#backlog = backlog;
    this.#failingSince = undefined;
    this.#set({ replicated_lsn: cursor.lsn, error: undefined, progressed_at: Date.now() });
  }

  /** What was received is forgotten; how far the log has come is not. */
  #endBacklog(): void {
    const durable_lsn = Math.max(this.#status.durable_lsn, this.#backlog?.().durable_lsn ?? 0);
    this.#backlog = undefined;
    this.#set({ durable_lsn, queued: 0, queued_bytes: 0, oldest_ms: 0 });
  }

  #progressed({ cursor, records, counts }: Progress): void {
    const { inserted, duplicates, missing, quarantined } = counts;
    this.#metrics.batch(this.#directory, records, inserted, duplicates, missing);
    for (const [reason, count] of Object.entries(quarantined))
      this.#metrics.quarantined(this.#directory, reason, count);
    const isNew = Object.keys(quarantined).length > 0 || missing > 0;
    if (isNew) this.#parts.logger.warn('sidecar.quarantined', { log: this.#directory, quarantined, missing });
    const durable_lsn = Math.max(this.#status.durable_lsn, cursor.lsn);
    this.#set({ replicated_lsn: cursor.lsn, durable_lsn, error: undefined, progressed_at: Date.now() });
  }

  #retried(error: VarveError): void {
    this.#metrics.retried(this.#directory, error.code);
    this.#parts.logger.failure('sidecar.retry', error, { log: this.#directory });
    this.#set({ error: { code: error.code, message: error.message } });
  }

  /** Changes whenever somebody has written to the log. */
  async #signature(): Promise<string> {
    const parts = await Promise.all(
      ['db', 'writer.json', 'log.json'].map(async (name) => {
        const found = await stat(join(this.#directory, name)).catch(() => undefined);
        return `${found?.mtimeMs ?? 0} ${found?.ino ?? 0}`;
      }),
    );
    return parts.join(' ');
  }

  #set(change: Partial<SetStatus>): void {
    this.#status = { ...this.#status, ...change };
  }
}

/** A log without a writer that was drained before and has not changed. */
class NothingNew extends Error {}

/** Waits, unless the signal is given. */
export async function pause(ms: number, signal: AbortSignal): Promise<void> {
  await sleep(ms, undefined, { signal }).catch(() => {
    // Aborted: the loop's condition says so.
  });
}
