/**
 * A plain batch in one statement: one round trip, and atomic by itself.
 *
 * Every event is the next of its trajectory, as foreseen (`warm/forecast.ts`). The statement moves the cursor, inserts
 * the events and advances the trajectories, each only where it finds what the plan was made against. If anything is
 * found otherwise, by as much as one row, it undoes itself; the batch then takes the long way, which looks for the
 * reason.
 */
import { isVarveError } from '../schemas/errors.ts';
import { addBlobRefsSql } from './blob-ref-rows.ts';
import type { WarmCursor } from './cursor-rows.ts';
import { insertEventsSql } from './event-rows.ts';
import type { IngestPlan } from './ingest-plan.ts';
import { type Session, statement, type Value } from './pool.ts';
import { ADVANCE_ROWS, advanceColumns, advanceSource } from './trajectory-rows.ts';

const CURSOR_PARAMETERS = 9;
const EVENT_PARAMETERS = 10;
const ADVANCE_PARAMETERS = 17;

const APPLY = statement<{ readonly done: number }>(
  'plain_batch.apply',
  `WITH moved AS (
     UPDATE cursors SET lsn = $4, hash = decode($5, 'hex'), durable_lsn = greatest(durable_lsn, $4, $6), updated_at = varve_now()
     WHERE log_id = $1 AND lsn = $2 AND hash = decode($3, 'hex') RETURNING 1),
   inserted AS (${insertEventsSql(CURSOR_PARAMETERS)}),
   n AS MATERIALIZED (SELECT * FROM ${advanceSource(CURSOR_PARAMETERS + EVENT_PARAMETERS)}),
   made AS (
     INSERT INTO trajectories (trajectory_id, last_sequence_number, head_hash, turn, created_at, fencing_token, waiting,
       summary, status, tenant, agent, model, model_version, started_at)
     SELECT trajectory_id, last_sequence_number, head_hash, turn, created_at, fencing_token, waiting,
       summary, status, tenant, agent, model, model_version, varve_uuid_time(trajectory_id)
     FROM n WHERE before_sequence = 0
     ON CONFLICT DO NOTHING RETURNING 1),
   advanced AS (${ADVANCE_ROWS} AND n.before_sequence > 0 RETURNING 1),
   refs AS (${addBlobRefsSql(CURSOR_PARAMETERS + EVENT_PARAMETERS + ADVANCE_PARAMETERS)})
   SELECT CASE
     WHEN (SELECT count(*) FROM moved) <> 1 THEN varve_refuse('the cursor has moved')
     WHEN (SELECT count(*) FROM inserted) <> $7 THEN varve_refuse('an event is there')
     WHEN (SELECT count(*) FROM made) + (SELECT count(*) FROM advanced) <> $8 THEN varve_refuse('a trajectory has moved')
     ELSE 1 END AS done`,
);

const REFUSED = 'VA001';

/** Parameters of the rows, made ready while an earlier batch is under way. */
export type PlainColumns = { readonly events: number; readonly rows: number; readonly values: readonly Value[] };

export function plainColumns(
  plan: IngestPlan,
  eventColumns: readonly Value[],
  blobRefColumns: readonly Value[],
): PlainColumns {
  return {
    events: plan.inserts.length,
    rows: plan.changes.length,
    values: [...eventColumns, ...advanceColumns(plan.changes), ...blobRefColumns],
  };
}

/** false: something was not as foreseen, and nothing of the batch stays. */
export async function applyPlain(
  session: Session,
  log_id: string,
  from: WarmCursor,
  to: WarmCursor,
  durableLsn: number,
  columns: PlainColumns,
): Promise<boolean> {
  const cursor = [log_id, from.lsn, from.hash, to.lsn, to.hash, durableLsn];
  try {
    await session.query(APPLY, [...cursor, columns.events, columns.rows, ...columns.values]);
    return true;
  } catch (error) {
    if (isVarveError(error) && error.details['sqlstate'] === REFUSED) return false;
    throw error;
  }
}
