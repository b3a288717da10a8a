/**
 * Trying again: the one place where varve does.
 *
 * Only errors with `retry: true` in the table of codes are tried again; every other one is thrown at once, and so is the
 * last one when the attempts or the time are used up. Between two tries lies a random pause below a bound that doubles
 * ("full jitter": those who failed together do not come back together). An abort ends a pause at once; a try under way
 * gets the signal and decides for itself.
 *
 * A conflict about the plan (a table log that went on) is not a matter for this function: plan again.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { type Body, bytesOf, chunksOf } from '../cold/body.ts';
import type { ObjectStore, PutOutcome } from '../cold/object-store.ts';
import { isVarveError, VarveError } from '../schemas/errors.ts';

export type RetryPolicy = {
  /** Tries altogether, the first included. @default 6 */
  readonly attempts?: number | undefined;
  /** Bound of the first pause, in milliseconds; it doubles with each further one. @default 100 */
  readonly firstPauseMs?: number | undefined;
  /** Bound of every pause, in milliseconds. @default 20,000 */
  readonly longestPauseMs?: number | undefined;
  /** No try begins later than this after the first one, in milliseconds. @default 300,000 */
  readonly withinMs?: number | undefined;
  /** Is told of every failure that is tried again, before the pause: nothing is silent. @default nobody */
  readonly onRetry?: ((retry: Retry) => void) | undefined;
};

export type Retry = {
  readonly error: VarveError;
  /** Tries that have failed so far. */
  readonly failures: number;
  readonly pauseMs: number;
};

const DEFAULTS = {
  attempts: 6,
  firstPauseMs: 100,
  longestPauseMs: 20_000,
  withinMs: 300_000,
  onRetry: undefined,
} as const satisfies RetryPolicy;

/**
 * What `work` gives when it succeeds. It gets the signal and the failures so far, the latest last.
 * @throws what its last try threw; VarveError ABORTED, with the latest failure as its cause
 */
export async function retry<T>(
  work: (signal: AbortSignal, failures: readonly VarveError[]) => Promise<T>,
  signal: AbortSignal,
  policy: RetryPolicy = {},
): Promise<T> {
  const { attempts, firstPauseMs, longestPauseMs, withinMs, onRetry } = { ...DEFAULTS, ...definedOf(policy) };
  const startedMs = performance.now();
  const failures: VarveError[] = [];
  for (;;) {
    if (signal.aborted) throw aborted(failures);
    try {
      return await work(signal, failures);
    } catch (error) {
      if (!isVarveError(error) || !error.retry || error.code === 'ABORTED') throw error;
      failures.push(error);
      const pauseMs = pauseBefore(failures.length, firstPauseMs, longestPauseMs, Math.random());
      const isLate = performance.now() - startedMs + pauseMs > withinMs;
      if (failures.length >= attempts || isLate) throw error;
      onRetry?.({ error, failures: failures.length, pauseMs });
      await sleep(pauseMs, undefined, { signal }).catch(() => {});
    }
  }
}

/** Decides; `chance` is from 0 up to, not including, 1. In milliseconds. */
export function pauseBefore(failures: number, firstPauseMs: number, longestPauseMs: number, chance: number): number {
  // Past 2^30 the bound is the longest pause anyway.
  const bound = Math.min(longestPauseMs, firstPauseMs * 2 ** Math.min(failures - 1, 30));
  return Math.floor(bound * chance);
}

/**
 * `putIfAbsent`, tried again. After a try that may have had its effect, 'exists' may be its own doing: then what is
 * there is compared, and the same bytes count as 'created'. So the answer is about the bytes, not about who sent them:
 * bodies of different writers must differ where it matters who wins (a commit carries its run's id).
 */
export async function putIfAbsentSurely(
  store: ObjectStore,
  key: string,
  body: Body,
  signal: AbortSignal,
  policy: RetryPolicy = {},
): Promise<PutOutcome> {
  return await retry(
    async (signal, failures) => {
      const outcome = await store.putIfAbsent(key, body, { signal });
      const isSure = outcome === 'created' || !failures.some(({ code }) => code === 'STORE_AMBIGUOUS');
      if (isSure) return outcome;
      return (await holds(store, key, body, signal)) ? 'created' : 'exists';
    },
    signal,
    policy,
  );
}

/** Are exactly these bytes there? Compared as they come; nothing is held whole. */
async function holds(store: ObjectStore, key: string, body: Body, signal: AbortSignal): Promise<boolean> {
  const head = await store.head(key, { signal });
  if (head?.bytes !== bytesOf(body)) return false;
  const ours = chunksOf(body, signal);
  try {
    let rest: Uint8Array = new Uint8Array(0);
    for await (const theirs of store.get(key, { signal })) {
      for (let at = 0; at < theirs.byteLength; ) {
        if (rest.byteLength === 0) {
          const next = await ours.next();
          if (next.done === true) return false;
          rest = next.value;
        }
        const size = Math.min(rest.byteLength, theirs.byteLength - at);
        if (Buffer.compare(rest.subarray(0, size), theirs.subarray(at, at + size)) !== 0) return false;
        rest = rest.subarray(size);
        at += size;
      }
    }
    return true;
  } finally {
    await ours.return();
  }
}

function aborted(failures: readonly VarveError[]): VarveError {
  return new VarveError('ABORTED', 'aborted by the caller', { failures: failures.length }, failures.at(-1));
}

function definedOf(policy: RetryPolicy): Partial<{ [K in keyof RetryPolicy]-?: NonNullable<RetryPolicy[K]> }> {
  return Object.fromEntries(Object.entries(policy).filter(([, value]) => value !== undefined));
}
