/**
 * Finds a trajectory by its id, or by the beginning of one that no other has: in warm, else in the hot logs.
 */
import type { Config } from '../schemas/config.ts';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import type { TrajectoryEvent } from '../schemas/event.ts';
import type { TrajectoryId } from '../schemas/ids.ts';
import { findTrajectories, readTrajectory } from '../warm/trajectory-reader.ts';
import { isWarmThere, type OpenWarm, openWarm } from './open-warm.ts';
import { readEvents } from './read-hot.ts';
import { findLogs } from './sidecar.ts';

export type FoundSource = AsyncDisposable & {
  readonly trajectory_id: TrajectoryId;
  /** `warm`, or the log's directory. */
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

const NAMED_MAX = 10;

/**
 * @param prefix hex digits and dashes, lower-case
 * @param where only there; undefined: warm if it has it, else hot
 * @throws VarveError INVALID_OPTION where none or several begin so
 */
export async function findTrajectory(
  config: Config,
  prefix: string,
  where: 'hot' | 'warm' | undefined,
  signal: AbortSignal,
): Promise<FoundSource> {
  if (!/^[0-9a-f-]{1,36}$/.test(prefix)) {
    throw new VarveError('INVALID_OPTION', 'the id of a trajectory, or its beginning, is needed');
  }
  const found = where === 'hot' ? undefined : await inWarm(config, prefix, where === 'warm');
  if (found !== undefined) return found;
  const inLogs = where === 'warm' ? undefined : await inHot(config, prefix, signal);
  if (inLogs !== undefined) return inLogs;
  const looked = where ?? 'warm and hot';
  throw new VarveError('INVALID_OPTION', `there is no trajectory ${prefix} in ${looked}`, { prefix });
}

async function inWarm(config: Config, prefix: string, isNeeded: boolean): Promise<FoundSource | undefined> {
  if (!isNeeded && !(await isWarmThere(config))) return undefined;
  let warm: OpenWarm;
  try {
    warm = await openWarm(config);
  } catch (error) {
    if (isNeeded || !isVarveError(error)) throw error;
    process.stderr.write(`varve: warm cannot be asked (${error.code}), looking in hot\n`);
    return undefined;
  }
  try {
    const { pool } = warm;
    const found = await findTrajectories(pool, prefix, NAMED_MAX);
    const [only] = found;
    if (found.length > 1)
      throw ambiguous(
        prefix,
        found.map(({ trajectory_id }) => trajectory_id),
      );
    if (only !== undefined && (only.last_sequence_number > 0 || only.held > 0 || isNeeded)) {
      const { trajectory_id, held } = only;
      return {
        trajectory_id,
        where: 'warm',
        isWholeLog: false,
        held,
        events: () => readTrajectory(pool, trajectory_id),
        [Symbol.asyncDispose]: () => warm[Symbol.asyncDispose](),
      };
    }
  } catch (error) {
    await warm[Symbol.asyncDispose]();
    throw error;
  }
  await warm[Symbol.asyncDispose]();
  return undefined;
}

async function inHot(config: Config, prefix: string, signal: AbortSignal): Promise<FoundSource | undefined> {
  const found = new Map<TrajectoryId, string>();
  for (const directory of await findLogs(config.hot.logs)) {
    try {
      for await (const { trajectory_id } of readEvents(directory, signal)) {
        if (trajectory_id.startsWith(prefix) && found.size <= NAMED_MAX) found.set(trajectory_id, directory);
      }
    } catch (error) {
      // What is whole of it may be shown; reading it again says so again, at the place of the damage.
      if (!isVarveError(error, 'HOT_DAMAGED')) throw error;
    }
  }
  const [only] = found;
  if (only === undefined) return undefined;
  if (found.size > 1) throw ambiguous(prefix, [...found.keys()]);
  const [trajectory_id, directory] = only;
  return {
    trajectory_id,
    where: directory,
    isWholeLog: true,
    held: 0,
    async *events() {
      for await (const event of readEvents(directory, signal)) if (event.trajectory_id === trajectory_id) yield event;
    },
    [Symbol.asyncDispose]: () => Promise.resolve(),
  };
}

function ambiguous(prefix: string, ids: readonly TrajectoryId[]): VarveError {
  return new VarveError('INVALID_OPTION', `several trajectories begin with ${prefix}: ${ids.join(', ')} …`, { prefix });
}
