/**
 * Writes one data file far larger than what it may hold in memory, reads it back, and prints what the process took at
 * its peak:
 *
 *   done <rows> <bytes of the file> <sha256> <peak resident bytes>
 */
import { readFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { putDataFile, readBack } from '../../cold/data-file.ts';
import { DuckDb } from '../../cold/duckdb.ts';
import { FileStore } from '../../cold/file-store.ts';
import { ParquetWriter } from '../../cold/parquet-writer.ts';
import { GENESIS, notes } from './cold-rows.ts';

export type ParquetPlan = {
  readonly directory: string;
  readonly shapes: readonly {
    readonly trajectories: number;
    readonly events: number;
    /** Characters of each payload. */
    readonly chars: number;
  }[];
};

const plan = JSON.parse(process.argv[2] as string) as ParquetPlan;
// Whoever started this has died.
process.stdin.on('end', () => process.exit(1)).resume();
await using duck = await DuckDb.open({ tempDir: join(plan.directory, 'spill') });
await using store = await FileStore.open(join(plan.directory, 'store'));
await using writer = await ParquetWriter.open(duck, join(plan.directory, 'scratch'));
let n = 0;
for (const { trajectories, events, chars } of plan.shapes) {
  for (const end = n + trajectories; n < end; n++) {
    const { rows } = notes(n, events, chars);
    let previous_hash = GENESIS;
    // As PostgreSQL hands them over: a few at a time.
    for (let i = 0; i < rows.length; i += 5) {
      const some = rows.slice(i, i + 5);
      await writer.append({ previous_hash, rows: some });
      previous_hash = some.at(-1)?.cryptographic_hash ?? previous_hash;
    }
  }
}
const file = await writer.finish();
await putDataFile(store, file);
await readBack(store, duck, file, join(plan.directory, 'scratch'));
const kib = /^VmHWM:\s+(\d+) kB/m.exec(readFileSync('/proc/self/status', 'latin1'))?.[1];
writeSync(1, `done ${file.list.rows} ${file.list.bytes} ${file.sha256} ${Number(kib) * 1024}\n`);
process.exit(0);
