/** Rows of `quarantine`: events that do not fit, byte-exactly, until they are settled. */

import type { JsonObject } from '../schemas/canonical.ts';
import { formatEnvelope, parseEnvelope } from '../schemas/chain.ts';
import { invariant } from '../schemas/errors.ts';
import { byteaArray, hashArray, int8Array, textArray, uuidArray } from './columns.ts';
import type { Decision, Quarantined, QuarantineReason, WarmEvent } from './ingest-plan.ts';
import { statement, type Tx } from './pool.ts';

// Under a block that a person has accepted nothing waits for a person any more, but for an intent: its effect may be real.
const ADD = statement(
  'quarantine.add',
  `INSERT INTO quarantine (trajectory_id, sequence_number, log_id, lsn, reason, sqlstate, detail, envelope, payload,
     cryptographic_hash, state, settled_at, settled_why)
   SELECT u.trajectory_id, u.sequence_number, $1, u.lsn, u.reason, nullif(u.sqlstate, ''), u.detail, u.envelope, u.payload,
     u.hash, CASE WHEN b.accepted_at IS NULL THEN 'held' ELSE 'accepted' END,
     CASE WHEN b.accepted_at IS NULL THEN NULL ELSE varve_now() END,
     CASE WHEN b.accepted_at IS NULL THEN NULL ELSE 'it came after its block was accepted' END
   FROM unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::text[], $9::bytea[],
       $10::bytea[], $11::bigint[], $12::boolean[])
     AS u (trajectory_id, sequence_number, lsn, reason, sqlstate, detail, envelope, payload, hash, token, is_intent)
   LEFT JOIN blocks b ON b.trajectory_id = u.trajectory_id AND b.log_id = $1 AND b.reason = u.reason
     AND u.token <= b.fencing_token AND NOT u.is_intent
   ON CONFLICT (log_id, lsn) DO NOTHING`,
);

export async function addQuarantined(tx: Tx, log_id: string, rows: readonly Quarantined[]): Promise<void> {
  if (rows.length === 0) return;
  await tx.execute(ADD, [
    log_id,
    uuidArray(rows.map(({ event }) => event.trajectory_id)),
    int8Array(rows.map(({ event }) => event.sequence_number)),
    int8Array(rows.map(({ lsn }) => lsn)),
    textArray(rows.map(({ reason }) => reason)),
    textArray(rows.map(({ sqlstate }) => sqlstate ?? '')),
    textArray(rows.map(({ detail }) => detail)),
    textArray(rows.map(({ event }) => formatEnvelope(event))),
    byteaArray(rows.map(({ event }) => event.payload_bytes)),
    hashArray(rows.map(({ event }) => event.cryptographic_hash)),
    int8Array(rows.map(({ event }) => event.fencing_token)),
    rows.map(({ event }) => event.event_type === 'ToolIntent'),
  ]);
}

export type QuarantineRow = {
  readonly id: number;
  readonly log_id: string;
  readonly lsn: number;
  readonly reason: QuarantineReason;
  readonly envelope: string;
  readonly payload: Buffer;
  readonly hash: string;
};

const COLUMNS = `id, log_id, lsn, reason, envelope, payload, encode(cryptographic_hash, 'hex') AS hash`;

const WAITING = statement<QuarantineRow>(
  'quarantine.waiting',
  `SELECT ${COLUMNS} FROM quarantine
   WHERE trajectory_id = ANY ($1::uuid[]) AND state = 'held' AND reason = 'waiting'
   ORDER BY trajectory_id, sequence_number, id`,
);

/** Events that wait for their predecessor, by trajectory and number. */
export function waitingRows(tx: Tx, ids: readonly string[]): Promise<QuarantineRow[]> {
  return tx.query(WAITING, [uuidArray(ids)]);
}

const HELD_OF_LOG = statement<QuarantineRow>(
  'quarantine.held_of_log',
  `SELECT ${COLUMNS} FROM quarantine
   WHERE trajectory_id = $1 AND log_id = $2 AND state = 'held' ORDER BY lsn`,
);

/** What is held of a trajectory from one log, in the log's order. */
export function heldOfLog(tx: Tx, trajectory_id: string, log_id: string): Promise<QuarantineRow[]> {
  return tx.query(HELD_OF_LOG, [trajectory_id, log_id]);
}

export type SettledState = 'applied' | 'proven' | 'accepted' | 'branched';

const SETTLE = statement(
  'quarantine.settle',
  `UPDATE quarantine SET state = $2, settled_at = varve_now() WHERE id = ANY ($1::bigint[]) AND state = 'held'`,
);

export async function settleRows(tx: Tx, ids: readonly number[], state: SettledState): Promise<void> {
  if (ids.length > 0) await tx.execute(SETTLE, [int8Array(ids), state]);
}

