/**
 * A run of compaction: what it has claimed, for as long as it says so, and its commits, one after the other.
 *
 *   begun → (renewed …) → ended       a row of compaction_runs; the claims go with it
 *
 * A run that has been silent for `ttlMs` has lost its claims and commits nothing any more: it asks right before each
 * commit. What it began after it had asked (it was stopped in between) is caught by the table log, which takes no event
 * twice. Steps are numbered as they are committed, so a step that is in the log says that all before it are.
 */
import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import type { TableLog } from '../cold/table-log.ts';
import type { NewFile, Refusal } from '../cold/table-log-plan.ts';
import { VarveError } from '../schemas/errors.ts';
import { beginRun, endRun, type RunEnd, renewRun } from '../warm/compaction-rows.ts';
import { transaction, type WarmPool } from '../warm/pool.ts';
import { type RetryPolicy, retry } from './retry.ts';

export type Committed = { readonly kind: 'committed'; readonly version: number } | Refusal;

/** Renewals in the time after which claims lapse. */
const RENEWALS = 3;
/** What was begun is finished: it must not be cut off by an abort. */
const NEVER = new AbortController().signal;

export class CompactionRun implements AsyncDisposable {
  readonly id: string = randomUUID();
  readonly #pool: WarmPool;
  readonly #ttlMs: number;
  readonly #policy: RetryPolicy;
  #timer: NodeJS.Timeout | undefined;
  #step = 0;
  #turn: Promise<unknown> = Promise.resolve();
  #isEnded = false;

  private constructor(pool: WarmPool, ttlMs: number, policy: RetryPolicy) {
    this.#pool = pool;
    this.#ttlMs = ttlMs;
    this.#policy = policy;
  }

  static async begin(pool: WarmPool, ttlMs: number, policy: RetryPolicy): Promise<CompactionRun> {
    const run = new CompactionRun(pool, ttlMs, policy);
    await transaction(pool, (tx) => beginRun(tx, run.id, hostname(), process.pid, ttlMs));
    run.#timer = setInterval(() => {
      // One that fails is made good by the next, or by the one before a commit, which decides.
      transaction(pool, (tx) => renewRun(tx, run.id, ttlMs)).catch(() => {});
    }, ttlMs / RENEWALS);
    return run;
  }

  /** What is removed and added in one commit, durable and visible when it resolves. @throws VarveError COLD_CLAIM_LAPSED */
  async commit(log: TableLog, operation: string, adds: readonly NewFile[], removes: readonly string[] = []) {
    return await this.#oneByOne(async (): Promise<Committed> => {
      this.#step += 1;
      const intent = { run: { id: this.id, step: this.#step }, operation, adds, removes };
      for (;;) {
        await this.#renewOrGiveUp();
        const outcome = await retry(() => log.commit(intent), NEVER, this.#policy);
        switch (outcome.kind) {
          case 'committed':
            return outcome;
          case 'already':
            // The answer to an earlier try was lost; which version it was no longer matters.
            return { kind: 'committed', version: (await log.snapshot()).version };
          case 'lost':
            continue;
          case 'overlap':
          case 'not-live':
            return outcome;
        }
      }
    });
  }

  /** Idempotent; releases all claims. */
  async end(end: RunEnd, errorCode: string | undefined, report: object): Promise<void> {
    if (this.#isEnded) return;
    this.#isEnded = true;
    clearInterval(this.#timer);
    await retry(
      () => transaction(this.#pool, (tx) => endRun(tx, this.id, end, errorCode, report)),
      NEVER,
      this.#policy,
    );
  }

  [Symbol.asyncDispose](): Promise<void> {
    clearInterval(this.#timer);
    return Promise.resolve();
  }

  async #renewOrGiveUp(): Promise<void> {
    const isOurs = await retry(
      () => transaction(this.#pool, (tx) => renewRun(tx, this.id, this.#ttlMs)),
      NEVER,
      this.#policy,
    );
    if (isOurs) return;
    const message = `run ${this.id} said nothing for ${this.#ttlMs} ms and has lost its claims; start it again`;
    throw new VarveError('COLD_CLAIM_LAPSED', message, { run_id: this.id });
  }

  async #oneByOne<T>(work: () => Promise<T>): Promise<T> {
    const before = this.#turn;
    const mine = before.then(work, work);
    this.#turn = mine.catch(() => {});
    return await mine;
  }
}
