/**
 * Bodies of the stubs that events had when they were appended, put beside what is restored: from the store, else from
 * the blobs of a hot log that has not been replicated yet. A body is taken only whole and with its name.
 */
import { Readable } from 'node:stream';
import { getBlob, hasBlob } from '../cold/blobs.ts';
import { BlobStore } from '../hot/blobs.ts';
import { VarveError } from '../schemas/errors.ts';
import type { ProvenEvent } from '../schemas/event.ts';
import { type BlobRef, stubsIn } from '../schemas/stubs.ts';
import type { Tiers } from './tiers.ts';

export class BodySource {
  readonly #tiers: Tiers;
  readonly #signal: AbortSignal;

  constructor(tiers: Tiers, signal: AbortSignal) {
    this.#tiers = tiers;
    this.#signal = signal;
  }

  /** Every body of the event is durable in `target` when it resolves. @throws VarveError BLOB_MISSING, STORE_* */
  async bring(event: ProvenEvent, target: BlobStore): Promise<number> {
    let brought = 0;
    for (const ref of stubsIn(event)) {
      if ((await target.size(ref.sha256)) === ref.bytes) continue;
      const body = await this.#find(event, ref);
      const { bytes } = await target.put(Readable.from(body), ref.media_type);
      if (bytes !== ref.bytes) throw missing(event, ref, `has ${bytes} bytes where it was found, not ${ref.bytes}`);
      brought += 1;
    }
    return brought;
  }

  async #find(event: ProvenEvent, ref: BlobRef): Promise<AsyncIterable<Buffer>> {
    const { store, logs } = this.#tiers;
    const signal = this.#signal;
    if (store !== undefined && (await hasBlob(store, ref.sha256, { signal }))) {
      return getBlob(store, ref.sha256, { signal });
    }
    for (const directory of logs) {
      const blobs = BlobStore.of(directory);
      if ((await blobs.size(ref.sha256)) !== ref.bytes || !(await blobs.verify(ref.sha256))) continue;
      return blobs.get(ref.sha256);
    }
    throw missing(event, ref, 'is neither in the store nor in a log');
  }
}

function missing({ trajectory_id, sequence_number }: ProvenEvent, { sha256 }: BlobRef, what: string): VarveError {
  const message = `event ${sequence_number} of ${trajectory_id}: the body ${sha256} ${what}`;
  return new VarveError('BLOB_MISSING', message, { trajectory_id, sequence_number, sha256 });
}
