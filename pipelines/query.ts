/**
 * `varve query`: SQL over one version of the cold tier, its exact list of files, or a script that shows it to another
 * DuckDB. The SQL may only read; results are written here.
 *
 * Data goes to standard output or to `--out`, whatever has to be said about it to standard error.
 */
import { readFile } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { resolve } from 'node:path';
import { text as readAll } from 'node:stream/consumers';
import { ColdQuery, type ColdQueryOptions, type ExportCompression } from '../cold/query.ts';
import type { FiledView, FileFilter, QueryFile } from '../cold/query-files.ts';
import { VIEW_NAMES, VIEWS } from '../cold/query-sql.ts';
import type { SnapshotAt } from '../cold/table-log.ts';
import type { Config } from '../schemas/config.ts';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { openColdStore } from './open-cold.ts';
import { OutFile } from './out-file.ts';
import { print, printFlowing, printJson, table } from './print.ts';
import { type TextFormat, type Written, writeRows } from './query-output.ts';
import { retry } from './retry.ts';

export type QuerySource = {
  readonly at: SnapshotAt | undefined;
  readonly filter: FileFilter;
};

/** Where the SQL is: on the command line, or in a file; `-` is standard input. */
export type SqlSource = { readonly text: string } | { readonly file: string };

export type OutOptions = { readonly path: string | undefined; readonly force: boolean };

export type RowsOptions = {
  readonly format: TextFormat | 'parquet';
  readonly compression: ExportCompression;
  /** 0: all. */
  readonly limit: number;
  readonly out: OutOptions;
};

const WIDTH = 120;

export async function query(
  config: Config,
  source: QuerySource,
  from: SqlSource,
  options: RowsOptions,
  signal: AbortSignal,
): Promise<void> {
  const sql = await sqlOf(from);
  await using out =
    options.out.path === undefined ? undefined : await OutFile.open(options.out.path, options.out.force);
  await using opened = await openQuery(config, source, signal, out === undefined ? [] : [out.temporary]);
  const { cold } = opened;
  await again((signal) => cold.prepare(sql, { signal }), signal);
  const { withoutTrajectories } = cold.files;
  if (withoutTrajectories > 0) say(`the view trajectories lacks those of ${withoutTrajectories} data files`);
  const written = await withHints(() => write(cold, sql, options, out, signal));
  await out?.publish();
  const cut = cutOf(written);
  if (cut !== undefined && (out !== undefined || options.format !== 'table')) say(cut);
}

/** The data files of each view: where they are, and what the table log says of them. */
export async function listFiles(
  config: Config,
  source: QuerySource,
  json: boolean,
  signal: AbortSignal,
): Promise<void> {
  await using opened = await openQuery(config, source, signal);
  const { files } = opened.cold;
  const locations = opened.cold.locations();
  const rowsOf = (view: FiledView) =>
    files[view].map((file: QueryFile & { readonly rows?: number }, i) => ({
      view,
      location: locations[view][i] as string,
      sha256: file.sha256,
      bytes: file.bytes ?? null,
      rows: file.rows ?? null,
      ...file.partition,
    }));
  const all = [...rowsOf('events'), ...rowsOf('trajectories'), ...rowsOf('imports')];
  if (json) {
    const { version, timestampMs } = files;
    printJson({ version, committed_at: new Date(timestampMs).toISOString(), files: all });
    return;
  }
  // One a line and nothing else, for xargs and the like.
  for (const { view, location } of all) await printFlowing(`${view}\t${location}\n`);
}

/** A script for another DuckDB. */
export async function emitSql(
  config: Config,
  source: QuerySource,
  target: string,
  force: boolean,
  signal: AbortSignal,
): Promise<void> {
  await using out = target === '-' ? undefined : await OutFile.open(target, force);
  await using opened = await openQuery(config, source, signal);
  const script = opened.cold.script();
  if (out === undefined) {
    await printFlowing(script);
    return;
  }
  await out.write(script);
  await out.publish();
}

