/** DuckDB alone: lines of JSON with the columns of the cold tier to Parquet, as compaction's own step does it. */
import { COLUMN_NAMES, COLUMN_TYPES } from '../../../cold/columns.ts';
import { DuckDb, sqlText } from '../../../cold/duckdb.ts';
import { childArgument, tellParent } from '../support/child-result.ts';

export type ConvertArgument = { readonly from: string; readonly to: string; readonly tempDir: string };
export type ConvertResult = { readonly cpuSeconds: number };

const { from, to, tempDir } = childArgument() as ConvertArgument;
await using duck = await DuckDb.open({ tempDir });
const before = process.cpuUsage();
await duck.run(
  `COPY (SELECT ${COLUMN_NAMES} FROM read_json([${sqlText(from)}], format = 'newline_delimited', auto_detect = false,
     maximum_object_size = 16777216, columns = ${COLUMN_TYPES}))
   TO ${sqlText(to)} (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 9, PARQUET_VERSION v1, ROW_GROUP_SIZE 4096)`,
);
const { user, system } = process.cpuUsage(before);
tellParent({ cpuSeconds: (user + system) / 1e6 } satisfies ConvertResult);
