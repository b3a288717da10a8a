/**
 * The least that ingest can be: one statement a batch that inserts the rows, keeps one line of facts for each
 * trajectory, moves a cursor, and says of rows that were there already whether they are the same. No chain is checked,
 * nothing is known of summaries, fences, quarantine or blobs. This is the statement, with its tables and its way to send
 * columns (binary arrays, jsonb as its text), that was the fastest of those tried before the warm tier was written.
 */
import { performance } from 'node:perf_hooks';
import { canonicalJson, type JsonObject } from '../../../schemas/canonical.ts';
import { hashArray, int8Array, jsonbArray, textArray, timestampArray, uuidArray } from '../../../warm/columns.ts';
import { statement, type WarmPool } from '../../../warm/pool.ts';
import type { Place } from './interleaved.ts';
import type { Turns } from './turns.ts';

const DAY_MS = 86_400_000;

/** Partitioned by the day of a trajectory's start, with the one index beside the key that the warm tier has too. */
function tables(nowMs: number): string {
  const bound = (ms: number) =>
    `${Math.floor(ms)
      .toString(16)
      .padStart(12, '0')
      .replace(/^(.{8})/, '$1-')}-0000-0000-000000000000`;
  const day = Math.floor(nowMs / DAY_MS) * DAY_MS;
  return `
    CREATE TABLE trajectory_events (trajectory_id uuid NOT NULL, sequence_number bigint NOT NULL, event_type text NOT NULL,
      payload jsonb NOT NULL, cryptographic_hash bytea NOT NULL, created_at timestamptz NOT NULL,
      PRIMARY KEY (trajectory_id, sequence_number)) PARTITION BY RANGE (trajectory_id);
    DO $$ BEGIN ALTER TABLE trajectory_events ALTER COLUMN payload SET COMPRESSION lz4;
    EXCEPTION WHEN feature_not_supported THEN NULL; END $$;
    CREATE INDEX ON trajectory_events (left(payload ->> 'tool_call_id', 256)) WHERE payload ? 'tool_call_id';
    CREATE TABLE today PARTITION OF trajectory_events FOR VALUES FROM ('${bound(day)}') TO ('${bound(day + DAY_MS)}');
    CREATE TABLE tomorrow PARTITION OF trajectory_events FOR VALUES FROM ('${bound(day + DAY_MS)}') TO ('${bound(day + 2 * DAY_MS)}');
    CREATE TABLE trajectories (trajectory_id uuid PRIMARY KEY, event_count bigint, first_seq bigint, last_seq bigint,
      first_at timestamptz, last_at timestamptz, last_type text);
    CREATE TABLE cursors (source_id text PRIMARY KEY, position bigint, updated_at timestamptz DEFAULT now())`;
}

const INGEST = statement<{ inserted: number; conflict: number; unseen: number }>(
  'bare.ingest',
  `WITH input AS MATERIALIZED (
     SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::jsonb[], $5::bytea[], $6::timestamptz[])
       AS t (trajectory_id, sequence_number, event_type, payload, cryptographic_hash, created_at)),
   ins AS (
     INSERT INTO trajectory_events (trajectory_id, sequence_number, event_type, payload, cryptographic_hash, created_at)
     SELECT * FROM input ON CONFLICT (trajectory_id, sequence_number) DO NOTHING
     RETURNING trajectory_id, sequence_number, event_type, created_at, cryptographic_hash),
   agg AS (
     SELECT trajectory_id, count(*) n, min(sequence_number) f, max(sequence_number) l, min(created_at) fa,
       max(created_at) la, (array_agg(event_type ORDER BY sequence_number DESC))[1] lt FROM ins GROUP BY 1),
   proj AS (
     INSERT INTO trajectories AS t (trajectory_id, event_count, first_seq, last_seq, first_at, last_at, last_type)
     SELECT trajectory_id, n, f, l, fa, la, lt FROM agg ORDER BY trajectory_id
     ON CONFLICT (trajectory_id) DO UPDATE SET event_count = t.event_count + excluded.event_count,
       first_seq = least(t.first_seq, excluded.first_seq), last_seq = greatest(t.last_seq, excluded.last_seq),
       first_at = least(t.first_at, excluded.first_at), last_at = greatest(t.last_at, excluded.last_at),
       last_type = CASE WHEN excluded.last_seq > t.last_seq THEN excluded.last_type ELSE t.last_type END),
   cur AS (
     INSERT INTO cursors AS c (source_id, position) VALUES ($7, $8) ON CONFLICT (source_id) DO UPDATE
     SET position = excluded.position, updated_at = now() WHERE c.position < excluded.position),
   miss AS (
     SELECT i.trajectory_id, i.sequence_number, i.cryptographic_hash, n.cryptographic_hash nh
     FROM input i LEFT JOIN ins n USING (trajectory_id, sequence_number)
     WHERE n.cryptographic_hash IS DISTINCT FROM i.cryptographic_hash),
   cls AS (
     SELECT m.trajectory_id, m.sequence_number, m.cryptographic_hash got, coalesce(m.nh, e.h) stored FROM miss m
     LEFT JOIN LATERAL (SELECT x.cryptographic_hash h FROM trajectory_events x WHERE m.nh IS NULL
       AND x.trajectory_id = m.trajectory_id AND x.sequence_number = m.sequence_number OFFSET 0) e ON true)
   SELECT (SELECT count(*)::int FROM ins) inserted, (SELECT count(*)::int FROM cls WHERE stored <> got) conflict,
     (SELECT count(*)::int FROM cls WHERE stored IS NULL) unseen`,
);

export async function makeBareTables(pool: WarmPool): Promise<void> {
  await pool.lend((session) => session.exec(tables(Date.now())));
}

/** Any hash does: nobody looks. */
const HASH = 'ab'.repeat(32);

/** Batches of `batchEvents` until the time is over. Events that are in. */
export async function ingestBare(
  pool: WarmPool,
  turns: Turns,
  places: Iterator<Place>,
  position: { at: number },
  { batchEvents, durationMs }: { readonly batchEvents: number; readonly durationMs: number },
): Promise<number> {
  const end = performance.now() + durationMs;
  let events = 0;
  for (;;) {
    const batch = Array.from({ length: batchEvents }, () => places.next().value as Place);
    const drafts = batch.map(({ trajectory, sequence_number }) => turns.at(trajectory, sequence_number));
    position.at += batch.length;
    const [row] = await pool.lend((session) =>
      session.query(INGEST, [
        uuidArray(batch.map(({ id }) => id)),
        int8Array(batch.map(({ sequence_number }) => sequence_number)),
        textArray(drafts.map(({ event_type }) => event_type)),
        jsonbArray(drafts.map(({ payload }) => textOf(payload))),
        hashArray(batch.map(() => HASH)),
        timestampArray(batch.map(() => Date.now())),
        'bench',
        position.at,
      ]),
    );
    if (row?.inserted !== batch.length) throw new Error(`${row?.inserted} of ${batch.length} events went in`);
    // One that is not finished in time does not count.
    if (performance.now() > end) return events;
    events += batch.length;
  }
}

const texts = new WeakMap<object, Uint8Array>();

/** From memory: encoded once for each of the prepared payloads. */
function textOf(payload: JsonObject): Uint8Array {
  const known = texts.get(payload);
  if (known !== undefined) return known;
  const text = Buffer.from(canonicalJson(payload));
  texts.set(payload, text);
  return text;
}
