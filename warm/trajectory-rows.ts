/** Rows of `trajectories`, with the part that one log has in them: read under lock, and advanced. */
import type { TrajectoryId } from '../schemas/ids.ts';
import { INITIAL_SUMMARY, type Summary } from '../schemas/summary.ts';
import { hashArray, int4Array, int8Array, textArray, timestampArray, uuidArray } from './columns.ts';
import type { BlockReason, TrajectoryState } from './ingest-plan.ts';
import { statement, type Tx } from './pool.ts';

type StateRow = {
  readonly trajectory_id: TrajectoryId;
  readonly last_sequence_number: number;
  readonly head_hash: string;
  readonly turn: number;
  readonly created_at: string | null;
  readonly fencing_token: number;
  readonly fence_token: number;
  readonly fence_sequence_number: number;
  readonly waiting: number;
  readonly summary: Summary | null;
  readonly block_reason: BlockReason | null;
  readonly block_token: number | null;
  readonly anchor_sequence: number | null;
  readonly anchor_hash: string | null;
  readonly waiting_sequence: number | null;
};

// In id order, so that two batches that share trajectories never wait for each other in a circle.
const LOCK_STATES = statement<StateRow>(
  'trajectories.lock',
  `SELECT t.trajectory_id, t.last_sequence_number, encode(t.head_hash, 'hex') AS head_hash, t.turn, t.created_at,
     t.fencing_token, t.fence_token, t.fence_sequence_number, t.waiting, t.summary,
     b.reason AS block_reason, b.fencing_token AS block_token,
     a.sequence_number AS anchor_sequence, encode(a.cryptographic_hash, 'hex') AS anchor_hash,
     CASE WHEN t.waiting > 0 THEN (SELECT max(q.sequence_number) FROM quarantine q WHERE q.trajectory_id = t.trajectory_id
       AND q.log_id = $2 AND q.state = 'held' AND q.reason = 'waiting') END AS waiting_sequence
   FROM trajectories t
   LEFT JOIN blocks b ON b.trajectory_id = t.trajectory_id AND b.log_id = $2
   LEFT JOIN anchors a ON a.trajectory_id = t.trajectory_id AND a.log_id = $2
   WHERE t.trajectory_id = ANY ($1::uuid[])
   ORDER BY t.trajectory_id
   FOR UPDATE OF t`,
);

const MAKE_ROWS = statement(
  'trajectories.make',
  `INSERT INTO trajectories (trajectory_id, started_at)
   SELECT id, varve_uuid_time(id) FROM unnest($1::uuid[]) AS id ORDER BY id
   ON CONFLICT DO NOTHING`,
);

/** Locks the rows of these trajectories until the transaction ends, making those that are missing. */
export async function lockStates(
  tx: Tx,
  log_id: string,
  ids: readonly TrajectoryId[],
): Promise<Map<TrajectoryId, TrajectoryState>> {
  const sorted = uuidArray(ids.toSorted());
  let rows = await tx.query(LOCK_STATES, [sorted, log_id]);
  if (rows.length < ids.length) {
    await tx.execute(MAKE_ROWS, [sorted]);
    rows = await tx.query(LOCK_STATES, [sorted, log_id]);
  }
  return new Map(rows.map((row) => [row.trajectory_id, toState(row)]));
}

function toState(row: StateRow): TrajectoryState {
  const { block_reason, block_token, anchor_sequence, anchor_hash } = row;
  return {
    trajectory_id: row.trajectory_id,
    last_sequence_number: row.last_sequence_number,
    head_hash: row.head_hash,
    turn: row.turn,
    created_ms: row.created_at === null ? 0 : Date.parse(row.created_at),
    fencing_token: row.fencing_token,
    fence_token: row.fence_token,
    fence_sequence_number: row.fence_sequence_number,
    summary: row.summary ?? INITIAL_SUMMARY,
    block:
      block_reason === null || block_token === null ? undefined : { reason: block_reason, fencing_token: block_token },
    anchor:
      anchor_sequence === null || anchor_hash === null
        ? undefined
        : { sequence_number: anchor_sequence, cryptographic_hash: anchor_hash },
    waiting_sequence: row.waiting_sequence ?? undefined,
    waiting: row.waiting,
  };
}

