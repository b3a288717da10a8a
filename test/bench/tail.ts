/**
 * How far a follower in another process is behind: from the moment that an append resolves in the writer to the moment
 * that the reader has the record, checked, at 2,000 events a second over 64 trajectories. Both read the same monotonic
 * clock. The writer may have sent a record before it releases who waits for it, so a figure can be below zero.
 */
import * as fs from 'node:fs';
import * as path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { HotLog } from '../../hot/log.ts';
import { newTrajectoryId } from '../../schemas/ids.ts';
import type { TailReaderArgument } from './children/tail-reader.ts';
import { startChild } from './support/child-result.ts';
import { openLoop } from './support/load.ts';
import type { Measurement, Plan } from './support/measurement.ts';
import type { Report } from './support/report.ts';
import { makeSamples, sampleAt } from './support/samples.ts';
import { percentile, type Series } from './support/statistics.ts';

const EVENTS_PER_SECOND = 2000;
const SECONDS = 2;
const SECONDS_QUICK = 1;
const TRAJECTORIES = 64;
/** A round after which caches and code are warm. */
const WARM_UP_ROUNDS = 1;

export const tail: Measurement = { name: 'tail', title: 'Tail: durable → received', run };

async function run(plan: Plan): Promise<Report> {
  const events = EVENTS_PER_SECOND * (plan.quick ? SECONDS_QUICK : SECONDS);
  const rounds = plan.rounds + WARM_UP_ROUNDS;
  const argument: TailReaderArgument = {
    dir: path.join(plan.dir, 'log'),
    records: rounds * events,
    timesFile: path.join(plan.dir, 'received'),
  };
  await using log = await HotLog.open(argument.dir);
  await using reader = startChild('tail-reader.ts', argument);
  await reader.line('"connected"');
  const durableNs = new BigUint64Array(argument.records);
  const appends: number[][] = [];
  for (let round = 0; round < rounds; round++) {
    appends.push(await load(log, events, durableNs));
    // What is still under way belongs to this round.
    await sleep(100);
  }
  await reader.line('"done"');
  const received = fs.readFileSync(argument.timesFile);
  const delays = Array.from(durableNs, (at, i) => Number(received.readBigUInt64LE(i * 8) - at) / 1e6);
  const byRound = Array.from({ length: plan.rounds }, (_, i) => {
    const start = (i + WARM_UP_ROUNDS) * events;
    return delays.slice(start, start + events);
  });
  return report(byRound, appends.slice(WARM_UP_ROUNDS), events);
}

/** Notes when each append was known to be durable, by LSN − 1. Returns what the appends took. */
function load(log: HotLog, events: number, durableNs: BigUint64Array): Promise<number[]> {
  const samples = makeSamples();
  const trajectories = Array.from({ length: TRAJECTORIES }, () => newTrajectoryId());
  return openLoop(
    (trajectory, n) => log.append(trajectory, sampleAt(samples, n).event),
    { trajectories, events, perSecond: EVENTS_PER_SECOND },
    ({ lsn }) => {
      durableNs[Number(lsn) - 1] = process.hrtime.bigint();
    },
  );
}

function report(delays: readonly number[][], appends: readonly number[][], events: number): Report {
  return {
    tables: [
      {
        title: `${events} events a round, ${delays.length} rounds, milliseconds`,
        columns: ['p50', 'p99', 'max'],
        rows: [
          {
            label: 'append → durable',
            cells: [percentiles(appends, 0.5), percentiles(appends, 0.99), percentiles(appends, 1)],
          },
          {
            label: 'durable → received',
            cells: [percentiles(delays, 0.5), percentiles(delays, 0.99), percentiles(delays, 1)],
          },
        ],
      },
    ],
    checks: [
      {
        what: `durable → received p99 at ${EVENTS_PER_SECOND} events/s`,
        unit: 'ms',
        series: percentiles(delays, 0.99),
        bar: { kind: 'at most', limit: 10 },
      },
    ],
    notes: [],
  };
}

function percentiles(rounds: readonly number[][], share: number): Series {
  return rounds.map((round) => percentile(round, share));
}
