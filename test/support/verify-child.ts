/**
 * Writes a table whose one file holds one trajectory far larger than memory, or verifies it, and prints what the process
 * took at its peak:
 *
 *   done <events> <problems> <peak resident bytes>
 */
import { readFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { putDataFile, readBack } from '../../cold/data-file.ts';
import { DuckDb } from '../../cold/duckdb.ts';
import { FileStore } from '../../cold/file-store.ts';
import { ParquetWriter } from '../../cold/parquet-writer.ts';
import { TableLog } from '../../cold/table-log.ts';
import { newFile } from '../../cold/table-log-plan.ts';
import { verifyTable } from '../../cold/verify-table.ts';
import { chain, GENESIS, idAt, runOf, textOf } from './cold-rows.ts';

export type VerifyPlan = {
  readonly do: 'write' | 'verify' | 'deep';
  readonly directory: string;
  readonly events: number;
  /** Characters of each payload. */
  readonly chars: number;
};

const plan = JSON.parse(process.argv[2] as string) as VerifyPlan;
// Whoever started this has died.
process.stdin.on('end', () => process.exit(1)).resume();
const scratchDir = join(plan.directory, 'scratch');
await using store = await FileStore.open(join(plan.directory, 'store'));
await using duck = await DuckDb.open({ tempDir: join(plan.directory, 'spill') });
const log = await TableLog.open(store, { duck, scratchDir, create: true });
const [events, problems] = plan.do === 'write' ? [await write(), 0] : await verify();
const kib = /^VmHWM:\s+(\d+) kB/m.exec(readFileSync('/proc/self/status', 'latin1'))?.[1];
writeSync(1, `done ${events} ${problems} ${Number(kib) * 1024}\n`);
process.exit(0);

async function write(): Promise<number> {
  await using writer = await ParquetWriter.open(duck, scratchDir);
  let previous = GENESIS;
  for (let first = 1; first <= plan.events; first += 5) {
    const drafts = Array.from({ length: Math.min(5, plan.events - first + 1) }, (_, i) => ({
      event_type: 'Noted',
      payload: { note: textOf(plan.chars, first + i) },
    }));
    const some = chain(idAt(1), drafts, first, previous);
    await writer.append(runOf(some, previous));
    previous = some.at(-1)?.cryptographic_hash ?? previous;
  }
  const file = await writer.finish();
  await putDataFile(store, file);
  await readBack(store, duck, file, scratchDir);
  const run = { id: 'test', step: 1 };
  await log.commit({ run, operation: 'COMPACT', adds: [newFile(file, Date.now())], removes: [] });
  return file.list.rows;
}

async function verify(): Promise<[events: number, problems: number]> {
  const pathOf = (key: string) => join(plan.directory, 'store', key);
  const options = { scratchDir, pathOf, deep: plan.do === 'deep' };
  const { events, problems } = await verifyTable(store, await log.snapshot(), options);
  return [events, problems.length];
}
