/**
 * Replicates one log: tail → blobs to the object store → events to PostgreSQL → ack.
 *
 * One session, from the cursor that the database has to wherever the source ends; whoever calls it decides about trying
 * again. Each batch is one transaction that moves the cursor; the log is told only afterwards, so a kill anywhere costs
 * a repetition and nothing else. While a transaction runs, the next full batch is made ready.
 *
 * The log is also told where a session begins, since the last ack may have been lost with its sidecar while a worker
 * waits for it; and when what is held back changes by other hands.
 */
import { hostname } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { hasBlob, putBlob } from '../cold/blobs.ts';
import type { ObjectStore } from '../cold/object-store.ts';
import { BlobStore } from '../hot/blobs.ts';
import type { TailBatch, TailItem } from '../hot/read-check.ts';
import type { Ack, Cursor } from '../hot/tail-protocol.ts';
import { isVarveError, type VarveError } from '../schemas/errors.ts';
import { dropped } from '../schemas/garbage.ts';
import { MIB } from '../schemas/limits.ts';
import { stubsOf } from '../schemas/stubs.ts';
import { readCursor, type WarmCursor } from '../warm/cursor-rows.ts';
import { HELD_MOST, Ingest, type IngestCounts, type WarmBatch } from '../warm/ingest.ts';
import type { WarmItem } from '../warm/ingest-plan.ts';
import type { WarmPool } from '../warm/pool.ts';
import type { HeldSummary } from '../warm/quarantine-rows.ts';
import { RecordQueue, type Taken } from './record-queue.ts';

/** What is followed: a tail, or a drain of a log whose writer is gone. */
export type HotSource = AsyncIterable<TailBatch> & {
  readonly log_id: string;
  readonly epoch: string;
  readonly durableLsn: number;
  /** A writer wants the log, which is given up as soon as reading goes on. */
  readonly yielding?: boolean;
  /** How far the log has come, asked beside the stream: while the database is away the stream stands still. */
  askDurableLsn?(): Promise<number | undefined>;
  ack(ack: Ack): Promise<void>;
  close(): Promise<void>;
};

export type FollowOptions = {
  readonly batchEvents: number;
  readonly batchBytes: number;
  /** End where everything is taken over that was durable by then. */
  readonly once: boolean;
  /** Start nothing new; the transaction under way is finished. */
  readonly signal: AbortSignal;
  /** Retries of everything that can be retried. */
  readonly retry: <T>(work: () => Promise<T>) => Promise<T>;
  /** The session has begun; `backlog` tells what is true at any time until it ends. */
  readonly onBegun: (cursor: WarmCursor, backlog: () => Backlog) => void;
  readonly onProgress: (progress: Progress) => void;
  /** What warm holds back of this log, where that has changed. */
  readonly onHeld: (held: readonly HeldSummary[]) => void;
};

/** What was received and is not in the database. */
export type Backlog = {
  /** How far the log has come, as far as is known. */
  readonly durable_lsn: number;
  readonly records: number;
  readonly bytes: number;
  /** Milliseconds that the oldest of it has waited. */
  readonly oldest_ms: number;
};

export type Progress = {
  readonly cursor: WarmCursor;
  /** Records of the batch. */
  readonly records: number;
  readonly counts: IngestCounts;
};

/** Batches that may be queued, in full ones: one to be made ready, one to be read meanwhile. */
const QUEUED_BATCHES = 2;
/** Blobs known to be in the store, so that one that many events name is looked for once. */
const KNOWN_BLOBS_MAX = 65_536;
/**
 * Shortest time from the beginning of one batch to the next one's, in milliseconds, unless a full one waits. A
 * transaction of one event costs over 1 ms of CPU, most of it to wake three processes; whoever comes after a pause does
 * not wait.
 */
export const BATCH_EVERY_MS = 40;
/** Bytes of batches after which what they took is collected; it takes some 20 ms. */
const COLLECT_EVERY_BYTES = 10 * MIB;
/** How often a drain that stands still looks whether a writer wants the log. */
const YIELD_EVERY_MS = 50;
/** How often a log is asked how far it has come while its stream stands still. */
const ASK_EVERY_MS = 1000;
/** Longest wait at a session's end for the log to note the last ack. */
const ACK_WAIT_MS = 500;
/** How often it is looked up what is held back, while anything is. */
const HELD_EVERY_MS = 1000;

