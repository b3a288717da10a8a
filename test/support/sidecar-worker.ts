/**
 * A worker for the tests of the sidecar: appends at a rate to trajectories of its own, and prints
 *
 *   open <durable LSN>        the log is open
 *   durable <LSN>             now and then: everything up to here was acknowledged
 *   replicated <LSN>          answer to `wait`: an event was appended, and warm has it
 *   failed <code>             the answer where that is not so
 *   closed <LSN>              answer to `stop`
 *
 * Lines on stdin: `stop`, `pause`, `resume`, `wait`. About one event in 100 has a body that becomes a blob, and one in 20
 * a U+0000.
 */
import { writeSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { HotLog } from '../../hot/log.ts';
import type { HotLogOptions } from '../../hot/options.ts';
import { isVarveError } from '../../schemas/errors.ts';
import { newTrajectoryId } from '../../schemas/ids.ts';
import { Random } from './seed.ts';

export type WorkerPlan = {
  readonly directory: string;
  readonly perSecond: number;
  readonly trajectories: number;
  readonly seed: number;
  readonly options?: HotLogOptions;
  /** Bytes of an ordinary event's text. @default up to 600 */
  readonly textBytes?: number;
};

const TICK_MS = 10;

const plan = JSON.parse(process.argv[2] as string) as WorkerPlan;
const random = new Random(plan.seed);
const log = await HotLog.open(plan.directory, plan.options);
print(`open ${log.durableLsn}`);
const ids = [...log.trajectories()];
while (ids.length < plan.trajectories) ids.push(newTrajectoryId());
let isPaused = false;
let isStopping = false;
let underWay = 0;
const waits: Promise<void>[] = [];
const stdin = createInterface({ input: process.stdin });
stdin.on('line', (line) => {
  if (line === 'stop') isStopping = true;
  if (line === 'pause') isPaused = true;
  if (line === 'resume') isPaused = false;
  if (line === 'wait') waits.push(appendAndWait());
});
// Whoever started this has died.
stdin.on('close', () => process.exit(1));

let acknowledged = 0;
const startedAt = performance.now();
let appended = 0;
while (!isStopping) {
  await sleep(TICK_MS);
  if (isPaused) {
    appended = due();
    continue;
  }
  for (; appended < due() && underWay < 2000; appended++) void append();
}
while (underWay > 0) await sleep(1);
await Promise.all(waits);
const last = log.durableLsn;
await log.close();
print(`closed ${last}`);
process.exit(0);

function due(): number {
  return Math.floor(((performance.now() - startedAt) / 1000) * plan.perSecond);
}

async function append(): Promise<void> {
  underWay += 1;
  try {
    const { lsn } = await log.append(random.pick(ids), { event_type: 'Noted', turn: 0, payload: { note: textOf() } });
    acknowledged += 1;
    if (acknowledged % 50 === 0) print(`durable ${lsn}`);
  } catch (error) {
    print(`failed ${isVarveError(error) ? error.code : String(error)}`);
    process.exit(1);
  } finally {
    underWay -= 1;
  }
}

function textOf(): string {
  if (plan.textBytes !== undefined) return 'x'.repeat(plan.textBytes);
  const chance = random.next();
  if (chance < 0.01) return `${random.next()} `.repeat(5000);
  return `${chance < 0.05 ? '\u0000' : ''}${random.next()} é `.repeat(random.between(1, 25));
}

async function appendAndWait(): Promise<void> {
  try {
    const { lsn } = await log.append(random.pick(ids), { event_type: 'Noted', turn: 0, payload: { note: 'waits' } });
    await log.whenReplicated(lsn);
    print(`replicated ${lsn}`);
  } catch (error) {
    print(`failed ${isVarveError(error) ? error.code : String(error)}`);
  }
}

function print(line: string): void {
  writeSync(1, `${line}\n`);
}
