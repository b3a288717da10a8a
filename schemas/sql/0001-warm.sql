-- compatible: true
-- The warm tier: events, one permanent row for each trajectory, cursors, quarantine, leases.
-- DESIGN sections 2, 3 and 5 are its specification; names are those of the event everywhere.

CREATE FUNCTION varve_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT clock_timestamp() $$;
COMMENT ON FUNCTION varve_now() IS 'All time of the warm tier''s SQL comes from here; a test may replace it.';

CREATE FUNCTION varve_refuse(reason text) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'varve: %', reason USING ERRCODE = 'VA001';
END $$;
COMMENT ON FUNCTION varve_refuse(text) IS 'Undoes the statement that calls it, with SQLSTATE VA001.';

CREATE FUNCTION varve_envelope(
    trajectory_id uuid, sequence_number bigint, event_type text, turn int,
    payload_sha256 bytea, created_at timestamptz, fencing_token bigint
) RETURNS text LANGUAGE sql STABLE STRICT PARALLEL SAFE AS $$
    SELECT '{"created_at":"' || to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
        || '","event_type":"' || event_type
        || '","fencing_token":' || fencing_token
        || ',"payload_sha256":"' || encode(payload_sha256, 'hex')
        || '","sequence_number":' || sequence_number
        || ',"trajectory_id":"' || trajectory_id
        || '","turn":' || turn || '}'
$$;
COMMENT ON FUNCTION varve_envelope IS
    'Canonical envelope of an event (schemas/chain.ts). cryptographic_hash = sha256(previous hash || envelope).';

