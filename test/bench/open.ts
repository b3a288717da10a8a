/**
 * Opening after a crash: a worker with a million events is killed in the middle of its appends, and fresh processes
 * open copies of what it left. The page cache is warm, as it is after the crash of a process.
 */
import * as fs from 'node:fs';
import * as path from 'node:path';
import type { FillUntilKilledArgument } from './children/fill-until-killed.ts';
import type { OpenLogArgument, OpenLogResult } from './children/open-log.ts';
import { childResult, startChild } from './support/child-result.ts';
import type { Measurement, Plan } from './support/measurement.ts';
import type { Report } from './support/report.ts';
import { remove } from './support/workspace.ts';

const EVENTS = 1_000_000;
const EVENTS_QUICK = 200_000;
const FILL_MS_MAX = 10 * 60_000;

export const open: Measurement = { name: 'open', title: 'Open after a crash', run };

async function run(plan: Plan): Promise<Report> {
  const events = plan.quick ? EVENTS_QUICK : EVENTS;
  const crashed = path.join(plan.dir, 'crashed');
  plan.say(`filling a log with ${events.toLocaleString('en-US')} events …`);
  await fillAndKill({ dir: crashed, events });
  const results: OpenLogResult[] = [];
  for (let round = 0; round < plan.rounds; round++) {
    const dir = path.join(plan.dir, 'copy');
    copyLog(crashed, dir);
    const argument: OpenLogArgument = { dir };
    const result = await childResult<OpenLogResult>('open-log.ts', argument);
    if (result.durableLsn < events) throw new Error(`only ${result.durableLsn} of ${events} durable events are there`);
    results.push(result);
    remove(dir);
  }
  const row = (label: string, of: (result: OpenLogResult) => number) => ({ label, cells: [results.map(of)] });
  const count = events.toLocaleString('en-US');
  return {
    tables: [
      {
        title: `${plan.rounds} openings by fresh processes`,
        columns: [''],
        rows: [
          row('events in the log', ({ durableLsn }) => durableLsn),
          row('open, ms', ({ openMs }) => openMs),
          row('open and one append, ms', ({ firstAppendMs }) => firstAppendMs),
          row('memory afterwards, MiB', ({ rssMiB }) => rssMiB),
        ],
      },
    ],
    checks: [
      {
        what: `open after SIGKILL, ${count} events`,
        unit: 's',
        series: results.map(({ openMs }) => openMs / 1000),
        bar: { kind: 'at most', limit: 2 },
      },
    ],
    notes: plan.quick ? [`With ${count} events; the bar speaks of a million.`] : [],
  };
}

async function fillAndKill(argument: FillUntilKilledArgument): Promise<void> {
  await using child = startChild('fill-until-killed.ts', argument);
  await child.line('"filled"', FILL_MS_MAX);
  child.kill('SIGKILL');
  await child.exited;
}

/**
 * A copy that is as crashed as the original: an opening changes what it opens. SST files never change, so a hard link
 * does. RocksDB's LOCK and the socket are made anew by whoever opens.
 */
function copyLog(from: string, to: string): void {
  fs.mkdirSync(to, { recursive: true });
  for (const entry of fs.readdirSync(from, { withFileTypes: true })) {
    const source = path.join(from, entry.name);
    const target = path.join(to, entry.name);
    if (entry.isDirectory()) copyLog(source, target);
    else if (entry.name.endsWith('.sst')) fs.linkSync(source, target);
    else if (entry.isFile() && entry.name !== 'LOCK') fs.copyFileSync(source, target);
  }
}
