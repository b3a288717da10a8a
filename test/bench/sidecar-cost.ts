/** What a sidecar costs the machine of its worker: CPU of its process while nothing happens, and at a hundred events a second. */
import * as path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { HotLog } from '../../hot/log.ts';
import { newTrajectoryId } from '../../schemas/ids.ts';
import { openLoop } from './support/load.ts';
import type { Measurement, Plan } from './support/measurement.ts';
import { cpuUsOf, cpuUsOfFamily, peakMemoryMb } from './support/processes.ts';
import type { Report } from './support/report.ts';
import { inTurns } from './support/rounds.ts';
import { makeSamples, sampleAt } from './support/samples.ts';
import { WarmPlace } from './support/warm.ts';

const EVENTS_PER_SECOND = 100;
const SECONDS = 10;
const SECONDS_QUICK = 4;
const TRAJECTORIES = 16;

export const sidecarCost: Measurement = { name: 'sidecar-cost', title: 'Sidecar: CPU while it follows', run };

const LOADS = ['idle', 'following'] as const;
type Load = (typeof LOADS)[number];
/** Percent of a core. */
type Cost = { readonly sidecar: number; readonly server: number };

async function run(plan: Plan): Promise<Report> {
  await using place = await WarmPlace.start(plan.dir);
  await using pool = await place.database();
  const dir = path.join(plan.dir, 'log');
  await using log = await HotLog.open(dir);
  await using sidecar = await place.sidecar(dir, pool.url);
  const seconds = plan.quick ? SECONDS_QUICK : SECONDS;
  const samples = makeSamples();
  const costs: Record<Load, Cost[]> = { idle: [], following: [] };
  await inTurns(LOADS, plan.rounds, async (load, counts) => {
    const start = performance.now();
    const own = cpuUsOf(sidecar.child.pid);
    const server = cpuUsOfFamily(place.server.pid);
    if (load === 'idle') await sleep(seconds * 1000);
    else {
      const trajectories = Array.from({ length: TRAJECTORIES }, () => newTrajectoryId());
      const events = seconds * EVENTS_PER_SECOND;
      const append = (id: (typeof trajectories)[number], n: number) => log.append(id, sampleAt(samples, n).event);
      await openLoop(append, { trajectories, events, perSecond: EVENTS_PER_SECOND });
    }
    const percent = (us: number) => us / 10 / (performance.now() - start);
    const cost = {
      sidecar: percent(cpuUsOf(sidecar.child.pid) - own),
      server: percent(cpuUsOfFamily(place.server.pid) - server),
    };
    if (counts) costs[load].push(cost);
  });
  return report(costs, peakMemoryMb(sidecar.child.pid), seconds, plan);
}

function report(costs: Record<Load, Cost[]>, memoryMb: number, seconds: number, plan: Plan): Report {
  const own = (load: Load) => costs[load].map(({ sidecar }) => sidecar);
  const server = (load: Load) => costs[load].map((cost) => cost.server);
  return {
    tables: [
      {
        title: `${plan.rounds} rounds of ${seconds} s, percent of a core`,
        columns: ['sidecar', 'its server'],
        rows: [
          { label: 'idle', cells: [own('idle'), server('idle')] },
          { label: `${EVENTS_PER_SECOND} events/s of 1 KiB`, cells: [own('following'), server('following')] },
        ],
      },
    ],
    checks: [
      { what: 'CPU idle', unit: '%', series: own('idle'), bar: { kind: 'at most', limit: 0.5 } },
      {
        what: `CPU at ${EVENTS_PER_SECOND} events/s`,
        unit: '%',
        series: own('following'),
        bar: { kind: 'at most', limit: 10 },
      },
      { what: 'memory at most, while it follows', unit: 'MB', series: [memoryMb] },
    ],
    notes: [],
  };
}
