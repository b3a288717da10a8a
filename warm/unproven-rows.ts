/** Events in quarantine that may be duplicates of events that warm no longer has: only cold knows, and it decides. */
import type { TrajectoryId } from '../schemas/ids.ts';
import { int8Array } from './columns.ts';
import { type Session, statement, type Tx } from './pool.ts';

export type UnprovenEvent = {
  readonly id: number;
  readonly trajectory_id: TrajectoryId;
  readonly sequence_number: number;
  /** Hex. */
  readonly cryptographic_hash: string;
};

/** A place in their order: by trajectory, number and row. */
export type UnprovenKey = {
  readonly trajectory_id: string;
  readonly sequence_number: number;
  readonly id: number;
};

const UNPROVEN = statement<UnprovenEvent>(
  'unproven.read',
  `SELECT id, trajectory_id, sequence_number, encode(cryptographic_hash, 'hex') AS cryptographic_hash
   FROM quarantine WHERE state = 'held' AND reason = 'unproven' AND (trajectory_id, sequence_number, id) > ($1, $2, $3)
   ORDER BY trajectory_id, sequence_number, id LIMIT $4`,
);

const FIRST: UnprovenKey = { trajectory_id: '00000000-0000-0000-0000-000000000000', sequence_number: 0, id: 0 };

export async function readUnproven(
  session: Session,
  after: UnprovenKey | undefined,
  most: number,
): Promise<UnprovenEvent[]> {
  const { trajectory_id, sequence_number, id } = after ?? FIRST;
  return await session.query(UNPROVEN, [trajectory_id, sequence_number, id, most]);
}

const SETTLE = statement(
  'unproven.settle',
  `UPDATE quarantine q SET
     state = CASE WHEN d.proven THEN 'proven' ELSE q.state END,
     settled_at = CASE WHEN d.proven THEN varve_now() END,
     settled_why = CASE WHEN d.proven THEN 'cold has the same event' END,
     reason = CASE WHEN d.proven THEN q.reason ELSE 'fork' END
   FROM unnest($1::bigint[], $2::boolean[]) AS d (id, proven)
   WHERE q.id = d.id AND q.state = 'held' AND q.reason = 'unproven'`,
);

/** Proven, they are duplicates and settled; else they are forks, and stay held. */
export async function settleUnproven(
  tx: Tx,
  decisions: readonly { readonly id: number; readonly proven: boolean }[],
): Promise<void> {
  await tx.execute(SETTLE, [int8Array(decisions.map(({ id }) => id)), decisions.map(({ proven }) => proven)]);
}
