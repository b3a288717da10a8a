/**
 * Appends one after another while the same process keeps its libuv pool busy with other work; the size of the pool is
 * this process's UV_THREADPOOL_SIZE. Each line on stdin asks for one round over all loads; its answer is one line with
 * the latencies by load.
 */
import { randomBytes } from 'node:crypto';
import * as dns from 'node:dns/promises';
import * as fs from 'node:fs/promises';
import * as path from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import * as zlib from 'node:zlib';
import { HotLog } from '../../../hot/log.ts';
import { newTrajectoryId } from '../../../schemas/ids.ts';
import { KIB, MIB } from '../../../schemas/limits.ts';
import { childArgument, tellParent } from '../support/child-result.ts';
import { makeSamples, sampleAt } from '../support/samples.ts';

export type PoolWork = 'nothing' | 'zlib' | 'fs' | 'dns' | 'mixed';
export type PoolLoad = { readonly work: PoolWork; readonly jobs: number };
export type PoolArgument = { readonly dir: string; readonly appends: number; readonly loads: readonly PoolLoad[] };
/** Milliseconds, by load. */
export type PoolRound = readonly (readonly number[])[];

/** An append may take tens of milliseconds under load; a round must end all the same. */
const LOAD_MS_MAX = 500;

const { dir, appends, loads } = childArgument() as PoolArgument;
await fs.mkdir(dir, { recursive: true });
const file = path.join(dir, 'large');
await fs.writeFile(file, Buffer.alloc(4 * MIB, 1));
const text = Buffer.from(randomBytes(384 * KIB).toString('base64'));
const deflate = promisify<Buffer, Buffer>(zlib.deflate);

const JOBS: Readonly<Record<PoolWork, (n: number) => Promise<unknown>>> = {
  nothing: () => Promise.resolve(),
  zlib: () => deflate(text),
  fs: () => fs.readFile(file),
  dns: () => dns.lookup('localhost'),
  mixed: (n) => [JOBS.zlib, JOBS.fs, JOBS.dns][n % 3]?.(n) ?? Promise.resolve(),
};

const log = await HotLog.open(path.join(dir, 'log'));
const samples = makeSamples();
const trajectory = newTrajectoryId();

async function measure({ work, jobs }: PoolLoad): Promise<number[]> {
  const stop = new AbortController();
  const keepBusy = async (first: number): Promise<void> => {
    for (let n = first; !stop.signal.aborted; n++) await JOBS[work](n);
  };
  const running = Array.from({ length: jobs }, (_, first) => keepBusy(first));
  // The queue of the pool must be full before the first append meets it.
  await sleep(30);
  const latencies: number[] = [];
  const start = performance.now();
  for (let n = 0, now = start; n < appends && now - start < LOAD_MS_MAX; n++) {
    await log.append(trajectory, sampleAt(samples, n).event);
    const then = now;
    now = performance.now();
    latencies.push(now - then);
  }
  stop.abort();
  await Promise.all(running);
  return latencies;
}

tellParent('ready');
for await (const _ of createInterface(process.stdin)) {
  const round: number[][] = [];
  for (const load of loads) round.push(await measure(load));
  tellParent(round satisfies PoolRound);
}
