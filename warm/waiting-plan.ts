/** Decides what becomes of events that wait in quarantine once the head has moved; touches nothing. */
import { step } from '../schemas/summary.ts';
import type { BlockReason, QuarantineReason, TrajectoryState, WarmEvent } from './ingest-plan.ts';
import { advanced, allowed, placeOf, type Refusal, STOPPED_EARLIER, storedAt } from './place.ts';

/** An event that waits in quarantine, and the log that sent it. */
export type Waiting<Row> = {
  readonly row: Row;
  readonly log_id: string;
  readonly lsn: number;
  readonly event: WarmEvent;
};

export type Stopped<Row> = Waiting<Row> & { readonly reason: QuarantineReason; readonly detail: string };

export type WaitingPlan<Row> = {
  readonly after: TrajectoryState;
  /** In order; they go in with the predecessor's transaction. */
  readonly inserts: readonly Waiting<Row>[];
  /** Another log has brought the same event meanwhile. */
  readonly duplicates: readonly Row[];
  /** They do not fit what came, or follow in their log what does not. */
  readonly stopped: readonly Stopped<Row>[];
};

export type WaitingContext<Row> = {
  /** As in `PlanContext`, of this trajectory. */
  readonly storedHash: (sequence: number) => string | undefined;
  readonly refused: (row: Row) => Refusal | undefined;
  readonly isConflicting: (row: Row) => boolean;
};

type Stop = { readonly reason: BlockReason; readonly fencing_token: number; readonly lsn: number };

/** What becomes of a trajectory's waiting events, in the order of their numbers, now that its head is `state`. */
export function planWaiting<Row>(
  state: TrajectoryState,
  waiting: readonly Waiting<Row>[],
  context: WaitingContext<Row>,
): WaitingPlan<Row> {
  let after = state;
  const inserts: Waiting<Row>[] = [];
  const duplicates: Row[] = [];
  const stopped: Stopped<Row>[] = [];
  const stops = new Map<string, Stop>();
  const inserted = new Map<number, string>();
  for (const entry of waiting) {
    const { row, log_id, lsn, event } = entry;
    const { sequence_number, fencing_token, cryptographic_hash } = event;
    const stop = stops.get(log_id);
    if (stop !== undefined && lsn > stop.lsn && fencing_token <= stop.fencing_token) {
      stopped.push({ ...entry, reason: stop.reason, detail: STOPPED_EARLIER });
      continue;
    }
    const stored = inserted.get(sequence_number) ?? storedAt(after, event, context.storedHash);
    const place = allowed(placeOf(after, event, stored), context.refused(row), context.isConflicting(row), event);
    switch (place.kind) {
      case 'insert':
        after = advanced(after, event);
        inserted.set(sequence_number, cryptographic_hash);
        inserts.push(entry);
        break;
      case 'duplicate':
        duplicates.push(row);
        break;
      case 'unproven':
        stopped.push({ ...entry, reason: 'unproven', detail: 'warm no longer has this event' });
        break;
      case 'block':
        stops.set(log_id, { reason: place.reason, fencing_token, lsn });
        stopped.push({ ...entry, reason: place.reason, detail: place.detail });
        break;
      case 'early':
        break;
    }
  }
  const settled = inserts.length + duplicates.length + stopped.length;
  const summary = step(
    after.summary,
    inserts.map(({ event }) => event),
  );
  return {
    after: { ...after, summary, waiting: Math.max(0, state.waiting - settled) },
    inserts,
    duplicates,
    stopped,
  };
}
