/**
 * What the trajectories of a log will be once every batch that was prepared so far has gone in.
 *
 * As a rule one log alone writes a trajectory, so the next batch can be planned while PostgreSQL still works on the last
 * one, without asking. A forecast is only ever used for a plain plan: every event goes in as the next of its
 * trajectory. Anything else is planned from the rows themselves. And a forecast proves nothing: the write of a batch
 * states what it was planned against, and where a row is not as foreseen, nothing of the batch stays and it is planned
 * from the rows.
 *
 * `known` is what batches that went in have left, `ahead` what those will leave that are prepared and have not gone in.
 * When one of them goes in otherwise than foreseen, all that was foreseen behind it is void: a plan of an earlier
 * generation must be made again.
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
const KNOWN_MAX = 20_000;

export class Forecast {
  /** A plan of an earlier one is void. */
  generation = 0;
  readonly #known = new Map<TrajectoryId, TrajectoryState>();
  readonly #ahead = new Map<TrajectoryId, TrajectoryState>();

  /** The plan of the next batch, where it is plain; undefined where the rows must be asked. */
  plan(items: readonly WarmItem[], nowMs: number): IngestPlan | undefined {
    const begun = new Set<TrajectoryId>();
    for (const item of items) {
      if (item.kind !== 'event') return undefined;
      const { trajectory_id, sequence_number } = item.event;
      // Of a trajectory that nobody has seen, this may be the beginning.
      if (sequence_number === 1) begun.add(trajectory_id);
      if (this.#state(trajectory_id) === undefined && !begun.has(trajectory_id)) return undefined;
    }
    const plan = planIngest(items, {
      state: (id) => this.#state(id) ?? unknownTrajectory(id),
      storedHash: () => undefined,
      refused: new Map(),
      conflicting: new Set(),
      now_ms: nowMs,
    });
    if (plan.inserts.length !== items.length) return undefined;
    for (const { after } of plan.changes) this.#ahead.set(after.trajectory_id, after);
    return plan;
  }

  /** The oldest of the prepared batches went in as foreseen. */
  settle(changes: readonly TrajectoryChange[]): void {
    for (const { after } of changes) {
      this.#learn(after);
      if (this.#ahead.get(after.trajectory_id)?.head_hash === after.head_hash) this.#ahead.delete(after.trajectory_id);
    }
  }

  /** A batch went in otherwise: what was foreseen behind it is void. */
  restart(changes: readonly TrajectoryChange[]): void {
    this.generation += 1;
    this.#ahead.clear();
    for (const { after } of changes) this.#learn(after);
  }

  /** A batch did not go in, and what is known may be out of date. */
  forget(): void {
    this.restart([]);
    this.#known.clear();
  }

  #state(id: TrajectoryId): TrajectoryState | undefined {
    return this.#ahead.get(id) ?? this.#known.get(id);
  }

  #learn(state: TrajectoryState): void {
    const { trajectory_id } = state;
    // Delete first: a map keeps the order of insertion, so its first key is the one not used for longest.
    this.#known.delete(trajectory_id);
    // Where other logs have a part in it, the rows are asked each time.
    if (state.block !== undefined || state.anchor !== undefined || state.waiting > 0) return;
    this.#known.set(trajectory_id, state);
    if (this.#known.size <= KNOWN_MAX) return;
    const [oldest] = this.#known.keys();
    if (oldest !== undefined) this.#known.delete(oldest);
  }
}
