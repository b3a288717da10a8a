/**
 * Data files in the store, and the proof that they are there.
 *
 *   events/<partition>/<sha256>.parquet      the rows
 *   events/<partition>/<sha256>.segments     which events they are (segments.ts)
 *
 * Both are put before a commit names them, and never overwritten: a put that finds the name taken finds the same bytes,
 * or `readBack` says otherwise. A file may be committed, and what it was made from may be dropped, only after `readBack`
 * has resolved: it fetches both objects, compares their SHA-256, and reads every row with every column.
 */
import { createHash, hash } from 'node:crypto';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { failpoint } from '../schemas/failpoint.ts';
import { collect, fileBody } from './body.ts';
import { FINGERPRINT } from './columns.ts';
import { type DuckDb, safeNumber, sqlFile } from './duckdb.ts';
import { FILE_MODE, inScratch } from './files.ts';
import type { CallOptions, ObjectStore } from './object-store.ts';
import { type LocalFile, SCRATCH_PREFIX } from './parquet-writer.ts';
import type { Expected } from './row-check.ts';
import { formatSegments, parseSegments, SEGMENTS_BYTES_MAX, type SegmentList } from './segments.ts';
import { parquetKey, segmentsKey } from './table-keys.ts';

/** Both objects are durable in the store when it resolves. They are orphans until a commit names them. */
export async function putDataFile(store: ObjectStore, file: LocalFile, options: CallOptions = {}): Promise<void> {
  failpoint('cold.file.before-put');
  await store.putIfAbsent(parquetKey(file.stem), await fileBody(file.path, file.sha256), options);
  failpoint('cold.file.after-put');
  await store.putIfAbsent(segmentsKey(file.stem), formatSegments(file.list), options);
  failpoint('cold.segments.after-put');
}

/**
 * Resolves if and only if the store gives back what was written: the bytes of both objects by their SHA-256, and from
 * the fetched bytes the number of rows, the smallest and largest trajectory, and every column of every row.
 *
 * @throws VarveError COLD_FILE_DIFFERS, STORE_MISSING, STORE_CORRUPT
 */
export async function readBack(
  store: ObjectStore,
  duck: DuckDb,
  file: LocalFile,
  scratchDir: string,
  options: CallOptions = {},
): Promise<void> {
  const key = parquetKey(file.stem);
  const wanted = formatSegments(file.list);
  const segments = await fetchSmall(store, segmentsKey(file.stem), options);
  if (!segments.equals(wanted)) throw differs(segmentsKey(file.stem), 'holds other bytes than were put');
  await inScratch(scratchDir, SCRATCH_PREFIX, async (folder) => {
    const copy = join(folder, 'back.parquet');
    await fetchTo(store, key, copy, file.sha256, options);
    await checkRows(duck, copy, file.expected, key, options);
  });
}

/** What a live file's tags promise of its segments, proven. @throws VarveError COLD_SEGMENTS_INVALID, STORE_MISSING */
export async function readSegments(
  store: ObjectStore,
  stem: string,
  tags: { readonly sha256: string; readonly count: number },
  options: CallOptions = {},
): Promise<SegmentList> {
  const key = segmentsKey(stem);
  const bytes = await fetchSmall(store, key, options);
  if (hash('sha256', bytes, 'hex') !== tags.sha256) {
    throw new VarveError('COLD_SEGMENTS_INVALID', `${key} has another SHA-256 than the table log says`, { key });
  }
  const list = parseSegments(bytes, key);
  if (list.segments.length === tags.count) return list;
  throw new VarveError('COLD_SEGMENTS_INVALID', `${key} has not the ${tags.count} segments of the table log`, { key });
}

/** Every column of every row against what was meant. @throws VarveError COLD_FILE_DIFFERS */
export async function checkRows(
  duck: DuckDb,
  path: string,
  expected: Expected,
  name: string,
  options: CallOptions = {},
): Promise<void> {
  const sql = `SELECT count(*) AS rows, min(trajectory_id) AS first, max(trajectory_id) AS last, ${FINGERPRINT} AS fingerprint
    FROM read_parquet([${sqlFile(path)}], hive_partitioning = false, file_row_number = true)`;
  const [found] = await duck.rows(sql, options).catch((error: unknown) => {
    // The bytes have the right hash, so it is the file that cannot be read, and not the disk.
    if (!isVarveError(error, 'COLD_SQL')) throw error;
    throw differs(name, 'cannot be read as the rows that were written', error);
  });
  const rows = safeNumber(found?.['rows']);
  if (rows !== expected.rows) throw differs(name, `has ${rows} rows and should have ${expected.rows}`);
  if (found?.['first'] !== expected.min_trajectory_id || found['last'] !== expected.max_trajectory_id) {
    throw differs(name, 'has other trajectories than were written');
  }
  if (found['fingerprint'] !== expected.fingerprint) throw differs(name, 'has other values than were written');
}

async function fetchSmall(store: ObjectStore, key: string, options: CallOptions): Promise<Buffer> {
  return await collect(store.get(key, options), SEGMENTS_BYTES_MAX);
}

async function fetchTo(
  store: ObjectStore,
  key: string,
  path: string,
  sha256: string,
  options: CallOptions,
): Promise<void> {
  const digest = createHash('sha256');
  const handle = await open(path, 'wx', FILE_MODE);
  try {
    for await (const chunk of store.get(key, options)) {
      digest.update(chunk);
      await handle.writeFile(chunk);
    }
  } finally {
    await handle.close();
  }
  if (digest.digest('hex') !== sha256) throw differs(key, 'holds other bytes than its name says');
}

function differs(name: string, text: string, cause?: unknown): VarveError {
  return new VarveError('COLD_FILE_DIFFERS', `${name} ${text}; what it was made from must stay`, { name }, cause);
}