const RENAME = statement(
  'quarantine.rename',
  `UPDATE quarantine q SET reason = u.reason, detail = u.detail
   FROM unnest($1::bigint[], $2::text[], $3::text[]) AS u (id, reason, detail) WHERE q.id = u.id AND q.state = 'held'`,
);

/** What an event is held for can change when more is known. */
export async function renameRows(
  tx: Tx,
  rows: readonly { readonly id: number; readonly reason: QuarantineReason; readonly detail: string }[],
): Promise<void> {
  if (rows.length === 0) return;
  await tx.execute(RENAME, [
    int8Array(rows.map(({ id }) => id)),
    textArray(rows.map(({ reason }) => reason)),
    textArray(rows.map(({ detail }) => detail)),
  ]);
}

const DECIDE_UNPROVEN = statement(
  'quarantine.decide_unproven',
  `UPDATE quarantine q SET
     state = CASE WHEN u.proven THEN 'proven' ELSE q.state END,
     settled_at = CASE WHEN u.proven THEN varve_now() END,
     reason = CASE WHEN u.proven THEN q.reason ELSE 'fork' END
   FROM unnest($2::uuid[], $3::bigint[], $4::boolean[], $5::bigint[], $6::bigint[])
     AS u (trajectory_id, below, proven, after_lsn, before_lsn)
   WHERE q.trajectory_id = u.trajectory_id AND q.log_id = $1 AND q.state = 'held' AND q.reason = 'unproven'
     AND q.sequence_number < u.below AND q.lsn > u.after_lsn AND q.lsn < u.before_lsn`,
);

/** An event whose hash is known decides for the unproven ones before it in the same log. */
export async function decideUnproven(
  tx: Tx,
  log_id: string,
  decisions: readonly (Decision & { readonly trajectory_id: string })[],
): Promise<void> {
  if (decisions.length === 0) return;
  await tx.execute(DECIDE_UNPROVEN, [
    log_id,
    uuidArray(decisions.map(({ trajectory_id }) => trajectory_id)),
    int8Array(decisions.map(({ below }) => below)),
    decisions.map(({ proven }) => proven),
    int8Array(decisions.map(({ after_lsn }) => after_lsn)),
    int8Array(decisions.map(({ before_lsn }) => before_lsn)),
  ]);
}

export type HeldSummary = {
  readonly trajectory_id: string;
  readonly from_lsn: number;
  readonly reason: QuarantineReason;
  /** Of those, the ones that are not settled. 0: a person has decided about all. */
  readonly events: number;
};

// What a person accepted or branched is still nowhere that the log's own events go on from, until the log adopts the
// trajectory behind it: its worker must not take a later one for replicated.
const HELD_SUMMARY = statement<HeldSummary>(
  'quarantine.held_summary',
  `SELECT trajectory_id, min(lsn) AS from_lsn, (array_agg(reason ORDER BY lsn))[1] AS reason,
     count(*) FILTER (WHERE state = 'held') AS events
   FROM quarantine q WHERE log_id = $1 AND state IN ('held', 'accepted', 'branched')
     AND (state = 'held' OR NOT EXISTS (SELECT 1 FROM anchors a
       WHERE a.trajectory_id = q.trajectory_id AND a.log_id = q.log_id AND a.lsn > q.lsn))
   GROUP BY trajectory_id ORDER BY trajectory_id LIMIT $2`,
);

/** What warm holds back of a log, one line for each trajectory. */
export function heldSummary(tx: Tx, log_id: string, most: number): Promise<HeldSummary[]> {
  return tx.query(HELD_SUMMARY, [log_id, most]);
}

/** The event of a row, exactly as its log wrote it. */
export function eventOf(row: QuarantineRow): WarmEvent {
  const envelope = parseEnvelope(row.envelope);
  invariant(envelope !== undefined, 'quarantine holds what the log wrote');
  return new HeldEvent(envelope, row.hash, row.payload);
}

class HeldEvent implements WarmEvent {
  readonly trajectory_id;
  readonly sequence_number;
  readonly event_type;
  readonly turn;
  readonly created_at;
  readonly fencing_token;
  readonly payload_sha256;
  readonly cryptographic_hash: string;
  readonly payload_bytes: Buffer;

  constructor(envelope: NonNullable<ReturnType<typeof parseEnvelope>>, hash: string, payload: Buffer) {
    this.trajectory_id = envelope.trajectory_id;
    this.sequence_number = envelope.sequence_number;
    this.event_type = envelope.event_type;
    this.turn = envelope.turn;
    this.created_at = envelope.created_at;
    this.fencing_token = envelope.fencing_token;
    this.payload_sha256 = envelope.payload_sha256;
    this.cryptographic_hash = hash;
    this.payload_bytes = payload;
  }

  get payload(): JsonObject {
    return JSON.parse(this.payload_bytes.toString('utf8')) as JsonObject;
  }
}