/** The columns of the views and what they hold. */
export function showSchema(json: boolean): void {
  if (json) {
    printJson(VIEWS);
    return;
  }
  for (const view of VIEW_NAMES) {
    const rows = VIEWS[view].map(({ name, type, about }) => [name, type, about]);
    print(`${table([view, 'type', 'meaning'], rows)}\n`);
  }
}

async function write(
  cold: ColdQuery,
  sql: string,
  { format, compression, limit }: RowsOptions,
  out: OutFile | undefined,
  signal: AbortSignal,
): Promise<Written> {
  if (format === 'parquet') {
    if (out === undefined) throw new VarveError('INVALID_OPTION', '--format parquet needs --out <file>');
    const rows = await cold.copy(sql, out.temporary, compression, { signal });
    return { rows, of: undefined, isMore: false };
  }
  const width = out === undefined ? (process.stdout.columns ?? WIDTH) : WIDTH;
  const sink = out === undefined ? printFlowing : (text: string) => out.write(text);
  const written = await writeRows(cold.run(sql, { signal }), format, limit, width, sink);
  if (format === 'table') await sink(`${cutOf(written) ?? countOf(written.rows)}\n`);
  return written;
}

function cutOf({ rows, of, isMore }: Written): string | undefined {
  if (of === undefined) return undefined;
  return `… ${shown(rows)} of ${isMore ? 'over ' : ''}${shown(of)} rows; --limit 0 shows all`;
}

function countOf(rows: number): string {
  return `(${shown(rows)} ${rows === 1 ? 'row' : 'rows'})`;
}

function shown(count: number): string {
  return count.toLocaleString('en-US');
}

type Opened = AsyncDisposable & { readonly cold: ColdQuery };

async function openQuery(
  config: Config,
  { at, filter }: QuerySource,
  signal: AbortSignal,
  outputs: readonly string[] = [],
): Promise<Opened> {
  const { cacheDirectory, cacheBytes, queryMemoryBytes, queryThreads } = config.cold;
  const store = await again((signal) => openColdStore(config, { signal, readOnly: true }), signal);
  const options: ColdQueryOptions = {
    cacheDirectory: resolve(cacheDirectory),
    cacheBytes,
    memoryLimitBytes: queryMemoryBytes,
    threads: queryThreads === 0 ? availableParallelism() : queryThreads,
    at,
    filter,
    outputs,
  };
  try {
    const cold = await again((signal) => ColdQuery.open(store, { ...options, signal }), signal);
    const close = async () => {
      await cold.close();
      await store.close();
    };
    return { cold, [Symbol.asyncDispose]: close };
  } catch (error) {
    await store.close();
    if (!isVarveError(error, 'COLD_NO_TABLE')) throw error;
    const text = `${error.message}: nothing has been compacted there yet, or cold.store names another place`;
    throw new VarveError('COLD_NO_TABLE', text, error.details, error);
  }
}

async function sqlOf(from: SqlSource): Promise<string> {
  if ('text' in from) return from.text;
  if (from.file === '-') return await readAll(process.stdin);
  try {
    return await readFile(from.file, 'utf8');
  } catch (error) {
    throw new VarveError('INVALID_OPTION', `${from.file} cannot be read`, { file: from.file }, error);
  }
}

async function again<T>(work: (signal: AbortSignal) => Promise<T>, signal: AbortSignal): Promise<T> {
  return await retry(work, signal, {
    onRetry: ({ error, pauseMs }) => say(`${error.message} [${error.code}]; again in ${pauseMs} ms`),
  });
}

/** What helps against a limit is a setting, of which the cold tier knows nothing. */
async function withHints<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (!isVarveError(error, 'COLD_OUT_OF_MEMORY')) throw error;
    const text = `${error.message}; raise cold.queryMemoryBytes, or lower cold.queryThreads`;
    throw new VarveError('COLD_OUT_OF_MEMORY', text, error.details, error);
  }
}

function say(text: string): void {
  process.stderr.write(`varve: ${text}\n`);
}
