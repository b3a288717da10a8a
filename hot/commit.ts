/**
 * Group commit (DeWitt et al. 1984): one barrier for everything that arrived while the last one was under way.
 *
 * One flush is in flight at a time; the next one starts before anybody is told that the last one returned, so the disk
 * never waits for us. A record is acknowledged only after the fdatasync that covers it. Fail-stop: the first error of a
 * write ends everything: what was in flight and all that is queued is rejected, and nothing is written again. The
 * rejected ones are *unknown outcomes*: any of them may be there after reopening.
 */
import { createHistogram, type RecordableHistogram } from 'node:perf_hooks';
import { VarveError } from '../schemas/errors.ts';
import { failpoint } from '../schemas/failpoint.ts';
import { Batch } from './batch.ts';
import { Cohorts } from './cohorts.ts';
import type { Appended } from './heads.ts';
import type { Rocks } from './rocks.ts';

export type CommitOptions = {
  readonly sync: boolean;
  readonly windowMs: number;
  readonly maxBatchEvents: number;
  readonly maxBatchBytes: number;
  readonly maxQueuedBytes: number;
};

export type CommitHooks = {
  /** The batch has been taken and nothing is queued behind it: heads are exactly as of its last LSN. */
  readonly onTaken: (batch: Batch) => void;
  /** The batch is durable; nobody has been told yet. */
  readonly onDurable: (batch: Batch) => void;
  readonly onFailed: (error: VarveError) => void;
};

/** Where the log ends. */
export type Tip = { readonly lsn: number /** Hex. */; readonly hash: string; readonly bytes: number };

/** Nanoseconds of each stage of a batch: waiting for its flush, write and sync, telling the waiters. */
export type CommitStages = {
  readonly queue: RecordableHistogram;
  readonly write: RecordableHistogram;
  readonly release: RecordableHistogram;
};

const SPARE_BATCHES = 4;
/** Longer than any disk takes that will still answer, shorter than a person waits. */
const BARRIER_MS_MAX = 20_000;
const WATCH_EVERY_MS = 1000;

export class GroupCommit {
  readonly stages: CommitStages = { queue: createHistogram(), write: createHistogram(), release: createHistogram() };
  readonly #db: Rocks;
  readonly #options: CommitOptions;
  readonly #hooks: CommitHooks;
  #current = new Batch();
  #full: Batch[] = [];
  #spare: Batch[] = [];
  #inFlight: Batch | undefined;
  #scheduled = false;
  #lsn: number;
  #logBytes: number;
  #durable: Tip;
  #failed: VarveError | undefined;
  #closed: VarveError | undefined;
  #waiting: (() => void)[] = [];
  #queuedBytes = 0;
  #flushes = 0;
  readonly #cohorts = new Cohorts();
  #flushedAt = 0;
  readonly #watch: NodeJS.Timeout;

  constructor(db: Rocks, options: CommitOptions, tip: Tip, hooks: CommitHooks) {
    this.#db = db;
    this.#options = options;
    this.#hooks = hooks;
    this.#lsn = tip.lsn;
    this.#logBytes = tip.bytes;
    this.#durable = tip;
    this.#watch = setInterval(() => this.#look(), WATCH_EVERY_MS).unref();
  }

  get durable(): Tip {
    return this.#durable;
  }

  /** Set once the log has failed or was closed: no record is taken any more. */
  get ended(): VarveError | undefined {
    return this.#failed ?? this.#closed;
  }

  /** Set once a write has failed. */
  get failed(): VarveError | undefined {
    return this.#failed;
  }

  get hasRoom(): boolean {
    return this.#queuedBytes + this.#current.bytes < this.#options.maxQueuedBytes;
  }

  /** Barriers so far. */
  get flushes(): number {
    return this.#flushes;
  }

  nextLsn(): number {
    this.#lsn += 1;
    return this.#lsn;
  }

  /** The batch that takes the next records. Call `schedule` when they are in. */
  get batch(): Batch {
    return this.#current;
  }

