/**
 * `varve start`: the product at work, as far as it reaches.
 *
 * A worker process runs a fleet of scripted agents on a hot log while a reader follows its tail. The worker is killed
 * in the middle. The log is opened again: everything that was acknowledged is there, and of every action it is known
 * whether it was not sent, is settled, or is in doubt; what is in doubt is settled with its idempotency key. A second
 * worker then finishes its own fleet, and everything is verified against a ledger that the effects left outside. A
 * sidecar carries it all to PostgreSQL, and compaction from there to the cold tier.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileSystemOf } from '../hot/disk.ts';
import { makeFolder } from '../hot/files.ts';
import { HotLog } from '../hot/log.ts';
import type { StoredEvent } from '../hot/record.ts';
import type { Cursor } from '../hot/tail-protocol.ts';
import { TailReader } from '../hot/tail-reader.ts';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { MIB } from '../schemas/limits.ts';
import { startCold } from './start-cold.ts';
import { startWarm } from './start-warm.ts';
import { type Fleet, LEDGER } from './start-worker.ts';

export type StartOptions = Fleet & { readonly dir: string };

/** What the settings say without being told. */
export const DEFAULT_DIR = '.varve';
const KILL_AFTER_EVENTS = 2500;
const CONNECT_TRIES = 400;

export async function start(options: StartOptions, signal: AbortSignal): Promise<void> {
  const dir = resolve(options.dir);
  const hot = join(dir, 'hot');
  await makeFolder(dir);
  const { type, warning } = await fileSystemOf(dir);
  say(`varve: hot log in ${hot} (${type})`);
  if (warning !== undefined) say(`  warning: ${warning}`);

  const before = await tipOf(hot);
  say(`\n1. ${options.agents} agents write ${options.turns} turns each; a reader follows; then kill -9`);
  const killed = await follow(dir, options, signal, before, KILL_AFTER_EVENTS);
  say(`   killed after the reader had ${killed.events} events, all of them durable`);

  say('\n2. The log is opened again and settles what is in doubt');
  const inDoubt = await recover(hot, dir);
  say(`   ${inDoubt.length} actions in doubt, settled by their idempotency keys; no effect repeated`);

  say('\n3. A second worker finishes its fleet');
  const second = await follow(dir, options, signal, await tipOf(hot), Number.POSITIVE_INFINITY);
  const rate = Math.round(second.events / (second.ms / 1000));
  say(`   ${second.events} events followed, ${rate} a second end to end, every one behind an fdatasync`);

  say('\n4. Every hash, link, blob and effect is verified');
  await report(hot, dir);

  say('\n5. A sidecar carries it to PostgreSQL, an embedded one, which verifies every chain by itself');
  const warm = await startWarm(dir, signal);
  const warmRate = Math.round(warm.events / (warm.ms / 1000));
  say(`   ${warm.trajectories} trajectories, ${warm.events} events, ${warmRate} a second if all were new`);
  say(
    `   ${warm.broken} broken links; ${warm.in_doubt} actions in doubt; ${(warm.bytes / MIB).toFixed(1)} MiB of database`,
  );

  say('\n6. What is finished moves to the cold tier: Parquet, read back and compared before it counts');
  const cold = await startCold(dir, signal);
  say(cold.text.replaceAll(/^/gm, '   ').trimEnd());
  sayNext(options.dir);
}

function sayNext(dir: string): void {
  const elsewhere = `VARVE_HOT_LOGS=${dir}/hot VARVE_WARM_DIRECTORY=${dir}/warm VARVE_COLD_STORE=file:${dir}/cold`;
  if (dir === DEFAULT_DIR) say(`\nIt stays in ${dir}. Next:`);
  else say(`\nIt stays in ${dir}. Next, with ${elsewhere}:`);
  say('   npm run varve -- status            the fleet, and what needs a person');
  say('   npm run varve -- runs              what compaction did');
  say('   npm run varve -- query "SELECT event_type, count(*) FROM events GROUP BY 1"');
  say('   npm run varve -- bench disk        what a barrier costs here');
  say('   npm run bench                      varve beside its peers');
  say(`   rm -r ${dir}                       start over`);
}

type Followed = { readonly events: number; readonly ms: number };

