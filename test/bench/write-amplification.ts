/**
 * What the disk gets to write for each byte of events: 1 GB of them, 64 writers, so about 64 events a barrier, counted by
 * the kernel for the whole process (`write_bytes` of /proc/self/io), with write-ahead log, memtable flushes and
 * compactions in it. A count, not a timing: one run says it.
 */
import * as path from 'node:path';
import type { FillArgument, FillResult } from './children/fill.ts';
import { childResult } from './support/child-result.ts';
import type { Measurement, Plan } from './support/measurement.ts';
import type { Report } from './support/report.ts';

const EVENT_BYTES = 1e9;
const EVENT_BYTES_QUICK = 2e8;
const WRITERS = 64;

export const writeAmplification: Measurement = {
  name: 'write-amplification',
  title: 'Bytes written to the disk per byte of events',
  run,
};

async function run(plan: Plan): Promise<Report> {
  if (process.platform !== 'linux') return { tables: [], checks: [], notes: ['needs /proc/self/io: skipped here'] };
  const argument: FillArgument = {
    dir: path.join(plan.dir, 'log'),
    eventBytes: plan.quick ? EVENT_BYTES_QUICK : EVENT_BYTES,
    writers: WRITERS,
  };
  const result = await childResult<FillResult>('fill.ts', argument);
  return {
    tables: [
      {
        title: `${WRITERS} writers, events of 1 KiB`,
        columns: [''],
        rows: [
          { label: 'events', cells: [[result.events]] },
          { label: 'MB of events', cells: [[result.eventBytes / 1e6]] },
          { label: 'MB written', cells: [[result.writtenAtClose / 1e6]] },
          { label: 'events/s', cells: [[result.events / result.seconds]] },
          { label: 'CPU µs/event', cells: [[result.cpuUsPerEvent]] },
        ],
      },
    ],
    checks: [
      {
        what: `bytes written per byte of events, ${Math.round(result.eventBytes / 1e6)} MB`,
        unit: '×',
        series: [result.written / result.eventBytes],
        bar: { kind: 'at most', limit: 2.5 },
      },
      { what: 'the same, with closing', unit: '×', series: [result.writtenAtClose / result.eventBytes] },
    ],
    notes: plan.quick ? ['With 200 MB not every level of the tree has been compacted yet: quote the full run.'] : [],
  };
}
