/**
 * How soon the fleet sees an event: from the moment that its append resolves in the worker to the moment that another
 * connection finds its row in warm, at 2,000 events a second of mixed kinds and sizes. Worker, sidecar, database and
 * whoever looks are processes of their own and read the same monotonic clock.
 */
import * as fs from 'node:fs';
import * as path from 'node:path';
import { HotLog } from '../../hot/log.ts';
import { newTrajectoryId } from '../../schemas/ids.ts';
import { KIB } from '../../schemas/limits.ts';
import type { WatchCursorArgument } from './children/watch-cursor.ts';
import { startChild } from './support/child-result.ts';
import { openLoop } from './support/load.ts';
import type { Measurement, Plan } from './support/measurement.ts';
import type { Check, Report } from './support/report.ts';
import { percentile } from './support/statistics.ts';
import { Turns } from './support/turns.ts';
import { untilReplicated, WarmPlace } from './support/warm.ts';

const EVENTS_PER_SECOND = 2000;
const SECONDS = 60;
const SECONDS_QUICK = 6;
/** Until caches, code and the database's statistics are warm. */
const WARM_UP_SECONDS = 3;
const TRAJECTORIES = 64;
const SMALLEST = 300;
const LARGEST = 8 * KIB;

export const visible: Measurement = { name: 'visible', title: 'Append acknowledged → row visible in warm', run };

async function run(plan: Plan): Promise<Report> {
  await using place = await WarmPlace.start(plan.dir);
  await using pool = await place.database();
  const dir = path.join(plan.dir, 'log');
  await using log = await HotLog.open(dir);
  await using _sidecar = await place.sidecar(dir, pool.url);
  const warmUp = WARM_UP_SECONDS * EVENTS_PER_SECOND;
  const events = (plan.quick ? SECONDS_QUICK : SECONDS) * EVENTS_PER_SECOND;
  const argument: WatchCursorArgument = {
    url: pool.url,
    records: warmUp + events,
    timesFile: path.join(plan.dir, 'seen'),
  };
  await using watcher = startChild('watch-cursor.ts', argument);
  await watcher.line('"watching"');
  const acknowledgedNs = new BigUint64Array(argument.records);
  await load(log, warmUp, acknowledgedNs);
  await untilReplicated(pool, warmUp);
  const appends = await load(log, events, acknowledgedNs);
  await watcher.line('"done"', 60_000);
  const seen = fs.readFileSync(argument.timesFile);
  const delays = Array.from(acknowledgedNs, (at, i) => Number(seen.readBigUInt64LE(i * 8) - at) / 1e6).slice(warmUp);
  return report(delays, appends);
}

/** Notes when each append was known to be durable, by LSN − 1. Returns what the appends took. */
function load(log: HotLog, events: number, acknowledgedNs: BigUint64Array): Promise<number[]> {
  const turns = new Turns(SMALLEST, LARGEST);
  const trajectories = Array.from({ length: TRAJECTORIES }, () => newTrajectoryId());
  return openLoop(
    (id, n) => log.append(id, turns.at(n % TRAJECTORIES, Math.floor(n / TRAJECTORIES) + 1)),
    { trajectories, events, perSecond: EVENTS_PER_SECOND },
    ({ lsn }) => {
      acknowledgedNs[Number(lsn) - 1] = process.hrtime.bigint();
    },
  );
}

function report(delays: readonly number[], appends: readonly number[]): Report {
  const row = (label: string, values: readonly number[]) => ({
    label,
    cells: [0.5, 0.9, 0.99, 0.999, 1].map((share) => [percentile(values, share)]),
  });
  const check = (name: string, share: number, limit: number): Check => ({
    what: `acknowledged → visible ${name} at ${EVENTS_PER_SECOND} events/s`,
    unit: 'ms',
    series: [percentile(delays, share)],
    bar: { kind: 'at most', limit },
  });
  return {
    tables: [
      {
        title: `${delays.length} events of ${SMALLEST} B to ${LARGEST / KIB} KiB in one run, milliseconds`,
        columns: ['p50', 'p90', 'p99', 'p99.9', 'max'],
        rows: [row('append → acknowledged', appends), row('acknowledged → visible', delays)],
      },
    ],
    checks: [check('p50', 0.5, 50), check('p99', 0.99, 250)],
    notes: [],
  };
}
