/**
 * Does a store keep the condition of a conditional put? Asked of every store at start, by trying: some S3 servers accept
 * `If-None-Match` and overwrite all the same, and then two compactors would overwrite each other's commits.
 */
import { randomBytes } from 'node:crypto';
import { VarveError } from '../schemas/errors.ts';
import { collect } from './body.ts';
import type { ObjectStore } from './object-store.ts';

/** Beside the tables of the tier, so that a policy that allows writing only below a prefix is asked where it counts. */
export const PROBE_FOLDER = '_probe/';

type Probed = Pick<ObjectStore, 'putIfAbsent' | 'get' | 'delete'>;

/**
 * Puts twice under a fresh key, and looks at what is there. Removes what it put.
 * @throws VarveError of the operations: a store that cannot be written, read or cleaned is of no use
 */
export async function keepsCondition(store: Probed, signal?: AbortSignal): Promise<boolean> {
  const key = `${PROBE_FOLDER}${randomBytes(16).toString('hex')}`;
  const first = Buffer.from('first');
  const outcome = await store.putIfAbsent(key, first, { signal });
  if (outcome !== 'created') {
    throw new VarveError('STORE_UNCONDITIONAL', `a key of 128 random bits is said to exist: ${key}`, { key });
  }
  try {
    const second = await store.putIfAbsent(key, Buffer.from('second'), { signal });
    const there = await collect(store.get(key, { signal }), 64);
    return second === 'exists' && first.equals(there);
  } finally {
    await store.delete(key);
  }
}
