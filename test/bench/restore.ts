/**
 * Reading one random trajectory back out of a cold tier of a thousand files, with the snapshot known and nothing else:
 * the lists of segments and the footers are read anew each time. The page cache is warm. Files of one day overlap, as
 * those of several model versions do, so some lists are looked at in vain.
 */
import * as path from 'node:path';
import { putDataFile } from '../../cold/data-file.ts';
import { DuckDb } from '../../cold/duckdb.ts';
import { FileStore } from '../../cold/file-store.ts';
import { segmentsOfTrajectories } from '../../cold/locate.ts';
import type { GetOptions } from '../../cold/object-store.ts';
import { ParquetWriter } from '../../cold/parquet-writer.ts';
import { SegmentReader } from '../../cold/segment-reader.ts';
import { TableLog } from '../../cold/table-log.ts';
import { type NewFile, newFile } from '../../cold/table-log-plan.ts';
import { readColdTrajectory } from '../../cold/trajectory-reader.ts';
import type { TrajectoryId } from '../../schemas/ids.ts';
import { chain, DAY_MS, GENESIS, idAt, runOf, textOf } from '../support/cold-rows.ts';
import { FaultStore } from '../support/fault-store.ts';
import type { Measurement, Plan } from './support/measurement.ts';
import type { Report } from './support/report.ts';
import { percentile, type Series } from './support/statistics.ts';

const FILES = 1000;
const FILES_QUICK = 100;
const MODELS = 4;
const TRAJECTORIES = 20;
const EVENTS = 40;
/** Characters of a payload: mostly short, some long. */
const CHARS = [200, 400, 600, 900, 1500, 6000] as const;
const READS = 40;
const COMMIT_FILES = 50;
const DAY = 86_400_000;

export const restore: Measurement = { name: 'restore', title: 'One trajectory out of the cold tier', run };

class CountingStore extends FaultStore {
  lists = 0;
  ranges = 0;

  override async *get(key: string, options: GetOptions = {}) {
    if (options.range !== undefined) this.ranges += 1;
    else if (key.endsWith('.segments')) this.lists += 1;
    yield* super.get(key, options);
  }
}

async function run(plan: Plan): Promise<Report> {
  const files = plan.quick ? FILES_QUICK : FILES;
  await using duck = await DuckDb.open({ tempDir: path.join(plan.dir, 'spill') });
  await using store = new CountingStore(await FileStore.open(path.join(plan.dir, 'store')));
  const tableOptions = { duck, scratchDir: path.join(plan.dir, 'scratch') };
  plan.say(`writing ${files} files of ${TRAJECTORIES} trajectories …`);
  const ids = await fill(store, duck, tableOptions.scratchDir, files);
  const [p50, p99, lists, ranges]: [number[], number[], number[], number[]] = [[], [], [], []];
  for (let round = 0; round < plan.rounds; round++) {
    const times: number[] = [];
    store.lists = 0;
    store.ranges = 0;
    for (let i = 0; i < READS; i++) {
      const log = await TableLog.open(store, tableOptions);
      times.push(await readOne(log, store, ids[Math.floor(Math.random() * ids.length)] as TrajectoryId));
    }
    p50.push(percentile(times, 0.5));
    p99.push(percentile(times, 0.99));
    lists.push(store.lists / READS);
    ranges.push(store.ranges / READS);
  }
  const row = (label: string, series: Series) => ({ label, cells: [series] });
  return {
    tables: [
      {
        title: `${EVENTS} events out of ${files} files, ${READS} trajectories a round`,
        columns: [''],
        rows: [
          row('p50, ms', p50),
          row('p99, ms', p99),
          row('lists of segments looked at', lists),
          row('ranged reads of the data file', ranges),
        ],
      },
    ],
    checks: [
      { what: 'restore of one trajectory, p50', unit: 'ms', series: p50, bar: { kind: 'at most', limit: 50 } },
      {
        what: 'ranged reads of a segment and its list',
        unit: '',
        series: ranges.map((n) => n + 1),
        bar: { kind: 'at most', limit: 3 },
      },
    ],
    notes: plan.quick ? [`With ${files} files; the bar speaks of a thousand.`] : [],
  };
}

/** Milliseconds from a known snapshot to the last event, each of them proven. */
async function readOne(log: TableLog, store: CountingStore, id: TrajectoryId): Promise<number> {
  const snapshot = await log.snapshot();
  const start = performance.now();
  const placed = (await segmentsOfTrajectories(log, snapshot, [id])).get(id) ?? [];
  let events = 0;
  for await (const _ of readColdTrajectory(new SegmentReader(store, log), placed)) events += 1;
  if (events !== EVENTS) throw new Error(`${events} events of ${id}`);
  return performance.now() - start;
}

async function fill(store: CountingStore, duck: DuckDb, scratchDir: string, files: number): Promise<TrajectoryId[]> {
  const log = await TableLog.open(store, { duck, scratchDir, create: true });
  const ids: TrajectoryId[] = [];
  let adds: NewFile[] = [];
  for (let n = 0; n < files; n++) {
    const [day, model] = [Math.floor(n / MODELS), n % MODELS];
    await using writer = await ParquetWriter.open(duck, scratchDir);
    for (let i = 0; i < TRAJECTORIES; i++) {
      const id = idAt(i * MODELS + model, DAY_MS + day * DAY);
      const drafts = Array.from({ length: EVENTS }, (_, event) => ({
        event_type: 'Noted',
        payload: { note: textOf(CHARS[event % CHARS.length] as number, n * 1000 + i * 50 + event) },
      }));
      await writer.append(runOf(chain(id, drafts), GENESIS, { tenant: 'default', model_version: `m-${model}` }));
      ids.push(id);
    }
    const file = await writer.finish();
    await putDataFile(store, file);
    adds.push(newFile(file, Date.now()));
    if (adds.length < COMMIT_FILES && n < files - 1) continue;
    await log.commit({ run: { id: `fill-${n}`, step: 1 }, operation: 'COMPACT', adds, removes: [] });
    adds = [];
  }
  return ids;
}