CREATE FUNCTION varve_uuid_floor(at timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;
COMMENT ON FUNCTION varve_uuid_floor(timestamptz) IS
    'Smallest UUID whose first 48 bits are this time in milliseconds: trajectory_id >= varve_uuid_floor(t) prunes partitions.';

CREATE FUNCTION varve_uuid_time(id uuid) RETURNS timestamptz LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT to_timestamp(('x' || lpad(left(replace(id::text, '-', ''), 12), 16, '0'))::bit(64)::bigint / 1000.0)
$$;
COMMENT ON FUNCTION varve_uuid_time(uuid) IS 'The time that a UUIDv7 carries: the start of its trajectory.';

CREATE TABLE trajectory_events (
    trajectory_id uuid NOT NULL,
    sequence_number bigint NOT NULL CHECK (sequence_number BETWEEN 1 AND 9007199254740991),
    event_type text NOT NULL,
    turn int NOT NULL CHECK (turn >= 0),
    payload jsonb,
    payload_exact bytea,
    payload_sha256 bytea NOT NULL CHECK (octet_length(payload_sha256) = 32),
    cryptographic_hash bytea NOT NULL CHECK (octet_length(cryptographic_hash) = 32),
    created_at timestamptz NOT NULL,
    fencing_token bigint NOT NULL CHECK (fencing_token >= 0),
    PRIMARY KEY (trajectory_id, sequence_number),
    CHECK ((payload IS NULL) <> (payload_exact IS NULL))
) PARTITION BY RANGE (trajectory_id);

COMMENT ON TABLE trajectory_events IS
    'Events as the hot logs wrote them. Partitioned by trajectory_id, whose first bits are the day of the trajectory''s start: filter by trajectory_id, or by a range of varve_uuid_floor(), to prune.';
COMMENT ON COLUMN trajectory_events.payload IS 'The payload; null where jsonb cannot hold it (U+0000).';
COMMENT ON COLUMN trajectory_events.payload_exact IS 'Canonical UTF-8 text of the payload where jsonb cannot hold it.';
COMMENT ON COLUMN trajectory_events.payload_sha256 IS 'SHA-256 of the canonical payload.';
COMMENT ON COLUMN trajectory_events.cryptographic_hash IS 'SHA-256 of the previous event''s hash and this event''s envelope.';

-- A prefix, because an unknown kind may carry any text under this name and a btree entry has a limit.
CREATE INDEX trajectory_events_tool_call ON trajectory_events (left(payload ->> 'tool_call_id', 256))
    WHERE payload ? 'tool_call_id';

DO $$ BEGIN
    ALTER TABLE trajectory_events ALTER COLUMN payload SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN NULL;
END $$;

CREATE TABLE event_partitions (
    name text PRIMARY KEY,
    lower_id uuid NOT NULL,
    upper_id uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT varve_now(),
    CHECK (lower_id < upper_id)
);
COMMENT ON TABLE event_partitions IS 'Partitions of trajectory_events: lower_id <= trajectory_id < upper_id.';

CREATE FUNCTION varve_add_partition(p_name text, p_lower uuid, p_upper uuid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- LIKE and ATTACH, because PARTITION OF would take ACCESS EXCLUSIVE on the parent and stop every reader.
    EXECUTE format('CREATE TABLE %I (LIKE trajectory_events INCLUDING ALL)', p_name);
    EXECUTE format('ALTER TABLE trajectory_events ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', p_name, p_lower, p_upper);
    INSERT INTO event_partitions (name, lower_id, upper_id) VALUES (p_name, p_lower, p_upper);
END $$;

CREATE FUNCTION varve_ensure_partition(p_id uuid) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_day timestamptz := date_trunc('day', varve_uuid_time(p_id) AT TIME ZONE 'UTC') AT TIME ZONE 'UTC';
    v_today timestamptz := date_trunc('day', varve_now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC';
    v_month timestamptz := date_trunc('month', v_day AT TIME ZONE 'UTC') AT TIME ZONE 'UTC';
    v_early uuid := varve_uuid_floor('2015-01-01 00:00:00+00');
    v_lower uuid;
    v_upper uuid;
    v_name text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('varve_ensure_partition'));
    SELECT name INTO v_name FROM event_partitions WHERE lower_id <= p_id AND p_id < upper_id;
    IF FOUND AND to_regclass(quote_ident(v_name)) IS NOT NULL THEN RETURN v_name; END IF;
    IF FOUND THEN DELETE FROM event_partitions WHERE name = v_name; END IF;
    IF p_id < v_early THEN
        v_name := 'trajectory_events_early';
        v_lower := '00000000-0000-0000-0000-000000000000';
        v_upper := v_early;
    ELSIF v_day >= v_today - interval '1 day' THEN
        v_name := 'trajectory_events_' || to_char(v_day AT TIME ZONE 'UTC', 'YYYYMMDD');
        v_lower := varve_uuid_floor(v_day);
        v_upper := varve_uuid_floor(v_day + interval '1 day');
    ELSE
        -- A past day, of an import: the gap of that month between the partitions that are there.
        v_lower := greatest(varve_uuid_floor(v_month),
            (SELECT upper_id FROM event_partitions WHERE upper_id <= p_id ORDER BY upper_id DESC LIMIT 1));
        v_upper := least(
            varve_uuid_floor((v_month AT TIME ZONE 'UTC' + interval '1 month') AT TIME ZONE 'UTC'),
            varve_uuid_floor(v_today - interval '1 day'),
            (SELECT lower_id FROM event_partitions WHERE lower_id > p_id ORDER BY lower_id LIMIT 1));
        v_name := 'trajectory_events_' || to_char(varve_uuid_time(v_lower) AT TIME ZONE 'UTC', 'YYYYMMDD')
            || '_' || to_char(varve_uuid_time(v_upper) AT TIME ZONE 'UTC', 'YYYYMMDD');
    END IF;
    PERFORM varve_add_partition(v_name, v_lower, v_upper);
    RETURN v_name;
END $$;
COMMENT ON FUNCTION varve_ensure_partition(uuid) IS
    'Makes the partition for a trajectory where there is none and returns its name. Callers race safely.';

CREATE FUNCTION varve_ensure_days_ahead(p_days int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE v_day int;
BEGIN
    FOR v_day IN 0 .. p_days LOOP
        PERFORM varve_ensure_partition(varve_uuid_floor(varve_now() + make_interval(days => v_day)));
    END LOOP;
    RETURN (SELECT count(*) FROM event_partitions WHERE lower_id > varve_uuid_floor(varve_now()));
END $$;
COMMENT ON FUNCTION varve_ensure_days_ahead(int) IS 'Makes today''s partition and those of the next days; returns how many lie ahead.';

CREATE TABLE trajectories (
    trajectory_id uuid PRIMARY KEY,
    last_sequence_number bigint NOT NULL DEFAULT 0,
    head_hash bytea NOT NULL DEFAULT decode(repeat('00', 32), 'hex'),
    turn int NOT NULL DEFAULT 0,
    created_at timestamptz,
    fencing_token bigint NOT NULL DEFAULT 0,
    fence_token bigint NOT NULL DEFAULT 0,
    waiting int NOT NULL DEFAULT 0,
    summary json,
    status text NOT NULL DEFAULT 'running',
    tenant text NOT NULL DEFAULT 'default',
    agent text,
    model text,
    model_version text,
    started_at timestamptz,
    taken_at timestamptz NOT NULL DEFAULT varve_now(),
    updated_at timestamptz NOT NULL DEFAULT varve_now()
) WITH (fillfactor = 50);
COMMENT ON TABLE trajectories IS
    'One permanent row for each trajectory. It outlives its events: nothing at or below last_sequence_number is ever inserted again.';
COMMENT ON COLUMN trajectories.head_hash IS 'Hash of the last event; 32 zero bytes before the first.';
COMMENT ON COLUMN trajectories.turn IS 'Turn, time (created_at) and token (fencing_token) are those of the last event.';
COMMENT ON COLUMN trajectories.fence_token IS 'Token of the newest claim; see fences.';
COMMENT ON COLUMN trajectories.waiting IS 'Events in quarantine that wait for their predecessor.';
COMMENT ON COLUMN trajectories.summary IS
    'Bounded summary (schemas/summary.ts), advanced event by event. json and not jsonb: it is replaced with every batch and rarely looked into.';
COMMENT ON COLUMN trajectories.taken_at IS 'When the first event was taken in.';
-- No index has a column that changes with every batch: updates then stay on their page (HOT) and write no index.
CREATE INDEX trajectories_status ON trajectories (status, tenant);
CREATE INDEX trajectories_tenant ON trajectories (tenant);

CREATE TABLE fences (
    trajectory_id uuid NOT NULL REFERENCES trajectories,
    fencing_token bigint NOT NULL,
    sequence_number bigint NOT NULL,
    PRIMARY KEY (trajectory_id, fencing_token)
);
COMMENT ON TABLE fences IS
    'Claims that still decide about something: lower tokens are accepted up to this sequence number and fenced behind it, also when a later claim states a later head.';

CREATE TABLE cold_segments (
    trajectory_id uuid NOT NULL REFERENCES trajectories,
    first_sequence_number bigint NOT NULL,
    last_sequence_number bigint NOT NULL,
    previous_hash bytea NOT NULL,
    head_hash bytea NOT NULL,
    PRIMARY KEY (trajectory_id, last_sequence_number)
);
COMMENT ON TABLE cold_segments IS 'Runs of events that are in the cold tier. The hash at a segment''s end decides for all before it.';

CREATE TABLE cursors (
    log_id uuid PRIMARY KEY,
    lsn bigint NOT NULL,
    hash bytea NOT NULL,
    epoch uuid NOT NULL,
    host text NOT NULL,
    directory text NOT NULL,
    durable_lsn bigint NOT NULL DEFAULT 0,
    first_seen_at timestamptz NOT NULL DEFAULT varve_now(),
    updated_at timestamptz NOT NULL DEFAULT varve_now()
);
COMMENT ON TABLE cursors IS 'How far each hot log has been taken over: (log_id, lsn, hash) names the last record exactly.';

CREATE TABLE missing_records (
    log_id uuid NOT NULL,
    from_lsn bigint NOT NULL,
    to_lsn bigint NOT NULL,
    noticed_at timestamptz NOT NULL DEFAULT varve_now(),
    PRIMARY KEY (log_id, from_lsn)
);
COMMENT ON TABLE missing_records IS
    'Records that a log had trimmed, because they were acknowledged, and that this database does not have: it was restored from an older backup.';

CREATE TABLE anchors (
    trajectory_id uuid NOT NULL,
    log_id uuid NOT NULL,
    lsn bigint NOT NULL,
    sequence_number bigint NOT NULL,
    cryptographic_hash bytea NOT NULL,
    fencing_token bigint NOT NULL,
    PRIMARY KEY (trajectory_id, log_id)
);
COMMENT ON TABLE anchors IS 'Where a log announced that it goes on behind an event of another log: what follows may wait for that event.';

CREATE TABLE blocks (
    trajectory_id uuid NOT NULL,
    log_id uuid NOT NULL,
    fencing_token bigint NOT NULL,
    reason text NOT NULL CHECK (reason IN ('gap', 'fork', 'poison', 'fenced')),
    sequence_number bigint NOT NULL,
    since timestamptz NOT NULL DEFAULT varve_now(),
    accepted_at timestamptz,
    branch_id uuid,
    PRIMARY KEY (trajectory_id, log_id)
);
COMMENT ON TABLE blocks IS
    'What a log sends for a trajectory under this token or a lower one goes to quarantine; other logs and higher tokens go on.';
COMMENT ON COLUMN blocks.accepted_at IS
    'A person has decided: what still comes under this block is recorded as accepted, but for intents, of which a person must know.';
COMMENT ON COLUMN blocks.branch_id IS 'The trajectory of its own that the quarantined events became.';

CREATE TABLE quarantine (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    trajectory_id uuid NOT NULL,
    sequence_number bigint NOT NULL,
    log_id uuid NOT NULL,
    lsn bigint NOT NULL,
    reason text NOT NULL CHECK (reason IN ('gap', 'fork', 'poison', 'fenced', 'waiting', 'unproven')),
    sqlstate text,
    detail text,
    envelope text NOT NULL,
    payload bytea NOT NULL,
    cryptographic_hash bytea NOT NULL,
    state text NOT NULL DEFAULT 'held' CHECK (state IN ('held', 'applied', 'proven', 'accepted', 'branched')),
    taken_at timestamptz NOT NULL DEFAULT varve_now(),
    settled_at timestamptz,
    settled_why text,
    branch_id uuid,
    UNIQUE (log_id, lsn)
);
COMMENT ON TABLE quarantine IS
    'Events that do not fit, byte-exactly: envelope and canonical payload as the log wrote them. Nothing is ever dropped.';
COMMENT ON COLUMN quarantine.state IS
    'held; applied (inserted after all); proven (a duplicate); accepted (a person decided to leave it); branched (it got a trajectory of its own).';
CREATE INDEX quarantine_held ON quarantine (trajectory_id, sequence_number) WHERE state = 'held';
CREATE INDEX quarantine_held_log ON quarantine (log_id, lsn) WHERE state IN ('held', 'accepted', 'branched');

CREATE TABLE blob_refs (
    sha256 bytea NOT NULL,
    trajectory_id uuid NOT NULL,
    sequence_number bigint NOT NULL,
    PRIMARY KEY (sha256, trajectory_id, sequence_number)
);
COMMENT ON TABLE blob_refs IS 'Which events, in warm or in quarantine, refer to which blob.';

CREATE TABLE leases (
    trajectory_id uuid PRIMARY KEY REFERENCES trajectories,
    holder text,
    fencing_token bigint NOT NULL,
    expires_at timestamptz NOT NULL,
    claimed_at timestamptz NOT NULL
);
COMMENT ON TABLE leases IS 'Who may write a trajectory. A row is never deleted, so that a token is never given twice.';

CREATE FUNCTION lease_claim(p_trajectory_id uuid, p_holder text, p_ttl interval, p_sequence_number bigint, p_hash bytea)
RETURNS TABLE (granted boolean, fencing_token bigint, expires_at timestamptz, reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_row trajectories;
    v_lease leases;
    v_token bigint;
BEGIN
    IF num_nulls(p_trajectory_id, p_holder, p_ttl, p_sequence_number, p_hash) > 0 THEN
        RAISE EXCEPTION 'a claim states everything' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    INSERT INTO trajectories (trajectory_id, started_at) VALUES (p_trajectory_id, varve_uuid_time(p_trajectory_id))
        ON CONFLICT DO NOTHING;
    SELECT * INTO v_row FROM trajectories WHERE trajectory_id = p_trajectory_id FOR UPDATE;
    SELECT * INTO v_lease FROM leases WHERE trajectory_id = p_trajectory_id FOR UPDATE;
    IF v_lease.holder IS NOT NULL AND v_lease.holder <> p_holder AND v_lease.expires_at > varve_now() THEN
        RETURN QUERY SELECT false, v_lease.fencing_token, v_lease.expires_at, 'held'::text;
        RETURN;
    END IF;
    IF p_sequence_number < v_row.last_sequence_number
        OR (p_sequence_number = v_row.last_sequence_number AND p_hash <> v_row.head_hash) THEN
        RETURN QUERY SELECT false, v_row.fence_token, NULL::timestamptz, 'behind'::text;
        RETURN;
    END IF;
    -- Milliseconds of the clock, so that a restored database does not hand a token out again.
    v_token := greatest(v_row.fence_token + 1, v_row.fencing_token + 1, floor(extract(epoch FROM varve_now()) * 1000)::bigint);
    INSERT INTO leases AS l (trajectory_id, holder, fencing_token, expires_at, claimed_at)
        VALUES (p_trajectory_id, p_holder, v_token, varve_now() + p_ttl, varve_now())
        ON CONFLICT (trajectory_id) DO UPDATE SET holder = excluded.holder, fencing_token = excluded.fencing_token,
            expires_at = excluded.expires_at, claimed_at = excluded.claimed_at;
    UPDATE trajectories SET fence_token = v_token, updated_at = varve_now() WHERE trajectory_id = p_trajectory_id;
    INSERT INTO fences (trajectory_id, fencing_token, sequence_number) VALUES (p_trajectory_id, v_token, p_sequence_number);
    -- A later claim that states no later head decides alone. Of those whose heads warm has, the newest 32 say of a late
    -- event that it was fenced; without them it would be a fork.
    DELETE FROM fences f WHERE f.trajectory_id = p_trajectory_id AND EXISTS (
        SELECT 1 FROM fences n WHERE n.trajectory_id = f.trajectory_id AND n.fencing_token > f.fencing_token
            AND (n.sequence_number <= f.sequence_number
                OR n.sequence_number <= v_row.last_sequence_number AND f.fencing_token NOT IN (
                    SELECT k.fencing_token FROM fences k WHERE k.trajectory_id = f.trajectory_id
                    ORDER BY k.fencing_token DESC LIMIT 32)));
    RETURN QUERY SELECT true, v_token, l.expires_at, NULL::text FROM leases l WHERE l.trajectory_id = p_trajectory_id;
END $$;
COMMENT ON FUNCTION lease_claim IS
    'Claims a trajectory for a holder that states the head it has. Refused: held (by another, unexpired) or behind (warm has more, or other, events). From the grant on, lower tokens are accepted only up to the stated head.';

CREATE FUNCTION lease_renew(p_trajectory_id uuid, p_holder text, p_fencing_token bigint, p_ttl interval)
RETURNS TABLE (expires_at timestamptz) LANGUAGE sql AS $$
    UPDATE leases l SET expires_at = varve_now() + p_ttl
    WHERE l.trajectory_id = p_trajectory_id AND l.holder = p_holder AND l.fencing_token = p_fencing_token
        AND l.expires_at > varve_now()
    RETURNING l.expires_at
$$;
COMMENT ON FUNCTION lease_renew IS 'No row: the lease has expired or is another''s; the trajectory must be claimed again.';

CREATE FUNCTION lease_release(p_trajectory_id uuid, p_holder text, p_fencing_token bigint) RETURNS boolean LANGUAGE sql AS $$
    WITH released AS (
        UPDATE leases SET holder = NULL, expires_at = varve_now()
        WHERE trajectory_id = p_trajectory_id AND holder = p_holder AND fencing_token = p_fencing_token RETURNING 1)
    SELECT EXISTS (SELECT 1 FROM released)
$$;
COMMENT ON FUNCTION lease_release IS 'Gives a lease up; the row stays, and with it the token.';

CREATE VIEW fleet AS
    SELECT t.trajectory_id, t.tenant, t.agent, t.status, t.turn, t.last_sequence_number, t.model, t.model_version,
        (t.summary #>> '{tokens,input_tokens}')::bigint AS input_tokens,
        (t.summary #>> '{tokens,output_tokens}')::bigint AS output_tokens,
        t.started_at, t.created_at AS last_event_at, t.updated_at, l.holder, l.expires_at AS lease_expires_at,
        EXISTS (SELECT 1 FROM quarantine q WHERE q.trajectory_id = t.trajectory_id AND q.state = 'held') AS has_quarantine
    FROM trajectories t LEFT JOIN leases l USING (trajectory_id);
COMMENT ON VIEW fleet IS 'One line for each trajectory, for people.';

CREATE FUNCTION varve_payload_text(payload bytea, name text) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    RETURN convert_from(payload, 'UTF8')::json ->> name;
EXCEPTION WHEN data_exception THEN
    -- Text that PostgreSQL cannot hold (U+0000) must not take the view down with it.
    RETURN NULL;
END $$;

CREATE VIEW in_doubt AS
    SELECT t.trajectory_id, t.tenant, t.agent, c.call ->> 'tool_call_id' AS tool_call_id, c.call ->> 'tool_name' AS tool_name,
        (c.call ->> 'intent_at')::bigint AS intent_sequence_number, 'open'::text AS origin, t.updated_at
    FROM trajectories t CROSS JOIN LATERAL json_array_elements(t.summary -> 'open_calls') AS c (call)
    WHERE c.call ->> 'intent_at' IS NOT NULL
    UNION ALL
    SELECT q.trajectory_id, t.tenant, t.agent,
        varve_payload_text(q.payload, 'tool_call_id'), varve_payload_text(q.payload, 'tool_name'),
        q.sequence_number, 'fenced', q.taken_at
    FROM quarantine q JOIN trajectories t USING (trajectory_id)
    WHERE q.state = 'held' AND q.reason = 'fenced' AND q.envelope LIKE '%"event_type":"ToolIntent"%';
COMMENT ON VIEW in_doubt IS
    'Intents without a result: of running trajectories (while the worker lives they may be under way), and of fenced logs.';

CREATE VIEW pending_approvals AS
    SELECT t.trajectory_id, t.tenant, t.agent, c.call ->> 'tool_call_id' AS tool_call_id, c.call ->> 'tool_name' AS tool_name,
        (c.call ->> 'approval_requested_at')::bigint AS request_sequence_number, t.updated_at
    FROM trajectories t CROSS JOIN LATERAL json_array_elements(t.summary -> 'open_calls') AS c (call)
    WHERE c.call ->> 'approval_requested_at' IS NOT NULL;
COMMENT ON VIEW pending_approvals IS 'Calls that wait for a person.';

CREATE VIEW replication_lag AS
    SELECT log_id, host, directory, lsn, durable_lsn, greatest(durable_lsn - lsn, 0) AS unreplicated_records, updated_at,
        varve_now() - updated_at AS silent_for
    FROM cursors;
COMMENT ON VIEW replication_lag IS 'How far each log is behind, as its sidecar last knew.';

SELECT varve_ensure_partition('00000000-0000-7000-8000-000000000000');
SELECT varve_ensure_days_ahead(2);
