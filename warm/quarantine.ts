/**
 * What people do with quarantine: look at it, and accept what will never fit.
 *
 *   replay   gap, poison, waiting, unproven: planned again, since what they lacked may have come (quarantine-replay.ts)
 *   accept   fork, fenced: stay where they are, and no longer count as something that a person must decide
 *   branch   fork, fenced: become a trajectory of their own (quarantine-branch.ts)
 *
 * Nothing is ever deleted: a row keeps envelope and payload as its log wrote them, and its state says what became of it.
 *
 * Accepting leaves the block in force: what that log still sends for the trajectory under that token must not reach warm.
 * Such late events are recorded as accepted at once. Two things remain as they were: the log is still told that the
 * trajectory is held, so that its worker passes no gate, until it adopts the trajectory behind it; and a late `ToolIntent`
 * is held, because its effect may be real and a person must know. A block under a higher token is a new matter.
 *
 * Whoever changes anything here locks first the cursors of the logs that are concerned, in the order of their ids, then
 * the trajectory's row. So ingest of these logs waits, and then sees blocks and heads as they have become.
 */
import { VarveError } from '../schemas/errors.ts';
import type { TrajectoryId } from '../schemas/ids.ts';
import { uuidArray } from './columns.ts';
import type { QuarantineReason } from './ingest-plan.ts';
import { statement, type Tx, transaction, type WarmPool } from './pool.ts';
import type { QuarantineRow, SettledState } from './quarantine-rows.ts';

export type QuarantineState = 'held' | SettledState;

/** What one log has in quarantine of one trajectory, for one reason and in one state. */
export type QuarantineGroup = {
  readonly trajectory_id: TrajectoryId;
  readonly log_id: string;
  readonly directory: string | null;
  readonly host: string | null;
  readonly reason: QuarantineReason;
  readonly state: QuarantineState;
  readonly events: number;
  readonly intents: number;
  readonly from_sequence_number: number;
  readonly to_sequence_number: number;
  readonly from_lsn: number;
  readonly since: string;
  readonly detail: string | null;
};

export type QuarantineFilter = {
  readonly trajectory_id?: string;
  readonly log_id?: string;
  readonly reason?: QuarantineReason;
  /** RFC 3339; taken in at that time or later. */
  readonly since?: string;
  /** Settled ones too. */
  readonly all?: boolean;
};

const LIST = statement<QuarantineGroup>(
  'quarantine.list',
  `SELECT q.trajectory_id, q.log_id, c.directory, c.host, q.reason, q.state, count(*) AS events,
     count(*) FILTER (WHERE q.envelope LIKE '%"event_type":"ToolIntent"%') AS intents,
     min(q.sequence_number) AS from_sequence_number, max(q.sequence_number) AS to_sequence_number,
     min(q.lsn) AS from_lsn, min(q.taken_at) AS since, (array_agg(q.detail ORDER BY q.lsn))[1] AS detail
   FROM quarantine q LEFT JOIN cursors c USING (log_id)
   WHERE ($1::uuid IS NULL OR q.trajectory_id = $1) AND ($2::uuid IS NULL OR q.log_id = $2)
     AND ($3::text IS NULL OR q.reason = $3) AND ($4::timestamptz IS NULL OR q.taken_at >= $4) AND ($5 OR q.state = 'held')
   GROUP BY q.trajectory_id, q.log_id, c.directory, c.host, q.reason, q.state
   ORDER BY since, q.trajectory_id, from_lsn LIMIT $6`,
);

/** Those that were taken in first come first; at most `most` of them. */
export function listQuarantine(tx: Tx, filter: QuarantineFilter, most: number): Promise<QuarantineGroup[]> {
  const { trajectory_id = null, log_id = null, reason = null, since = null, all = false } = filter;
  return tx.query(LIST, [trajectory_id, log_id, reason, since, all, most]);
}

/** A row with what was decided about it. */
export type QuarantineEntry = QuarantineRow & {
  readonly trajectory_id: TrajectoryId;
  readonly sequence_number: number;
  readonly sqlstate: string | null;
  readonly detail: string | null;
  readonly state: QuarantineState;
  readonly taken_at: string;
  readonly settled_at: string | null;
  readonly settled_why: string | null;
  readonly branch_id: TrajectoryId | null;
};

const ENTRY = `id, log_id, lsn, reason, envelope, payload, encode(cryptographic_hash, 'hex') AS hash, trajectory_id,
  sequence_number, sqlstate, detail, state, taken_at, settled_at, settled_why, branch_id`;

const ONE = statement<QuarantineEntry>('quarantine.one', `SELECT ${ENTRY} FROM quarantine WHERE id = $1`);

const OF_TRAJECTORY = statement<QuarantineEntry>(
  'quarantine.of_trajectory',
  `SELECT ${ENTRY} FROM quarantine WHERE trajectory_id = $1 AND (log_id, lsn) > ($2, $3) ORDER BY log_id, lsn LIMIT $4`,
);

/** Payloads have up to 1 MiB each. */
const PAGE_ROWS = 32;

/** One row by its number, or all of a trajectory, log by log and in each log's order, streamed. */
export async function* quarantineEntries(pool: WarmPool, of: number | TrajectoryId): AsyncGenerator<QuarantineEntry> {
  if (typeof of === 'number') {
    yield* await pool.lend((session) => session.query(ONE, [of]));
    return;
  }
  let after: Pick<QuarantineEntry, 'log_id' | 'lsn'> = { log_id: '00000000-0000-0000-0000-000000000000', lsn: 0 };
  for (;;) {
    const { log_id, lsn } = after;
    const page = await pool.lend((session) => session.query(OF_TRAJECTORY, [of, log_id, lsn, PAGE_ROWS]));
    yield* page;
    const last = page.at(-1);
    if (last === undefined || page.length < PAGE_ROWS) return;
    after = last;
  }
}

