/**
 * The barrier runs on libuv's pool, which `fs`, `dns`, `zlib` and `crypto` of the same process share: what an append
 * waits while they fill it, for several sizes of the pool. A size is fixed when a pool starts, so each has a process of
 * its own; they take turns, and each round is held against what the quiet barrier took in it.
 */
import * as os from 'node:os';
import * as path from 'node:path';
import type { Child } from '../support/child.ts';
import type { PoolArgument, PoolLoad, PoolRound } from './children/barrier-under-load.ts';
import { startChild } from './support/child-result.ts';
import type { Measurement, Plan } from './support/measurement.ts';
import type { Check, Report } from './support/report.ts';
import { inTurns } from './support/rounds.ts';
import { median, percentile, ratios, type Series } from './support/statistics.ts';

const SIZES = [4, 8, 16, 64] as const;
const SIZES_QUICK = [4, 16] as const;
/** Jobs outstanding all the time; the first is the quiet pool. */
const LOADS: readonly PoolLoad[] = [
  { work: 'nothing', jobs: 0 },
  { work: 'zlib', jobs: 1 },
  { work: 'zlib', jobs: 2 },
  { work: 'zlib', jobs: 8 },
  { work: 'fs', jobs: 8 },
  { work: 'dns', jobs: 8 },
  { work: 'mixed', jobs: 3 },
  { work: 'mixed', jobs: 24 },
];
const APPENDS = 150;
const ROUND_MS_MAX = 60_000;

export const pool: Measurement = { name: 'pool', title: 'The barrier while others use the libuv pool', run };

/** p99 in milliseconds by load, each a series over rounds. */
type P99 = readonly number[][];

async function run(plan: Plan): Promise<Report> {
  const bySize = new Map<number, { readonly child: Child; readonly p99: P99 }>();
  try {
    for (const size of plan.quick ? SIZES_QUICK : SIZES) {
      const argument: PoolArgument = { dir: path.join(plan.dir, `pool-${size}`), appends: APPENDS, loads: LOADS };
      const child = startChild('barrier-under-load.ts', argument, { UV_THREADPOOL_SIZE: String(size) });
      bySize.set(size, { child, p99: LOADS.map(() => []) });
      await child.line('"ready"');
    }
    await inTurns([...bySize.values()], plan.rounds, async ({ child, p99 }, counts) => {
      const round = await askForRound(child);
      if (counts) round.forEach((latencies, load) => p99[load]?.push(percentile(latencies, 0.99)));
    });
  } finally {
    for (const { child } of bySize.values()) await child[Symbol.asyncDispose]();
  }
  return report(new Map(Array.from(bySize, ([size, { p99 }]) => [size, p99])));
}

async function askForRound(child: Child): Promise<PoolRound> {
  const before = child.lines.length;
  child.send('round');
  return JSON.parse(await child.line('[', ROUND_MS_MAX, before)) as PoolRound;
}

function report(p99: ReadonlyMap<number, P99>): Report {
  const sizes = [...p99.keys()];
  const of = (size: number, load: number): Series => p99.get(size)?.[load] ?? [];
  // A quiet pool is equally fast at every size, so the middle one of them says what the disk took in a round.
  const quiet = of(sizes[0] as number, 0).map((_, round) => median(sizes.map((size) => of(size, 0)[round] as number)));
  const columns = sizes.map((size) => `${size} threads`);
  const checks: Check[] = LOADS.slice(1).map((load, i) => {
    const best = sizes.toSorted((a, b) => median(of(a, i + 1)) - median(of(b, i + 1)))[0] as number;
    const what = `${nameOf(load)}: p99 / quiet p99, best with ${best} threads`;
    return { what, unit: '×', series: ratios(of(best, i + 1), quiet) };
  });
  return {
    tables: [
      {
        title: 'append p99, milliseconds',
        columns,
        rows: LOADS.map((load, i) => ({ label: nameOf(load), cells: sizes.map((size) => of(size, i)) })),
      },
      {
        title: 'append p99 / quiet p99',
        columns,
        rows: LOADS.map((load, i) => ({ label: nameOf(load), cells: sizes.map((size) => ratios(of(size, i), quiet)) })),
      },
    ],
    checks,
    notes: [`This machine has ${os.availableParallelism()} cores.`],
  };
}

function nameOf({ work, jobs }: PoolLoad): string {
  return work === 'nothing' ? 'quiet' : `${work} × ${jobs}`;
}
