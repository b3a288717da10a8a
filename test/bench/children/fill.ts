/**
 * Appends with many writers until there are enough bytes, and says what the kernel wrote for them: before the log is
 * closed and after it.
 */
import { HotLog } from '../../../hot/log.ts';
import { newTrajectoryId } from '../../../schemas/ids.ts';
import { childArgument, tellParent } from '../support/child-result.ts';
import { bytesWritten } from '../support/machine.ts';
import { makeSamples, sampleAt } from '../support/samples.ts';

export type FillArgument = { readonly dir: string; readonly eventBytes: number; readonly writers: number };
export type FillResult = {
  readonly events: number;
  readonly eventBytes: number;
  /** Until the last append was durable. */
  readonly written: number;
  readonly writtenAtClose: number;
  readonly seconds: number;
  readonly cpuUsPerEvent: number;
};

const { dir, eventBytes: target, writers } = childArgument() as FillArgument;
const samples = makeSamples();
const log = await HotLog.open(dir);
let events = 0;
let eventBytes = 0;

async function write(writer: number): Promise<void> {
  const trajectory = newTrajectoryId();
  for (let n = writer; eventBytes < target; n++) {
    const sample = sampleAt(samples, n);
    eventBytes += sample.eventBytes;
    events++;
    await log.append(trajectory, sample.event);
  }
}

const before = bytesWritten();
const cpu = process.cpuUsage();
const start = performance.now();
await Promise.all(Array.from({ length: writers }, (_, writer) => write(writer)));
const seconds = (performance.now() - start) / 1000;
const { user, system } = process.cpuUsage(cpu);
const written = bytesWritten() - before;
await log.close();
const result: FillResult = {
  events,
  eventBytes,
  written,
  writtenAtClose: bytesWritten() - before,
  seconds,
  cpuUsPerEvent: (user + system) / events,
};
tellParent(result);
