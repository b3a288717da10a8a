/**
 * Finds a trajectory by its id, or by the beginning of one that no other has, in whatever tiers it is.
 */
import type { Config } from '../schemas/config.ts';
import type { TrajectoryEvent } from '../schemas/event.ts';
import type { TrajectoryId } from '../schemas/ids.ts';
import { warmHeadOf } from '../warm/trajectory-reader.ts';
import { locateTrajectory, takenFrom } from './locate-trajectory.ts';
import { TrajectoryReading } from './read-trajectory.ts';
import { type Tier, Tiers } from './tiers.ts';

export type FoundSource = AsyncDisposable & {
  readonly trajectory_id: TrajectoryId;
  /** `cold`, `warm`, a log's directory, or several of them. */
  readonly where: string;
  /**
   * Is this the log that wrote it, to its end? Elsewhere its tail may be missing, and the absence of an intent proves
   * nothing.
   */
  readonly isWholeLog: boolean;
  /** Events that quarantine holds beside it. */
  readonly held: number;
  /** In order, from the first that is there; may be called more than once. */
  events(): AsyncIterable<TrajectoryEvent>;
};

/**
 * @param prefix hex digits and dashes, lower-case
 * @param only the tier that is asked; undefined: all
 * @throws VarveError INVALID_OPTION where none or several begin so
 */
export async function findTrajectory(
  config: Config,
  prefix: string,
  only: Tier | undefined,
  signal: AbortSignal,
): Promise<FoundSource> {
  const tiers = await Tiers.open(config, only, signal);
  try {
    const [trajectory_id] = (await tiers.resolve([prefix], signal)) as [TrajectoryId];
    const parts = takenFrom(await locateTrajectory(tiers, trajectory_id, signal));
    const head = tiers.warm === undefined ? undefined : await warmHeadOf(tiers.warm, trajectory_id);
    const held = head?.held ?? 0;
    const isEmpty = parts.length === 0;
    if (isEmpty && held === 0 && (head === undefined || only !== 'warm')) throw tiers.notFound(prefix);
    for (const { text } of tiers.troubles) process.stderr.write(`varve: ${text}\n`);
    const places = new Set(parts.map(({ tier, where }) => (tier === 'hot' ? where : tier)));
    return {
      trajectory_id,
      where: isEmpty ? 'warm' : [...places].join(', '),
      isWholeLog: places.size === 1 && parts.every(({ tier }) => tier === 'hot') && head === undefined,
      held,
      events: () => (isEmpty ? nothing() : new TrajectoryReading(tiers, trajectory_id, signal)),
      [Symbol.asyncDispose]: () => tiers[Symbol.asyncDispose](),
    };
  } catch (error) {
    await tiers[Symbol.asyncDispose]();
    throw error;
  }
}

async function* nothing(): AsyncGenerator<TrajectoryEvent> {}
