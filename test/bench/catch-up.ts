/**
 * A backlog: a sidecar, compiled and in a process of its own, takes over a log whose worker is gone, beside the bare
 * ingest statement fed from memory. Both work on one server, into databases of their own, in turns of some seconds: the
 * sidecar is stopped meanwhile (SIGSTOP), so that what the machine and the server do meets both. Then it runs to the
 * end of the log by itself, and what it held in memory at most is read.
 */
import * as path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { WarmPool } from '../../warm/pool.ts';
import type { SidecarProcess } from '../support/sidecar-process.ts';
import type { BareIngestArgument, BareIngestResult } from './children/bare-ingest.ts';
import type { FillTurnsArgument } from './children/fill-turns.ts';
import { childResult, startChild } from './support/child-result.ts';
import type { Measurement, Plan } from './support/measurement.ts';
import { cpuUsOf, cpuUsOfFamily, peakMemoryMb } from './support/processes.ts';
import type { Check, Report, Table } from './support/report.ts';
import { inTurns } from './support/rounds.ts';
import { ratios, type Series } from './support/statistics.ts';
import { replicatedLsn, untilReplicated, WarmPlace } from './support/warm.ts';
import { remove } from './support/workspace.ts';

/** Trajectories side by side, hence also how many of them are in a batch at most. */
const CASES = [64, 200, 500] as const;
/** The case whose whole log has a million events; the others end with their turns. */
const WHOLE = 200;
const EVENTS = 1_000_000;
const EVENTS_QUICK = 100_000;
/** What the turns of a case take at most, so that the log does not end before them. */
const EVENTS_PER_SECOND_MAX = 20_000;
const TURN_MS = 3000;
const TURN_QUICK_MS = 1500;
const SMALLEST = 300;
const LARGEST = 3000;
/** Of the bare statement, as it was measured. */
const BATCH_EVENTS = 500;
/** What a stopped sidecar had sent is finished by then. */
const SETTLE_MS = 150;

export const catchUp: Measurement = { name: 'catch-up', title: 'Sidecar: catching up, beside the bare statement', run };

/** What one contender did in one turn. */
type Turn = { readonly eventsPerSecond: number; readonly cpuUs: number; readonly serverCpuUs: number };
type Measured = { readonly concurrent: number; readonly sidecar: Turn[]; readonly bare: Turn[]; readonly end: End };
type End = { readonly events: number; readonly eventsPerSecond: number; readonly peakMb: number };

async function run(plan: Plan): Promise<Report> {
  await using place = await WarmPlace.start(plan.dir);
  const measured: Measured[] = [];
  for (const concurrent of CASES) measured.push(await measure(place, concurrent, plan));
  return { tables: measured.map((one) => tableOf(one, plan)), checks: measured.flatMap(checksOf), notes: [NOTE] };
}

const NOTE =
  `Payloads of ${SMALLEST} to ${LARGEST} bytes. CPU in µs an event; the server's is that of all its processes. The bare ` +
  'statement checks no chain and keeps no summary, and nobody has to read a log for it.';

