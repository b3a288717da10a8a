/**
 * 64 and 512 trajectories at once, each with one append outstanding: what group commit makes of the disk. Each contender
 * starts every round on an empty directory. A bare coordinator fed with ready bytes shows what the binding can do, the
 * raw file what the disk can do, and peers encode and hash the same events.
 */
import * as path from 'node:path';
import { bare } from './stores/bare.ts';
import { rawGrouped } from './stores/raw.ts';
import { varve } from './stores/varve.ts';
import type { Contender } from './support/contender.ts';
import { type ClosedLoop, closedLoop, collectGarbage } from './support/load.ts';
import type { Measurement, Plan } from './support/measurement.ts';
import { type ModelCase, modelNote, modelTable } from './support/model.ts';
import type { Bar, Check, Report, Table } from './support/report.ts';
import { inTurns } from './support/rounds.ts';
import { makeSamples, type Sample } from './support/samples.ts';
import { percentile, ratios, type Series } from './support/statistics.ts';
import { remove } from './support/workspace.ts';

const WRITERS = [64, 512] as const;
const DURATION_MS = 500;
const DURATION_QUICK_MS = 250;
const CPU_US_MAX = 25;
/** Of the bare coordinator's rate. */
const SHARE_OF_BARE: Readonly<Record<number, number>> = { 64: 0.7, 512: 0.5 };
const AHEAD: Bar = { kind: 'at least', limit: 1 };

export const throughput: Measurement = { name: 'throughput', title: '64 and 512 trajectories at once, 1 KiB', run };

async function run(plan: Plan): Promise<Report> {
  const tables: Table[] = [];
  const checks: Check[] = [];
  const cases: ModelCase[] = [];
  const contenders = [varve, bare, rawGrouped, ...plan.peers];
  const samples = makeSamples();
  for (const writers of WRITERS) {
    plan.say(`${writers} writers …`);
    const loops = await measure(contenders, samples, writers, plan);
    tables.push(tableOf(loops, writers, plan));
    checks.push(...checksOf(loops, writers, plan));
    cases.push({
      writers,
      raw: rates(loops, rawGrouped.name).map((rate) => 1e6 / rate),
      varve: rates(loops, varve.name).map((rate) => 1e6 / rate),
      callerMs: (loops.get(varve.name) as ClosedLoop[]).map(({ latencies }) => percentile(latencies, 0.5)),
    });
  }
  tables.push(await modelTable(plan, cases));
  return { tables, checks, notes: [modelNote] };
}

type Loops = ReadonlyMap<string, ClosedLoop[]>;

async function measure(contenders: readonly Contender[], samples: readonly Sample[], writers: number, plan: Plan) {
  const loops: Loops = new Map(contenders.map(({ name }) => [name, []]));
  const dir = path.join(plan.dir, 'store');
  await inTurns(contenders, plan.rounds, async (one, counts) => {
    const store = await one.open(dir);
    try {
      collectGarbage();
      const loop = await closedLoop(store, samples, writers, plan.quick ? DURATION_QUICK_MS : DURATION_MS);
      if (counts) loops.get(one.name)?.push(loop);
    } finally {
      await store.close();
      remove(dir);
    }
  });
  return loops;
}

function rates(loops: Loops, name: string): Series {
  return (loops.get(name) as ClosedLoop[]).map(({ eventsPerSecond }) => eventsPerSecond);
}

function tableOf(loops: Loops, writers: number, plan: Plan): Table {
  const bareRates = rates(loops, bare.name);
  return {
    title: `${writers} trajectories, ${plan.rounds} rounds`,
    columns: ['events/s', '/ bare', 'CPU µs/event', 'events/barrier', 'p50 ms', 'p99 ms'],
    rows: Array.from(loops, ([label, all]) => ({
      label,
      cells: [
        rates(loops, label),
        ratios(rates(loops, label), bareRates),
        all.map(({ cpuUsPerEvent }) => cpuUsPerEvent),
        all.map(({ eventsPerBarrier }) => eventsPerBarrier),
        all.map(({ latencies }) => percentile(latencies, 0.5)),
        all.map(({ latencies }) => percentile(latencies, 0.99)),
      ],
    })),
  };
}

function checksOf(loops: Loops, writers: number, plan: Plan): Check[] {
  const own = rates(loops, varve.name);
  const against = (name: string, bar: Bar): Check => ({
    what: `events/s at ${writers} / ${name}`,
    unit: '×',
    series: ratios(own, rates(loops, name)),
    bar,
  });
  const checks = [against(bare.name, { kind: 'at least', limit: SHARE_OF_BARE[writers] as number })];
  for (const { name } of plan.peers) checks.push(against(name, AHEAD));
  if (writers === 512) {
    checks.push({
      what: 'CPU per event at 512, encoding and hashing included',
      unit: 'µs',
      series: (loops.get(varve.name) as ClosedLoop[]).map(({ cpuUsPerEvent }) => cpuUsPerEvent),
      bar: { kind: 'at most', limit: CPU_US_MAX },
    });
  }
  return checks;
}
