/** Where restored trajectories go, one after the other. `restore-jsonl.ts` and `restore-log.ts` are the targets. */
import type { ProvenEvent } from '../schemas/event.ts';
import type { TrajectoryId } from '../schemas/ids.ts';

export interface RestoreTarget extends AsyncDisposable {
  begin(id: TrajectoryId): Promise<void>;
  /** Takes the next event, which is proven. @throws VarveError: the trajectory cannot go there, or not this far */
  take(event: ProvenEvent): Promise<void>;
  /** The trajectory is complete. @returns where it is, or will be once `finish` has resolved */
  end(): Promise<string>;
  /** The trajectory broke off. @returns how many of its events stay */
  abandon(): Promise<number>;
  /** Everything that was ended is durable and visible when it resolves. */
  finish(): Promise<void>;
}
