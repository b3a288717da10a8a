/**
 * The one function that tries again.
 *
 * Only a VarveError with `retry: true` is tried again, after a pause with full jitter: random between 0 and the lesser
 * of `maxDelayMs` and `firstDelayMs · 2ⁿ` (Brooker, "Exponential Backoff and Jitter", 2015). It ends with the last error
 * when the tries are used up, and with ABORTED when the signal is given while it waits. It writes no log: `onRetry` is
 * told of every failure that is tried again.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { isVarveError, VarveError } from '../schemas/errors.ts';

export type RetryOptions = {
  /** Ends the waiting. Work under way is not cut. */
  readonly signal?: AbortSignal;
  /** Most tries, the first one included. @default for ever */
  readonly attempts?: number;
  /** @default 100 */
  readonly firstDelayMs?: number;
  /** @default 10000 */
  readonly maxDelayMs?: number;
  readonly onRetry?: (error: VarveError, attempt: number) => void;
};

export async function retry<T>(work: () => Promise<T>, options: RetryOptions = {}): Promise<T> {
  const { signal, attempts = Number.POSITIVE_INFINITY, firstDelayMs = 100, maxDelayMs = 10_000, onRetry } = options;
  for (let attempt = 1; ; attempt++) {
    try {
      return await work();
    } catch (error) {
      if (!isVarveError(error) || !error.retry || error.code === 'ABORTED' || attempt >= attempts) throw error;
      onRetry?.(error, attempt);
      const delay = Math.random() * Math.min(maxDelayMs, firstDelayMs * 2 ** (attempt - 1));
      await sleep(delay, undefined, signal === undefined ? {} : { signal }).catch(() => {
        throw new VarveError('ABORTED', 'aborted while waiting to try again', {}, error);
      });
    }
  }
}