/** Runs a worker and follows its tail until it ends, or until it was killed. */
async function follow(
  dir: string,
  fleet: Fleet,
  signal: AbortSignal,
  cursor: Cursor,
  killAfter: number,
): Promise<Followed> {
  const hot = join(dir, 'hot');
  const worker = spawnWorker(dir, fleet);
  const ended = new Promise<void>((done) => worker.once('exit', () => done()));
  try {
    const reader = await connect(hot, worker, signal, cursor);
    const started = performance.now();
    let events = 0;
    try {
      for await (const { records } of reader) {
        events += records.length;
        if (events >= killAfter || signal.aborted) worker.kill('SIGKILL');
      }
    } catch (error) {
      // The tail ends with its writer, whichever way that goes.
      if (!isVarveError(error, 'TAIL_LOST')) throw error;
    }
    await ended;
    signal.throwIfAborted();
    const isKilled = worker.signalCode === 'SIGKILL' && killAfter < Number.POSITIVE_INFINITY;
    if (!isKilled && worker.exitCode !== 0) throw new VarveError('HOT_FAILED', 'the worker ended with an error', {});
    return { events, ms: performance.now() - started };
  } finally {
    worker.kill('SIGKILL');
  }
}

/** End of the log, which an earlier run may have left. */
async function tipOf(hot: string): Promise<Cursor> {
  await using log = await HotLog.open(hot);
  const { lsn, hash } = log.cursorSource.durable();
  return { lsn, hash };
}

async function connect(hot: string, worker: ChildProcess, signal: AbortSignal, cursor: Cursor): Promise<TailReader> {
  for (let tries = 0; tries < CONNECT_TRIES; tries++) {
    signal.throwIfAborted();
    if (worker.exitCode !== null) break;
    try {
      return await TailReader.connect(hot, { cursor });
    } catch (error) {
      if (!isVarveError(error, 'TAIL_NO_WRITER')) throw error;
      await sleep(25);
    }
  }
  throw new VarveError('TAIL_NO_WRITER', 'the worker did not open its log', { dir: hot });
}

async function recover(hot: string, dir: string): Promise<StoredEvent[]> {
  await using log = await HotLog.open(hot);
  const inDoubt = await log.inDoubt();
  const effects = new Set(await readLedger(dir));
  for (const { trajectory_id, turn, payload } of inDoubt) {
    const { tool_call_id, idempotency_key } = payload;
    // What a tool server does with a key it has seen: it answers, and does nothing again.
    const isDone = typeof idempotency_key === 'string' && effects.has(idempotency_key);
    await log.append(trajectory_id, {
      event_type: 'ToolResult',
      turn,
      payload: {
        tool_call_id: tool_call_id ?? null,
        status: isDone ? 'ok' : 'interrupted',
        output: isDone ? 'done before the crash' : 'never arrived',
        settled_by: 'idempotency_key',
      },
    });
  }
  return inDoubt;
}

async function report(hot: string, dir: string): Promise<void> {
  await using log = await HotLog.open(hot);
  const opened = performance.now();
  const { events, trajectories, tip, damage, blobs, bad_blobs } = await log.verify({ deep: true });
  const ms = performance.now() - opened;
  if (damage !== undefined || bad_blobs.length > 0) {
    throw new VarveError('HOT_DAMAGED', `verification failed: ${damage?.reason ?? `blob ${bad_blobs[0]}`}`, {});
  }
  const effects = await readLedger(dir);
  const repeated = effects.length - new Set(effects).size;
  const open = (await log.inDoubt()).length;
  say(`   ${trajectories} trajectories, ${events} events, ${blobs} blobs: whole (${Math.round(ms)} ms)`);
  say(`   ${effects.length} effects in the outside ledger, ${repeated} repeated; ${open} actions in doubt`);
  say(`   ${(tip.bytes / MIB).toFixed(1)} MiB of records, ${Math.round(tip.bytes / tip.lsn)} bytes an event`);
}

async function readLedger(dir: string): Promise<string[]> {
  const text = await readFile(join(dir, LEDGER), 'utf8');
  return text.split('\n').filter((line) => line !== '');
}

function spawnWorker(dir: string, { agents, turns }: Fleet): ChildProcess {
  const main = process.argv[1] as string;
  const args = [...process.execArgv, main, 'start-worker', dir, '--agents', String(agents), '--turns', String(turns)];
  return spawn(process.execPath, args, { stdio: ['ignore', 'inherit', 'inherit'] });
}

function say(line: string): void {
  process.stdout.write(`${line}\n`);
}
