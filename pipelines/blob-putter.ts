/**
 * Puts bodies into the object store, several at once and each of them once, for any number of files in the making.
 *
 * Who refers to a body waits for its own promise: that another file has it under way proves nothing yet.
 */
import { putBlob } from '../cold/blobs.ts';
import type { ObjectStore } from '../cold/object-store.ts';
import { failpoint } from '../schemas/failpoint.ts';
import type { OffloadedBody } from '../schemas/stubs.ts';
import { type RetryPolicy, retry } from './retry.ts';

const AT_ONCE = 8;
/** Bodies that are known to be there, so that one that many events share is sent once. */
const KNOWN_MAX = 65_536;

export class BlobPutter {
  readonly #store: ObjectStore;
  readonly #scratchDir: string;
  readonly #signal: AbortSignal;
  readonly #policy: RetryPolicy;
  readonly #known = new Map<string, Promise<void>>();
  readonly #underWay = new Set<Promise<void>>();
  /** Bodies that the store did not have, and their plain bytes. */
  blobs = 0;
  bytes = 0;

  constructor(store: ObjectStore, scratchDir: string, signal: AbortSignal, policy: RetryPolicy) {
    this.#store = store;
    this.#scratchDir = scratchDir;
    this.#signal = signal;
    this.#policy = policy;
  }

  /** Resolves when there is room for it; the promise inside says when it is durable in the store. */
  async begin(body: OffloadedBody): Promise<{ readonly durable: Promise<void> }> {
    const { sha256 } = body.ref;
    const known = this.#known.get(sha256);
    if (known !== undefined) return { durable: known };
    while (this.#underWay.size >= AT_ONCE) await Promise.race([...this.#underWay].map((put) => put.catch(() => {})));
    const again = this.#known.get(sha256);
    if (again !== undefined) return { durable: again };
    if (this.#known.size >= KNOWN_MAX) this.#known.clear();
    const durable = this.#put(body);
    this.#known.set(sha256, durable);
    this.#underWay.add(durable);
    durable.then(
      () => this.#underWay.delete(durable),
      () => {
        this.#underWay.delete(durable);
        this.#known.delete(sha256);
      },
    );
    return { durable };
  }

  async #put({ ref, body }: OffloadedBody): Promise<void> {
    const outcome = await retry(
      (signal) => putBlob(this.#store, ref.sha256, body, { signal, scratchDir: this.#scratchDir }),
      this.#signal,
      this.#policy,
    );
    failpoint('compact.blob.after-put');
    if (outcome === 'exists') return;
    this.blobs += 1;
    this.bytes += ref.bytes;
  }
}
