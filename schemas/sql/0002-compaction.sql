-- compatible: true
-- Compaction: runs, what they have claimed, and which cold table this database belongs to. DESIGN section 6.

CREATE TABLE compaction_runs (
    run_id uuid PRIMARY KEY,
    host text NOT NULL,
    pid int NOT NULL,
    state text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'finished', 'stopped', 'failed')),
    started_at timestamptz NOT NULL DEFAULT varve_now(),
    expires_at timestamptz NOT NULL,
    finished_at timestamptz,
    error_code text,
    report json
);
COMMENT ON TABLE compaction_runs IS
    'Runs of varve compact. A run that is running and whose claims have lapsed (expires_at) died, or sleeps: it commits nothing any more, and others may claim what it had.';
COMMENT ON COLUMN compaction_runs.state IS
    'running; finished; stopped (by a signal, or its time was over); failed (error_code).';
COMMENT ON COLUMN compaction_runs.report IS 'What it did: counts, bytes, what was skipped and why, and the backlog that it left.';
CREATE INDEX compaction_runs_started ON compaction_runs (started_at);

CREATE TABLE compaction_claims (
    trajectory_id uuid PRIMARY KEY,
    run_id uuid NOT NULL REFERENCES compaction_runs,
    claimed_at timestamptz NOT NULL DEFAULT varve_now()
);
COMMENT ON TABLE compaction_claims IS 'Trajectories that a run is moving. Good as long as their run is running and has not expired.';
CREATE INDEX compaction_claims_run ON compaction_claims (run_id);

CREATE TABLE cold_tables (
    table_id uuid NOT NULL,
    url text NOT NULL,
    version bigint NOT NULL,
    first_seen_at timestamptz NOT NULL DEFAULT varve_now(),
    updated_at timestamptz NOT NULL DEFAULT varve_now()
);
-- The only key: an upsert has one arbiter, and two that race for the first row must not meet at another.
CREATE UNIQUE INDEX cold_tables_one ON cold_tables ((true));
COMMENT ON TABLE cold_tables IS
    'The cold table that the events of this database move to (metaData.id of its log), and the newest version seen of it. One row: two stores behind one database, or a store that went back, are refused.';

CREATE FUNCTION compaction_candidates(p_older_than interval, p_import_idle interval, p_abandon_after interval)
RETURNS TABLE (
    trajectory_id uuid, tenant text, model_version text, last_sequence_number bigint, head_hash bytea, summary json,
    cold_sequence_number bigint, ripe_at timestamptz, blocked text
) LANGUAGE sql STABLE AS $$
    SELECT t.trajectory_id, t.tenant, t.model_version, t.last_sequence_number, t.head_hash, t.summary, c.last_sequence_number,
        least(t.created_at, t.updated_at) + p_older_than,
        (SELECT min(q.reason) FROM quarantine q
            WHERE q.trajectory_id = t.trajectory_id AND q.state = 'held' AND q.reason IN ('gap', 'poison'))
    FROM trajectories t
    LEFT JOIN LATERAL (SELECT max(s.last_sequence_number) AS last_sequence_number FROM cold_segments s
        WHERE s.trajectory_id = t.trajectory_id) c ON true
    WHERE t.last_sequence_number > coalesce(c.last_sequence_number, 0)
        AND least(t.created_at, t.updated_at) <= varve_now() - p_older_than
        AND (t.status IN ('completed', 'failed', 'canceled')
            OR t.updated_at <= varve_now() - p_import_idle AND (t.summary ->> 'imported')::boolean
            OR t.updated_at <= varve_now() - p_abandon_after
                AND NOT EXISTS (SELECT 1 FROM leases l
                    WHERE l.trajectory_id = t.trajectory_id AND l.holder IS NOT NULL AND l.expires_at > varve_now()))
$$;
COMMENT ON FUNCTION compaction_candidates IS
    'Closed trajectories with events that are not in cold, at least so old: finished; imports with nothing new for a while; idle for long and without a lease. Age runs from the earlier of the last created_at and the time that event was taken in. blocked: what held-back events keep it here.';
