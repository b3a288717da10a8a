/** The order in which the events of a busy worker are in its log: trajectories side by side, new ones as old ones end. */
import { newTrajectoryId, type TrajectoryId } from '../../../schemas/ids.ts';

const EVENTS_OF_A_TRAJECTORY = 200;

export type Place = {
  readonly id: TrajectoryId;
  /** Which of the concurrent ones. */
  readonly trajectory: number;
  readonly sequence_number: number;
};

/** Without end. They do not all begin at once: each is at another point of its life. */
export function* interleaved(concurrent: number): Generator<Place> {
  const lives = Array.from({ length: concurrent }, (_, trajectory) => ({
    id: newTrajectoryId(),
    trajectory,
    sequence_number: 0,
    last: 1 + Math.floor((EVENTS_OF_A_TRAJECTORY * (trajectory + 1)) / concurrent),
  }));
  for (;;) {
    for (const life of lives) {
      if (life.sequence_number === life.last) {
        life.id = newTrajectoryId();
        life.sequence_number = 0;
        life.last = EVENTS_OF_A_TRAJECTORY;
      }
      life.sequence_number += 1;
      yield { id: life.id, trajectory: life.trajectory, sequence_number: life.sequence_number };
    }
  }
}
