/** Something that makes events durable: varve, a peer, or a limit to compare both with. */
import type { TrajectoryId } from '../../../schemas/ids.ts';
import type { Sample } from './samples.ts';

export type Store = {
  /** Resolves when the event is durable. */
  append(trajectory: TrajectoryId, sample: Sample): Promise<unknown>;
  /** Barriers so far, where the store can tell. */
  barriers?(): number;
  close(): Promise<void>;
};

export type Contender = {
  readonly name: string;
  /** @param dir does not exist yet; its parent does */
  open(dir: string): Promise<Store>;
};