/**
 * Follows a source until it ends, its error is thrown, or the signal is given.
 *
 * @param open connects to the log behind a cursor
 * @returns why it ended: the source had no more, or another sidecar moved the cursor and the session must start anew
 */
export async function followLog(
  dir: string,
  log_id: string,
  pool: WarmPool,
  store: ObjectStore,
  open: (cursor: Cursor) => Promise<HotSource>,
  options: FollowOptions,
): Promise<'ended' | 'moved'> {
  const { retry } = options;
  const first = await retry(() => pool.lend((session) => readCursor(session, log_id)));
  const source = await open(first);
  try {
    const identity = { log_id, epoch: source.epoch, host: hostname(), directory: dir };
    const { ingest, cursor } = await retry(() => Ingest.open(pool, identity));
    if (cursor.lsn !== first.lsn || cursor.hash !== first.hash) return 'moved';
    const held = await retry(() => ingest.held());
    return await new Session(dir, source, ingest, store, options, cursor).run(held);
  } finally {
    await source.close();
  }
}

class Session {
  readonly #source: HotSource;
  readonly #ingest: Ingest;
  readonly #store: ObjectStore;
  readonly #options: FollowOptions;
  readonly #blobs: BlobStore;
  readonly #knownBlobs = new Set<string>();
  readonly #queue: RecordQueue;
  /** Taken from the queue and not in the database yet. */
  readonly #pending = new Set<Taken>();
  #cursor: WarmCursor;
  #held: readonly HeldSummary[] = [];
  /** The log has noted the last ack, or will not. */
  #acked: Promise<void> = Promise.resolve();
  #askedLsn = 0;
  /** Bytes of batches since memory was last collected. */
  #droppedBytes = 0;
  /** When the last batch was taken, in milliseconds of `performance.now()`. */
  #takenAtMs = 0;

  constructor(
    dir: string,
    source: HotSource,
    ingest: Ingest,
    store: ObjectStore,
    options: FollowOptions,
    cursor: WarmCursor,
  ) {
    this.#source = source;
    this.#ingest = ingest;
    this.#store = store;
    this.#options = options;
    this.#blobs = BlobStore.of(dir);
    this.#cursor = cursor;
    this.#queue = new RecordQueue(QUEUED_BATCHES * options.batchBytes);
  }