const ADVANCE = statement(
  'trajectories.advance',
  `UPDATE trajectories t SET
     last_sequence_number = n.last_sequence_number, head_hash = n.head_hash, turn = n.turn, created_at = n.created_at,
     fencing_token = n.fencing_token, waiting = n.waiting, summary = n.summary, status = n.summary ->> 'status',
     tenant = n.summary ->> 'tenant', agent = n.summary ->> 'agent', model = n.summary ->> 'model',
     model_version = n.summary ->> 'model_version', updated_at = varve_now()
   FROM (SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bytea[], $4::int[], $5::timestamptz[], $6::bigint[], $7::int[],
       $8::text[]) AS u (trajectory_id, last_sequence_number, head_hash, turn, created_at, fencing_token, waiting, text)
     CROSS JOIN LATERAL (SELECT u.text::jsonb AS summary) s) n
   WHERE t.trajectory_id = n.trajectory_id`,
);

/** Writes the states behind a batch. Their rows are locked. */
export async function advanceStates(tx: Tx, states: readonly TrajectoryState[]): Promise<void> {
  if (states.length === 0) return;
  await tx.execute(ADVANCE, [
    uuidArray(states.map((state) => state.trajectory_id)),
    int8Array(states.map((state) => state.last_sequence_number)),
    hashArray(states.map((state) => state.head_hash)),
    int4Array(states.map((state) => state.turn)),
    timestampArray(states.map((state) => state.created_ms)),
    int8Array(states.map((state) => state.fencing_token)),
    int4Array(states.map((state) => state.waiting)),
    textArray(states.map((state) => JSON.stringify(state.summary))),
  ]);
}

const SET_BLOCKS = statement(
  'blocks.set',
  `INSERT INTO blocks (trajectory_id, log_id, fencing_token, reason, sequence_number)
   SELECT u.trajectory_id, $1, u.fencing_token, u.reason, u.sequence_number
   FROM unnest($2::uuid[], $3::bigint[], $4::text[], $5::bigint[]) AS u (trajectory_id, fencing_token, reason, sequence_number)
   ON CONFLICT (trajectory_id, log_id) DO UPDATE SET fencing_token = excluded.fencing_token, reason = excluded.reason,
     sequence_number = excluded.sequence_number, since = varve_now()`,
);

export type Block = {
  readonly trajectory_id: TrajectoryId;
  readonly fencing_token: number;
  readonly reason: BlockReason;
  readonly sequence_number: number;
};

export async function setBlocks(tx: Tx, log_id: string, blocks: readonly Block[]): Promise<void> {
  if (blocks.length === 0) return;
  await tx.execute(SET_BLOCKS, [
    log_id,
    uuidArray(blocks.map((block) => block.trajectory_id)),
    int8Array(blocks.map((block) => block.fencing_token)),
    textArray(blocks.map((block) => block.reason)),
    int8Array(blocks.map((block) => block.sequence_number)),
  ]);
}

const SET_ANCHORS = statement(
  'anchors.set',
  `INSERT INTO anchors (trajectory_id, log_id, lsn, sequence_number, cryptographic_hash, fencing_token)
   SELECT DISTINCT ON (u.trajectory_id) u.trajectory_id, $1, u.lsn, u.sequence_number, u.hash, u.token
   FROM unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::bytea[], $6::bigint[]) AS u (trajectory_id, lsn, sequence_number, hash, token)
   ORDER BY u.trajectory_id, u.lsn DESC
   ON CONFLICT (trajectory_id, log_id) DO UPDATE SET lsn = excluded.lsn, sequence_number = excluded.sequence_number,
     cryptographic_hash = excluded.cryptographic_hash, fencing_token = excluded.fencing_token`,
);

export type AnchorRow = {
  readonly trajectory_id: TrajectoryId;
  readonly lsn: number;
  readonly sequence_number: number;
  readonly cryptographic_hash: string;
  readonly fencing_token: number;
};

export async function setAnchors(tx: Tx, log_id: string, anchors: readonly AnchorRow[]): Promise<void> {
  if (anchors.length === 0) return;
  await tx.execute(SET_ANCHORS, [
    log_id,
    uuidArray(anchors.map((anchor) => anchor.trajectory_id)),
    int8Array(anchors.map((anchor) => anchor.lsn)),
    int8Array(anchors.map((anchor) => anchor.sequence_number)),
    hashArray(anchors.map((anchor) => anchor.cryptographic_hash)),
    int8Array(anchors.map((anchor) => anchor.fencing_token)),
  ]);
}
