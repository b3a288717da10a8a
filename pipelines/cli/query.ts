/** `varve query`. */
import { extname } from 'node:path';
import { type Command, InvalidArgumentError, Option } from 'commander';
import type { ExportCompression } from '../../cold/query.ts';
import type { SnapshotAt } from '../../cold/table-log.ts';
import { loadConfig } from '../config.ts';
import { emitSql, listFiles, query, type RowsOptions, type SqlSource, showSchema } from '../query.ts';
import { type ConfigFlag, fileOf, type JsonFlag, versionOrTime, whole } from './options.ts';

type Format = RowsOptions['format'];

type QueryFlags = ConfigFlag &
  JsonFlag & {
    readonly file?: string;
    readonly format?: Format;
    readonly compression?: ExportCompression;
    readonly out?: string;
    readonly force?: true;
    readonly limit?: number;
    readonly at?: SnapshotAt;
    readonly tenant?: string;
    readonly from?: string;
    readonly to?: string;
    readonly files?: true;
    readonly emitSql?: string;
    readonly schema?: true;
  };

/** Rows of a table that are shown without --limit. */
const TABLE_ROWS = 1000;
const FORMATS = ['table', 'json', 'jsonl', 'csv', 'parquet'] as const satisfies readonly Format[];
const COMPRESSIONS = ['zstd', 'snappy', 'gzip'] as const satisfies readonly ExportCompression[];

export function addQuery(program: Command, signal: AbortSignal): void {
  program
    .command('query')
    .description('SQL (of DuckDB) over the cold tier: the views events, trajectories, imports, annotations')
    .argument('[sql]', 'one SELECT; - reads it from standard input')
    .option('--file <file>', 'read the SQL from a file')
    .addOption(new Option('--format <name>', 'of the rows (by the ending of --out, else table)').choices(FORMATS))
    .addOption(new Option('--compression <name>', 'of Parquet (zstd)').choices(COMPRESSIONS))
    .option('--out <file>', 'write the rows there')
    .option('--force', 'write over a file that is there')
    .option('--limit <n>', `most rows; 0 writes all (table: ${TABLE_ROWS}, else 0)`, whole)
    .option('--at <version|time>', 'the table as it was then', versionOrTime)
    .option('--tenant <name>', 'only files of this tenant')
    .option('--from <date>', 'only files of trajectories that started on that day (UTC) or later', day)
    .option('--to <date>', 'only files of trajectories that started on that day (UTC) or earlier', day)
    .option('--files', 'list the files instead')
    .option('--emit-sql <file>', 'write a script with which DuckDB has the same views; - is standard output')
    .option('--schema', 'show the columns of the views and what they hold')
    .option('--json', 'machine-readable output: --format json')
    .option('--config <file>', 'configuration file')
    .action(async (sql: string | undefined, flags: QueryFlags, self: Command) => {
      const { files, emitSql: target, schema, json, file } = flags;
      const what = [sql, file, files, target, schema].filter((one) => one !== undefined);
      if (what.length !== 1) self.error('one of these is needed: SQL, --file, --files, --emit-sql, --schema');
      if (schema === true) return showSchema(json === true);
      const { config } = await loadConfig(fileOf(flags));
      const source = { at: flags.at, filter: { tenant: flags.tenant, from: flags.from, to: flags.to } };
      if (files === true) return await listFiles(config, source, json === true, signal);
      if (target !== undefined) return await emitSql(config, source, target, flags.force === true, signal);
      const from: SqlSource = sql === undefined || sql === '-' ? { file: file ?? '-' } : { text: sql };
      await query(config, source, from, rowsOptions(flags, self), signal);
    });
}

function rowsOptions({ format, json, out, force, compression, limit }: QueryFlags, self: Command): RowsOptions {
  if (json === true && format !== undefined && format !== 'json') self.error('either --json or another --format');
  const chosen = format ?? (json === true ? 'json' : formatOfName(out));
  if (chosen === 'parquet') {
    if (out === undefined) self.error('--format parquet needs --out <file>');
    // How many rows there are would not be known.
    if (limit !== undefined) self.error('Parquet is written whole: put the LIMIT into the SQL');
  } else if (compression !== undefined) self.error('--compression is for --format parquet');
  return {
    format: chosen,
    compression: compression ?? 'zstd',
    limit: limit ?? (chosen === 'table' ? TABLE_ROWS : 0),
    out: { path: out, force: force === true },
  };
}

function formatOfName(out: string | undefined): Format {
  const ending = out === undefined ? '' : extname(out).slice(1).toLowerCase();
  if (ending === 'ndjson') return 'jsonl';
  return FORMATS.find((name) => name === ending) ?? 'table';
}

function day(text: string): string {
  const ms = /^\d{4}-\d\d-\d\d$/.test(text) ? Date.parse(`${text}T00:00:00Z`) : Number.NaN;
  // A 30 February would be taken for a day in March.
  const isDay = !Number.isNaN(ms) && new Date(ms).toISOString().startsWith(text);
  if (isDay) return text;
  throw new InvalidArgumentError('a day such as 2025-11-30 is needed.');
}
