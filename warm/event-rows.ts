/**
 * Rows of `trajectory_events`: how events become columns, and back.
 *
 * A payload that jsonb cannot hold, because its canonical text has U+0000 in it, goes to `payload_exact` as it is. All
 * others come back from jsonb byte-identical once they are canonical again (measured over 80,000 random documents).
 */
import { VarveError } from '../schemas/errors.ts';
import type { TrajectoryId } from '../schemas/ids.ts';
import {
  byteaArray,
  hashArray,
  int4Array,
  int8Array,
  jsonbArray,
  textArray,
  timestampArray,
  uuidArray,
} from './columns.ts';
import type { WarmEvent } from './ingest-plan.ts';
import { statement, type Tx, type Value } from './pool.ts';

/** A `\u0000` escape: the `u0000` behind an odd number of backslashes. */
const NUL_ESCAPE = /(?<!\\)(?:\\\\)*\\u0000/;

export function isJsonbSafe(canonicalPayload: Uint8Array): boolean {
  const bytes = Buffer.from(canonicalPayload.buffer, canonicalPayload.byteOffset, canonicalPayload.byteLength);
  // Without its backslash: a search that begins with one stops at every quote and newline of a text.
  return !bytes.includes('u0000') || !NUL_ESCAPE.test(bytes.toString('utf8'));
}

/** Parameters of `insertEventsSql`, in its order. */
export function eventColumns(events: readonly WarmEvent[]): Value[] {
  const safe = events.map(({ payload_bytes }) => isJsonbSafe(payload_bytes));
  return [
    uuidArray(events.map((event) => event.trajectory_id)),
    int8Array(events.map((event) => event.sequence_number)),
    textArray(events.map((event) => event.event_type)),
    int4Array(events.map((event) => event.turn)),
    jsonbArray(events.map((event, i) => (safe[i] === true ? event.payload_bytes : undefined))),
    byteaArray(events.map((event, i) => (safe[i] === true ? undefined : event.payload_bytes))),
    hashArray(events.map((event) => event.payload_sha256)),
    hashArray(events.map((event) => event.cryptographic_hash)),
    timestampArray(events.map((event) => Date.parse(event.created_at))),
    int8Array(events.map((event) => event.fencing_token)),
  ];
}

/** Inserts the rows of `eventColumns`; parameters from `$from` on. */
export function insertEventsSql(from: number): string {
  const types = [
    'uuid[]',
    'bigint[]',
    'text[]',
    'int[]',
    'jsonb[]',
    'bytea[]',
    'bytea[]',
    'bytea[]',
    'timestamptz[]',
    'bigint[]',
  ];
  return `INSERT INTO trajectory_events (trajectory_id, sequence_number, event_type, turn, payload, payload_exact,
      payload_sha256, cryptographic_hash, created_at, fencing_token)
    SELECT * FROM unnest(${types.map((type, i) => `$${from + i}::${type}`).join(', ')})
    ON CONFLICT (trajectory_id, sequence_number) DO NOTHING
    RETURNING 1`;
}

const INSERT_EVENTS = statement<{ inserted: number }>(
  'events.insert',
  `WITH inserted AS (${insertEventsSql(1)}) SELECT count(*) AS inserted FROM inserted`,
);

/** Returns how many were new. */
export async function insertEvents(tx: Tx, columns: readonly Value[]): Promise<number> {
  const [row] = await tx.query(INSERT_EVENTS, columns);
  return row?.inserted ?? 0;
}

export type StoredHash = { readonly trajectory_id: string; readonly sequence_number: number; readonly hash: string };

const STORED_HASHES = statement<StoredHash>(
  'events.stored_hashes',
  `SELECT k.trajectory_id, k.sequence_number, encode(coalesce(e.cryptographic_hash, c.head_hash), 'hex') AS hash
   FROM unnest($1::uuid[], $2::bigint[]) AS k (trajectory_id, sequence_number)
   LEFT JOIN trajectory_events e USING (trajectory_id, sequence_number)
   LEFT JOIN cold_segments c ON c.trajectory_id = k.trajectory_id AND c.last_sequence_number = k.sequence_number
   WHERE e.cryptographic_hash IS NOT NULL OR c.head_hash IS NOT NULL`,
);

/** Hashes of events that warm holds, or of the ends of segments that cold holds. */
export function storedHashes(
  tx: Tx,
  keys: readonly { readonly trajectory_id: string; readonly sequence_number: number }[],
): Promise<StoredHash[]> {
  const ids = uuidArray(keys.map((key) => key.trajectory_id));
  return tx.query(STORED_HASHES, [ids, int8Array(keys.map((key) => key.sequence_number))]);
}

/** Hashes of what is stored in the place of these events, looked up by trajectory and number. */
export async function hashesOf(
  tx: Tx,
  events: readonly WarmEvent[],
): Promise<(id: TrajectoryId, sequence: number) => string | undefined> {
  if (events.length === 0) return () => undefined;
  const rows = await storedHashes(tx, events);
  const byKey = new Map(rows.map((row) => [`${row.trajectory_id} ${row.sequence_number}`, row.hash]));
  return (id, sequence) => byKey.get(`${id} ${sequence}`);
}

/** Inserts events and returns those in whose place another row stands; the same row is as good as a new one. */
export async function insertAll(
  tx: Tx,
  events: readonly WarmEvent[],
  columns: readonly Value[],
): Promise<ReadonlySet<WarmEvent>> {
  const inserted = await insertEvents(tx, columns);
  if (inserted === events.length) return new Set();
  // ON CONFLICT says nothing about what was in the way. The same row means that the trajectory's row had gone back.
  const storedHash = await hashesOf(tx, events);
  const others = new Set<WarmEvent>();
  for (const event of events) {
    const stored = storedHash(event.trajectory_id, event.sequence_number);
    if (stored === event.cryptographic_hash) continue;
    if (stored === undefined) {
      const message = `event ${event.sequence_number} of ${event.trajectory_id} was neither inserted nor there already`;
      throw new VarveError('WARM_CONFLICT', message, {});
    }
    others.add(event);
  }
  return others;
}

const ENSURE_PARTITION = statement<{ name: string }>(
  'partitions.ensure',
  `SELECT varve_ensure_partition($1::uuid) AS name`,
);

/** Makes the partition of a trajectory where there is none. Takes a lock that other makers wait for. */
export async function ensurePartition(tx: Tx, trajectory_id: string): Promise<string> {
  const [row] = await tx.query(ENSURE_PARTITION, [trajectory_id]);
  return row?.name ?? '';
}

const ENSURE_DAYS_AHEAD = statement<{ ahead: number }>(
  'partitions.ensure_days_ahead',
  `SELECT varve_ensure_days_ahead($1::int) AS ahead`,
);

/** Makes the next days' partitions; returns how many lie ahead of today. */
export async function ensureDaysAhead(tx: Tx, days: number): Promise<number> {
  const [row] = await tx.query(ENSURE_DAYS_AHEAD, [days]);
  return row?.ahead ?? 0;
}
