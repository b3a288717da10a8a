/**
 * The files of derived rows that a data file names, against its list of segments: a row for each segment, with its
 * numbers and its last hash, but for one that the table log says was cut there and goes on in another file; a row of an import only
 * where the first event is. What a row says beyond that is not looked at.
 */
import { type DuckDb, type DuckRow, safeNumber } from './duckdb.ts';
import type { ColdProblem } from './findings.ts';
import type { CallOptions } from './object-store.ts';
import type { Segment, SegmentList } from './segments.ts';
import type { Add, PartitionValues } from './table-actions.ts';
import { isDamage } from './verify-parts.ts';
import { sourceOf } from './verify-scan.ts';

/** A copy of a derived file on this machine, whose bytes have the hash that names it. */
export type DerivedCopy = { readonly table: 'trajectories' | 'imports'; readonly key: string; readonly path: string };

type Report = (problem: ColdProblem) => void;

export async function verifyDerived(
  duck: DuckDb,
  copy: DerivedCopy,
  list: SegmentList,
  { partitionValues, tags }: Pick<Add, 'partitionValues' | 'tags'>,
  report: Report,
  options: CallOptions = {},
): Promise<void> {
  try {
    await (copy.table === 'trajectories' ? checkTrajectories : checkImports)(
      duck,
      copy,
      copy.table === 'trajectories' ? { ...list, segments: withRows(list, tags.cut) } : list,
      partitionValues,
      report,
      options,
    );
  } catch (error) {
    if (!isDamage(error, true)) throw error;
    report({ kind: 'derived', key: copy.key, what: 'it cannot be read' });
  }
}

/** Segments of which the file of trajectories has a row: all but one that was cut. */
export function withRows({ segments }: SegmentList, cut: string | undefined): readonly Segment[] {
  return segments.filter(({ trajectory_id }) => trajectory_id !== cut);
}

async function checkTrajectories(
  duck: DuckDb,
  { key, path }: DerivedCopy,
  { segments }: SegmentList,
  partition: PartitionValues,
  report: Report,
  options: CallOptions,
): Promise<void> {
  const columns = `trajectory_id, first_sequence_number, last_sequence_number, head_hash, ${PLACE}`;
  const rows = await duck.rows(`SELECT ${columns} FROM ${sourceOf(path)} ORDER BY trajectory_id`, options);
  const found = new Map(rows.map((row) => [row['trajectory_id'], row]));
  if (rows.length !== segments.length) {
    const what = `it has ${rows.length} rows, and its data file ${segments.length} segments that end there`;
    report({ kind: 'derived', key, what });
  }
  for (const segment of segments) {
    const { trajectory_id, first_sequence_number, last_sequence_number, head_hash } = segment;
    const row = found.get(trajectory_id);
    const what =
      row === undefined
        ? 'it has no row of this trajectory'
        : safeNumber(row['first_sequence_number']) !== first_sequence_number ||
            safeNumber(row['last_sequence_number']) !== last_sequence_number
          ? 'its row has other sequence numbers than the segment'
          : row['head_hash'] !== head_hash
            ? 'its row has another head hash than the segment'
            : flawOfPlace(row, partition);
    if (what !== undefined)
      report({ kind: 'derived', key, trajectory_id, sequence_number: last_sequence_number, what });
  }
}

async function checkImports(
  duck: DuckDb,
  { key, path }: DerivedCopy,
  { segments }: SegmentList,
  partition: PartitionValues,
  report: Report,
  options: CallOptions,
): Promise<void> {
  const first = new Map<unknown, number>(
    segments.map((segment) => [segment.trajectory_id, segment.first_sequence_number]),
  );
  const rows = await duck.rows(`SELECT trajectory_id, ${PLACE} FROM ${sourceOf(path)}`, options);
  for (const row of rows) {
    const { trajectory_id } = row;
    const what =
      first.get(trajectory_id) === 1
        ? flawOfPlace(row, partition)
        : 'the data file has not the first event of this import';
    // A trajectory has one row.
    first.delete(trajectory_id);
    if (what !== undefined)
      report({ kind: 'derived', key, trajectory_id: trajectory_id as string, sequence_number: 1, what });
  }
}

const PLACE = `tenant, strftime(date, '%Y-%m-%d') AS date, model_version`;

function flawOfPlace(row: DuckRow, { tenant, date, model_version }: PartitionValues): string | undefined {
  const isHere = row['tenant'] === tenant && row['date'] === date && row['model_version'] === model_version;
  return isHere ? undefined : 'its row has another tenant, date or model_version than the table log says';
}
