/** Ways to drive a store: one after another, many at once, and at a fixed rate. Latencies are in milliseconds. */
import { setTimeout as sleep } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { newTrajectoryId, type TrajectoryId } from '../../../schemas/ids.ts';
import type { Store } from './contender.ts';
import { type Sample, sampleAt } from './samples.ts';

/** Appends one after another, to one trajectory. Latency of each. */
export async function appendInTurn(
  store: Store,
  trajectory: TrajectoryId,
  samples: readonly Sample[],
  count: number,
): Promise<number[]> {
  const latencies: number[] = [];
  for (let n = 0; n < count; n++) {
    const start = performance.now();
    await store.append(trajectory, sampleAt(samples, n));
    latencies.push(performance.now() - start);
  }
  return latencies;
}

export type ClosedLoop = {
  readonly eventsPerSecond: number;
  /** CPU of the whole process, all its threads, in microseconds. */
  readonly cpuUsPerEvent: number;
  /** NaN where the store cannot tell. */
  readonly eventsPerBarrier: number;
  /** What the writers waited. */
  readonly latencies: readonly number[];
};

/** One writer in this many notes what it waits: reading the clock twice for every event would be part of the figure. */
const NOTING_WRITER = 8;

/** `writers` trajectories, each with one append outstanding all the time. */
export async function closedLoop(
  store: Store,
  samples: readonly Sample[],
  writers: number,
  durationMs: number,
): Promise<ClosedLoop> {
  const latencies: number[] = [];
  let events = 0;
  const barriers = store.barriers?.() ?? Number.NaN;
  const cpu = process.cpuUsage();
  const start = performance.now();
  const end = start + durationMs;
  const write = async (writer: number): Promise<void> => {
    const trajectory = newTrajectoryId();
    const notes = writer % NOTING_WRITER === 0;
    for (let n = writer, now = start; now < end; n++) {
      await store.append(trajectory, sampleAt(samples, n));
      events++;
      const then = now;
      now = performance.now();
      if (notes) latencies.push(now - then);
    }
  };
  await Promise.all(Array.from({ length: writers }, (_, writer) => write(writer)));
  const elapsedMs = performance.now() - start;
  const { user, system } = process.cpuUsage(cpu);
  return {
    eventsPerSecond: (events / elapsedMs) * 1000,
    cpuUsPerEvent: (user + system) / events,
    eventsPerBarrier: events / ((store.barriers?.() ?? Number.NaN) - barriers),
    latencies,
  };
}

/**
 * `perSecond` events a second over `trajectories` in turn, whether earlier ones are durable or not. Calls `durable`
 * with each receipt the moment the writer knows. Latency of each append.
 */
export async function openLoop<Receipt>(
  append: (trajectory: TrajectoryId, n: number) => Promise<Receipt>,
  load: { readonly trajectories: readonly TrajectoryId[]; readonly events: number; readonly perSecond: number },
  durable: (receipt: Receipt) => void = () => undefined,
): Promise<number[]> {
  const { trajectories, events, perSecond } = load;
  const latencies: number[] = [];
  const one = async (n: number): Promise<void> => {
    const start = performance.now();
    const receipt = await append(trajectories[n % trajectories.length] as TrajectoryId, n);
    durable(receipt);
    latencies.push(performance.now() - start);
  };
  const pending: Promise<void>[] = [];
  const start = performance.now();
  while (pending.length < events) {
    const due = Math.min(events, Math.floor(((performance.now() - start) / 1000) * perSecond) + 1);
    while (pending.length < due) pending.push(one(pending.length));
    await sleep(1);
  }
  await Promise.all(pending);
  return latencies;
}

let collect: (() => void) | undefined;

/** A full garbage collection, so that nobody pays for what the contender before left behind. */
export function collectGarbage(): void {
  if (collect === undefined) {
    setFlagsFromString('--expose-gc');
    collect = runInNewContext('gc') as () => void;
  }
  collect();
}
