/**
 * Events on their way out of warm: whole ranges of trajectories, in the order in which they are asked for, each range
 * ascending, as one stream at the consumer's pace.
 *
 * All rows are of one moment. What is not there is simply not in the stream: whoever asks knows which events must come,
 * and checks. The order is that of the plan, a nested loop over the ranges as they are listed, each an index scan; no
 * row is sorted, so memory does not grow, neither here nor in the server. It, too, is checked by who reads.
 */
import type { SequenceNumber, TrajectoryId } from '../schemas/ids.ts';
import { type CopiedRow, int8Of, jsonbTextOf, timestampOf, uuidOf } from './copy-out.ts';
import type { WarmPool } from './pool.ts';

export type ExportRange = {
  readonly trajectory_id: TrajectoryId;
  /** Last event that is not wanted. */
  readonly after: number;
  /** Last event that is wanted. */
  readonly upTo: number;
};

export type ExportedEvent = {
  readonly trajectory_id: TrajectoryId;
  readonly sequence_number: SequenceNumber;
  readonly event_type: string;
  readonly turn: number;
  readonly created_at: string;
  readonly fencing_token: number;
  /** JSON: canonical where `isExact`, else as jsonb writes it. */
  readonly payload_text: string;
  readonly isExact: boolean;
  /** Hex. */
  readonly payload_sha256: string;
  readonly cryptographic_hash: string;
};

/** Ranges of one statement: its text grows with them, and some 100 bytes each are sent. */
export const EXPORT_RANGES_MAX = 10_000;

export async function* exportEvents(
  pool: WarmPool,
  ranges: readonly ExportRange[],
): AsyncGenerator<ExportedEvent[], void, void> {
  for (let at = 0; at < ranges.length; at += EXPORT_RANGES_MAX) {
    yield* exportSome(pool, ranges.slice(at, at + EXPORT_RANGES_MAX));
  }
}

async function* exportSome(pool: WarmPool, ranges: readonly ExportRange[]): AsyncGenerator<ExportedEvent[]> {
  // COPY takes no parameters; ids are UUIDs and the rest are safe integers.
  const list = (values: readonly (string | number)[]) => values.join(',');
  const sql = `COPY (
    SELECT c.id, e.sequence_number, e.event_type, e.turn, e.created_at, e.fencing_token, e.payload, e.payload_exact,
      e.payload_sha256, e.cryptographic_hash
    FROM unnest('{${list(ranges.map(({ trajectory_id }) => trajectory_id))}}'::uuid[],
      '{${list(ranges.map(({ after }) => after))}}'::bigint[], '{${list(ranges.map(({ upTo }) => upTo))}}'::bigint[])
      AS c (id, after, up_to)
    CROSS JOIN LATERAL (
      SELECT * FROM trajectory_events t
      WHERE t.trajectory_id = c.id AND t.sequence_number > c.after AND t.sequence_number <= c.up_to
      ORDER BY t.sequence_number OFFSET 0) e
  ) TO STDOUT (FORMAT binary)`;
  // Memoize would keep all rows for keys that never come again; a sort would hold a trajectory.
  const settings = 'SET enable_memoize = off; SET enable_sort = off; SET enable_bitmapscan = off; SET jit = off';
  const decoder = new Decoder();
  for await (const rows of pool.copyOut(settings, sql)) yield rows.map((row) => decoder.eventOf(row));
}

/** Remembers what the row before had: ids, and mostly times, come many times in a row. */
class Decoder {
  #idBytes: Buffer = Buffer.alloc(0);
  #id = '' as TrajectoryId;
  #timeBytes: Buffer = Buffer.alloc(0);
  #time = '';

  eventOf(row: CopiedRow): ExportedEvent {
    const [id, sequence, type, turn, created, token, payload, exact, sha256, hash] = row as readonly Buffer[];
    return {
      trajectory_id: this.#idOf(id as Buffer),
      sequence_number: int8Of(sequence as Buffer) as SequenceNumber,
      event_type: (type as Buffer).toString('utf8'),
      turn: (turn as Buffer).readInt32BE(0),
      created_at: this.#timeOf(created as Buffer),
      fencing_token: int8Of(token as Buffer),
      payload_text: exact?.toString('utf8') ?? jsonbTextOf(payload as Buffer),
      isExact: Boolean(exact),
      payload_sha256: (sha256 as Buffer).toString('hex'),
      cryptographic_hash: (hash as Buffer).toString('hex'),
    };
  }

  #idOf(bytes: Buffer): TrajectoryId {
    if (!bytes.equals(this.#idBytes)) {
      this.#id = uuidOf(bytes) as TrajectoryId;
      this.#idBytes = Buffer.from(bytes);
    }
    return this.#id;
  }

  #timeOf(bytes: Buffer): string {
    if (!bytes.equals(this.#timeBytes)) {
      this.#time = timestampOf(bytes);
      this.#timeBytes = Buffer.from(bytes);
    }
    return this.#time;
  }
}
