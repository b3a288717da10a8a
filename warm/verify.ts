/**
 * Verifies what the warm tier holds, partition by partition: a trajectory lies in one of them.
 *
 *   chain      numbers follow one another, and every hash covers envelope and the event before (one vectorised scan)
 *   payload    SHA-256 of `payload_exact`, in the database; of jsonb payloads, once they are canonical again, here
 *   head       a trajectory's row says what its last event says, and its summary has come as far
 *
 * A partition that was dropped is no fault: its trajectories are in cold. Where a trajectory's first events are gone, the
 * hash at the end of the cold segment before them stands in for the event before.
 *
 * Every statement sees one moment, so a sidecar may go on. Memory is bounded: problems beyond the most that are wanted
 * are only counted by their absence, and payloads come page by page.
 */
import { canonicalJson, type JsonObject } from '../schemas/canonical.ts';
import { payloadSha256 } from '../schemas/chain.ts';
import type { TrajectoryId } from '../schemas/ids.ts';
import { INITIAL_SUMMARY, type Summary, step } from '../schemas/summary.ts';
import type { FoldedEvent } from '../schemas/tally.ts';
import { type Session, statement } from './pool.ts';

export type WarmProblem = {
  readonly kind: 'chain' | 'payload' | 'head' | 'summary';
  readonly trajectory_id: TrajectoryId;
  readonly sequence_number: number;
  readonly what: string;
};

export type Partition = { readonly name: string; readonly lower_id: string; readonly upper_id: string };

const PARTITIONS = statement<Partition>(
  'verify.partitions',
  `SELECT name, lower_id, upper_id FROM event_partitions WHERE to_regclass(quote_ident(name)) IS NOT NULL ORDER BY lower_id`,
);

/** Partitions that are there, oldest first. */
export function readPartitions(session: Session): Promise<Partition[]> {
  return session.query(PARTITIONS);
}

const COUNTS = statement<{ events: number; trajectories: number }>(
  'verify.counts',
  `SELECT count(*) AS events, count(DISTINCT trajectory_id) AS trajectories FROM trajectory_events
   WHERE trajectory_id >= $1 AND trajectory_id < $2`,
);

export async function countEvents(
  session: Session,
  { lower_id, upper_id }: Partition,
): Promise<{ events: number; trajectories: number }> {
  const [row] = await session.query(COUNTS, [lower_id, upper_id]);
  return row ?? { events: 0, trajectories: 0 };
}

const BROKEN_CHAIN = statement<Omit<WarmProblem, 'kind'>>(
  'verify.chain',
  `SELECT trajectory_id, sequence_number, what FROM (
     SELECT e.trajectory_id, e.sequence_number, CASE
       WHEN e.sequence_number <> coalesce(e.before, c.last_sequence_number, 0) + 1
         THEN 'event ' || coalesce(e.before, c.last_sequence_number, 0) + 1 || ' is missing before it'
       WHEN e.cryptographic_hash <> sha256(
           coalesce(e.hash_before, c.head_hash, decode(repeat('00', 32), 'hex'))
           || convert_to(varve_envelope(e.trajectory_id, e.sequence_number, e.event_type, e.turn, e.payload_sha256,
             e.created_at, e.fencing_token), 'UTF8'))
         THEN 'its hash does not cover its envelope and the event before'
       WHEN e.turn < e.turn_before OR e.created_at < e.time_before OR e.fencing_token < e.token_before
         THEN 'its turn, time or token went back'
       WHEN NOT e.is_exact THEN 'payload_exact does not have the hash in payload_sha256'
     END AS what
     FROM (
       SELECT trajectory_id, sequence_number, event_type, turn, created_at, fencing_token, payload_sha256,
         cryptographic_hash, payload_exact IS NULL OR sha256(payload_exact) = payload_sha256 AS is_exact,
         lag(sequence_number) OVER w AS before, lag(cryptographic_hash) OVER w AS hash_before,
         lag(turn) OVER w AS turn_before, lag(created_at) OVER w AS time_before, lag(fencing_token) OVER w AS token_before
       FROM trajectory_events WHERE trajectory_id >= $1 AND trajectory_id < $2
       WINDOW w AS (PARTITION BY trajectory_id ORDER BY sequence_number)
     ) e
     LEFT JOIN cold_segments c ON e.before IS NULL AND e.sequence_number > 1
       AND c.trajectory_id = e.trajectory_id AND c.last_sequence_number = e.sequence_number - 1
   ) checked
   WHERE what IS NOT NULL ORDER BY trajectory_id, sequence_number LIMIT $3`,
);

