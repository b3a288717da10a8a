/**
 * Rows of `trajectories`, with the part that one log has in them.
 *
 * They are read without a lock and advanced only if nobody has changed them since: a row lock of its own for every
 * trajectory of a batch would be a second write of every row. What a batch was planned against is therefore in the
 * WHERE of what it writes; if a row has moved meanwhile, the transaction is undone and the batch planned again.
 */
import type { TrajectoryId } from '../schemas/ids.ts';
import { INITIAL_SUMMARY, type Summary } from '../schemas/summary.ts';
import { hashArray, int4Array, int8Array, jsonArray, textArray, timestampArray, uuidArray } from './columns.ts';
import type { BlockReason, TrajectoryState } from './ingest-plan.ts';
import { statement, type Tx, type Value } from './pool.ts';
import { restored, storable } from './storable-text.ts';

type StateRow = {
  readonly trajectory_id: TrajectoryId;
  readonly last_sequence_number: number;
  readonly head_hash: string;
  readonly turn: number;
  readonly created_at: string | null;
  readonly fencing_token: number;
  readonly fence_token: number;
  /** Pairs of token and sequence number. */
  readonly fences: readonly (readonly [number, number])[] | null;
  readonly waiting: number;
  readonly block_reason: BlockReason | null;
  readonly block_token: number | null;
  readonly anchor_lsn: number | null;
  readonly anchor_sequence: number | null;
  readonly waiting_sequence: number | null;
};

const READ_STATES = statement<StateRow>(
  'trajectories.read',
  `SELECT t.trajectory_id, t.last_sequence_number, encode(t.head_hash, 'hex') AS head_hash, t.turn, t.created_at,
     t.fencing_token, t.fence_token, t.waiting,
     CASE WHEN t.fence_token > 0 THEN (SELECT json_agg(json_build_array(f.fencing_token, f.sequence_number))
       FROM fences f WHERE f.trajectory_id = t.trajectory_id) END AS fences,
     b.reason AS block_reason, b.fencing_token AS block_token,
     a.lsn AS anchor_lsn, a.sequence_number AS anchor_sequence,
     CASE WHEN t.waiting > 0 THEN (SELECT q.sequence_number FROM quarantine q WHERE q.trajectory_id = t.trajectory_id
       AND q.log_id = $2 AND q.state = 'held' AND q.reason = 'waiting' ORDER BY q.lsn DESC LIMIT 1) END AS waiting_sequence
   FROM trajectories t
   LEFT JOIN blocks b ON b.trajectory_id = t.trajectory_id AND b.log_id = $2
   LEFT JOIN anchors a ON a.trajectory_id = t.trajectory_id AND a.log_id = $2
   WHERE t.trajectory_id = ANY ($1::uuid[])`,
);

type SummaryRow = {
  readonly trajectory_id: TrajectoryId;
  readonly head_hash: string;
  readonly summary: string | null;
};

const READ_SUMMARIES = statement<SummaryRow>(
  'trajectories.read_summaries',
  `SELECT trajectory_id, encode(head_hash, 'hex') AS head_hash, summary::text AS summary FROM trajectories
   WHERE trajectory_id = ANY ($1::uuid[])`,
);

function summaryText(summary: Summary): string {
  const text = JSON.stringify(summary);
  if (!text.includes('\\u000')) return text;
  return JSON.stringify(summary, (_, value: unknown) => (typeof value === 'string' ? storable(value) : value));
}

function parseSummary(text: string | null): Summary {
  if (text === null) return INITIAL_SUMMARY;
  if (!text.includes('\\u0001')) return JSON.parse(text) as Summary;
  return JSON.parse(text, (_, value: unknown) => (typeof value === 'string' ? restored(value) : value)) as Summary;
}

const MAKE_ROWS = statement(
  'trajectories.make',
  `INSERT INTO trajectories (trajectory_id, started_at)
   SELECT id, varve_uuid_time(id) FROM unnest($1::uuid[]) AS id ORDER BY id
   ON CONFLICT DO NOTHING`,
);

