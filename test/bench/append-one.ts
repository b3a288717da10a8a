/**
 * One trajectory, events of 1 KiB, one after another: what a harness waits before it may act. Raw write + fdatasync of
 * the same bytes is the limit of the disk; peers encode and hash the same events.
 */
import * as path from 'node:path';
import { newTrajectoryId } from '../../schemas/ids.ts';
import { bare } from './stores/bare.ts';
import { rawAwaited, rawOne } from './stores/raw.ts';
import { varve } from './stores/varve.ts';
import type { Contender, Store } from './support/contender.ts';
import { appendInTurn, collectGarbage } from './support/load.ts';
import type { Measurement, Plan } from './support/measurement.ts';
import { modelNote, modelTable } from './support/model.ts';
import type { Check, Report } from './support/report.ts';
import { inTurns } from './support/rounds.ts';
import { makeSamples } from './support/samples.ts';
import { percentile, ratios, type Series, smallest } from './support/statistics.ts';

const APPENDS = 200;
const APPENDS_QUICK = 100;

export const appendOne: Measurement = { name: 'append-one', title: 'One trajectory, 1 KiB', run };

type Latencies = { readonly p50: Series; readonly p99: Series };

async function run(plan: Plan): Promise<Report> {
  const contenders = [rawOne, rawAwaited, varve, bare, ...plan.peers];
  const appends = plan.quick ? APPENDS_QUICK : APPENDS;
  const measured = await measure(contenders, appends, plan);
  const of = (name: string) => measured.get(name) as Latencies;
  const raw = of(rawOne.name);
  const best = smallest(plan.peers.map(({ name }) => of(name).p50));
  const checks: Check[] = [
    {
      what: 'append p50 / raw write + fdatasync p50',
      unit: '×',
      series: ratios(of(varve.name).p50, raw.p50),
      bar: { kind: 'at most', limit: 1.5, aim: 1.3 },
    },
  ];
  if (best.length > 0) {
    const series = ratios(of(varve.name).p50, best);
    checks.push({ what: 'append p50 / best peer p50', unit: '×', series, bar: { kind: 'at most', limit: 1.4 } });
  }
  return {
    tables: [
      {
        title: `${appends} appends a round, ${plan.rounds} rounds, contenders in turns`,
        columns: ['p50 µs', 'p99 µs', 'p50 / raw'],
        rows: contenders.map(({ name }) => ({
          label: name,
          cells: [microseconds(of(name).p50), microseconds(of(name).p99), ratios(of(name).p50, raw.p50)],
        })),
      },
      await modelTable(plan, [
        {
          writers: 1,
          raw: microseconds(raw.p50),
          varve: microseconds(of(varve.name).p50),
          callerMs: of(varve.name).p50,
        },
      ]),
    ],
    checks,
    notes: [modelNote],
  };
}

async function measure(contenders: readonly Contender[], appends: number, plan: Plan): Promise<Map<string, Latencies>> {
  const samples = makeSamples();
  const trajectory = newTrajectoryId();
  const stores = new Map<string, Store>();
  const measured = new Map(contenders.map(({ name }) => [name, { p50: [] as number[], p99: [] as number[] }]));
  try {
    for (const one of contenders) stores.set(one.name, await one.open(path.join(plan.dir, String(stores.size))));
    await inTurns(contenders, plan.rounds, async ({ name }, counts) => {
      collectGarbage();
      const latencies = await appendInTurn(stores.get(name) as Store, trajectory, samples, appends);
      if (!counts) return;
      measured.get(name)?.p50.push(percentile(latencies, 0.5));
      measured.get(name)?.p99.push(percentile(latencies, 0.99));
    });
  } finally {
    for (const store of stores.values()) await store.close();
  }
  return measured;
}

function microseconds(ms: Series): Series {
  return ms.map((value) => value * 1000);
}
