/** Damage to a table, made by hand: what the cold tier's own parts would refuse to write. */
import { hash } from 'node:crypto';
import { readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { collect } from '../../cold/body.ts';
import { readSegments } from '../../cold/data-file.ts';
import { safeNumber, sqlText } from '../../cold/duckdb.ts';
import { measure } from '../../cold/parquet-writer.ts';
import { formatSegments, type SegmentList } from '../../cold/segments.ts';
import { type Action, type Add, formatCommit } from '../../cold/table-actions.ts';
import { commitKey, parquetKey, segmentsKey } from '../../cold/table-keys.ts';
import type { LiveFile } from '../../cold/table-log-plan.ts';
import { MIB } from '../../schemas/limits.ts';
import type { ColdTable } from './cold-table.ts';

export async function liveFiles({ log }: ColdTable): Promise<LiveFile[]> {
  return [...(await log.snapshot()).files.values()];
}

export async function bytesAt({ store }: ColdTable, key: string): Promise<Buffer> {
  return await collect(store.get(key), 256 * MIB);
}

/** Puts other bytes in the place of an object's. */
export async function bend(table: ColdTable, key: string, change: (bytes: Buffer) => Buffer): Promise<void> {
  await table.store.put(key, change(Buffer.from(await bytesAt(table, key))));
}

/** Turns over a bit of a byte. */
export function flipAt(at: number): (bytes: Buffer) => Buffer {
  return (bytes) => {
    bytes.writeUInt8(bytes.readUInt8(at) ^ 0x10, at);
    return bytes;
  };
}

/** A commit that nobody has checked. */
export async function commitByHand({ store, log }: ColdTable, actions: readonly Action[]): Promise<void> {
  const { version, timestampMs } = await log.snapshot();
  const bytes = formatCommit({ info: { timestamp: timestampMs + 1, operation: 'TEST' }, actions });
  await store.putIfAbsent(commitKey(version + 1), bytes);
}

export function removal({ add }: LiveFile, timestamp = Date.now()): Action {
  const { path, partitionValues, size } = add;
  const remove = {
    path,
    deletionTimestamp: timestamp,
    dataChange: true,
    extendedFileMetadata: true,
    partitionValues,
    size,
  };
  return { remove };
}

/**
 * A file with other rows, named as it should be, in the place of a live one.
 * @param select of `rows`, which are those of the file
 */
export async function rewrite(
  table: ColdTable,
  file: LiveFile,
  select: string,
  change: (list: SegmentList) => SegmentList = (list) => list,
): Promise<void> {
  const path = join(table.scratchDir, 'rewritten.parquet');
  const old = join(table.scratchDir, 'old.parquet');
  const list = await readSegments(table.store, file.stem, file.segments);
  await writeOut(table, parquetKey(file.stem), old);
  const from = `WITH rows AS (SELECT * FROM read_parquet([${sqlText(old)}], hive_partitioning = false))`;
  await table.duck.run(`COPY (${from} ${select}) TO ${sqlText(path)} (FORMAT parquet, COMPRESSION zstd)`);
  const { bytes, sha256, footer_start } = await measure(path, undefined);
  const groups = await table.duck.rows(
    `SELECT row_group_num_rows AS rows FROM parquet_metadata(${sqlText(path)}) WHERE column_id = 0 ORDER BY row_group_id`,
  );
  const row_groups = groups.map(({ rows }) => safeNumber(rows));
  const segments = formatSegments(change({ ...list, bytes, file: `${sha256}.parquet`, footer_start, row_groups }));
  const stem = `${file.stem.slice(0, file.stem.lastIndexOf('/') + 1)}${sha256}`;
  await table.store.put(parquetKey(stem), await readFile(path));
  await table.store.put(segmentsKey(stem), segments);
  const tags = { ...file.add.tags, segments_sha256: hash('sha256', segments, 'hex') };
  const add: Add = { ...file.add, path: `${stem}.parquet`, size: bytes, tags };
  await commitByHand(table, [removal(file), { add }]);
  await rm(path);
  await rm(old);
}

async function writeOut(table: ColdTable, key: string, path: string): Promise<void> {
  await writeFile(path, await bytesAt(table, key));
}
