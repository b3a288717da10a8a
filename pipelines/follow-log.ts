/**
 * Replicates one log: tail → blobs to the object store → events to PostgreSQL → ack.
 *
 * One session, from the cursor that the database has to wherever the source ends; whoever calls it decides about trying
 * again. Each batch is one transaction that moves the cursor; the log is told only afterwards, so a kill anywhere costs
 * a repetition and nothing else. While a transaction runs, the next full batch is made ready.
 */
import { hostname } from 'node:os';
import { hasBlob, putBlob } from '../cold/blobs.ts';
import type { ObjectStore } from '../cold/object-store.ts';
import { BlobStore } from '../hot/blobs.ts';
import type { TailBatch, TailItem } from '../hot/read-check.ts';
import type { Ack, Cursor } from '../hot/tail-protocol.ts';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { mayHoldStub, stubsOf } from '../schemas/stubs.ts';
import type { WarmCursor } from '../warm/cursor-rows.ts';
import { Ingest, type IngestCounts, prepareBatch, type WarmBatch } from '../warm/ingest.ts';
import type { WarmItem } from '../warm/ingest-plan.ts';
import type { WarmPool } from '../warm/pool.ts';
import type { HeldSummary } from '../warm/quarantine-rows.ts';
import { RecordQueue } from './record-queue.ts';

/** What is followed: a tail, or a drain of a log whose writer is gone. */
export type HotSource = AsyncIterable<TailBatch> & {
  readonly log_id: string;
  readonly epoch: string;
  readonly durableLsn: number;
  ack(ack: Ack): Promise<void>;
  close(): Promise<void>;
};

export type FollowOptions = {
  readonly batchEvents: number;
  readonly batchBytes: number;
  /** Start nothing new; the transaction under way is finished. */
  readonly signal: AbortSignal;
  /** Retries of everything that can be retried. */
  readonly retry: <T>(work: () => Promise<T>) => Promise<T>;
  readonly onProgress: (progress: Progress) => void;
};

export type Progress = {
  readonly cursor: WarmCursor;
  readonly durable_lsn: number;
  /** Records of the batch. */
  readonly records: number;
  readonly counts: IngestCounts;
  readonly held: readonly HeldSummary[];
  /** Received and not yet in the database. */
  readonly queued: number;
  readonly queued_bytes: number;
  /** Milliseconds that the oldest of them has waited. */
  readonly oldest_ms: number;
};

/** Batches that may be queued, in full ones. */
const QUEUED_BATCHES = 4;
/** Blobs known to be in the store, so that one that many events name is looked for once. */
const KNOWN_BLOBS_MAX = 65_536;

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
  const identity = { log_id, host: hostname(), directory: dir };
  const first = await retry(() => Ingest.open(pool, { ...identity, epoch: NO_EPOCH }));
  const source = await open(first.cursor);
  try {
    const { ingest, cursor } = await retry(() => Ingest.open(pool, { ...identity, epoch: source.epoch }));
    if (cursor.lsn !== first.cursor.lsn || cursor.hash !== first.cursor.hash) return 'moved';
    const session = new Session(dir, source, ingest, store, options, cursor);
    return await session.run();
  } finally {
    await source.close();
  }
}

const NO_EPOCH = '00000000-0000-0000-0000-000000000000';

class Session {
  readonly #source: HotSource;
  readonly #ingest: Ingest;
  readonly #store: ObjectStore;
  readonly #options: FollowOptions;
  readonly #blobs: BlobStore;
  readonly #knownBlobs = new Set<string>();
  readonly #queue: RecordQueue;
  #cursor: WarmCursor;

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

  async run(): Promise<'ended' | 'moved'> {
    const { signal } = this.#options;
    const stop = () => this.#queue.end();
    signal.addEventListener('abort', stop, { once: true });
    const reading = this.#read();
    try {
      let prepared: WarmBatch | undefined;
      while (!signal.aborted) {
        const batch = prepared ?? (await this.#next(this.#cursor));
        prepared = undefined;
        if (batch === undefined) return 'ended';
        const applying = this.#apply(batch);
        // Awaited below; until then its failure must not count as unhandled.
        applying.catch(() => {});
        if (this.#isFull()) prepared = await this.#next(batch.to);
        if ((await applying) === 'moved') return 'moved';
      }
      return 'ended';
    } finally {
      signal.removeEventListener('abort', stop);
      this.#queue.end();
      await this.#source.close();
      await reading;
    }
  }

  async #read(): Promise<void> {
    try {
      for await (const { records } of this.#source) await this.#queue.push(records);
      this.#queue.end();
    } catch (error) {
      this.#queue.end(error);
    }
  }

  /** A full batch waits: the database is what limits. */
  #isFull(): boolean {
    return this.#queue.length >= this.#options.batchEvents || this.#queue.bytes >= this.#options.batchBytes;
  }

  async #next(from: WarmCursor): Promise<WarmBatch | undefined> {
    const { batchEvents, batchBytes } = this.#options;
    const items = await this.#queue.take(batchEvents, batchBytes);
    const last = items.at(-1);
    if (last === undefined) return undefined;
    return prepareBatch(items.flatMap(toWarm), from, cursorBehind(last), this.#source.durableLsn);
  }

  async #apply(batch: WarmBatch): Promise<'applied' | 'moved'> {
    const { retry, signal, onProgress } = this.#options;
    const unfit = await this.#putBlobs(batch);
    const outcome = await retry(() => this.#ingest.apply(batch, { signal, unfit }));
    if (outcome.kind === 'moved') {
      // The outcome of a commit was unknown, and it did take place.
      const isOurs = outcome.cursor.lsn === batch.to.lsn && outcome.cursor.hash === batch.to.hash;
      if (!isOurs) return 'moved';
    }
    this.#cursor = batch.to;
    const counts = outcome.kind === 'applied' ? outcome.counts : NO_COUNTS;
    const held = outcome.kind === 'applied' ? outcome.held : await retry(() => this.#ingest.held());
    this.#acknowledge(held);
    onProgress({
      cursor: batch.to,
      durable_lsn: this.#source.durableLsn,
      records: batch.items.length,
      counts,
      held,
      queued: this.#queue.length,
      queued_bytes: this.#queue.bytes,
      oldest_ms: Math.max(0, performance.now() - (this.#queue.oldestAtMs ?? Number.POSITIVE_INFINITY)),
    });
    return 'applied';
  }

  #acknowledge(held: readonly HeldSummary[]): void {
    const ack = {
      log_id: this.#source.log_id,
      epoch: this.#source.epoch,
      cursor: this.#cursor,
      held: held.map(({ trajectory_id, from_lsn, reason }) => ({
        trajectory_id,
        from_lsn,
        reason,
      })),
    };
    // A hint: if it does not arrive, the next one does, or the next session's.
    this.#source.ack(ack).catch(() => {});
  }

  /** Bodies first: an event must not be visible before what it refers to. Returns events whose bodies are not there. */
  async #putBlobs(batch: WarmBatch): Promise<Map<number, string>> {
    const unfit = new Map<number, string>();
    for (const item of batch.items) {
      if (item.kind !== 'event') continue;
      const { event } = item;
      const text = Buffer.from(
        event.payload_bytes.buffer,
        event.payload_bytes.byteOffset,
        event.payload_bytes.byteLength,
      );
      if (!text.includes('"$blob":') || !mayHoldStub(text.toString('utf8'))) continue;
      for (const { sha256 } of stubsOf(event.payload)) {
        if (!(await this.#options.retry(() => this.#putBlob(sha256)))) unfit.set(item.lsn, 'blob missing');
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
