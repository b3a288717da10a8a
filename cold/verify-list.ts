/**
 * The list of segments of a live file against the table log, and the file's place against its ids: all that can be said
 * of a data file without reading it.
 */
import { isVarveError } from '../schemas/errors.ts';
import { parseTrajectoryId } from '../schemas/ids.ts';
import { dateOf } from '../schemas/parquet.ts';
import { readSegments } from './data-file.ts';
import type { ColdProblem } from './findings.ts';
import type { CallOptions, ObjectStore } from './object-store.ts';
import { placeSegments } from './parquet-writer.ts';
import type { Segment, SegmentList } from './segments.ts';
import { partitionFolder } from './slug.ts';
import { parquetKey, segmentsKey } from './table-keys.ts';
import type { LiveFile } from './table-log-plan.ts';

/** The SHA-256 that names the data file. */
export function nameOfFile(file: LiveFile): string {
  return file.stem.slice(file.stem.lastIndexOf('/') + 1);
}

/** What is named where a whole file is bad. */
export function firstEventOf(file: LiveFile, list: SegmentList | undefined): Partial<ColdProblem> {
  const segment = list?.segments[0];
  if (segment === undefined) return { trajectory_id: file.min_trajectory_id };
  return { trajectory_id: segment.trajectory_id, sequence_number: segment.first_sequence_number };
}

/** The list of segments, proven by the table log; undefined where there is none. */
export async function checkedList(
  store: ObjectStore,
  file: LiveFile,
  report: (problem: ColdProblem) => void,
  options: CallOptions,
): Promise<SegmentList | undefined> {
  const key = segmentsKey(file.stem);
  const bad = (what: string) => report({ kind: 'segments', key, ...firstEventOf(file, undefined), what });
  let list: SegmentList;
  try {
    list = await readSegments(store, file.stem, file.segments, options);
  } catch (error) {
    if (!isVarveError(error)) throw error;
    if (error.code === 'STORE_MISSING') bad('the list of segments is missing');
    else if (['COLD_SEGMENTS_INVALID', 'STORE_CORRUPT', 'STORE_TOO_LARGE'].includes(error.code)) bad(error.message);
    else throw error;
    return undefined;
  }
  const { segments, rows, bytes } = list;
  if (list.file !== `${nameOfFile(file)}.parquet`) bad(`it is the list of ${list.file}`);
  if (bytes !== file.add.size) bad(`it is of a file of ${bytes} bytes; the table log says ${file.add.size}`);
  if (rows !== file.rows) bad(`it has ${rows} rows; the table log says ${file.rows}`);
  const [first, last] = [segments[0]?.trajectory_id, segments.at(-1)?.trajectory_id];
  if (first !== file.min_trajectory_id || last !== file.max_trajectory_id) {
    bad(
      `it has trajectories ${first} to ${last}; the table log says ${file.min_trajectory_id} to ${file.max_trajectory_id}`,
    );
  }
  const starts = startsOf(segments);
  const placed = placeSegments(
    segments.map((segment, i) => ({ ...segment, first_row: starts[i] as number })),
    list.row_groups,
  );
  const misplaced = segments.find(({ row_groups: [from, to] }, i) => {
    const [placedFrom, placedTo] = placed[i]?.row_groups ?? [];
    return from !== placedFrom || to !== placedTo;
  });
  if (misplaced !== undefined) bad(`it names other row groups for ${misplaced.trajectory_id} than its rows lie in`);
  return list;
}

function startsOf(segments: readonly Segment[]): number[] {
  let next = 0;
  return segments.map(({ first_sequence_number, last_sequence_number }) => {
    const start = next;
    next += last_sequence_number - first_sequence_number + 1;
    return start;
  });
}

/** Folder, date and ids must say the same. */
export function checkPlace(
  file: LiveFile,
  list: SegmentList | undefined,
  report: (problem: ColdProblem) => void,
): void {
  const key = parquetKey(file.stem);
  const { partitionValues } = file.add;
  if (`${partitionFolder(partitionValues)}${nameOfFile(file)}` !== file.stem) {
    const what = 'its folder is not the one of its partition values in the table log';
    report({ kind: 'partition', key, ...firstEventOf(file, list), what });
  }
  const elsewhere = list?.segments.filter(({ trajectory_id }) => dayOf(trajectory_id) !== partitionValues.date) ?? [];
  const [first] = elsewhere;
  if (first === undefined) return;
  const { trajectory_id, first_sequence_number: sequence_number } = first;
  const what = `${elsewhere.length} trajectories did not start on ${partitionValues.date}`;
  report({ kind: 'partition', key, trajectory_id, sequence_number, what });
}

function dayOf(trajectory_id: string): string | undefined {
  try {
    return dateOf(parseTrajectoryId(trajectory_id));
  } catch {
    return undefined;
  }
}