  async run(held: readonly HeldSummary[]): Promise<'ended' | 'moved'> {
    const { signal, onBegun } = this.#options;
    const over = new AbortController();
    const stop = () => this.#queue.end();
    signal.addEventListener('abort', stop, { once: true });
    onBegun(this.#cursor, () => this.#backlog());
    this.#acknowledge(held);
    const reading = this.#read();
    const watching = this.#watchHeld(over.signal);
    try {
      return await this.#applyAll(signal);
    } finally {
      signal.removeEventListener('abort', stop);
      over.abort();
      await Promise.race([this.#acked, sleep(ACK_WAIT_MS)]);
      this.#queue.end();
      await this.#source.close();
      await reading;
      await watching;
    }
  }

  async #applyAll(signal: AbortSignal): Promise<'ended' | 'moved'> {
    let prepared: Prepared | undefined;
    while (!signal.aborted) {
      if (this.#options.once && this.#cursor.lsn >= this.#source.durableLsn) return 'ended';
      const next = prepared ?? (await this.#next(this.#cursor));
      prepared = undefined;
      if (next === undefined) return 'ended';
      let onSent = (): void => {};
      const sent = new Promise<void>((resolve) => {
        onSent = resolve;
      });
      const applying = this.#apply(next, onSent);
      // Awaited below; until then its failure must not count as unhandled.
      applying.catch(() => {});
      if (this.#isFull()) {
        // Laying a batch out takes milliseconds: it must not keep the one before it from being sent.
        await Promise.race([sent, applying]);
        prepared = await this.#next(next.batch.to);
      }
      if ((await applying) === 'moved') return 'moved';
    }
    return 'ended';
  }

  async #read(): Promise<void> {
    try {
      for await (const { records } of this.#source) {
        this.#queue.add(records);
        await this.#room();
        // What is in the queue is applied; a session that is over reads nothing more.
        if (this.#queue.isEnded) return;
      }
      this.#queue.end();
    } catch (error) {
      this.#queue.end(error);
    }
  }

  /** Waits until the queue has room; but a drain never keeps a writer waiting for the database. */
  async #room(): Promise<void> {
    if (this.#queue.hasRoom) return;
    const room = this.#queue.room().then(() => true);
    let askedAt = performance.now();
    while (this.#source.yielding !== true) {
      if (await Promise.race([room, sleep(YIELD_EVERY_MS, false)])) return;
      if (performance.now() - askedAt < ASK_EVERY_MS) continue;
      this.#askedLsn = (await this.#source.askDurableLsn?.()) ?? this.#askedLsn;
      askedAt = performance.now();
    }
  }

  #backlog(): Backlog {
    const pending = [...this.#pending];
    const { length, bytes, oldestAtMs } = this.#queue;
    const oldest = Math.min(oldestAtMs ?? Number.POSITIVE_INFINITY, ...pending.map(({ atMs }) => atMs));
    return {
      durable_lsn: Math.max(this.#source.durableLsn, this.#askedLsn),
      records: pending.reduce((sum, { items }) => sum + items.length, length),
      bytes: pending.reduce((sum, taken) => sum + taken.bytes, bytes),
      oldest_ms: Math.max(0, performance.now() - oldest),
    };
  }

  /** A full batch waits: the database is what limits. */
  #isFull(): boolean {
    return this.#queue.length >= this.#options.batchEvents || this.#queue.bytes >= this.#options.batchBytes;
  }

  /** Waits for more events to come, where a batch was taken just now. */
  async #company(): Promise<void> {
    const waitMs = this.#takenAtMs + BATCH_EVERY_MS - performance.now();
    if (waitMs <= 0) return;
    const over = sleep(waitMs, true);
    while (!this.#isFull() && !this.#queue.isEnded) {
      if (await Promise.race([over, this.#queue.changed().then(() => false)])) return;
    }
  }

  async #next(from: WarmCursor): Promise<Prepared | undefined> {
    const { batchEvents, batchBytes } = this.#options;
    await this.#company();
    const taken = await this.#queue.take(batchEvents, batchBytes);
    const last = taken?.items.at(-1);
    if (taken === undefined || last === undefined) return undefined;
    this.#takenAtMs = performance.now();
    this.#pending.add(taken);
    const items = taken.items.flatMap(toWarm);
    return { taken, batch: this.#ingest.prepare(items, from, cursorBehind(last), this.#source.durableLsn) };
  }

  async #apply({ taken, batch }: Prepared, onSent: () => void): Promise<'applied' | 'moved'> {
    const { retry, signal, onProgress } = this.#options;
    const unfit = await this.#putBlobs(batch);
    const outcome = await retry(() => this.#ingest.apply(batch, { signal, unfit, onSent }));
    if (outcome.kind === 'moved') {
      // The outcome of a commit was unknown, and it did take place.
      const isOurs = outcome.cursor.lsn === batch.to.lsn && outcome.cursor.hash === batch.to.hash;
      if (!isOurs) return 'moved';
    }
    const counts = outcome.kind === 'applied' ? outcome.counts : NO_COUNTS;
    const held = outcome.kind === 'applied' ? outcome.held : await retry(() => this.#ingest.held());
    this.#cursor = batch.to;
    this.#pending.delete(taken);
    this.#letGo(taken.bytes);
    this.#acknowledge(held);
    onProgress({ cursor: batch.to, records: batch.items.length, counts });
    return 'applied';
  }

  /** A backlog goes through by tens of megabytes a second, and V8 lets them lie for long. */
  #letGo(bytes: number): void {
    this.#droppedBytes += bytes;
    if (this.#droppedBytes < COLLECT_EVERY_BYTES) return;
    dropped(this.#droppedBytes);
    this.#droppedBytes = 0;
  }

  /** A replay, an acceptance, a predecessor from another log: whoever waits for what is held must hear of it. */
  async #watchHeld(over: AbortSignal): Promise<void> {
    while (!over.aborted) {
      await sleep(HELD_EVERY_MS, undefined, { signal: over }).catch(() => {});
      if (over.aborted || this.#held.length === 0) continue;
      const cursor = this.#cursor;
      const held = await this.#ingest.held().catch((error: unknown) => {
        // Looked up again soon; what the database says is reported where batches are applied.
        if (isVarveError(error)) return this.#held;
        throw error;
      });
      // A batch that went in meanwhile has told what is held behind it, and this may be older.
      if (over.aborted || cursor !== this.#cursor || isSame(held, this.#held)) continue;
      this.#acknowledge(held);
    }
  }

  #acknowledge(held: readonly HeldSummary[]): void {
    if (!isSame(held, this.#held)) this.#options.onHeld(held);
    this.#held = held;
    // An ack that leaves some out would tell their workers that they are replicated.
    if (held.length > HELD_MOST) return;
    const ack = {
      log_id: this.#source.log_id,
      epoch: this.#source.epoch,
      cursor: this.#cursor,
      held: held.map(({ trajectory_id, from_lsn, reason }) => ({ trajectory_id, from_lsn, reason })),
    };
    // A hint: if it does not arrive, the next one does, or the next session's.
    this.#acked = this.#source.ack(ack).catch(() => {});
  }

  /** Bodies first: an event must not be visible before what it refers to. Returns events whose bodies are not there. */
  async #putBlobs(batch: WarmBatch): Promise<Map<number, string>> {
    const unfit = new Map<number, string>();
    if (batch.stubbed.size === 0) return unfit;
    for (const item of batch.items) {
      if (item.kind !== 'event') continue;
      if (!batch.stubbed.has(item.event)) continue;
      for (const { sha256 } of stubsOf(item.event.payload)) {
        if (await this.#options.retry(() => this.#putBlob(sha256))) continue;
        unfit.set(item.lsn, `neither the log nor the object store has blob ${sha256}`);
      }
    }
    return unfit;
  }

  /** false: neither the log nor the store has the body. */
  async #putBlob(sha256: string): Promise<boolean> {
    if (this.#knownBlobs.has(sha256)) return true;
    const { signal } = this.#options;
    try {
      await putBlob(this.#store, sha256, this.#blobs.get(sha256), { signal });
    } catch (error) {
      const isGone = isVarveError(error, 'BLOB_MISSING') || isVarveError(error, 'STORE_BODY_MISMATCH');
      if (!isGone) throw error;
      // Trimmed by the log after an earlier session had put it.
      if (!(await hasBlob(this.#store, sha256, { signal }))) return false;
    }
    if (this.#knownBlobs.size >= KNOWN_BLOBS_MAX) this.#knownBlobs.clear();
    this.#knownBlobs.add(sha256);
    return true;
  }
}

type Prepared = { readonly taken: Taken; readonly batch: WarmBatch };

function isSame(a: readonly HeldSummary[], b: readonly HeldSummary[]): boolean {
  return a === b || (a.length === b.length && JSON.stringify(a) === JSON.stringify(b));
}

const NO_COUNTS: IngestCounts = { inserted: 0, duplicates: 0, applied_waiting: 0, quarantined: {}, missing: 0 };

function toWarm(item: TailItem): WarmItem[] {
  switch (item.kind) {
    case 'event':
      return [{ kind: 'event', lsn: Number(item.lsn), event: item.event }];
    case 'anchor':
      return [{ kind: 'anchor', lsn: Number(item.lsn), position: item.position }];
    case 'trimmed':
      return [{ kind: 'missing', from_lsn: item.from_lsn, to_lsn: item.to_lsn }];
    case 'trim':
      return [];
  }
}

function cursorBehind(item: TailItem): WarmCursor {
  return item.kind === 'trimmed' ? { lsn: item.to_lsn, hash: item.hash } : { lsn: Number(item.lsn), hash: item.hash };
}

/** Refused by the log itself, or by the database, in a way that only a person can mend. */
export function needsAPerson(error: unknown): error is VarveError {
  return isVarveError(error) && !error.retry && error.code !== 'ABORTED';
}
