/**
 * Verifies the cold tier of the configuration: opens it, tries again what failed for a passing reason, and says how far
 * it has come. What is verified is cold/verify-table.ts's.
 */
import { stat } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { DuckDb } from '../cold/duckdb.ts';
import type { ObjectStore } from '../cold/object-store.ts';
import { parseStoreUrl } from '../cold/open-store.ts';
import { LOG_FOLDER } from '../cold/table-keys.ts';
import { type SnapshotAt, TableLog } from '../cold/table-log.ts';
import type { Snapshot } from '../cold/table-log-plan.ts';
import type { SampleSize } from '../cold/verify-sample.ts';
import { type TableVerdict, verifyTable } from '../cold/verify-table.ts';
import type { Config } from '../schemas/config.ts';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { MIB } from '../schemas/limits.ts';
import { openColdStore } from './open-cold.ts';
import type { Progress } from './progress.ts';
import { retry } from './retry.ts';
import { openScratch } from './scratch.ts';

export type VerifyColdOptions = {
  /** undefined: if there is a table. */
  readonly cold: boolean | undefined;
  readonly deep: boolean;
  /** Only some of the files. */
  readonly sample?: SampleSize | undefined;
  /** Decides which. @default the version of the table and the day in UTC: the same sample all day, another tomorrow */
  readonly seed?: string | undefined;
  /** @default the newest version */
  readonly at?: SnapshotAt | undefined;
};

export type ColdVerdict =
  | (TableVerdict & { readonly store: string })
  /** It could not be verified at all. */
  | { readonly store: string; readonly refused: VarveError };

/** undefined where there is no table and none was asked for. Makes none. */
export async function verifyCold(
  config: Config,
  options: VerifyColdOptions,
  signal: AbortSignal,
  progress: Progress,
): Promise<ColdVerdict | undefined> {
  const { store: url } = config.cold;
  const isAsked = options.cold === true;
  if (options.cold === false) return undefined;
  try {
    if (!(await mayHoldTable(url))) throw new VarveError('COLD_NO_TABLE', `there is no table in ${url}`, { url });
    await using scratch = await openScratch(config.cold.scratch);
    return await verifyStore(config, options, scratch.path, signal, progress);
  } catch (error) {
    if (!isVarveError(error) || error.code === 'ABORTED') throw error;
    if (!isAsked && error.code === 'COLD_NO_TABLE') return undefined;
    // A table that cannot be read keeps nobody from the other tiers.
    return { store: url, refused: error };
  }
}

/** Opening a folder makes it, so that is looked at first; a bucket can be asked. */
async function mayHoldTable(url: string): Promise<boolean> {
  const address = parseStoreUrl(url);
  if (address.kind !== 'file') return true;
  return (await stat(join(address.path, LOG_FOLDER)).catch(() => undefined)) !== undefined;
}

async function verifyStore(
  config: Config,
  options: VerifyColdOptions,
  scratchDir: string,
  signal: AbortSignal,
  progress: Progress,
): Promise<ColdVerdict> {
  const { deep, sample, at } = options;
  await using store = await retry(() => openColdStore(config, { signal, readOnly: true }), signal);
  const snapshot = await retry(() => readSnapshot(store, scratchDir, at, signal), signal);
  const seed = options.seed ?? `${snapshot.version}-${new Date().toISOString().slice(0, 10)}`;
  const verdict = await verifyTable(store, snapshot, {
    scratchDir,
    deep,
    sample: sample === undefined ? undefined : { size: sample, seed },
    pathOf: pathsOf(config.cold.store),
    attempt: patient(signal),
    signal,
    onProgress: ({ files, ofFiles, bytes, ofBytes }) =>
      progress.at(() => `cold: ${files} of ${ofFiles} files, ${inMib(bytes)} of ${inMib(ofBytes)} MiB verified`),
  });
  return { store: store.url, ...verdict };
}

async function readSnapshot(
  store: ObjectStore,
  scratchDir: string,
  at: SnapshotAt | undefined,
  signal: AbortSignal,
): Promise<Snapshot> {
  await using duck = await DuckDb.open({ tempDir: join(scratchDir, 'log') });
  const log = await TableLog.open(store, { duck, scratchDir, signal });
  return at === undefined ? await log.snapshot({ signal }) : await log.snapshotAt(at, { signal });
}

/** A folder's objects are files of this machine already. */
function pathsOf(url: string): ((key: string) => string) | undefined {
  const address = parseStoreUrl(url);
  if (address.kind !== 'file') return undefined;
  const root = resolve(address.path);
  return (key) => join(root, key);
}

/** Tries again; but once it was in vain, the next object has one try until one succeeds: the store is down. */
function patient(signal: AbortSignal): <T>(work: () => Promise<T>) => Promise<T> {
  let isDown = false;
  return async (work) => {
    try {
      const answer = await retry(work, signal, { attempts: isDown ? 1 : 5 });
      isDown = false;
      return answer;
    } catch (error) {
      isDown = isVarveError(error) && error.retry;
      throw error;
    }
  };
}

function inMib(bytes: number): string {
  return (bytes / MIB).toFixed(0);
}
