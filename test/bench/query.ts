/**
 * What a query over the views costs beside the same query on the bare list of files: snapshot, views, confinement and
 * the check of the SQL are all that is between. One DuckDB each, of the same size; they take turns query by query, and a
 * round is the sum of some turns.
 */
import * as path from 'node:path';
import { type CellBlock, DuckDb, sqlFile } from '../../cold/duckdb.ts';
import { FileStore } from '../../cold/file-store.ts';
import { ColdQuery } from '../../cold/query.ts';
import { notes } from '../support/cold-rows.ts';
import { ColdTable } from '../support/cold-table.ts';
import type { Measurement, Plan } from './support/measurement.ts';
import type { Report } from './support/report.ts';
import { inTurns } from './support/rounds.ts';
import { ratios, type Series } from './support/statistics.ts';

const FILES = 10;
const TRAJECTORIES = 100;
const EVENTS = 400;
const EVENTS_QUICK = 20;
const CHARS = 1000;
const THREADS = 2;
const MEMORY_BYTES = 1024 ** 3;
/** Each with the repetitions of which a round takes the time together: one alone may be a matter of milliseconds. */
const QUERIES = {
  nothing: { repeats: 40, sql: (events: string) => `SELECT 1 FROM ${events} LIMIT 0` },
  'sums by trajectory': {
    repeats: 30,
    sql: (events: string) =>
      `SELECT trajectory_id, count(*), max(created_at), sum(strlen(payload_sha256)) FROM ${events} GROUP BY 1`,
  },
  'scan of payloads': { repeats: 4, sql: (events: string) => `SELECT sum(strlen(payload)) FROM ${events}` },
  'one trajectory': {
    repeats: 30,
    sql: (events: string) =>
      `SELECT payload FROM ${events} WHERE trajectory_id = (SELECT max(trajectory_id) FROM ${events})`,
  },
} as const;

type Contender = { readonly name: 'views' | 'files'; readonly run: (query: keyof typeof QUERIES) => Promise<void> };

export const query: Measurement = { name: 'query', title: 'Queries over views, and over the bare files', run };

async function run(plan: Plan): Promise<Report> {
  const events = plan.quick ? EVENTS_QUICK : EVENTS;
  await using store = await FileStore.open(path.join(plan.dir, 'store'));
  plan.say(`writing ${(FILES * TRAJECTORIES * events).toLocaleString('en-US')} events in ${FILES} files …`);
  await fill(store, plan.dir, events);
  const settings = { memoryLimitBytes: MEMORY_BYTES, threads: THREADS };
  const cache = { cacheDirectory: path.join(plan.dir, 'cache'), cacheBytes: MEMORY_BYTES };
  await using views = await ColdQuery.open(store, { ...cache, ...settings });
  await using files = await DuckDb.open({ tempDir: path.join(plan.dir, 'spill'), ...settings });
  const bare = `read_parquet([${views.locations().events.map(sqlFile).join(', ')}], hive_partitioning = false)`;
  const contenders: readonly Contender[] = [
    { name: 'views', run: (name) => drain(views.run(QUERIES[name].sql('events'))) },
    { name: 'files', run: (name) => drain(files.cellBlocks(QUERIES[name].sql(bare))) },
  ];
  const names = Object.keys(QUERIES) as (keyof typeof QUERIES)[];
  const times = new Map(names.map((name) => [name, { views: [] as number[], files: [] as number[] }]));
  for (const name of names) {
    const { repeats } = QUERIES[name];
    for (let round = 0; round < plan.rounds; round++) {
      const spent = { views: 0, files: 0 };
      await inTurns(contenders, repeats, async (contender, counts) => {
        const start = performance.now();
        await contender.run(name);
        if (counts) spent[contender.name] += performance.now() - start;
      });
      for (const { name: which } of contenders) times.get(name)?.[which].push(spent[which] / repeats);
    }
  }
  const of = (name: keyof typeof QUERIES, which: Contender['name']): Series => times.get(name)?.[which] ?? [];
  return {
    tables: [
      {
        title: 'one query, ms',
        columns: ['views', 'files'],
        rows: names.map((name) => ({ label: name, cells: [of(name, 'views'), of(name, 'files')] })),
      },
    ],
    checks: [
      {
        what: 'a query of nothing: views − files',
        unit: 'ms',
        series: of('nothing', 'views').map((ms, round) => ms - (of('nothing', 'files')[round] as number)),
      },
      ...names
        .filter((name) => name !== 'nothing')
        .map((name) => ({
          what: `${name}: views / files`,
          unit: '×',
          series: ratios(of(name, 'views'), of(name, 'files')),
          bar: { kind: 'at most', limit: 1.1 } as const,
        })),
    ],
    notes: [],
  };
}

async function fill(store: FileStore, dir: string, events: number): Promise<void> {
  await using duck = await DuckDb.open({ tempDir: path.join(dir, 'writer') });
  const table = await ColdTable.create(store, duck, dir);
  for (let file = 0; file < FILES; file++) {
    const place = { tenant: `t${file}`, model_version: 'm' };
    const numbers = Array.from({ length: TRAJECTORIES }, (_, i) => file * TRAJECTORIES + i + 1);
    await table.add(...numbers.map((n) => notes(n, events, CHARS, place)));
  }
}

async function drain(blocks: AsyncIterable<CellBlock>): Promise<void> {
  for await (const block of blocks) for (const _ of block.cells()) continue;
}
