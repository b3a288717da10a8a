/**
 * What the trajectories of a log will be once every batch that was prepared so far has gone in.
 *
 * As a rule one log alone writes a trajectory, so the next batch can be planned while PostgreSQL still works on the last
 * one, without asking. A forecast is only ever used for a plain plan: every event goes in as the next of its
 * trajectory. Anything else is planned again from the rows themselves. And a forecast proves nothing: the write of a
 * batch states what it was planned against, and where a row is not as foreseen, nothing of the batch stays, the
 * forecast is forgotten, and the batch is planned from the rows.
 */
import type { TrajectoryId } from '../schemas/ids.ts';
import {
  type IngestPlan,
  planIngest,
  type TrajectoryChange,
  type TrajectoryState,
  unknownTrajectory,
  type WarmItem,
} from './ingest-plan.ts';

/** States take about a kilobyte each. */
const STATES_MAX = 20_000;

export class Forecast {
  /** Counts how often it was forgotten; a plan of an earlier count is void. */
  generation = 0;
  readonly #states = new Map<TrajectoryId, TrajectoryState>();

  forget(): void {
    this.generation += 1;
    this.#states.clear();
  }

  /** Takes over what a batch was written as. */
  learn(changes: readonly TrajectoryChange[]): void {
    for (const { after } of changes) this.#set(after);
  }

  /** The plan of the next batch, where it is plain; undefined where the rows must be asked. */
  plan(items: readonly WarmItem[], nowMs: number): IngestPlan | undefined {
    const begun = new Set<TrajectoryId>();
    for (const item of items) {
      if (item.kind !== 'event') return undefined;
      const { trajectory_id, sequence_number } = item.event;
      // Of a trajectory that nobody has seen, this may be the beginning.
      if (sequence_number === 1) begun.add(trajectory_id);
      if (!this.#states.has(trajectory_id) && !begun.has(trajectory_id)) return undefined;
    }
    const plan = planIngest(items, {
      state: (id) => this.#states.get(id) ?? unknownTrajectory(id),
      storedHash: () => undefined,
      refused: new Map(),
      conflicting: new Set(),
      now_ms: nowMs,
    });
    if (plan.inserts.length !== items.length) return undefined;
    this.learn(plan.changes);
    return plan;
  }

  #set(state: TrajectoryState): void {
    const { trajectory_id } = state;
    // Delete first: a map keeps the order of insertion, so its first key is the one not used for longest.
    this.#states.delete(trajectory_id);
    // Where other logs have a part in it, the rows are asked each time.
    if (state.block !== undefined || state.anchor !== undefined || state.waiting > 0) return;
    this.#states.set(trajectory_id, state);
    if (this.#states.size <= STATES_MAX) return;
    const [oldest] = this.#states.keys();
    if (oldest !== undefined) this.#states.delete(oldest);
  }
}
