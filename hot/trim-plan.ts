/** Decides what may leave a hot log; touches nothing. `hot/trim.ts` carries it out. */
import type { TrajectoryId } from '../schemas/ids.ts';

/** A trajectory as the plan sees it. */
export type TrimCandidate = {
  readonly trajectory_id: TrajectoryId;
  readonly finished: boolean;
  /** Last durable event. */
  readonly sequence: number;
  readonly lsn: number;
  /** Already trimmed up to here; 0 for not at all. */
  readonly trimmedSequence: number;
  /**
   * First sequence number that a running trajectory still needs: the least of its last checkpoint, the oldest event
   * that its context refers to and its oldest open intent. undefined: it has no checkpoint and needs everything.
   */
  readonly neededFrom: number | undefined;
  /** Warm holds it back, or did not take all of it. */
  readonly held: boolean;
};

export type TrimStep = {
  readonly trajectory_id: TrajectoryId;
  /** Last sequence number that may go, by need alone; the LSN decides with it. */
  readonly through_sequence: number;
};

/**
 * Finished trajectories go whole, running ones below what they need; neither while warm holds them back, nor anything
 * behind `ackedLsn`. A finished one with a later event that is not acknowledged waits until it is.
 */
export function planTrim(candidates: readonly TrimCandidate[], ackedLsn: number): TrimStep[] {
  return candidates.flatMap((candidate) => {
    const { trajectory_id, finished, sequence, lsn, trimmedSequence, neededFrom, held } = candidate;
    if (held) return [];
    const through_sequence = finished ? sequence : Math.min(sequence, (neededFrom ?? 1) - 1);
    if (through_sequence <= trimmedSequence) return [];
    if (finished && lsn > ackedLsn) return [];
    return [{ trajectory_id, through_sequence }];
  });
}
