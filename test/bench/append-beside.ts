/**
 * What a sidecar costs the appends that it follows. The same loop of appends on two logs in turns: to one a sidecar is
 * attached; beside the other the same number of events a second goes into the same server from memory. So the database
 * works as hard both times, and what differs is the tail and whoever reads it.
 */
import * as path from 'node:path';
import { HotLog } from '../../hot/log.ts';
import { newTrajectoryId } from '../../schemas/ids.ts';
import type { FeedIngestArgument, FeedIngestRound } from './children/feed-ingest.ts';
import { startChild } from './support/child-result.ts';
import { collectGarbage, openLoop } from './support/load.ts';
import type { Measurement, Plan } from './support/measurement.ts';
import type { Check, Report } from './support/report.ts';
import { inTurns } from './support/rounds.ts';
import { makeSamples, sampleAt } from './support/samples.ts';
import { percentile, ratios, type Series } from './support/statistics.ts';
import { untilReplicated, WarmPlace } from './support/warm.ts';

const EVENTS_PER_SECOND = 1000;
const SECONDS = 4;
const SECONDS_QUICK = 2;
const TRAJECTORIES = 64;

export const appendBeside: Measurement = { name: 'append-beside', title: 'Append with a sidecar attached', run };

const CASES = ['sidecar', 'equal load'] as const;
type Case = (typeof CASES)[number];

async function run(plan: Plan): Promise<Report> {
  await using place = await WarmPlace.start(plan.dir);
  await using own = await place.database();
  await using other = await place.database();
  const dir = path.join(plan.dir, 'a');
  await using followed = await HotLog.open(dir);
  await using alone = await HotLog.open(path.join(plan.dir, 'b'));
  await using _sidecar = await place.sidecar(dir, own.url);
  const argument: FeedIngestArgument = { url: other.url, trajectories: TRAJECTORIES };
  await using feeder = startChild('feed-ingest.ts', argument);
  await feeder.line('"ready"');
  const events = (plan.quick ? SECONDS_QUICK : SECONDS) * EVENTS_PER_SECOND;
  const latencies: Record<Case, number[][]> = { sidecar: [], 'equal load': [] };
  await inTurns(CASES, plan.rounds, async (one, counts) => {
    collectGarbage();
    const from = feeder.lines.length;
    if (one === 'equal load') {
      feeder.send(JSON.stringify({ events, perSecond: EVENTS_PER_SECOND } satisfies FeedIngestRound));
    }
    const taken = await load(one === 'sidecar' ? followed : alone, events);
    if (one === 'equal load') await feeder.line('"fed"', 60_000, from);
    else await untilReplicated(own, Number(followed.durableLsn));
    if (counts) latencies[one].push(taken);
  });
  return report(latencies, events, plan);
}

function load(log: HotLog, events: number): Promise<number[]> {
  const samples = makeSamples();
  const trajectories = Array.from({ length: TRAJECTORIES }, () => newTrajectoryId());
  const append = (id: (typeof trajectories)[number], n: number) => log.append(id, sampleAt(samples, n).event);
  return openLoop(append, { trajectories, events, perSecond: EVENTS_PER_SECOND });
}

function report(latencies: Record<Case, number[][]>, events: number, plan: Plan): Report {
  const of = (one: Case, share: number): Series => latencies[one].map((round) => percentile(round, share));
  const check = (name: string, share: number): Check => ({
    what: `append ${name} with a sidecar / beside an equal load`,
    unit: '×',
    series: ratios(of('sidecar', share), of('equal load', share)),
    bar: { kind: 'at most', limit: 1.2 },
  });
  return {
    tables: [
      {
        title: `${events} events of 1 KiB a round at ${EVENTS_PER_SECOND}/s, ${plan.rounds} rounds, milliseconds`,
        columns: ['p50', 'p99'],
        rows: CASES.map((label) => ({ label, cells: [of(label, 0.5), of(label, 0.99)] })),
      },
    ],
    checks: [check('p50', 0.5), check('p99', 0.99)],
    notes: [],
  };
}
