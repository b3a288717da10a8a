/**
 * What compaction keeps in the database: its runs, their claims, the marks of what is in cold, and the one cold table
 * that this database moves its events to.
 *
 * A claim is good while its run is running and has not expired; a run that is alive renews. Claims save work, they prove
 * nothing: what makes two compactors safe is that the table log takes no event twice.
 */
import type { TrajectoryId } from '../schemas/ids.ts';
import type { Summary } from '../schemas/summary.ts';
import { hashArray, int8Array, uuidArray } from './columns.ts';
import { type Session, statement, type Tx } from './pool.ts';
import { restored, storable } from './storable-text.ts';

/** What makes a trajectory closed, and old enough. Milliseconds. */
export type CandidateRule = {
  readonly olderThanMs: number;
  readonly importIdleMs: number;
  readonly abandonAfterMs: number;
};

export type Candidate = {
  readonly trajectory_id: TrajectoryId;
  readonly tenant: string;
  readonly model_version: string | null;
  readonly last_sequence_number: number;
  /** Hex. */
  readonly head_hash: string;
  /** When it was old enough. */
  readonly ripe_at: string;
  /** Why it must stay: the reason of what is held back of it. */
  readonly blocked: string | null;
};

/** A place in the order of candidates. */
export type CandidateKey = { readonly tenant: string; readonly model_version: string; readonly trajectory_id: string };

const CANDIDATES = statement<Candidate>(
  'compaction.candidates',
  `SELECT trajectory_id, tenant, model_version, last_sequence_number, encode(head_hash, 'hex') AS head_hash, ripe_at, blocked
   FROM compaction_candidates(make_interval(secs => $1), make_interval(secs => $2), make_interval(secs => $3))
   WHERE (tenant, coalesce(model_version, ''), trajectory_id) > ($4, $5, $6) AND ($7::text IS NULL OR tenant = $7)
     AND NOT EXISTS (SELECT 1 FROM compaction_claims c JOIN compaction_runs r USING (run_id)
       WHERE c.trajectory_id = compaction_candidates.trajectory_id AND r.state = 'running' AND r.expires_at > varve_now()
         AND r.run_id IS DISTINCT FROM $9)
   ORDER BY tenant, coalesce(model_version, ''), trajectory_id LIMIT $8`,
);

const FIRST_ID = '00000000-0000-0000-0000-000000000000';

/** Candidates behind a place, in order, that no other run has claimed. */
export async function readCandidates(
  session: Session,
  rule: CandidateRule,
  tenant: string | undefined,
  after: CandidateKey | undefined,
  most: number,
  run_id?: string,
): Promise<Candidate[]> {
  const rows = await session.query(CANDIDATES, [
    rule.olderThanMs / 1000,
    rule.importIdleMs / 1000,
    rule.abandonAfterMs / 1000,
    storable(after?.tenant ?? ''),
    storable(after?.model_version ?? ''),
    after?.trajectory_id ?? FIRST_ID,
    tenant === undefined ? null : storable(tenant),
    most,
    run_id ?? null,
  ]);
  return rows.map((row) => ({
    ...row,
    tenant: restored(row.tenant),
    model_version: row.model_version === null ? null : restored(row.model_version),
  }));
}

const BACKLOG = statement<{ trajectories: number; oldest_ripe_at: string | null }>(
  'compaction.backlog',
  `SELECT count(*) AS trajectories, min(ripe_at) AS oldest_ripe_at
   FROM compaction_candidates(make_interval(secs => $1), make_interval(secs => $2), make_interval(secs => $3))`,
);

export type Backlog = {
  readonly trajectories: number;
  readonly oldest: { readonly trajectory_id: string; readonly ripe_at: string } | null;
};

const OLDEST = statement<{ trajectory_id: string; ripe_at: string }>(
  'compaction.oldest',
  `SELECT trajectory_id, ripe_at
   FROM compaction_candidates(make_interval(secs => $1), make_interval(secs => $2), make_interval(secs => $3))
   ORDER BY ripe_at, trajectory_id LIMIT 1`,
);