async function measure(place: WarmPlace, concurrent: number, plan: Plan): Promise<Measured> {
  const turnMs = plan.quick ? TURN_QUICK_MS : TURN_MS;
  const least = plan.quick ? EVENTS_QUICK : EVENTS;
  const needed = Math.ceil(((plan.rounds + 2) * turnMs * EVENTS_PER_SECOND_MAX) / 1000);
  const events = concurrent === WHOLE ? Math.max(least, needed) : needed;
  const dir = path.join(plan.dir, `log-${concurrent}`);
  const payloads = { smallest: SMALLEST, largest: LARGEST, concurrent };
  plan.say(`filling a log with ${events.toLocaleString('en-US')} events, ${concurrent} trajectories side by side …`);
  await childResult<number>('fill-turns.ts', { dir, events, ...payloads } satisfies FillTurnsArgument);
  await using own = await place.database();
  await using other = await place.database({ empty: true });
  const argument: BareIngestArgument = { url: other.url, batchEvents: BATCH_EVENTS, ...payloads };
  await using bare = startChild('bare-ingest.ts', argument);
  await bare.line('"ready"');
  await using sidecar = await place.sidecar(dir, own.url);
  sidecar.child.kill('SIGSTOP');
  await sleep(SETTLE_MS);
  plan.say('in turns …');
  const turns: Record<Contender, Turn[]> = { sidecar: [], bare: [] };
  await inTurns(['sidecar', 'bare'] as const, plan.rounds, async (one, counts) => {
    const before = cpuUsOfFamily(place.server.pid);
    const turn = one === 'sidecar' ? await sidecarTurn(sidecar, own, turnMs) : await bareTurn(bare, turnMs);
    const events = (turn.eventsPerSecond * turnMs) / 1000;
    const serverCpuUs = (cpuUsOfFamily(place.server.pid) - before) / events;
    if (counts) turns[one].push({ ...turn, serverCpuUs });
  });
  const end = await toTheEnd(sidecar, own, concurrent === WHOLE ? events : 0);
  await sidecar.stop('SIGKILL');
  remove(dir);
  return { concurrent, ...turns, end };
}

type Contender = 'sidecar' | 'bare';

async function sidecarTurn({ child }: SidecarProcess, pool: WarmPool, turnMs: number) {
  const from = await replicatedLsn(pool);
  const cpu = cpuUsOf(child.pid);
  const start = performance.now();
  child.kill('SIGCONT');
  await sleep(turnMs);
  child.kill('SIGSTOP');
  const seconds = (performance.now() - start) / 1000;
  const events = (await replicatedLsn(pool)) - from;
  await sleep(SETTLE_MS);
  return { eventsPerSecond: events / seconds, cpuUs: (cpuUsOf(child.pid) - cpu) / events };
}

async function bareTurn(bare: ReturnType<typeof startChild>, turnMs: number) {
  const from = bare.lines.length;
  bare.send(String(turnMs));
  const { events, seconds, cpuUs } = JSON.parse(await bare.line('{', 60_000, from)) as BareIngestResult;
  return { eventsPerSecond: events / seconds, cpuUs: cpuUs / events };
}

/** By itself, up to this LSN. */
async function toTheEnd({ child }: SidecarProcess, pool: WarmPool, lsn: number): Promise<End> {
  const from = await replicatedLsn(pool);
  const start = performance.now();
  child.kill('SIGCONT');
  await untilReplicated(pool, lsn);
  const seconds = (performance.now() - start) / 1000;
  const events = Math.max(0, lsn - from);
  return { events, eventsPerSecond: events / seconds, peakMb: peakMemoryMb(child.pid) };
}

function rates(turns: readonly Turn[]): Series {
  return turns.map(({ eventsPerSecond }) => eventsPerSecond);
}

function tableOf({ concurrent, sidecar, bare, end }: Measured, plan: Plan): Table {
  const row = (label: string, turns: readonly Turn[]) => ({
    label,
    cells: [
      rates(turns),
      ratios(rates(turns), rates(bare)),
      turns.map(({ cpuUs }) => cpuUs),
      turns.map(({ serverCpuUs }) => serverCpuUs),
    ],
  });
  const alone = { label: `sidecar, ${end.events} events by itself`, cells: [[end.eventsPerSecond]] };
  return {
    title: `${concurrent} trajectories side by side, ${plan.rounds} rounds`,
    columns: ['events/s', '/ bare', 'own CPU', 'server CPU'],
    rows: [row('sidecar', sidecar), row('bare statement', bare), ...(end.events === 0 ? [] : [alone])],
  };
}

function checksOf({ concurrent, sidecar, bare, end }: Measured): Check[] {
  return [
    {
      what: `events/s / bare statement, ${concurrent} trajectories side by side`,
      unit: '×',
      series: ratios(rates(sidecar), rates(bare)),
      bar: { kind: 'at least', limit: 0.8 },
    },
    {
      what: `peak memory of the sidecar, ${concurrent} trajectories`,
      unit: 'MB',
      series: [end.peakMb],
      bar: { kind: 'at most', limit: 250 },
    },
  ];
}