const BROKEN_HEADS = statement<Omit<WarmProblem, 'kind'>>(
  'verify.heads',
  `WITH last AS (
     SELECT DISTINCT ON (trajectory_id) trajectory_id, sequence_number, cryptographic_hash, turn, created_at, fencing_token
     FROM trajectory_events WHERE trajectory_id >= $1 AND trajectory_id < $2
     ORDER BY trajectory_id, sequence_number DESC)
   SELECT trajectory_id, sequence_number, what FROM (
     SELECT coalesce(t.trajectory_id, l.trajectory_id) AS trajectory_id,
       coalesce(l.sequence_number, t.last_sequence_number) AS sequence_number, CASE
         WHEN t.trajectory_id IS NULL THEN 'its trajectory has no row'
         WHEN l.trajectory_id IS NULL AND t.last_sequence_number > 0 AND NOT EXISTS (SELECT 1 FROM cold_segments c
             WHERE c.trajectory_id = t.trajectory_id AND c.last_sequence_number = t.last_sequence_number
               AND c.head_hash = t.head_hash)
           THEN 'the trajectory''s row counts ' || t.last_sequence_number || ' events, and none is there'
         WHEN l.sequence_number <> t.last_sequence_number
           THEN 'the trajectory''s row ends at event ' || t.last_sequence_number
         WHEN l.cryptographic_hash <> t.head_hash THEN 'the trajectory''s row has another hash for its last event'
         WHEN (l.turn, l.created_at, l.fencing_token) <> (t.turn, t.created_at, t.fencing_token)
           THEN 'the trajectory''s row has another turn, time or token for its last event'
         WHEN t.last_sequence_number > 0
             AND (t.summary ->> 'sequence_number')::bigint IS DISTINCT FROM t.last_sequence_number
           THEN 'the summary has come to event ' || coalesce(t.summary ->> 'sequence_number', 'none')
         WHEN t.summary IS NOT NULL AND t.status <> t.summary ->> 'status' THEN 'status and summary disagree'
       END AS what
     FROM (SELECT * FROM trajectories WHERE trajectory_id >= $1 AND trajectory_id < $2) t
     FULL JOIN last l USING (trajectory_id)
   ) checked
   WHERE what IS NOT NULL ORDER BY trajectory_id LIMIT $3`,
);

/** Chains and exact payloads of a partition; at most `most` problems, in order. */
export async function brokenChains(session: Session, partition: Partition, most: number): Promise<WarmProblem[]> {
  const rows = await session.query(BROKEN_CHAIN, [partition.lower_id, partition.upper_id, most]);
  return rows.map((row) => ({ kind: row.what.startsWith('payload') ? 'payload' : 'chain', ...row }));
}

/** Rows of `trajectories` against the events that a partition has; at most `most` problems. */
export async function brokenHeads(session: Session, partition: Partition, most: number): Promise<WarmProblem[]> {
  const rows = await session.query(BROKEN_HEADS, [partition.lower_id, partition.upper_id, most]);
  return rows.map((row) => ({ kind: 'head', ...row }));
}

type PayloadRow = FoldedEvent & {
  readonly trajectory_id: TrajectoryId;
  readonly payload: JsonObject | null;
  readonly payload_exact: Buffer | null;
  readonly payload_sha256: string;
};

