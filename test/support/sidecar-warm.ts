/** What a database of the warm tier holds, to be held against what logs hold. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { canonicalJson, type Json } from '../../schemas/canonical.ts';
import type { QuarantineReason, WarmEvent } from '../../warm/ingest-plan.ts';
import { statement, type WarmPool } from '../../warm/pool.ts';

export type WarmRow = {
  readonly trajectory_id: string;
  readonly sequence_number: number;
  readonly event_type: string;
  readonly turn: number;
  readonly payload: Json | null;
  readonly payload_exact: Buffer | null;
  readonly payload_sha256: string;
  readonly cryptographic_hash: string;
  readonly created_at: string;
  readonly fencing_token: number;
};

const ROWS = statement<WarmRow>(
  'test.rows',
  `SELECT trajectory_id, sequence_number, event_type, turn, payload, payload_exact, encode(payload_sha256, 'hex') AS payload_sha256,
     encode(cryptographic_hash, 'hex') AS cryptographic_hash, created_at, fencing_token
   FROM trajectory_events WHERE $1::uuid[] IS NULL OR trajectory_id = ANY ($1) ORDER BY trajectory_id, sequence_number`,
);

export function warmRows(pool: WarmPool, ids?: readonly string[]): Promise<WarmRow[]> {
  return pool.lend((session) => session.query(ROWS, [ids === undefined ? null : ids]));
}

/** The canonical payload, rebuilt from its row. */
export function payloadText({ payload, payload_exact }: WarmRow): string {
  return payload_exact === null ? canonicalJson(payload) : payload_exact.toString('utf8');
}

const BROKEN = statement<{ broken: number }>(
  'test.broken',
  `SELECT count(*) AS broken FROM (
     SELECT *, lag(cryptographic_hash) OVER w AS previous, row_number() OVER w AS place
     FROM trajectory_events WINDOW w AS (PARTITION BY trajectory_id ORDER BY sequence_number)
   ) AS event
   WHERE sequence_number <> place OR cryptographic_hash <> sha256(
     coalesce(previous, decode(repeat('00', 32), 'hex'))
     || convert_to(varve_envelope(trajectory_id, sequence_number, event_type, turn, payload_sha256, created_at, fencing_token), 'UTF8'))`,
);

const HEADS = statement<{ wrong: number }>(
  'test.heads',
  `SELECT count(*) AS wrong FROM trajectories t LEFT JOIN LATERAL (
     SELECT sequence_number, cryptographic_hash FROM trajectory_events e WHERE e.trajectory_id = t.trajectory_id
     ORDER BY sequence_number DESC LIMIT 1) last ON true
   WHERE t.last_sequence_number <> coalesce(last.sequence_number, 0) OR t.head_hash <> coalesce(last.cryptographic_hash, t.head_hash)`,
);

/** Numbers without gaps, hashes that chain in SQL, payloads that have their hashes, and heads that agree. */
export async function assertWhole(pool: WarmPool): Promise<void> {
  const [broken, wrong] = await pool.lend(async (session) => [await session.query(BROKEN), await session.query(HEADS)]);
  assert.deepEqual([broken, wrong], [[{ broken: 0 }], [{ wrong: 0 }]]);
  for (const row of await warmRows(pool)) {
    const sha256 = createHash('sha256').update(payloadText(row)).digest('hex');
    assert.equal(sha256, row.payload_sha256, `payload of event ${row.sequence_number} of ${row.trajectory_id}`);
  }
}

/** Exactly these events, byte for byte. */
export async function assertHolds(pool: WarmPool, events: readonly WarmEvent[]): Promise<void> {
  const wanted = events.map(pictureOf).toSorted();
  const rows = await warmRows(pool);
  const found = rows.map((row) => pictureOf({ ...row, payload_bytes: Buffer.from(payloadText(row)) })).toSorted();
  // Compared one by one: the difference of two long lists takes minutes to print.
  for (const [i, picture] of wanted.entries()) assert.equal(found[i], picture);
  assert.equal(found.length, wanted.length);
  await assertWhole(pool);
}

function pictureOf(event: Omit<WarmEvent, 'payload' | 'trajectory_id' | 'sequence_number'> & Named): string {
  const { trajectory_id, sequence_number, event_type, turn, created_at, fencing_token, cryptographic_hash } = event;
  const number = String(sequence_number).padStart(8, '0');
  const text = Buffer.from(event.payload_bytes).toString('utf8');
  return [trajectory_id, number, event_type, turn, created_at, fencing_token, cryptographic_hash, text].join(' ');
}

type Named = { readonly trajectory_id: string; readonly sequence_number: number };

export type QuarantinedRow = {
  readonly trajectory_id: string;
  readonly sequence_number: number;
  readonly log_id: string;
  readonly lsn: number;
  readonly reason: QuarantineReason;
  readonly sqlstate: string | null;
  readonly detail: string;
  readonly state: string;
  readonly payload: Buffer;
  readonly cryptographic_hash: string;
};

const QUARANTINE = statement<QuarantinedRow>(
  'test.quarantine',
  `SELECT trajectory_id, sequence_number, log_id, lsn, reason, sqlstate, detail, state, payload,
     encode(cryptographic_hash, 'hex') AS cryptographic_hash FROM quarantine ORDER BY log_id, lsn`,
);

export function quarantined(pool: WarmPool): Promise<QuarantinedRow[]> {
  return pool.lend((session) => session.query(QUARANTINE));
}

/** One line for each held row: what a person would want to know. */
export async function heldLines(pool: WarmPool): Promise<string[]> {
  const rows = await quarantined(pool);
  return rows
    .filter(({ state }) => state === 'held')
    .map(({ trajectory_id, sequence_number, reason }) => `${trajectory_id} ${sequence_number} ${reason}`);
}

export async function exec(pool: WarmPool, sql: string): Promise<void> {
  await pool.lend((session) => session.exec(sql));
}

/** The rows of a query. */
export function select<Row>(pool: WarmPool, sql: string): Promise<Row[]> {
  // A statement's name is its own.
  const name = createHash('sha256').update(sql).digest('hex').slice(0, 16);
  return pool.lend((session) => session.query(statement<Row>(`test.${name}`, sql)));
}

/** The first row of a query. */
export async function selectOne<Row>(pool: WarmPool, sql: string): Promise<Row> {
  const [row] = await select<Row>(pool, sql);
  return row as Row;
}

/** Everything of an error that could end in a log line. */
export function textOf(error: unknown): string {
  const parts: string[] = [];
  for (let e: unknown = error; e instanceof Error; e = e.cause) {
    parts.push(e.stack ?? '', JSON.stringify(e), JSON.stringify(Object.getOwnPropertyDescriptors(e)));
  }
  return parts.join('\n');
}
