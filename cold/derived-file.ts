/**
 * Files of derived rows: what a data file says of whole trajectories (schemas/parquet-trajectories.ts).
 *
 *   trajectories/<partition>/<sha256>.parquet    one for each data file that has the end of a trajectory's segment; where
 *                                                a trajectory is cut between files of one commit, the last one has its row
 *   imports/<partition>/<sha256>.parquet         where a data file has the first event of an import
 *
 * Named by the SHA-256 of their bytes, put if absent before the commit whose `add` names them in its tags, and never
 * overwritten: so they are in a snapshot exactly when their data file is, and no run has to finish what another left.
 */
import { createHash } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { ColumnType } from '../schemas/parquet.ts';
import {
  IMPORT_COLUMNS,
  type ImportRow,
  TRAJECTORY_COLUMNS,
  type TrajectoryRow,
} from '../schemas/parquet-trajectories.ts';
import { DUCK_TYPES } from './columns.ts';
import { type DuckDb, sqlFile, sqlText } from './duckdb.ts';
import { FILE_MODE, inScratch } from './files.ts';
import type { CallOptions, ObjectStore } from './object-store.ts';
import { SCRATCH_PREFIX } from './parquet-writer.ts';
import { derivedKey } from './table-keys.ts';
import { type DerivedNames, NO_ROWS } from './table-log-plan.ts';

/** Rows of one data file: their number is bounded by its segments. */
export type DerivedRows = {
  readonly trajectories: readonly TrajectoryRow[];
  readonly imports: readonly ImportRow[];
};

type DerivedColumn = { readonly name: string; readonly type: ColumnType };

/** A row is a summary and some numbers: some 3 KiB. */
const LINE_BYTES_MAX = 1024 * 1024;
const ZSTD_LEVEL = 9;

/** For `columns = …` of read_json, and the type of each column for an empty table. */
export function derivedTypes(columns: readonly DerivedColumn[]): string {
  return `{${columns.map(({ name, type }) => `"${name}": '${DUCK_TYPES[type]}'`).join(', ')}}`;
}

/**
 * The files are durable in the store when it resolves. `folder` is the partition's, with the slash behind it; the
 * instance of DuckDB must have one thread.
 * @returns their names, for the tags of the data file
 */
export async function putDerived(
  store: ObjectStore,
  duck: DuckDb,
  folder: string,
  rows: DerivedRows,
  scratchDir: string,
  options: CallOptions = {},
): Promise<DerivedNames> {
  return await inScratch(scratchDir, SCRATCH_PREFIX, async (scratch) => {
    const put = async (table: 'trajectories' | 'imports', columns: readonly DerivedColumn[]): Promise<string> => {
      const bytes = await toParquet(duck, join(scratch, table), columns, rows[table], options);
      const sha256 = createHash('sha256').update(bytes).digest('hex');
      await store.putIfAbsent(derivedKey(table, folder, sha256), bytes, options);
      return sha256;
    };
    return {
      trajectories: rows.trajectories.length > 0 ? await put('trajectories', TRAJECTORY_COLUMNS) : NO_ROWS,
      ...(rows.imports.length > 0 ? { imports: await put('imports', IMPORT_COLUMNS) } : {}),
    };
  });
}

async function toParquet(
  duck: DuckDb,
  path: string,
  columns: readonly DerivedColumn[],
  rows: readonly object[],
  options: CallOptions,
): Promise<Buffer> {
  const lines = rows.map((row) => `${JSON.stringify(row)}\n`).join('');
  await writeFile(`${path}.ndjson`, lines, { mode: FILE_MODE });
  const names = columns.map(({ name }) => `"${name}"`).join(', ');
  const source = `read_json([${sqlFile(`${path}.ndjson`)}], format = 'newline_delimited', auto_detect = false,
    maximum_object_size = ${LINE_BYTES_MAX}, columns = ${derivedTypes(columns)})`;
  const format = `FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL ${ZSTD_LEVEL}, PARQUET_VERSION v1`;
  await duck.run(`COPY (SELECT ${names} FROM ${source}) TO ${sqlText(`${path}.parquet`)} (${format})`, options);
  return await readFile(`${path}.parquet`);
}
