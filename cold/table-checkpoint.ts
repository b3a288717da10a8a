/**
 * Checkpoints of the table log: what every commit up to a version adds up to, as one Parquet file in Delta's layout, so
 * that a reader fetches one file instead of every commit. Derived: the commits stay, and a checkpoint may be deleted.
 *
 * `_last_checkpoint` names the newest one, with the SHA-256 of its bytes. A checkpoint is used only with that hash; what
 * is older is rebuilt from the commits.
 */
import { createHash } from 'node:crypto';
import { mkdtemp, open, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { canonicalJson } from '../schemas/canonical.ts';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { failpoint } from '../schemas/failpoint.ts';
import { KIB } from '../schemas/limits.ts';
import { collect, fileBody, sha256Of } from './body.ts';
import { type DuckDb, type DuckSource, sqlFile, sqlText } from './duckdb.ts';
import { FILE_MODE, makeFolder } from './files.ts';
import type { CallOptions, ObjectStore } from './object-store.ts';
import { SCRATCH_PREFIX } from './parquet-writer.ts';
import type { Action, Commit } from './table-actions.ts';
import { checkpointKey, LAST_CHECKPOINT_KEY } from './table-keys.ts';
import { checkpointActions, fromCheckpoint, type Snapshot } from './table-log-plan.ts';

/** Where a reader begins. */
export type CheckpointHint = {
  readonly version: number;
  /** Actions. */
  readonly size: number;
  readonly sizeInBytes: number;
  readonly numOfAddFiles: number;
  readonly sha256: string;
};

export type Workshop = { readonly duck: DuckSource; readonly scratchDir: string };

const TEXTS = 'MAP(VARCHAR, VARCHAR)';
const COLUMNS = {
  protocol: 'STRUCT(minReaderVersion INTEGER, minWriterVersion INTEGER)',
  metaData: `STRUCT(id VARCHAR, format STRUCT(provider VARCHAR, options ${TEXTS}), schemaString VARCHAR,
    partitionColumns VARCHAR[], configuration ${TEXTS}, createdTime BIGINT)`,
  txn: 'STRUCT(appId VARCHAR, "version" BIGINT, lastUpdated BIGINT)',
  remove: `STRUCT(path VARCHAR, deletionTimestamp BIGINT, dataChange BOOLEAN, extendedFileMetadata BOOLEAN,
    partitionValues ${TEXTS}, size BIGINT)`,
  add: `STRUCT(path VARCHAR, partitionValues ${TEXTS}, size BIGINT, modificationTime BIGINT, dataChange BOOLEAN,
    stats VARCHAR, tags ${TEXTS})`,
} as const;
const NAMES = Object.keys(COLUMNS) as (keyof typeof COLUMNS)[];
/** Lines that are written at once. */
const LINES = 1000;
const HINT_BYTES_MAX = 64 * KIB;

/**
 * The checkpoint of a snapshot is in the store and named by `_last_checkpoint` when it resolves to 'written'. 'exists':
 * somebody else's is there with other bytes (another version of DuckDB), and nothing was changed.
 */
export async function writeCheckpoint(
  store: ObjectStore,
  workshop: Workshop,
  snapshot: Snapshot,
  options: CallOptions = {},
): Promise<'written' | 'exists'> {
  return await inScratch(workshop.scratchDir, async (folder) => {
    const actions = checkpointActions(snapshot);
    const path = join(folder, 'checkpoint.parquet');
    await writeParquet(await duckOf(workshop), folder, path, actions, options);
    const body = await fileBody(path);
    const sha256 = await sha256Of(body, options.signal);
    const key = checkpointKey(snapshot.version);
    const outcome = await store.putIfAbsent(key, { ...body, sha256 }, options);
    failpoint('cold.checkpoint.after-put');
    if (outcome === 'exists' && (await sha256Stored(store, key, options)) !== sha256) return 'exists';
    const hint: CheckpointHint = {
      version: snapshot.version,
      size: actions.length,
      sizeInBytes: body.bytes,
      numOfAddFiles: snapshot.files.size,
      sha256,
    };
    await store.put(LAST_CHECKPOINT_KEY, Buffer.from(`${canonicalJson(hint)}\n`), options);
    return 'written';
  });
}

/** undefined: there is none, or it is not one of ours; then every commit is read. */
export async function readHint(store: ObjectStore, options: CallOptions = {}): Promise<CheckpointHint | undefined> {
  try {
    const bytes = await collect(store.get(LAST_CHECKPOINT_KEY, options), HINT_BYTES_MAX);
    const hint = JSON.parse(bytes.toString('utf8')) as CheckpointHint;
    return Number.isSafeInteger(hint.version) && typeof hint.sha256 === 'string' ? hint : undefined;
  } catch (error) {
    if (error instanceof SyntaxError || isVarveError(error, 'STORE_MISSING')) return undefined;
    throw error;
  }
}

/**
 * The snapshot that a checkpoint holds; `info` is of the commit of its version, which a checkpoint does not keep.
 * @throws VarveError COLD_LOG_INVALID, STORE_MISSING
 */
export async function readCheckpoint(
  store: ObjectStore,
  workshop: Workshop,
  hint: CheckpointHint,
  info: Commit['info'],
  options: CallOptions = {},
): Promise<Snapshot> {
  const key = checkpointKey(hint.version);
  return await inScratch(workshop.scratchDir, async (folder) => {
    const path = join(folder, 'checkpoint.parquet');
    if ((await fetchTo(store, key, path, options)) !== hint.sha256)
      throw invalid(key, 'has another SHA-256 than named');
    const actions: Action[] = [];
    const columns = NAMES.map((name) => `CAST(to_json("${name}") AS VARCHAR) AS "${name}"`).join(', ');
    const sql = `SELECT ${columns} FROM read_parquet([${sqlFile(path)}], hive_partitioning = false)`;
    for await (const block of (await duckOf(workshop)).blocks(sql, options)) {
      for (const row of block) {
        const kind = NAMES.find((name) => row[name] !== null);
        if (kind === undefined) throw invalid(key, 'has a row without an action');
        actions.push({ [kind]: JSON.parse(row[kind] as string) } as Action);
      }
    }
    if (actions.length !== hint.size) throw invalid(key, `has ${actions.length} actions, not ${hint.size}`);
    return fromCheckpoint({ version: hint.version, info, actions });
  });
}

async function writeParquet(
  duck: DuckDb,
  folder: string,
  path: string,
  actions: readonly Action[],
  options: CallOptions,
): Promise<void> {
  const lines = join(folder, 'actions.ndjson');
  const handle = await open(lines, 'wx', FILE_MODE);
  try {
    for (let i = 0; i < actions.length; i += LINES) {
      const text = actions.slice(i, i + LINES).map((action) => `${canonicalJson(action)}\n`);
      await handle.writeFile(text.join(''));
    }
  } finally {
    await handle.close();
  }
  const columns = NAMES.map((name) => `"${name}": ${sqlText(COLUMNS[name])}`).join(', ');
  const source = `read_json(${sqlFile(lines)}, format = 'newline_delimited', auto_detect = false, columns = {${columns}})`;
  // Snappy, which every reader of Delta knows.
  await duck.run(`COPY (SELECT * FROM ${source}) TO ${sqlText(path)} (FORMAT parquet, COMPRESSION snappy)`, options);
}

async function inScratch<T>(scratchDir: string, work: (folder: string) => Promise<T>): Promise<T> {
  await makeFolder(scratchDir);
  const folder = await mkdtemp(join(scratchDir, SCRATCH_PREFIX));
  try {
    return await work(folder);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** Returns the SHA-256 of what came. */
async function fetchTo(store: ObjectStore, key: string, path: string, options: CallOptions): Promise<string> {
  const digest = createHash('sha256');
  async function* hashed() {
    for await (const chunk of store.get(key, options)) {
      digest.update(chunk);
      yield chunk;
    }
  }
  await writeFile(path, hashed(), { mode: FILE_MODE, flag: 'wx' });
  return digest.digest('hex');
}

async function sha256Stored(store: ObjectStore, key: string, options: CallOptions): Promise<string> {
  const digest = createHash('sha256');
  for await (const chunk of store.get(key, options)) digest.update(chunk);
  return digest.digest('hex');
}

function invalid(key: string, text: string): VarveError {
  const message = `checkpoint ${key} ${text}; it may be deleted with _last_checkpoint, the commits hold everything`;
  return new VarveError('COLD_LOG_INVALID', message, { key });
}

async function duckOf({ duck }: Workshop): Promise<DuckDb> {
  return typeof duck === 'function' ? await duck() : duck;
}
