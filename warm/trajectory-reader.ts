/** Reads trajectories back from warm: which there are, and their events in order, streamed. */
import type { JsonObject } from '../schemas/canonical.ts';
import type { TrajectoryEvent } from '../schemas/event.ts';
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

type EventRow = Omit<TrajectoryEvent, 'payload'> & {
  readonly payload: JsonObject | null;
  readonly payload_exact: Buffer | null;
};

const PAGE = statement<EventRow>(
  'events.page',
  `SELECT trajectory_id, sequence_number, event_type, turn, created_at, fencing_token, payload, payload_exact,
     encode(cryptographic_hash, 'hex') AS cryptographic_hash
   FROM trajectory_events WHERE trajectory_id = $1 AND sequence_number > $2 ORDER BY sequence_number LIMIT $3`,
);

/** Payloads have up to 1 MiB each. */
const PAGE_ROWS = 64;

/** Events of a trajectory that warm has, from its first on; those of dropped partitions are not among them. */
export async function* readTrajectory(pool: WarmPool, trajectory_id: TrajectoryId): AsyncGenerator<TrajectoryEvent> {
  for (let after = 0; ; ) {
    const page = await pool.lend((session) => session.query(PAGE, [trajectory_id, after, PAGE_ROWS]));
    for (const { payload, payload_exact, ...event } of page) {
      yield { ...event, payload: payload ?? (JSON.parse(payload_exact?.toString('utf8') ?? '{}') as JsonObject) };
    }
    const last = page.at(-1);
    if (last === undefined || page.length < PAGE_ROWS) return;
    after = last.sequence_number;
  }
}
