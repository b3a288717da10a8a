/** A full read of a log: every hash, every link, every blob. */
import { mayHoldStub, stubsOf } from '../schemas/stubs.ts';
import type { BlobStore } from './blobs.ts';
import type { Tip } from './commit.ts';
import { readMeta } from './meta.ts';
import type { Rocks } from './rocks.ts';
import { type Damage, headsAtFloor, Scan } from './scan.ts';

export type VerifyReport = {
  /** Events that were read and are whole. */
  readonly events: number;
  readonly trajectories: number;
  /** Where verification ended: the log's end, or the last batch before the damage. */
  readonly tip: Tip;
  readonly damage: Damage | undefined;
  /** Distinct blobs that events refer to. */
  readonly blobs: number;
  /** Hex hashes of blobs that are missing, too short or too long, or (deep) hold other bytes. */
  readonly bad_blobs: readonly string[];
};

/** @param options.deep also hash every blob again */
export async function verify(
  db: Rocks,
  blobs: BlobStore,
  options: { readonly deep?: boolean; readonly signal?: AbortSignal },
): Promise<VerifyReport> {
  const meta = await readMeta(db);
  const scan = new Scan(meta, { heads: headsAtFloor(meta), tip: meta.floor });
  const seen = new Set<string>();
  const bad: string[] = [];
  for await (const records of scan.records(db, options.signal)) {
    for (const record of records) {
      if (record.kind !== 'event' || !mayHoldStub(record.event.payload_text)) continue;
      for (const { sha256, bytes } of stubsOf(record.event.payload)) {
        if (seen.has(sha256)) continue;
        seen.add(sha256);
        const isWhole = (await blobs.size(sha256)) === bytes && (options.deep !== true || (await blobs.verify(sha256)));
        if (!isWhole) bad.push(sha256);
      }
    }
  }
  const { events, heads, tip, damage } = scan;
  return { events, trajectories: heads.size, tip, damage, blobs: seen.size, bad_blobs: bad };
}
