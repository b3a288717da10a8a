/** Waits for what another process or the event loop must bring about; a test that waits in vain fails, and does not hang. */
import { setTimeout as sleep } from 'node:timers/promises';

/** The first value of `look` that is not undefined. */
export async function eventually<T>(
  what: string,
  look: () => T | undefined | Promise<T | undefined>,
  timeoutMs = 20_000,
): Promise<T> {
  for (const deadline = Date.now() + timeoutMs; Date.now() < deadline; await sleep(5)) {
    const found = await look();
    if (found !== undefined) return found;
  }
  throw new Error(`${timeoutMs} ms passed, but not yet: ${what}`);
}