const LOCK_CURSORS = statement<{ log_id: string }>(
  'quarantine.lock_cursors',
  `SELECT log_id FROM cursors WHERE log_id = ANY ($1::uuid[]) ORDER BY log_id FOR UPDATE`,
);

const LOCK_TRAJECTORY = statement<{ trajectory_id: string }>(
  'quarantine.lock_trajectory',
  `SELECT trajectory_id FROM trajectories WHERE trajectory_id = $1 FOR UPDATE`,
);

/** Keeps the ingest of these logs, and everybody who would change the trajectory, away until the transaction ends. */
export async function lockFor(tx: Tx, trajectory_id: TrajectoryId, logs: readonly string[]): Promise<void> {
  await tx.query(LOCK_CURSORS, [uuidArray(logs.toSorted())]);
  await tx.query(LOCK_TRAJECTORY, [trajectory_id]);
}

const LOGS = statement<{ log_id: string }>(
  'quarantine.logs',
  `SELECT DISTINCT log_id FROM quarantine
   WHERE trajectory_id = $1 AND state = ANY ($2::text[]) AND reason = ANY ($3::text[]) ORDER BY log_id`,
);

/** Logs that have such rows of a trajectory. */
export async function logsWith(
  tx: Tx,
  trajectory_id: TrajectoryId,
  states: readonly QuarantineState[],
  reasons: readonly QuarantineReason[],
): Promise<string[]> {
  return (await tx.query(LOGS, [trajectory_id, states, reasons])).map(({ log_id }) => log_id);
}

/** These never fit; a person decides about them. */
export const DECIDED_BY_PEOPLE: readonly QuarantineReason[] = ['fork', 'fenced'];

const ACCEPT = statement<{ is_intent: boolean }>(
  'quarantine.accept',
  `UPDATE quarantine SET state = 'accepted', settled_at = varve_now(), settled_why = $2
   WHERE trajectory_id = $1 AND state = 'held' AND reason IN ('fork', 'fenced')
   RETURNING envelope LIKE '%"event_type":"ToolIntent"%' AS is_intent`,
);

const ACCEPT_BLOCKS = statement(
  'quarantine.accept_blocks',
  `UPDATE blocks SET accepted_at = varve_now()
   WHERE trajectory_id = $1 AND reason IN ('fork', 'fenced') AND accepted_at IS NULL`,
);

const HELD = statement<{ reason: QuarantineReason; events: number }>(
  'quarantine.held_by_reason',
  `SELECT reason, count(*) AS events FROM quarantine WHERE trajectory_id = $1 AND state = 'held' GROUP BY reason`,
);

/** What a trajectory still has in quarantine, by reason. */
export type HeldByReason = Readonly<Partial<Record<QuarantineReason, number>>>;

export async function heldByReason(tx: Tx, trajectory_id: TrajectoryId): Promise<HeldByReason> {
  const rows = await tx.query(HELD, [trajectory_id]);
  return Object.fromEntries(rows.map(({ reason, events }) => [reason, events]));
}

export type Accepted = {
  readonly trajectory_id: TrajectoryId;
  readonly accepted: number;
  /** Intents among them: their effects may have taken place. */
  readonly intents: number;
  readonly held: HeldByReason;
};

/**
 * When it resolves, what is held of the trajectory as fork or fenced is accepted, and what still comes under its blocks
 * will be.
 *
 * @throws VarveError INVALID_OPTION where there is nothing of that kind
 */
export async function acceptQuarantined(
  pool: WarmPool,
  trajectory_id: TrajectoryId,
  why: string,
  options: { readonly dryRun?: boolean } = {},
): Promise<Accepted> {
  return await maybe(pool, options.dryRun === true, async (tx) => {
    await lockFor(tx, trajectory_id, await logsWith(tx, trajectory_id, ['held'], DECIDED_BY_PEOPLE));
    const rows = await tx.query(ACCEPT, [trajectory_id, why]);
    const held = await heldByReason(tx, trajectory_id);
    if (rows.length === 0) throw nothingToDecide(trajectory_id, held);
    await tx.execute(ACCEPT_BLOCKS, [trajectory_id]);
    // COMMIT POINT.
    return { trajectory_id, accepted: rows.length, intents: rows.filter(({ is_intent }) => is_intent).length, held };
  });
}

export function nothingToDecide(trajectory_id: TrajectoryId, held: HeldByReason): VarveError {
  const others = Object.keys(held).join(', ');
  const instead = others === '' ? '' : `; what it holds (${others}) is mended by varve quarantine replay`;
  const message = `quarantine holds no fork and nothing fenced of ${trajectory_id}${instead}`;
  return new VarveError('INVALID_OPTION', message, { trajectory_id });
}

class RolledBack<T> extends Error {
  readonly result: T;

  constructor(result: T) {
    super('rolled back on purpose');
    this.result = result;
  }
}

/** The work in one transaction; of a dry run nothing stays but its result. */
export async function maybe<T>(pool: WarmPool, dryRun: boolean, work: (tx: Tx) => Promise<T>): Promise<T> {
  try {
    return await transaction(pool, async (tx) => {
      const result = await work(tx);
      if (dryRun) throw new RolledBack(result);
      return result;
    });
  } catch (error) {
    if (error instanceof RolledBack) return error.result as T;
    throw error;
  }
}
