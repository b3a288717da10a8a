/** Reads trajectories back from warm: which there are, and their events in order, page by page. */
import { canonicalJson, type JsonObject } from '../schemas/canonical.ts';
import { LazyEvent, type ProvenEvent } from '../schemas/event.ts';
import type { TrajectoryId } from '../schemas/ids.ts';
import { statement, type WarmPool } from './pool.ts';

export type FoundTrajectory = {
  readonly trajectory_id: TrajectoryId;
  readonly last_sequence_number: number;
  /** Events that quarantine holds beside it. */
  readonly held: number;
};

const FIND = statement<FoundTrajectory>(
  'trajectories.find',
  `SELECT t.trajectory_id, t.last_sequence_number,
     (SELECT count(*) FROM quarantine q WHERE q.trajectory_id = t.trajectory_id AND q.state = 'held') AS held
   FROM trajectories t WHERE t.trajectory_id BETWEEN $1 AND $2 ORDER BY t.trajectory_id LIMIT $3`,
);

/** Trajectories whose id begins so; at most `most`. */
export async function findTrajectories(pool: WarmPool, prefix: string, most: number): Promise<FoundTrajectory[]> {
  const hex = prefix.replaceAll('-', '');
  return await pool.lend((session) => session.query(FIND, [hex.padEnd(32, '0'), hex.padEnd(32, 'f'), most]));
}

/** How far warm ever took a trajectory; its events may be dropped since. */
export type WarmHead = { readonly last_sequence_number: number; readonly held: number };

const HEAD = statement<WarmHead>(
  'trajectories.head',
  `SELECT t.last_sequence_number,
     (SELECT count(*) FROM quarantine q WHERE q.trajectory_id = t.trajectory_id AND q.state = 'held') AS held
   FROM trajectories t WHERE t.trajectory_id = $1`,
);

/** undefined: warm has never seen it. */
export async function warmHeadOf(pool: WarmPool, trajectory_id: TrajectoryId): Promise<WarmHead | undefined> {
  const [head] = await pool.lend((session) => session.query(HEAD, [trajectory_id]));
  return head;
}

const RANGE = statement<{ readonly first: number | null; readonly last: number | null }>(
  'events.range',
  `SELECT min(sequence_number) AS first, max(sequence_number) AS last FROM trajectory_events WHERE trajectory_id = $1`,
);

/** First and last number of the events that warm has now; undefined: none. */
export async function warmRangeOf(
  pool: WarmPool,
  trajectory_id: TrajectoryId,
): Promise<{ readonly first: number; readonly last: number } | undefined> {
  const [{ first, last } = { first: null, last: null }] = await pool.lend((session) =>
    session.query(RANGE, [trajectory_id]),
  );
  return first === null || last === null ? undefined : { first, last };
}

type EventRow = Omit<ProvenEvent, 'payload' | 'payload_bytes'> & {
  readonly payload: JsonObject | null;
  readonly payload_exact: Buffer | null;
};

const PAGE = statement<EventRow>(
  'events.page',
  `SELECT trajectory_id, sequence_number, event_type, turn, created_at, fencing_token, payload, payload_exact,
     encode(payload_sha256, 'hex') AS payload_sha256, encode(cryptographic_hash, 'hex') AS cryptographic_hash
   FROM trajectory_events WHERE trajectory_id = $1 AND sequence_number > $2 ORDER BY sequence_number LIMIT $3`,
);

/** Payloads have up to 1 MiB each. */
const PAGE_ROWS = 64;

/** The next events of a trajectory behind a number that warm has, in order; none where it has no more. Nothing is proven. */
export async function readPage(pool: WarmPool, trajectory_id: TrajectoryId, after: number): Promise<ProvenEvent[]> {
  const rows = await pool.lend((session) => session.query(PAGE, [trajectory_id, after, PAGE_ROWS]));
  return rows.map(
    ({ payload, payload_exact, ...event }) =>
      new LazyEvent(event, payload_exact ?? Buffer.from(canonicalJson(payload))),
  );
}