  /** Seals the current batch where it is full, and sees to it that it will be flushed. */
  schedule(): void {
    const batch = this.#current;
    if (batch.queuedAt === 0) batch.queuedAt = performance.now();
    if (batch.count >= this.#options.maxBatchEvents || batch.bytes >= this.#options.maxBatchBytes) {
      this.#full.push(batch);
      this.#queuedBytes += batch.bytes;
      this.#current = this.#spare.pop() ?? new Batch();
      if (this.#inFlight === undefined) this.#flush();
      return;
    }
    if (this.#inFlight !== undefined) return;
    if (this.#scheduled) {
      if (this.#options.windowMs === 0 && this.#cohorts.isReady(batch.count)) this.#flushGathered();
      return;
    }
    this.#scheduled = true;
    if (this.#options.windowMs > 0) setTimeout(this.#tick, this.#options.windowMs);
    else process.nextTick(this.#tick);
  }

  /** Resolves when a record's batch is durable. The record must be the last one that was added. */
  whenDurable(): Promise<Appended> {
    const { waiters, count } = this.#current;
    return new Promise((resolve, reject) => {
      waiters[count - 1] = { resolve, reject };
    });
  }

  /** Resolves when all that is queued now is durable, whatever is queued meanwhile; or when the log has failed. */
  async flushed(): Promise<void> {
    const lsn = this.#lsn;
    while (this.#failed === undefined && this.#durable.lsn < lsn) await this.progress();
  }

  /** Resolves at the end of the next barrier, or when the log has failed. */
  progress(): Promise<void> {
    if (this.#failed !== undefined) return Promise.resolve();
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  /** Takes no record from now on; those that are queued are still flushed. */
  end(error: VarveError): void {
    this.#closed ??= error;
  }

  /** Gives an arena back that a socket has sent. */
  unpin(batch: Batch): void {
    batch.pins -= 1;
    if (batch.pins === 0) this.#recycle(batch);
  }

  /** Ends the watch over barriers: nothing is in flight any more. */
  stop(): void {
    clearInterval(this.#watch);
  }

  /** The first error of any write of this log, here or elsewhere (a blob, a snapshot). */
  fail(cause: unknown): VarveError {
    if (this.#failed !== undefined) return this.#failed;
    const text = cause instanceof Error ? cause.message : String(cause);
    const full = /no space|ENOSPC|disk quota|EDQUOT/i.test(text);
    const error = new VarveError(
      full ? 'HOT_DISK_FULL' : 'HOT_FAILED',
      `a write to the log failed (${text}); the log takes nothing more until it is reopened, and appends without an acknowledgement are unknown outcomes: repeat them with their sequence number (at)`,
      { durable_lsn: this.#durable.lsn },
      cause,
    );
    this.#failed = error;
    clearInterval(this.#watch);
    const batches = [...(this.#inFlight ? [this.#inFlight] : []), ...this.#full, this.#current];
    this.#full = [];
    this.#queuedBytes = 0;
    this.#current = new Batch();
    for (const batch of batches) for (const waiter of batch.waiters) waiter?.reject(error);
    this.#hooks.onFailed(error);
    this.#wake();
    return error;
  }

  /** The engine can wait for ever where a table file could not be synced (measured): that is a failed write too. */
  #look(): void {
    if (this.#inFlight === undefined || this.#failed !== undefined) return;
    const waitedMs = performance.now() - this.#flushedAt;
    if (waitedMs < BARRIER_MS_MAX) return;
    this.#db.abandon();
    this.fail(new Error(`a barrier has not returned for ${Math.round(waitedMs / 1000)} s`));
  }

  readonly #tick = (): void => {
    this.#scheduled = false;
    if (this.#inFlight === undefined) this.#flushGathered();
  };

  #flushGathered(): void {
    const { count, queuedAt } = this.#current;
    if (this.#full.length === 0 && count > 0) this.#cohorts.gathered(count, performance.now() - queuedAt);
    this.#flush();
  }

  #flush(): void {
    if (this.#failed !== undefined) return;
    let batch = this.#full.shift();
    if (batch !== undefined) {
      this.#queuedBytes -= batch.bytes;
    } else if (this.#current.count > 0) {
      batch = this.#current;
      this.#current = this.#spare.pop() ?? new Batch();
    } else {
      return;
    }
    this.#inFlight = batch;
    this.#flushedAt = performance.now();
    batch.seal(this.#logBytes);
    this.#logBytes = batch.logBytes;
    if (this.#full.length + this.#current.count === 0) this.#hooks.onTaken(batch);
    failpoint('hot.commit.before-write');
    const started = performance.now();
    const { queuedAt } = batch;
    const write = this.#db.batch();
    batch.fill(write);
    write.write(this.#options.sync, (error) => {
      const doneAt = performance.now();
      this.#cohorts.barrier(doneAt - started, batch.count + this.#current.count);
      if (error !== null && error !== undefined) this.fail(error);
      else if (this.#failed === undefined) this.#release(batch);
      // Statistics wait until everybody has been told.
      this.stages.queue.record(nanoseconds(started - queuedAt));
      this.stages.write.record(nanoseconds(doneAt - started));
      this.stages.release.record(nanoseconds(performance.now() - doneAt));
    });
  }

  #release(batch: Batch): void {
    failpoint('hot.commit.after-write');
    this.#flushes += 1;
    this.#inFlight = undefined;
    this.#durable = {
      lsn: batch.lastLsn,
      hash: Buffer.from(batch.lastHash, 'latin1').toString('hex'),
      bytes: batch.logBytes,
    };
    // Of two cohorts that would better be one, the queued one waits for those who are told now.
    const isMerging =
      this.#options.windowMs === 0 &&
      this.#full.length === 0 &&
      this.#cohorts.shouldMerge(batch.count, this.#current.count);
    if (!isMerging) this.#flush();
    else if (!this.#scheduled) {
      this.#scheduled = true;
      process.nextTick(this.#tick);
    }
    failpoint('hot.commit.before-release');
    batch.pins = 1;
    this.#hooks.onDurable(batch);
    const { receipts, heads, waiters } = batch;
    for (let i = 0; i < receipts.length; i++) {
      const receipt = receipts[i];
      const head = heads[i];
      if (head !== undefined) head.durable = receipt;
      waiters[i]?.resolve(receipt as Appended);
    }
    this.unpin(batch);
    this.#wake();
  }

  #recycle(batch: Batch): void {
    if (this.#spare.length >= SPARE_BATCHES) return;
    batch.reset();
    this.#spare.push(batch);
  }

  #wake(): void {
    if (this.#waiting.length === 0) return;
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const resolve of waiting) resolve();
  }
}

function nanoseconds(ms: number): number {
  return Math.max(1, Math.round(ms * 1e6));
}
