/** Which events of a trajectory each tier has now: what a dry run prints. Nothing is read and nothing proven. */
import type { TrajectoryId } from '../schemas/ids.ts';
import { warmRangeOf } from '../warm/trajectory-reader.ts';
import type { ReadPart } from './read-trajectory.ts';
import type { Tiers } from './tiers.ts';

/** From cold to hot; in each tier in order of the events. */
export async function locateTrajectory(tiers: Tiers, id: TrajectoryId, signal: AbortSignal): Promise<ReadPart[]> {
  const parts: ReadPart[] = [];
  for (const { segment, file } of (await tiers.cold?.segmentsOf(id, signal)) ?? []) {
    const { first_sequence_number: first, last_sequence_number: last } = segment;
    parts.push({ tier: 'cold', where: file.add.path, first, last });
  }
  const warm = tiers.warm === undefined ? undefined : await warmRangeOf(tiers.warm, id);
  if (warm !== undefined) parts.push({ tier: 'warm', where: 'warm', ...warm });
  for (const { directory, first, last } of tiers.hot?.of(id) ?? []) {
    parts.push({ tier: 'hot', where: directory, first, last });
  }
  return parts;
}

/** The parts that a reading takes events from: what an earlier tier has, a later one is not asked for. */
export function takenFrom(parts: readonly ReadPart[]): ReadPart[] {
  let reached = 0;
  return parts.filter(({ last }) => {
    const brings = last > reached;
    reached = Math.max(reached, last);
    return brings;
  });
}