/** Everything that is old enough and not in cold, blocked or claimed or not. */
export async function readBacklog(session: Session, rule: CandidateRule): Promise<Backlog> {
  const values = [rule.olderThanMs / 1000, rule.importIdleMs / 1000, rule.abandonAfterMs / 1000];
  const [counted] = await session.query(BACKLOG, values);
  const [oldest] = await session.query(OLDEST, values);
  return { trajectories: counted?.trajectories ?? 0, oldest: oldest ?? null };
}

const SIZES = statement<{ trajectory_id: TrajectoryId; events: number; bytes: number }>(
  'compaction.sizes',
  `SELECT c.id AS trajectory_id, s.events, s.bytes
   FROM unnest($1::uuid[], $2::bigint[]) AS c (id, after)
   CROSS JOIN LATERAL (
     SELECT count(*) AS events,
       coalesce(sum(coalesce(pg_column_size(e.payload), 0) + coalesce(pg_column_size(e.payload_exact), 0)), 0)::bigint AS bytes
     FROM trajectory_events e WHERE e.trajectory_id = c.id AND e.sequence_number > c.after) s`,
);

/** Stored bytes of the payloads behind a sequence number: compressed, so about what a file of them has. */
export async function readSizes(
  session: Session,
  of: readonly { readonly trajectory_id: TrajectoryId; readonly after: number }[],
): Promise<Map<TrajectoryId, number>> {
  const rows = await session.query(SIZES, [
    uuidArray(of.map(({ trajectory_id }) => trajectory_id)),
    int8Array(of.map(({ after }) => after)),
  ]);
  return new Map(rows.map(({ trajectory_id, bytes }) => [trajectory_id, bytes]));
}

const BEGIN = statement(
  'compaction.begin',
  `INSERT INTO compaction_runs (run_id, host, pid, expires_at)
   VALUES ($1, $2, $3, varve_now() + make_interval(secs => $4))`,
);

export async function beginRun(tx: Tx, run_id: string, host: string, pid: number, ttlMs: number): Promise<void> {
  await tx.execute(BEGIN, [run_id, host, pid, ttlMs / 1000]);
}

const RENEW = statement(
  'compaction.renew',
  `UPDATE compaction_runs SET expires_at = varve_now() + make_interval(secs => $2)
   WHERE run_id = $1 AND state = 'running' AND expires_at > varve_now()`,
);

/** false: its claims have lapsed, and others may have taken what it had. */
export async function renewRun(tx: Tx, run_id: string, ttlMs: number): Promise<boolean> {
  return (await tx.execute(RENEW, [run_id, ttlMs / 1000])) === 1;
}

const END = statement(
  'compaction.end',
  `WITH released AS (DELETE FROM compaction_claims WHERE run_id = $1)
   UPDATE compaction_runs SET state = $2, error_code = $3, report = $4, finished_at = varve_now() WHERE run_id = $1`,
);

export type RunEnd = 'finished' | 'stopped' | 'failed';

/** Releases what it has claimed, too. */
export async function endRun(
  tx: Tx,
  run_id: string,
  end: RunEnd,
  error_code: string | undefined,
  report: object,
): Promise<void> {
  await tx.execute(END, [run_id, end, error_code ?? null, JSON.stringify(report)]);
}

export type Claimed = {
  readonly trajectory_id: TrajectoryId;
  readonly last_sequence_number: number;
  /** Hex. */
  readonly head_hash: string;
  readonly summary: Summary;
};

const CLAIM = statement<Claimed>(
  'compaction.claim',
  `WITH found AS MATERIALIZED (
     SELECT t.trajectory_id, t.last_sequence_number, encode(t.head_hash, 'hex') AS head_hash, t.summary
     FROM trajectories t WHERE t.trajectory_id = ANY ($1::uuid[]) ORDER BY t.trajectory_id
     FOR NO KEY UPDATE SKIP LOCKED
   ), claimed AS (
     INSERT INTO compaction_claims AS c (trajectory_id, run_id) SELECT trajectory_id, $2::uuid FROM found
     ON CONFLICT (trajectory_id) DO UPDATE SET run_id = excluded.run_id, claimed_at = varve_now()
       WHERE c.run_id = excluded.run_id OR NOT EXISTS (SELECT 1 FROM compaction_runs r
         WHERE r.run_id = c.run_id AND r.state = 'running' AND r.expires_at > varve_now())
     RETURNING trajectory_id)
   SELECT f.* FROM found f JOIN claimed USING (trajectory_id) ORDER BY trajectory_id`,
);

