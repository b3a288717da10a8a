/**
 * The barrier runs on libuv's pool, which `fs`, `dns`, `zlib` and `crypto` of the same process share: what an append
 * waits while they fill it, for several sizes of the pool, against the quiet pool of the same size. Each size is a
 * process of its own, because the size is fixed when the pool starts.
 */
import * as os from 'node:os';
import * as path from 'node:path';
import type { PoolArgument, PoolLoad, PoolResult } from './children/barrier-under-load.ts';
import { childResult } from './support/child-result.ts';
import type { Measurement, Plan } from './support/measurement.ts';
import type { Check, Report } from './support/report.ts';
import { percentile, ratios, type Series } from './support/statistics.ts';

const SIZES = [4, 8, 16, 64] as const;
const SIZES_QUICK = [4, 16] as const;
const QUIET: PoolLoad = { work: 'nothing', jobs: 0 };
/** Jobs outstanding all the time. */
const LOADS: readonly PoolLoad[] = [
  QUIET,
  { work: 'zlib', jobs: 1 },
  { work: 'zlib', jobs: 2 },
  { work: 'zlib', jobs: 8 },
  { work: 'fs', jobs: 8 },
  { work: 'dns', jobs: 8 },
  { work: 'mixed', jobs: 3 },
  { work: 'mixed', jobs: 24 },
];
const APPENDS = 100;

export const pool: Measurement = { name: 'pool', title: 'The barrier while others use the libuv pool', run };

async function run(plan: Plan): Promise<Report> {
  const sizes = plan.quick ? SIZES_QUICK : SIZES;
  const p99 = new Map<number, Series[]>();
  for (const size of sizes) {
    plan.say(`UV_THREADPOOL_SIZE=${size} …`);
    const argument: PoolArgument = {
      dir: path.join(plan.dir, `pool-${size}`),
      rounds: plan.rounds,
      appends: APPENDS,
      loads: LOADS,
    };
    const env = { UV_THREADPOOL_SIZE: String(size) };
    const result = await childResult<PoolResult>('barrier-under-load.ts', argument, env);
    p99.set(
      size,
      result.map((byRound) => byRound.map((latencies) => percentile(latencies, 0.99))),
    );
  }
  return report(sizes, p99);
}

function report(sizes: readonly number[], p99: ReadonlyMap<number, readonly Series[]>): Report {
  const of = (size: number, load: number) => p99.get(size)?.[load] as Series;
  const columns = sizes.map((size) => `${size} threads`);
  const checks: Check[] = LOADS.slice(1).map((load, i) => {
    const series = sizes.map((size) => ({ size, ratio: ratios(of(size, i + 1), of(size, 0)) }));
    const best = series.reduce((a, b) => (percentile(a.ratio, 0.5) <= percentile(b.ratio, 0.5) ? a : b));
    return { what: `${nameOf(load)}: p99 / quiet p99, best at ${best.size} threads`, unit: '×', series: best.ratio };
  });
  return {
    tables: [
      {
        title: 'append p99, milliseconds',
        columns,
        rows: LOADS.map((load, i) => ({ label: nameOf(load), cells: sizes.map((size) => of(size, i)) })),
      },
      {
        title: 'append p99 / quiet p99 of the same size',
        columns,
        rows: LOADS.map((load, i) => ({
          label: nameOf(load),
          cells: sizes.map((size) => ratios(of(size, i), of(size, 0))),
        })),
      },
    ],
    checks,
    notes: [`This machine has ${os.availableParallelism()} cores.`],
  };
}

function nameOf({ work, jobs }: PoolLoad): string {
  return work === 'nothing' ? 'quiet' : `${work} × ${jobs}`;
}
