/**
 * Where trajectories lie in a snapshot: the segments of each, and the live files that hold them.
 *
 * Files are chosen by their smallest and largest ids alone; each of those costs one read of its `.segments`, unless the
 * table log still has it. Nothing is proven here of how the segments of one trajectory follow each other: `followsOn`
 * says that of two of them.
 */
import type { TrajectoryId } from '../schemas/ids.ts';
import type { CallOptions } from './object-store.ts';
import type { Segment } from './segments.ts';
import type { TableLog } from './table-log.ts';
import type { LiveFile, Snapshot } from './table-log-plan.ts';

export type PlacedSegment = { readonly segment: Segment; readonly file: LiveFile };

/** `.segments` that are fetched at once. */
const FETCHES = 16;

/**
 * Segments of each of these trajectories, in the order of their events; trajectories that the snapshot does not have are
 * not in the map.
 *
 * @throws VarveError COLD_SEGMENTS_INVALID, STORE_*
 */
export async function segmentsOfTrajectories(
  log: TableLog,
  snapshot: Snapshot,
  ids: Iterable<TrajectoryId>,
  options: CallOptions = {},
): Promise<Map<TrajectoryId, PlacedSegment[]>> {
  const wanted = new Set(ids);
  const ascending = [...wanted].toSorted();
  const files = [...snapshot.files.values()].filter((file) => holdsAnyOf(file, ascending));
  const found = new Map<TrajectoryId, PlacedSegment[]>();
  for (let at = 0; at < files.length; at += FETCHES) {
    const some = files.slice(at, at + FETCHES);
    const lists = await Promise.all(some.map((file) => log.segmentsOf(file, options)));
    some.forEach((file, i) => {
      for (const segment of lists[i] ?? []) {
        if (!wanted.has(segment.trajectory_id)) continue;
        const placed = found.get(segment.trajectory_id) ?? [];
        placed.push({ segment, file });
        found.set(segment.trajectory_id, placed);
      }
    });
  }
  for (const placed of found.values()) placed.sort(byFirst);
  return found;
}

/** Does `next` begin where `before` ends (undefined: with event 1), by number and by hash? */
export function followsOn(before: Segment | undefined, next: Segment): boolean {
  if (before === undefined) return next.first_sequence_number === 1;
  return next.first_sequence_number === before.last_sequence_number + 1 && next.previous_hash === before.head_hash;
}

/** Trajectories of a snapshot whose id begins so, ascending; at most `most`. Reads `.segments` as it needs them. */
export async function findInCold(
  log: TableLog,
  snapshot: Snapshot,
  prefix: string,
  most: number,
  options: CallOptions = {},
): Promise<TrajectoryId[]> {
  const [low, high] = [prefix, `${prefix}g`];
  const files = [...snapshot.files.values()].filter(
    ({ min_trajectory_id, max_trajectory_id }) => min_trajectory_id < high && max_trajectory_id >= low,
  );
  const found = new Set<TrajectoryId>();
  for (const file of files) {
    for (const { trajectory_id } of await log.segmentsOf(file, options)) {
      if (trajectory_id.startsWith(prefix)) found.add(trajectory_id);
    }
    if (found.size >= most) break;
  }
  return [...found].toSorted().slice(0, most);
}

/** @param ascending ids in order */
function holdsAnyOf({ min_trajectory_id, max_trajectory_id }: LiveFile, ascending: readonly string[]): boolean {
  let [low, high] = [0, ascending.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((ascending[middle] as string) < min_trajectory_id) low = middle + 1;
    else high = middle;
  }
  const first = ascending[low];
  return first !== undefined && first <= max_trajectory_id;
}

function byFirst(a: PlacedSegment, b: PlacedSegment): number {
  return a.segment.first_sequence_number - b.segment.first_sequence_number;
}