/** Makes the rows of trajectories that have none. */
export async function makeRows(tx: Tx, ids: readonly TrajectoryId[]): Promise<void> {
  if (ids.length > 0) await tx.execute(MAKE_ROWS, [uuidArray(ids.toSorted())]);
}

/** Summaries by trajectory, each valid for one head: what was written or read last. */
export class SummaryCache {
  readonly #byId = new Map<string, { readonly head: string; readonly summary: Summary }>();

  get(trajectory_id: string, head_hash: string): Summary | undefined {
    const cached = this.#byId.get(trajectory_id);
    return cached?.head === head_hash ? cached.summary : undefined;
  }

  set(trajectory_id: string, head_hash: string, summary: Summary): void {
    // Delete first: a map keeps the order of insertion, so its first key is the one not used for longest.
    this.#byId.delete(trajectory_id);
    this.#byId.set(trajectory_id, { head: head_hash, summary });
    if (this.#byId.size <= CACHED_SUMMARIES_MAX) return;
    const [oldest] = this.#byId.keys();
    if (oldest !== undefined) this.#byId.delete(oldest);
  }
}

/** About a kilobyte each. */
const CACHED_SUMMARIES_MAX = 20_000;

/** States of these trajectories as they are now, making rows that are missing. */
export async function readStates(
  tx: Tx,
  log_id: string,
  ids: readonly TrajectoryId[],
  cache: SummaryCache = new SummaryCache(),
): Promise<Map<TrajectoryId, TrajectoryState>> {
  const all = uuidArray(ids.toSorted());
  let rows = await tx.query(READ_STATES, [all, log_id]);
  if (rows.length < ids.length) {
    await makeRows(tx, ids);
    rows = await tx.query(READ_STATES, [all, log_id]);
  }
  const unknown = rows.filter((row) => cache.get(row.trajectory_id, row.head_hash) === undefined);
  if (unknown.length > 0) {
    // Each is kept for the head that it is of: if a row moves between the two looks, the batch is planned again.
    for (const row of await tx.query(READ_SUMMARIES, [uuidArray(unknown.map(({ trajectory_id }) => trajectory_id))])) {
      cache.set(row.trajectory_id, row.head_hash, parseSummary(row.summary));
    }
  }
  return new Map(
    rows.map((row) => [
      row.trajectory_id,
      toState(row, cache.get(row.trajectory_id, row.head_hash) ?? INITIAL_SUMMARY),
    ]),
  );
}

function toState(row: StateRow, summary: Summary): TrajectoryState {
  const { block_reason, block_token, anchor_lsn, anchor_sequence } = row;
  return {
    trajectory_id: row.trajectory_id,
    last_sequence_number: row.last_sequence_number,
    head_hash: row.head_hash,
    turn: row.turn,
    created_ms: row.created_at === null ? 0 : Date.parse(row.created_at),
    fencing_token: row.fencing_token,
    fence_token: row.fence_token,
    fences: (row.fences ?? []).map(([fencing_token, sequence_number]) => ({ fencing_token, sequence_number })),
    summary,
    block:
      block_reason === null || block_token === null ? undefined : { reason: block_reason, fencing_token: block_token },
    anchor:
      anchor_lsn === null || anchor_sequence === null
        ? undefined
        : { lsn: anchor_lsn, sequence_number: anchor_sequence },
    waiting_sequence: row.waiting_sequence ?? undefined,
    waiting: row.waiting,
  };
}

/** `n`: the states behind a batch, and what they were planned against; parameters from `$from` on. */
export function advanceSource(from: number): string {
  const types = [
    'uuid[]',
    'bigint[]',
    'bytea[]',
    'int[]',
    'timestamptz[]',
    'bigint[]',
    'int[]',
    'json[]',
    'text[]',
    'text[]',
    'text[]',
    'text[]',
    'text[]',
    'bytea[]',
    'int[]',
    'bigint[]',
    'bigint[]',
  ];
  return `unnest(${types.map((type, i) => `$${from + i}::${type}`).join(', ')})
    AS n (trajectory_id, last_sequence_number, head_hash, turn, created_at, fencing_token, waiting, summary,
      status, tenant, agent, model, model_version, before_hash, before_waiting, before_fence, before_sequence)`;
}

/** Parameters of `advanceSource`, in its order. */
export function advanceColumns(advances: readonly Advance[]): Value[] {
  // In id order, so that two batches that share trajectories do not wait for each other in a circle.
  const sorted = advances.toSorted((a, b) => (a.after.trajectory_id < b.after.trajectory_id ? -1 : 1));
  const after = sorted.map((advance) => advance.after);
  const before = sorted.map((advance) => advance.before);
  return [
    uuidArray(after.map((state) => state.trajectory_id)),
    int8Array(after.map((state) => state.last_sequence_number)),
    hashArray(after.map((state) => state.head_hash)),
    int4Array(after.map((state) => state.turn)),
    timestampArray(after.map((state) => state.created_ms)),
    int8Array(after.map((state) => state.fencing_token)),
    int4Array(after.map((state) => state.waiting)),
    jsonArray(after.map((state) => summaryText(state.summary))),
    textArray(after.map((state) => state.summary.status)),
    textArray(after.map((state) => storable(state.summary.tenant))),
    textArray(after.map((state) => storable(state.summary.agent))),
    textArray(after.map((state) => storable(state.summary.model))),
    textArray(after.map((state) => storable(state.summary.model_version))),
    hashArray(before.map((state) => state.head_hash)),
    int4Array(before.map((state) => state.waiting)),
    int8Array(before.map((state) => state.fence_token)),
    int8Array(before.map((state) => state.last_sequence_number)),
  ];
}

/** Advances rows that are as they were planned against, and no others. */
export const ADVANCE_ROWS = `UPDATE trajectories t SET
    last_sequence_number = n.last_sequence_number, head_hash = n.head_hash, turn = n.turn,
    created_at = CASE WHEN n.last_sequence_number > 0 THEN n.created_at END, fencing_token = n.fencing_token, waiting = n.waiting, summary = n.summary, status = n.status, tenant = n.tenant,
    agent = n.agent, model = n.model, model_version = n.model_version, updated_at = varve_now()
  FROM n
  WHERE t.trajectory_id = n.trajectory_id AND t.head_hash = n.before_hash AND t.waiting = n.before_waiting
    AND t.fence_token = n.before_fence`;

const ADVANCE = statement<{ readonly advanced: number }>(
  'trajectories.advance',
  `WITH n AS (SELECT * FROM ${advanceSource(1)}), advanced AS (${ADVANCE_ROWS} RETURNING 1)
   SELECT count(*) AS advanced FROM advanced`,
);

export type Advance = { readonly before: TrajectoryState; readonly after: TrajectoryState };

/** Writes the states behind a batch. false: a row has moved since it was read, and nothing of this may stay. */
export async function advanceStates(tx: Tx, advances: readonly Advance[], cache: SummaryCache): Promise<boolean> {
  if (advances.length === 0) return true;
  const [row] = await tx.query(ADVANCE, advanceColumns(advances));
  if (row?.advanced !== advances.length) return false;
  for (const { after } of advances) cache.set(after.trajectory_id, after.head_hash, after.summary);
  return true;
}

const SET_BLOCKS = statement(
  'blocks.set',
  `INSERT INTO blocks (trajectory_id, log_id, fencing_token, reason, sequence_number)
   SELECT u.trajectory_id, $1, u.fencing_token, u.reason, u.sequence_number
   FROM unnest($2::uuid[], $3::bigint[], $4::text[], $5::bigint[]) AS u (trajectory_id, fencing_token, reason, sequence_number)
   ON CONFLICT (trajectory_id, log_id) DO UPDATE SET fencing_token = excluded.fencing_token, reason = excluded.reason,
     sequence_number = excluded.sequence_number, since = varve_now(), accepted_at = NULL, branch_id = NULL`,
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
