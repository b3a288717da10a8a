/** A table in an object store, made of given rows by the cold tier's own parts. */
import { join } from 'node:path';
import { putDataFile, readBack } from '../../cold/data-file.ts';
import { putDerived } from '../../cold/derived-file.ts';
import type { DuckDb } from '../../cold/duckdb.ts';
import type { ObjectStore } from '../../cold/object-store.ts';
import { ParquetWriter } from '../../cold/parquet-writer.ts';
import type { Run } from '../../cold/row-check.ts';
import { partitionFolder } from '../../cold/slug.ts';
import { TableLog } from '../../cold/table-log.ts';
import { type NewFile, newFile } from '../../cold/table-log-plan.ts';
import type { JsonObject } from '../../schemas/canonical.ts';
import type { SequenceNumber } from '../../schemas/ids.ts';
import { importRowOf, trajectoryRowOf } from '../../schemas/parquet-trajectories.ts';
import { INITIAL_SUMMARY, type Summary, step } from '../../schemas/summary.ts';

export class ColdTable {
  readonly store: ObjectStore;
  readonly duck: DuckDb;
  readonly scratchDir: string;
  readonly log: TableLog;
  readonly #summaries = new Map<string, Summary>();
  #commits = 0;

  private constructor(store: ObjectStore, duck: DuckDb, scratchDir: string, log: TableLog) {
    this.store = store;
    this.duck = duck;
    this.scratchDir = scratchDir;
    this.log = log;
  }

  static async create(store: ObjectStore, duck: DuckDb, directory: string): Promise<ColdTable> {
    const scratchDir = join(directory, 'scratch');
    return new ColdTable(store, duck, scratchDir, await TableLog.open(store, { duck, scratchDir, create: true }));
  }

  /** Commits one file with these runs: of one partition, ascending by trajectory. */
  async add(...runs: readonly Run[]): Promise<void> {
    await this.addFiles(runs);
  }

  /** One commit with a file for each of the lists. */
  async addFiles(...files: readonly (readonly Run[])[]): Promise<void> {
    const adds: NewFile[] = [];
    for (const runs of files) adds.push(await this.#write(runs));
    this.#commits += 1;
    const run = { id: `test-${this.#commits}`, step: 1 };
    const outcome = await this.log.commit({ run, operation: 'COMPACT', adds, removes: [] });
    if (outcome.kind !== 'committed') throw new Error(`not committed: ${JSON.stringify(outcome)}`);
  }

  async #write(runs: readonly Run[]): Promise<NewFile> {
    await using writer = await ParquetWriter.open(this.duck, this.scratchDir);
    for (const run of runs) await writer.append(run);
    const file = await writer.finish();
    await putDataFile(this.store, file);
    await readBack(this.store, this.duck, file, this.scratchDir);
    const derived = await putDerived(
      this.store,
      this.duck,
      partitionFolder(file.partition),
      { trajectories: runs.map((run) => this.#trajectoryRow(run)), imports: runs.flatMap(importRow) },
      this.scratchDir,
    );
    return newFile(file, Date.now(), derived);
  }

  #trajectoryRow({ rows }: Run) {
    const [first] = rows;
    const last = rows.at(-1);
    if (first === undefined || last === undefined) throw new Error('a run has a row');
    const before = this.#summaries.get(first.trajectory_id) ?? INITIAL_SUMMARY;
    const events = rows.map((row) => ({ ...row, payload: JSON.parse(row.payload) as JsonObject }));
    const summary = step(before, events);
    this.#summaries.set(first.trajectory_id, summary);
    const segment = { first_sequence_number: first.sequence_number, head_hash: last.cryptographic_hash };
    return trajectoryRowOf(first.trajectory_id, first, summary, segment);
  }
}

function importRow({ rows }: Run) {
  const first = rows.find(({ sequence_number }) => sequence_number === (1 as SequenceNumber));
  const row = first === undefined ? undefined : importRowOf(first.trajectory_id, first, JSON.parse(first.payload));
  return row === undefined ? [] : [row];
}
