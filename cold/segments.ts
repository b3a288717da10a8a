/**
 * `<sha256 of the data file>.segments`: which events a data file holds, beside it, in the same folder.
 *
 * Lines of canonical JSON, each with its newline. The first describes the file:
 *
 *   {"bytes":…,"file":"<sha256>.parquet","footer_start":…,"format":1,"row_groups":[rows of each],"rows":…,"segments":…}
 *
 * then one line for each segment, ascending by trajectory, row groups by their first and last place:
 *
 *   {"first_sequence_number":…,"head_hash":"…","last_sequence_number":…,"previous_hash":"…","row_groups":[0,2],
 *    "trajectory_id":"…"}
 *
 * Valid if and only if formatting what it says gives the same bytes, its SHA-256 and number of segments are those in
 * the tags of the file's `add`, and its rows add up. A trajectory has one segment in a file.
 */
import { canonicalJson } from '../schemas/canonical.ts';
import { VarveError } from '../schemas/errors.ts';
import type { TrajectoryId } from '../schemas/ids.ts';
import { MIB } from '../schemas/limits.ts';

/** A run of one trajectory's events in one data file. */
export type Segment = {
  readonly trajectory_id: TrajectoryId;
  readonly first_sequence_number: number;
  readonly last_sequence_number: number;
  /** Hash of the event before the first one, hex; zeros where there is none. */
  readonly previous_hash: string;
  /** Hash of the last event. */
  readonly head_hash: string;
  /** First and last row group that hold its rows, counted from 0. */
  readonly row_groups: readonly [number, number];
};

export type SegmentList = {
  /** Length of the data file. */
  readonly bytes: number;
  /** Name of the data file. */
  readonly file: string;
  /** Where the Parquet footer begins: what is read after this file and before the row groups. */
  readonly footer_start: number;
  /** Rows of each row group. */
  readonly row_groups: readonly number[];
  readonly rows: number;
  readonly segments: readonly Segment[];
};

const FORMAT = 1;
/** Segments of one file: a list of them is held in memory, and has some 340 bytes each. */
export const SEGMENTS_MAX = 65_536;
export const SEGMENTS_BYTES_MAX = 64 * MIB;
if (SEGMENTS_MAX * 512 > SEGMENTS_BYTES_MAX) throw new Error('limits contradict each other');

export function formatSegments(list: SegmentList): Buffer {
  const { segments, ...rest } = list;
  const lines = [{ ...rest, format: FORMAT, segments: segments.length }, ...segments].map(canonicalJson);
  return Buffer.from(`${lines.join('\n')}\n`);
}

/** @throws VarveError COLD_SEGMENTS_INVALID */
export function parseSegments(bytes: Uint8Array, name: string): SegmentList {
  let list: SegmentList;
  try {
    const [head, ...segments] = Buffer.from(bytes).toString('utf8').trimEnd().split('\n').map(parseLine);
    const { format, segments: count, ...rest } = head as Record<string, unknown>;
    if (format !== FORMAT) throw invalid(name, `has format ${String(format)}, not ${FORMAT}`);
    if (count !== segments.length) throw invalid(name, `should list ${String(count)} segments`);
    list = { ...rest, segments } as unknown as SegmentList;
    checkSegments(list, name);
  } catch (error) {
    if (error instanceof VarveError) throw error;
    throw invalid(name, 'is not lines of JSON', error);
  }
  if (!formatSegments(list).equals(bytes)) throw invalid(name, 'is not in canonical form');
  return list;
}

function parseLine(line: string): unknown {
  return JSON.parse(line);
}

function checkSegments({ segments, rows, row_groups }: SegmentList, name: string): void {
  let events = 0;
  let last = '';
  for (const { trajectory_id, first_sequence_number, last_sequence_number } of segments) {
    if (trajectory_id <= last) throw invalid(name, `names ${trajectory_id} after ${last}`);
    last = trajectory_id;
    events += last_sequence_number - first_sequence_number + 1;
  }
  const grouped = row_groups.reduce((sum, count) => sum + count, 0);
  if (events !== rows || grouped !== rows) throw invalid(name, `has ${events} events, ${grouped} rows, not ${rows}`);
}

/** Do two segments hold an event of the same name? */
export function overlap(a: Segment, b: Segment): boolean {
  return (
    a.trajectory_id === b.trajectory_id &&
    a.first_sequence_number <= b.last_sequence_number &&
    b.first_sequence_number <= a.last_sequence_number
  );
}

function invalid(name: string, text: string, cause?: unknown): VarveError {
  return new VarveError('COLD_SEGMENTS_INVALID', `${name} ${text}`, { name }, cause);
}
