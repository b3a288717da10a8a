-- The envelope of an event, rebuilt from columns (schemas/chain.ts).
--
-- Columns: trajectory_id uuid, sequence_number bigint, event_type text, turn int, payload_sha256 bytea (32 bytes),
-- created_at timestamptz (whole milliseconds), fencing_token bigint. With the limits of the event (DESIGN, section 3)
-- nothing in it needs escaping, so a concatenation is its canonical JSON, and
--
--   cryptographic_hash = sha256(previous event's cryptographic_hash || envelope)
--
-- with 32 zero bytes before the first event. Neither expression depends on the session's time zone, date style or locale.
-- Each dialect below is a unit of its own; run the one that you need.

-- dialect: postgresql

CREATE OR REPLACE FUNCTION varve_envelope(
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

-- Rows whose hash does not cover their envelope and the event before; none means the chain of these rows holds.
-- SELECT trajectory_id, sequence_number FROM (
--     SELECT *, lag(cryptographic_hash) OVER (PARTITION BY trajectory_id ORDER BY sequence_number) AS previous
--     FROM trajectory_events
-- ) AS event
-- WHERE cryptographic_hash <> sha256(
--     coalesce(previous, decode(repeat('00', 32), 'hex'))
--     || convert_to(varve_envelope(trajectory_id, sequence_number, event_type, turn, payload_sha256, created_at,
--                                  fencing_token), 'UTF8'));

-- dialect: duckdb

CREATE OR REPLACE MACRO varve_envelope(
    trajectory_id, sequence_number, event_type, turn, payload_sha256, created_at, fencing_token
) AS
    '{"created_at":"' || strftime(make_timestamp(epoch_us(created_at)), '%Y-%m-%dT%H:%M:%S.%gZ')
        || '","event_type":"' || event_type
        || '","fencing_token":' || fencing_token
        || ',"payload_sha256":"' || lower(hex(payload_sha256))
        || '","sequence_number":' || sequence_number
        || ',"trajectory_id":"' || trajectory_id
        || '","turn":' || turn || '}';

-- SELECT trajectory_id, sequence_number FROM (
--     SELECT *, lag(cryptographic_hash) OVER (PARTITION BY trajectory_id ORDER BY sequence_number) AS previous
--     FROM events
-- )
-- WHERE lower(hex(cryptographic_hash)) <> sha256(
--     coalesce(previous, unhex(repeat('00', 32)))
--     || encode(varve_envelope(trajectory_id, sequence_number, event_type, turn, payload_sha256, created_at,
--                              fencing_token)));
