/** A cold tier in a folder, into which a test moves events as compaction does: in segments, bulky strings as blobs. */
import { join } from 'node:path';
import { putBlob } from '../../cold/blobs.ts';
import { putDataFile } from '../../cold/data-file.ts';
import { DuckDb } from '../../cold/duckdb.ts';
import { FileStore } from '../../cold/file-store.ts';
import { ParquetWriter } from '../../cold/parquet-writer.ts';
import type { Run } from '../../cold/row-check.ts';
import { parquetKey } from '../../cold/table-keys.ts';
import { newFile } from '../../cold/table-log-plan.ts';
import type { TrajectoryEvent } from '../../schemas/event.ts';
import { KIB } from '../../schemas/limits.ts';
import { GENESIS, offloadedRun } from './cold-rows.ts';
import { ColdTable } from './cold-table.ts';

const OFFLOAD_OVER_BYTES = 16 * KIB;

export class ColdPlace implements AsyncDisposable {
  readonly directory: string;
  readonly store: FileStore;
  readonly duck: DuckDb;
  readonly table: ColdTable;

  private constructor(directory: string, store: FileStore, duck: DuckDb, table: ColdTable) {
    this.directory = directory;
    this.store = store;
    this.duck = duck;
    this.table = table;
  }

  /** @param scratch a folder of the test's own */
  static async open(directory: string, scratch: string): Promise<ColdPlace> {
    const duck = await DuckDb.open({ tempDir: join(scratch, 'spill') });
    const store = await FileStore.open(directory);
    return new ColdPlace(directory, store, duck, await ColdTable.create(store, duck, scratch));
  }

  /** Commits events `first` to `last` of a trajectory, of which all are given, as one segment in a file of its own. */
  async keep(events: readonly TrajectoryEvent[], first = 1, last: number = events.length): Promise<void> {
    const previous = events[first - 2]?.cryptographic_hash ?? GENESIS;
    const { run, bodies } = offloadedRun(events.slice(first - 1, last), OFFLOAD_OVER_BYTES, previous);
    for (const { ref, body } of bodies) await putBlob(this.store, ref.sha256, body);
    await this.table.add(run);
  }

  /** Rewrites everything into one file, as an optimization does; the old files are gone from the store. */
  async rewrite(...runs: readonly Run[]): Promise<void> {
    const { files } = await this.table.log.snapshot();
    await using writer = await ParquetWriter.open(this.duck, this.table.scratchDir);
    for (const run of runs) await writer.append(run);
    const file = await writer.finish();
    await putDataFile(this.store, file);
    const intent = {
      run: { id: `rewrite-${file.sha256}`, step: 1 },
      operation: 'OPTIMIZE',
      removes: [...files.keys()],
    };
    const outcome = await this.table.log.commit({ ...intent, adds: [newFile(file, Date.now())] });
    if (outcome.kind !== 'committed') throw new Error(`not committed: ${outcome.kind}`);
    for (const { stem } of files.values()) await this.store.delete(parquetKey(stem));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.duck.close();
    await this.store.close();
  }
}
