-- Roles of the warm tier, each with no more than it needs. Not a migration: whoever owns the tables runs it, after
-- `varve migrate` and again after every later one; running it twice changes nothing.
--
--     psql "$DATABASE_URL" -f schemas/sql/roles.sql
--     CREATE ROLE sidecar_1 LOGIN PASSWORD '…' IN ROLE varve_sidecar;
--
--   varve_sidecar    takes events in: inserts them, and never changes or deletes one
--   varve_compactor  reads events out, and records what is in the cold tier
--   varve_reader     the views for people, and nothing else: no payload leaves through them
--   varve_operator   decides about quarantine, and all that a sidecar may
--
-- Migrations, and dropping partitions, are the owner's.

DO $$
DECLARE v_role text;
BEGIN
    FOREACH v_role IN ARRAY ARRAY['varve_sidecar', 'varve_compactor', 'varve_reader', 'varve_operator'] LOOP
        IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = v_role) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', v_role);
        END IF;
    END LOOP;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; -- another run was quicker
END $$;

-- Making a partition is the owner's right; a sidecar may ask for it, and for nothing else that is his. Temporary tables
-- come last in the path, so that nobody's own can stand in for ours.
DO $$ BEGIN
    EXECUTE format('ALTER FUNCTION varve_ensure_partition(uuid) SECURITY DEFINER SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('ALTER FUNCTION varve_ensure_days_ahead(int) SECURITY DEFINER SET search_path = %I, pg_temp', current_schema());
END $$;
REVOKE EXECUTE ON FUNCTION varve_add_partition(text, uuid, uuid) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION varve_ensure_partition(uuid) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION varve_ensure_days_ahead(int) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION lease_claim(uuid, text, interval, bigint, bytea) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION lease_renew(uuid, text, bigint, interval) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION lease_release(uuid, text, bigint) FROM PUBLIC;

GRANT SELECT ON varve_migrations TO varve_sidecar, varve_compactor;

GRANT EXECUTE ON FUNCTION varve_ensure_partition(uuid), varve_ensure_days_ahead(int) TO varve_sidecar;
GRANT SELECT, INSERT ON trajectory_events, blob_refs TO varve_sidecar;
GRANT SELECT, INSERT, UPDATE ON trajectories, cursors, anchors, blocks, quarantine, missing_records TO varve_sidecar;
GRANT SELECT ON cold_segments, event_partitions, fences, leases TO varve_sidecar;
GRANT SELECT ON fleet, in_doubt, pending_approvals, replication_lag TO varve_sidecar;

GRANT SELECT ON trajectory_events, event_partitions, trajectories, blob_refs, quarantine, blocks, cursors, leases,
    cold_segments TO varve_compactor;
GRANT INSERT, UPDATE ON cold_segments TO varve_compactor;
GRANT SELECT, INSERT, UPDATE ON compaction_runs, cold_tables TO varve_compactor;
GRANT SELECT, INSERT, UPDATE, DELETE ON compaction_claims TO varve_compactor;
GRANT SELECT ON compaction_runs TO varve_operator;
-- One column is enough for FOR UPDATE, which claims a trajectory.
GRANT UPDATE (updated_at) ON trajectories TO varve_compactor;
GRANT UPDATE (state, reason, settled_at, settled_why) ON quarantine TO varve_compactor;

GRANT SELECT ON fleet, in_doubt, pending_approvals, replication_lag TO varve_reader;

GRANT varve_sidecar TO varve_operator;
-- A replay lifts a block.
GRANT DELETE ON blocks TO varve_operator;
