/**
 * One run of a compactor without its queue: writes a data file, puts it, reads it back, commits it, writes a checkpoint.
 * The same plan gives the same file and the same run, so it may be killed anywhere and started again.
 *
 *   done <outcome of the commit>
 */
import { writeSync } from 'node:fs';
import { join } from 'node:path';
import { putDataFile, readBack } from '../../cold/data-file.ts';
import { DuckDb } from '../../cold/duckdb.ts';
import { FileStore } from '../../cold/file-store.ts';
import { ParquetWriter } from '../../cold/parquet-writer.ts';
import { TableLog } from '../../cold/table-log.ts';
import { newFile } from '../../cold/table-log-plan.ts';
import { notes } from './cold-rows.ts';

export type CommitPlan = { readonly directory: string; readonly run: string };

const plan = JSON.parse(process.argv[2] as string) as CommitPlan;
// Whoever started this has died.
process.stdin.on('end', () => process.exit(1)).resume();
const scratchDir = join(plan.directory, 'scratch');
await using duck = await DuckDb.open({ tempDir: join(plan.directory, 'spill') });
await using store = await FileStore.open(join(plan.directory, 'store'));
const log = await TableLog.open(store, { duck, scratchDir, create: true, checkpointEvery: 1 });
await using writer = await ParquetWriter.open(duck, scratchDir);
for (const n of [1, 2, 3]) await writer.append(notes(n, 20, 50));
const file = await writer.finish();
await putDataFile(store, file);
await readBack(store, duck, file, scratchDir);
const adds = [newFile(file, Date.now())];
const { kind } = await log.commit({ run: { id: plan.run, step: 1 }, operation: 'COMPACT', adds, removes: [] });
await log.checkpointIfDue();
writeSync(1, `done ${kind}\n`);
process.exit(0);
