/**
 * The child of the fault tests: works on one log, step by step, and prints every acknowledgement before it does
 * anything else about it.
 *
 *   open <durable LSN>
 *   ack <n> <sequence number> <LSN> <hash>       the log said: durable
 *   error <n> <sequence number> <code>           the append was refused or failed; outcome unknown
 *   pending <count>                              appends without an answer: 10 s after an error, or 30 s after anything
 *   done <step>                                  that step has ended
 *
 * What is appended is `workload.ts`. Lines are written with writeSync, so what was printed is received (see child.ts).
 */
import { readFileSync, writeFileSync, writeSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Appended } from '../../hot/heads.ts';
import { HotLog } from '../../hot/log.ts';
import type { HotLogOptions } from '../../hot/options.ts';
import { TailReader } from '../../hot/tail-reader.ts';
import { isVarveError } from '../../schemas/errors.ts';
import type { TrajectoryId } from '../../schemas/ids.ts';
import { eventFor, FINISH, GROUP, isGrouped, mayFinish, type WorkloadEvent } from './workload.ts';

export type Step =
  /** Opens the log; while it is open from an earlier step, that is an error of the test. */
  | { readonly do: 'open'; readonly options?: HotLogOptions }
  /**
   * One writer per trajectory, each waiting for its acknowledgement before its next event; ends after that many events
   * in all (null: never), or when an append fails and all others under way have an answer.
   */
  | { readonly do: 'append'; readonly events: number | null; readonly only?: 'may-finish' }
  /** `TaskFinished` to every trajectory that may finish and has events. Nothing is appended to it afterwards. */
  | { readonly do: 'finish' }
  /** Reads the tail to its end and acks it. */
  | { readonly do: 'ack' }
  | { readonly do: 'trim' }
  | { readonly do: 'close' }
  /** Ends as `kill -9` would: nothing is closed, nothing is flushed. */
  | { readonly do: 'die' }
  /** Waits for this line on stdin. */
  | { readonly do: 'wait'; readonly line: string }
  /** Writes a file: the trigger of `eio-shim.c`. */
  | { readonly do: 'write-file'; readonly path: string; readonly text: string };

export type Plan = {
  readonly directory: string;
  /** A file with one trajectory id a line: the n-th is trajectory n. */
  readonly idFile: string;
  readonly steps: readonly Step[];
};

const PAUSE = new Int32Array(new SharedArrayBuffer(4));
const plan = JSON.parse(process.argv[2] as string) as Plan;
const ids = readFileSync(plan.idFile, 'utf8').trim().split('\n') as TrajectoryId[];
const stdin = createInterface({ input: process.stdin });
const received: string[] = [];
stdin.on('line', (line) => received.push(line));
// Whoever started this has died.
stdin.on('close', () => process.exit(1));

let log: HotLog | undefined;
for (const step of plan.steps) {
  await carryOut(step);
  print(`done ${step.do}`);
}
process.exit(0);

function print(line: string): void {
  const bytes = Buffer.from(`${line}\n`);
  for (let written = 0; written < bytes.length; ) {
    try {
      written += writeSync(1, bytes, written);
    } catch (error) {
      // The pipe is full and does not block: the loader has made it so.
      if ((error as NodeJS.ErrnoException).code !== 'EAGAIN') throw error;
      Atomics.wait(PAUSE, 0, 0, 1);
    }
  }
}

async function carryOut(step: Step): Promise<void> {
  switch (step.do) {
    case 'open':
      log = await HotLog.open(plan.directory, step.options ?? {});
      print(`open ${log.durableLsn}`);
      return;
    case 'append':
      return appendAround(opened(), step.events ?? Number.POSITIVE_INFINITY, step.only === 'may-finish');
    case 'finish':
      return finish(opened());
    case 'ack':
      return ackAll(opened());
    case 'trim':
      await opened().trim();
      return;
    case 'close':
      await opened().close();
      log = undefined;
      return;
    case 'die':
      process.kill(process.pid, 'SIGKILL');
      return;
    case 'wait':
      while (!received.includes(step.line)) await sleep(5);
      return;
    case 'write-file':
      writeFileSync(step.path, step.text);
      return;
  }
}

function opened(): HotLog {
  if (log === undefined) throw new Error('a step needs an open log');
  return log;
}

async function appendAround(log: HotLog, events: number, onlyMayFinish: boolean): Promise<void> {
  let left = events;
  let underWay = 0;
  let answers = 0;
  let stopped = false;
  const writers = ids.map(async (id, n) => {
    if ((onlyMayFinish && !mayFinish(n)) || (await isFinished(log, n))) return;
    let s = (log.head(id)?.sequence_number ?? 0) + 1;
    while (!stopped && left > 0) {
      left -= isGrouped(n) ? GROUP : 1;
      underWay += 1;
      try {
        s += await appendOnce(log, id, n, s);
      } catch (error) {
        stopped = true;
        print(`error ${n} ${s} ${isVarveError(error) ? error.code : String(error)}`);
      } finally {
        underWay -= 1;
        answers += 1;
      }
    }
  });
  const all = Promise.all(writers);
  let seen = 0;
  for (let waitedMs = 0; waitedMs < (stopped ? 10_000 : 30_000); waitedMs += 100) {
    if ((await Promise.race([all, sleep(100, 'waiting' as const)])) !== 'waiting') return;
    if (answers !== seen) waitedMs = 0;
    seen = answers;
  }
  stopped = true;
  print(`pending ${underWay}`);
}

/** Returns how many events it appended. */
async function appendOnce(log: HotLog, id: TrajectoryId, n: number, s: number): Promise<number> {
  if (isGrouped(n)) {
    const events = Array.from({ length: GROUP }, (_, i) => eventFor(n, s + i));
    const all = await log.appendAll(id, events);
    for (const appended of all) printAck(n, appended);
    return all.length;
  }
  // Half of them name their number, as a retry would.
  const options = n % 2 === 0 ? {} : { at: s };
  printAck(n, await log.append(id, eventFor(n, s), options));
  return 1;
}

function printAck(n: number, { sequence_number, lsn, cryptographic_hash }: Appended): void {
  print(`ack ${n} ${sequence_number} ${lsn} ${cryptographic_hash}`);
}

async function finish(log: HotLog): Promise<void> {
  const finishing = ids.map(async (id, n) => {
    if (!mayFinish(n) || log.head(id) === undefined || (await isFinished(log, n))) return;
    printAck(n, await log.append(id, FINISH satisfies WorkloadEvent));
  });
  await Promise.all(finishing);
}

async function isFinished(log: HotLog, n: number): Promise<boolean> {
  const id = ids[n] as TrajectoryId;
  const head = log.head(id);
  if (!mayFinish(n) || head === undefined) return false;
  try {
    for await (const event of log.read(id, head.sequence_number)) return event.event_type === FINISH.event_type;
  } catch (error) {
    // Here only what is finished is ever trimmed.
    if (isVarveError(error, 'HOT_TRIMMED')) return true;
    throw error;
  }
  return false;
}

async function ackAll(log: HotLog): Promise<void> {
  const reader = await TailReader.connect(plan.directory);
  const end = Number(log.durableLsn);
  let acked: Promise<void> | undefined;
  // The answer to an ack comes between records: reading goes on until it is there.
  for await (const { cursor } of reader) {
    if (cursor.lsn < end || acked !== undefined) continue;
    acked = reader.ack({ log_id: reader.log_id, epoch: reader.epoch, cursor, held: [] }).then(() => reader.close());
  }
  await acked;
  // The writer saves it a moment later.
  await sleep(300);
}
