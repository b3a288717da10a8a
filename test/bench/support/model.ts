/** The chapter's equation 3 beside what was measured: the device's cost per event, and what a caller waits. */
import { type GroupReport, measureDisk } from '../../../hot/disk.ts';
import { effectiveLatencyMs } from '../../../hot/group-commit-model.ts';
import type { Plan } from './measurement.ts';
import type { Table } from './report.ts';
import { makeSamples } from './samples.ts';
import type { Series } from './statistics.ts';

export type ModelCase = {
  readonly writers: number;
  /** Microseconds per event of the raw file. */
  readonly raw: Series;
  /** Microseconds per event of varve. */
  readonly varve: Series;
  /** Median of what a caller of varve waits, in milliseconds. */
  readonly callerMs: Series;
};

export const modelNote =
  'Equation 3 is the cost of an event for the device (window 0: half a window is 0; t_writev and t_sync measured on ' +
  'this disk, t_sync of a group of one). A caller waits for its whole barrier and, on average, half of the one before.';

export async function modelTable(plan: Plan, cases: readonly ModelCase[]): Promise<Table> {
  const bytes = makeSamples()[0]?.record.length as number;
  const { groups } = await measureDisk(plan.dir, { bytes, rounds: plan.quick ? 50 : 200 });
  const syncUs = (groups.find(({ events }) => events === 1) as GroupReport).sync.p50Us;
  return {
    title: 'Equation 3 beside the measured cost per event (µs) and the caller’s latency (µs)',
    columns: ['predicted', 'raw file', 'varve', 'caller of varve'],
    rows: cases.map(({ writers, raw, varve, callerMs }) => {
      const group = groups.find(({ events }) => events === writers) as GroupReport;
      const predicted = effectiveLatencyMs(0, group.writev.p50Us / 1000, syncUs / 1000, writers) * 1000;
      return { label: `${writers} a barrier`, cells: [[predicted], raw, varve, callerMs.map((ms) => ms * 1000)] };
    }),
  };
}
