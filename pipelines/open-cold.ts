/**
 * Opens the cold tier that the configuration names: its store; or, for reading, the store and the table in it where there
 * is one. Looking makes nothing where there is nothing.
 */
import { stat } from 'node:fs/promises';
import { tmpdir, userInfo } from 'node:os';
import { join } from 'node:path';
import { DuckDb } from '../cold/duckdb.ts';
import type { ObjectStore } from '../cold/object-store.ts';
import { type OpenStoreOptions, openStore, parseStoreUrl } from '../cold/open-store.ts';
import { TableLog } from '../cold/table-log.ts';
import type { Snapshot } from '../cold/table-log-plan.ts';
import type { Config } from '../schemas/config.ts';
import { isVarveError } from '../schemas/errors.ts';
import { MIB } from '../schemas/limits.ts';
import { openScratch } from './scratch.ts';

/** The caller closes it. @throws VarveError as `openStore` */
export async function openColdStore(
  { cold }: Config,
  options: Pick<OpenStoreOptions, 'signal' | 'readOnly'> = {},
): Promise<ObjectStore> {
  const { store, endpoint, region, pathStyle } = cold;
  return await openStore(store, {
    ...options,
    pathStyle,
    ...(endpoint === undefined ? {} : { endpoint }),
    ...(region === undefined ? {} : { region }),
  });
}

export type OpenCold = AsyncDisposable & {
  readonly store: ObjectStore;
  /** The table and its newest snapshot; undefined: nothing was compacted yet. */
  readonly table: { readonly log: TableLog; readonly snapshot: Snapshot } | undefined;
};

/** For checkpoints of the table log, and nothing else. */
const DUCK_BYTES = 64 * MIB;

/** undefined: there is no store yet. */
export async function openCold(config: Config, signal: AbortSignal): Promise<OpenCold | undefined> {
  const address = parseStoreUrl(config.cold.store);
  if (address.kind === 'file' && (await stat(address.path).catch(() => undefined)) === undefined) return undefined;
  await using parts = new AsyncDisposal();
  const store = parts.take(await openColdStore(config, { signal, readOnly: true }));
  // What a reader that was killed has left is removed by the next one.
  const scratch = parts.take(await openScratch(join(tmpdir(), `varve-${userInfo().uid}`)));
  const scratchDir = scratch.path;
  let opening: Promise<DuckDb> | undefined;
  parts.take({ [Symbol.asyncDispose]: async () => await (await opening)?.close() });
  const options = { tempDir: join(scratchDir, 'spill'), memoryLimitBytes: DUCK_BYTES };
  const duck = () => (opening ??= DuckDb.open(options));
  const log = await TableLog.open(store, { duck, scratchDir, signal }).catch((error: unknown) => {
    if (isVarveError(error, 'COLD_NO_TABLE')) return undefined;
    throw error;
  });
  const table = log === undefined ? undefined : { log, snapshot: await log.snapshot({ signal }) };
  const dispose = parts.keep();
  return { store, table, [Symbol.asyncDispose]: dispose };
}

/** Gives up what it took, the last first, unless it is kept. */
class AsyncDisposal implements AsyncDisposable {
  #parts: AsyncDisposable[] = [];

  take<T extends AsyncDisposable>(part: T): T {
    this.#parts.push(part);
    return part;
  }

  keep(): () => Promise<void> {
    const kept = new AsyncDisposal();
    kept.#parts = this.#parts;
    this.#parts = [];
    return () => kept[Symbol.asyncDispose]();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (let part = this.#parts.pop(); part !== undefined; part = this.#parts.pop()) await part[Symbol.asyncDispose]();
  }
}
