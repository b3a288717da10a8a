/** Carries out what `warm/waiting-plan.ts` decides, in the transaction that has moved the heads. */
import type { TrajectoryId } from '../schemas/ids.ts';
import { eventColumns, hashesOf, insertAll } from './event-rows.ts';
import type { IngestPlan } from './ingest-plan.ts';
import { Conflict, type Learnt } from './learnt.ts';
import type { Tx } from './pool.ts';
import { eventOf, type QuarantineRow, renameRows, settleRows, waitingRows } from './quarantine-rows.ts';
import { type Advance, setBlocks } from './trajectory-rows.ts';
import { planWaiting, type Stopped, type Waiting, type WaitingPlan } from './waiting-plan.ts';

/** Returns what the trajectories come to then, and how many waiting events went in. */
export async function applyWaiting(
  tx: Tx,
  advances: readonly Advance[],
  plan: IngestPlan,
  learnt: Learnt,
): Promise<{ advances: readonly Advance[]; count: number }> {
  const moved = new Set(plan.inserts.map((event) => event.trajectory_id));
  const due = advances.map(({ after }) => after).filter((state) => state.waiting > 0 && moved.has(state.trajectory_id));
  if (due.length === 0) return { advances, count: 0 };
  const waiting = await waitingOf(
    tx,
    due.map(({ trajectory_id }) => trajectory_id),
  );
  const storedHash = await hashesOf(
    tx,
    [...waiting.values()].flat().map(({ event }) => event),
  );
  const plans = new Map(
    due.map((state) => [
      state.trajectory_id,
      planWaiting(state, waiting.get(state.trajectory_id) ?? [], {
        storedHash: (sequence) => storedHash(state.trajectory_id, sequence),
        refused: ({ id }) => learnt.refusedRows.get(id),
        isConflicting: ({ id }) => learnt.conflictingRows.has(id),
      }),
    ]),
  );
  const count = await settleWaiting(tx, [...plans.values()]);
  return {
    advances: advances.map(({ before, after }) => ({
      before,
      after: plans.get(after.trajectory_id)?.after ?? after,
    })),
    count,
  };
}

/** Returns how many waiting events went in. */
async function settleWaiting(tx: Tx, plans: readonly WaitingPlan<QuarantineRow>[]): Promise<number> {
  const inserts = plans.flatMap((plan) => plan.inserts);
  const events = inserts.map(({ event }) => event);
  const others = events.length === 0 ? new Set() : await insertAll(tx, events, eventColumns(events));
  const rows = inserts.flatMap(({ row, event }) => (others.has(event) ? [row.id] : []));
  if (rows.length > 0) throw new Conflict({ rows });
  await settleRows(
    tx,
    inserts.map(({ row }) => row.id),
    'applied',
  );
  await settleRows(
    tx,
    plans.flatMap(({ duplicates }) => duplicates.map(({ id }) => id)),
    'proven',
  );
  await stopRows(
    tx,
    plans.flatMap(({ stopped }) => stopped),
  );
  return inserts.length;
}

/** Waiting events of these trajectories, in the order of their numbers. */
export async function waitingOf(
  tx: Tx,
  ids: readonly TrajectoryId[],
): Promise<ReadonlyMap<TrajectoryId, readonly Waiting<QuarantineRow>[]>> {
  const byId = new Map<TrajectoryId, Waiting<QuarantineRow>[]>();
  for (const row of await waitingRows(tx, ids)) {
    const event = eventOf(row);
    const known = byId.get(event.trajectory_id) ?? [];
    byId.set(event.trajectory_id, known);
    known.push({ row, log_id: row.log_id, lsn: row.lsn, event });
  }
  return byId;
}

/** Waiting events that cannot go in any more; their logs are blocked from the first of them on. */
async function stopRows(tx: Tx, stopped: readonly Stopped<QuarantineRow>[]): Promise<void> {
  await renameRows(
    tx,
    stopped.map(({ row, reason, detail }) => ({ id: row.id, reason, detail })),
  );
  const firsts = new Map<string, Stopped<QuarantineRow>>();
  for (const entry of stopped) {
    const key = `${entry.log_id} ${entry.event.trajectory_id} ${entry.event.fencing_token}`;
    if (!firsts.has(key)) firsts.set(key, entry);
  }
  for (const { log_id, reason, event } of firsts.values()) {
    if (reason === 'unproven' || reason === 'waiting') continue;
    const { trajectory_id, fencing_token, sequence_number } = event;
    await setBlocks(tx, log_id, [{ trajectory_id, fencing_token, sequence_number, reason }]);
  }
}
