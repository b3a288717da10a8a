/**
 * All rows of a data file that can be read, whatever else of it cannot.
 *
 * A whole file is one scan. Where that fails, row groups are read one by one, and in one that fails the first and the
 * last row that cannot be read are searched, so that a damaged page costs its own rows and no more. Where only payloads
 * cannot be read, the chain of those rows is still looked at.
 */
import { isVarveError, type VarveError } from '../schemas/errors.ts';
import { COLUMNS } from '../schemas/parquet.ts';
import { type DuckDb, safeNumber, sqlFile } from './duckdb.ts';
import type { CallOptions } from './object-store.ts';
import type { PartitionValues } from './table-actions.ts';
import { type RowRange, type ScannedRow, scanRows, sourceOf } from './verify-scan.ts';

export type Part =
  | { readonly kind: 'rows'; readonly rows: readonly ScannedRow[] }
  /** Rows that cannot be read, or only without their payloads; they follow as rows then. */
  | { readonly kind: 'hole'; readonly range: RowRange; readonly group: number; readonly columns: readonly string[] };

export type FileToScan = {
  readonly path: string;
  readonly partition: PartitionValues;
  /** Are its bytes those that were written? Then what fails may be the machine, and not the file. */
  readonly isOriginal: boolean;
};

/** Rows of each row group. @throws VarveError where the footer cannot be read */
export async function readRowGroups(duck: DuckDb, path: string, options: CallOptions = {}): Promise<number[]> {
  const groups = await duck.rows(
    `SELECT row_group_num_rows AS rows FROM parquet_metadata(${sqlFile(path)}) WHERE column_id = 0 ORDER BY row_group_id`,
    options,
  );
  return groups.map(({ rows }) => safeNumber(rows));
}

/** Does this error say that the file is damaged, and not that the machine is in trouble? */
export function isDamage(error: unknown, isOriginal: boolean): error is VarveError {
  if (!isVarveError(error)) return false;
  const { code, details } = error;
  if (code === 'COLD_SQL' || code === 'COLD_FILE_DIFFERS') return true;
  if (code === 'COLD_FILE_UNREADABLE') return !isOriginal || details['kind'] !== 'IO Error';
  // Lengths that are damaged ask for any amount of memory.
  return !isOriginal && (code === 'COLD_OUT_OF_MEMORY' || code === 'COLD_ENGINE_FAILED');
}

/** Everything in one scan. @throws VarveError: see `isDamage`; nothing of what came may be used then */
export async function* wholeFile(
  duck: DuckDb,
  { path, partition }: FileToScan,
  rows: number,
  options: CallOptions,
): AsyncGenerator<Part, void, void> {
  for await (const some of scanRows(duck, path, { first: 0, last: rows - 1 }, partition, true, options)) {
    yield { kind: 'rows', rows: some };
  }
}

/** Row group by row group; never fails for what is damaged. */
export async function* partsOf(
  duck: DuckDb,
  file: FileToScan,
  rowGroups: readonly number[],
  options: CallOptions,
): AsyncGenerator<Part, void, void> {
  let first = 0;
  for (const [group, rows] of rowGroups.entries()) {
    if (rows > 0) yield* partsOfGroup(duck, file, group, { first, last: first + rows - 1 }, options);
    first += rows;
  }
}

async function* partsOfGroup(
  duck: DuckDb,
  file: FileToScan,
  group: number,
  range: RowRange,
  options: CallOptions,
): AsyncGenerator<Part, void, void> {
  const read = (part: RowRange, withPayload = true) => readRange(duck, file, part, withPayload, options);
  const whole = await read(range);
  if (whole !== undefined) {
    yield { kind: 'rows', rows: whole };
    return;
  }
  const first = await searchFirst(range, async (row) => (await read({ first: range.first, last: row })) === undefined);
  const last = await searchLast(
    { first, last: range.last },
    async (row) => (await read({ first: row, last: range.last })) === undefined,
  );
  const hole = { first, last };
  const before = first > range.first ? await read({ first: range.first, last: first - 1 }) : undefined;
  if (before !== undefined) yield { kind: 'rows', rows: before };
  const columns = await unreadableColumns(duck, file, hole, options);
  yield { kind: 'hole', range: hole, group, columns };
  const unpaid = await read(hole, false);
  if (unpaid !== undefined) yield { kind: 'rows', rows: unpaid };
  const after = last < range.last ? await read({ first: last + 1, last: range.last }) : undefined;
  if (after !== undefined) yield { kind: 'rows', rows: after };
}

/** The rows of a range, at most a row group; undefined where it cannot be read. */
async function readRange(
  duck: DuckDb,
  { path, partition, isOriginal }: FileToScan,
  range: RowRange,
  withPayload: boolean,
  options: CallOptions,
): Promise<ScannedRow[] | undefined> {
  const rows: ScannedRow[] = [];
  try {
    for await (const some of scanRows(duck, path, range, partition, withPayload, options)) rows.push(...some);
    return rows;
  } catch (error) {
    if (isDamage(error, isOriginal)) return undefined;
    throw error;
  }
}

/** The first row from which on `isBad` holds; it holds for the last one. */
async function searchFirst({ first, last }: RowRange, isBad: (row: number) => Promise<boolean>): Promise<number> {
  let [low, high] = [first, last];
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    if (await isBad(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The last row up to which `isBad` holds; it holds for the first one. */
async function searchLast({ first, last }: RowRange, isBad: (row: number) => Promise<boolean>): Promise<number> {
  let [low, high] = [first, last];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (await isBad(middle)) low = middle;
    else high = middle - 1;
  }
  return low;
}

async function unreadableColumns(
  duck: DuckDb,
  { path, isOriginal }: FileToScan,
  { first, last }: RowRange,
  options: CallOptions,
): Promise<string[]> {
  const bad: string[] = [];
  for (const { name } of COLUMNS) {
    // Its values are looked at, or they would not be read.
    const sql = `SELECT count(*) FROM ${sourceOf(path)} WHERE file_row_number BETWEEN ${first} AND ${last} AND hash("${name}") = 0`;
    try {
      await duck.run(sql, options);
    } catch (error) {
      if (!isDamage(error, isOriginal)) throw error;
      bad.push(name);
    }
  }
  return bad;
}