const PAYLOADS = statement<PayloadRow>(
  'verify.payloads',
  `SELECT trajectory_id, sequence_number, event_type, turn, created_at, payload, payload_exact,
     encode(payload_sha256, 'hex') AS payload_sha256
   FROM trajectory_events
   WHERE trajectory_id >= $1 AND trajectory_id < $2 AND (trajectory_id, sequence_number) > ($3, $4)
   ORDER BY trajectory_id, sequence_number LIMIT $5`,
);

const SUMMARY = statement<{ summary: Summary | null }>(
  'verify.summary',
  `SELECT summary FROM trajectories WHERE trajectory_id = $1 AND last_sequence_number = $2`,
);

/** Payloads have up to 1 MiB each. */
const PAGE_ROWS = 64;

export type PayloadOptions = {
  /** Step each trajectory's summary again, from its first event on, and compare. */
  readonly summaries: boolean;
  readonly signal: AbortSignal;
  readonly onPage: (events: number) => void;
};

/** Problems of a partition's payloads, and with `summaries` of what was made of them, streamed. */
export async function* brokenPayloads(
  session: Session,
  { lower_id, upper_id }: Partition,
  { summaries, signal, onPage }: PayloadOptions,
): AsyncGenerator<WarmProblem> {
  let id: string = '00000000-0000-0000-0000-000000000000';
  let number = 0;
  /** Of the trajectory under way, while all of its events were there. */
  let summary: Summary | undefined;
  while (!signal.aborted) {
    const page = await session.query(PAYLOADS, [lower_id, upper_id, id, number, PAGE_ROWS]);
    for (const row of page) {
      const { trajectory_id, sequence_number } = row;
      if (trajectory_id !== id) {
        if (summaries) yield* brokenSummary(session, id as TrajectoryId, summary);
        summary = sequence_number === 1 ? INITIAL_SUMMARY : undefined;
      }
      const payload = row.payload ?? (JSON.parse(row.payload_exact?.toString('utf8') ?? '{}') as JsonObject);
      if (summary !== undefined) summary = step(summary, [{ ...row, payload }]);
      id = trajectory_id;
      number = sequence_number;
      if (row.payload === null || payloadSha256(canonicalJson(row.payload)) === row.payload_sha256) continue;
      const what = 'the payload does not have the hash in payload_sha256';
      yield { kind: 'payload', trajectory_id, sequence_number, what };
    }
    onPage(page.length);
    if (page.length < PAGE_ROWS) break;
  }
  if (summaries && !signal.aborted) yield* brokenSummary(session, id as TrajectoryId, summary);
}

async function* brokenSummary(
  session: Session,
  trajectory_id: TrajectoryId,
  summary: Summary | undefined,
): AsyncGenerator<WarmProblem> {
  if (summary === undefined) return;
  const { sequence_number } = summary;
  // Where the trajectory has grown since, the row is of another moment and says nothing about this one.
  const [row] = await session.query(SUMMARY, [trajectory_id, sequence_number]);
  if (row === undefined || canonicalJson(row.summary) === canonicalJson(summary)) return;
  const what = 'the summary is not what its events come to';
  yield { kind: 'summary', trajectory_id, sequence_number, what };
}

const BLOBS = statement<{ sha256: string; trajectory_id: TrajectoryId; sequence_number: number }>(
  'verify.blobs',
  `SELECT DISTINCT ON (sha256) encode(sha256, 'hex') AS sha256, trajectory_id, sequence_number FROM blob_refs
   WHERE sha256 > decode($1, 'hex') ORDER BY sha256, trajectory_id, sequence_number LIMIT 1000`,
);

export type BlobReference = {
  readonly sha256: string;
  /** One of the events that refer to it. */
  readonly trajectory_id: TrajectoryId;
  readonly sequence_number: number;
};

/** Every blob that warm or quarantine refers to, once. */
export async function* referencedBlobs(session: Session): AsyncGenerator<BlobReference> {
  for (let after = ''; ; ) {
    const page = await session.query(BLOBS, [after]);
    yield* page;
    const last = page.at(-1);
    if (last === undefined) return;
    after = last.sha256;
  }
}
