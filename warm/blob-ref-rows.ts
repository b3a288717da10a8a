/** Rows of `blob_refs`: which events, in warm or in quarantine, refer to which blob. */
import { stubsOf } from '../schemas/stubs.ts';
import { hashArray, int8Array, uuidArray } from './columns.ts';
import type { WarmEvent } from './ingest-plan.ts';
import { statement, type Tx, type Value } from './pool.ts';

export const BLOB_REF_PARAMETERS = 3;

/** Adds the rows of `blobRefColumns`; parameters from `$from` on. */
export function addBlobRefsSql(from: number): string {
  return `INSERT INTO blob_refs (sha256, trajectory_id, sequence_number)
    SELECT * FROM unnest($${from}::bytea[], $${from + 1}::uuid[], $${from + 2}::bigint[]) ON CONFLICT DO NOTHING`;
}

/** Parameters of `addBlobRefsSql`, in its order; of events for which `hasStub` says yes. */
export function blobRefColumns(stubbed: readonly WarmEvent[]): Value[] {
  const refs = stubbed.flatMap((event) => {
    const { trajectory_id, sequence_number } = event;
    return stubsOf(event.payload).map(({ sha256 }) => ({ sha256, trajectory_id, sequence_number }));
  });
  return [
    hashArray(refs.map(({ sha256 }) => sha256)),
    uuidArray(refs.map(({ trajectory_id }) => trajectory_id)),
    int8Array(refs.map(({ sequence_number }) => sequence_number)),
  ];
}

const ADD = statement('blob_refs.add', addBlobRefsSql(1));

export async function addBlobRefs(tx: Tx, events: readonly WarmEvent[]): Promise<void> {
  const stubbed = events.filter(hasStub);
  if (stubbed.length > 0) await tx.execute(ADD, blobRefColumns(stubbed));
}

/** May its payload hold a stub? */
export function hasStub({ payload_bytes: { buffer, byteOffset, byteLength } }: WarmEvent): boolean {
  const bytes = Buffer.from(buffer, byteOffset, byteLength);
  // Twice, as in `mayHoldStub`: a search that begins with a quotation mark stops at every one of them.
  return bytes.includes('$blob":') && bytes.includes('"$blob":');
}