/** Those of the trajectories that nobody else has; what ingest is at this moment changing is left for the next time. */
export async function claimTrajectories(tx: Tx, run_id: string, ids: readonly TrajectoryId[]): Promise<Claimed[]> {
  return await tx.query(CLAIM, [uuidArray(ids), run_id]);
}

const RELEASE = statement(
  'compaction.release',
  'DELETE FROM compaction_claims WHERE run_id = $1 AND trajectory_id = ANY ($2::uuid[])',
);

export async function releaseClaims(tx: Tx, run_id: string, ids: readonly TrajectoryId[]): Promise<void> {
  await tx.execute(RELEASE, [run_id, uuidArray(ids)]);
}

/** That a run of events is in cold. Hashes are hex. */
export type ColdMark = {
  readonly trajectory_id: TrajectoryId;
  readonly first_sequence_number: number;
  readonly last_sequence_number: number;
  readonly previous_hash: string;
  readonly head_hash: string;
};

const MARK = statement(
  'compaction.mark',
  `INSERT INTO cold_segments (trajectory_id, first_sequence_number, last_sequence_number, previous_hash, head_hash)
   SELECT m.* FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bytea[])
     AS m (trajectory_id, first_sequence_number, last_sequence_number, previous_hash, head_hash)
   JOIN trajectories USING (trajectory_id)
   ON CONFLICT (trajectory_id, last_sequence_number) DO NOTHING`,
);

/** Marks that are there stay. @returns how many are new */
export async function markCold(tx: Tx, marks: readonly ColdMark[]): Promise<number> {
  return await tx.execute(MARK, [
    uuidArray(marks.map(({ trajectory_id }) => trajectory_id)),
    int8Array(marks.map(({ first_sequence_number }) => first_sequence_number)),
    int8Array(marks.map(({ last_sequence_number }) => last_sequence_number)),
    hashArray(marks.map(({ previous_hash }) => previous_hash)),
    hashArray(marks.map(({ head_hash }) => head_hash)),
  ]);
}

const SEE_TABLE = statement<{ table_id: string; url: string; version: number }>(
  'compaction.see-table',
  `INSERT INTO cold_tables AS c (table_id, url, version) VALUES ($1, $2, $3)
   ON CONFLICT ((true)) DO UPDATE SET
     version = CASE WHEN c.table_id = excluded.table_id THEN greatest(c.version, excluded.version) ELSE c.version END,
     url = CASE WHEN c.table_id = excluded.table_id THEN excluded.url ELSE c.url END, updated_at = varve_now()
   RETURNING table_id, url, version`,
);

const SEEN_TABLE = statement<SeenTable>('compaction.seen-table', 'SELECT table_id, url, version FROM cold_tables');

/** What the database believes; undefined: nothing yet. */
export async function readSeenTable(session: Session): Promise<SeenTable | undefined> {
  const [seen] = await session.query(SEEN_TABLE);
  return seen;
}

export type SeenTable = { readonly table_id: string; readonly url: string; readonly version: number };

/** Notes a version of the table; the answer is what the database believes, of another table where it has one. */
export async function seeTable(tx: Tx, table: SeenTable): Promise<SeenTable> {
  const [seen] = await tx.query(SEE_TABLE, [table.table_id, table.url, table.version]);
  return seen ?? table;
}

export type RunRow = {
  readonly run_id: string;
  readonly host: string;
  readonly pid: number;
  readonly state: 'running' | RunEnd;
  /** Running, but its claims have lapsed: it died, or sleeps. */
  readonly is_lapsed: boolean;
  readonly started_at: string;
  readonly finished_at: string | null;
  readonly error_code: string | null;
  readonly report: unknown;
};

const RUNS = statement<RunRow>(
  'compaction.runs',
  `SELECT run_id, host, pid, state, state = 'running' AND expires_at <= varve_now() AS is_lapsed, started_at, finished_at,
     error_code, report
   FROM compaction_runs ORDER BY started_at DESC, run_id LIMIT $1`,
);

/** Newest first. */
export async function readRuns(session: Session, most: number): Promise<RunRow[]> {
  return await session.query(RUNS, [most]);
}
