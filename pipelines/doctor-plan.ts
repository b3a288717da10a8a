/**
 * What the facts about logs, warm tier and store mean, and what to do about each. Decides; touches nothing.
 *
 *   ok         as it should be
 *   note       good to know
 *   attention  a person should look: something is held back, or stands in an unsafe place
 *   problem    something does not work
 *   damage     data that must not be trusted
 *
 * A fix is offered only where it is provable that nobody needs what goes: it was left by a process of this host that is
 * gone, and nobody holds the log.
 */
import type { WriterFile } from '../hot/holder.ts';
import { MIB } from '../schemas/limits.ts';

export type Level = 'ok' | 'note' | 'attention' | 'problem' | 'damage';

export type Finding = {
  readonly level: Level;
  /** A directory, a server, a store. */
  readonly subject: string;
  readonly what: string;
  /** Commands or steps, in order. */
  readonly next?: readonly string[];
  /** A file to be removed by `--fix`. */
  readonly remove?: string;
};

export type HotFacts = {
  readonly directory: string;
  readonly host: string;
  readonly log_id: string | undefined;
  /** Why `log.json` says nothing. */
  readonly unreadable: string | undefined;
  /** Is it still being made? */
  readonly creating: boolean;
  readonly holder: { readonly pid: number; readonly role: string; readonly answers: boolean } | undefined;
  readonly writer: WriterFile | undefined;
  readonly socket: string | undefined;
  readonly temporaries: readonly {
    readonly path: string;
    readonly pid: number;
    readonly isAlive: boolean;
    readonly ageMs: number;
  }[];
  readonly mode: number;
  readonly hasBallast: boolean;
  readonly fileSystem: { readonly type: string; readonly warning?: string };
  readonly freeBytes: number;
  readonly totalBytes: number;
  /** undefined: not looked at, because somebody holds the log. */
  readonly check:
    | { readonly tip: number; readonly trajectories: number }
    | { readonly lsn: number; readonly reason: string }
    | undefined;
  /** Where its evidence was copied. */
  readonly copied: string | undefined;
};

/** A file that is being written is renamed at once; one this old was left. */
const LEFT_AFTER_MS = 60_000;
/** As hot/budget.ts: below it new work is refused. */
const FREE_BYTES_MIN = 64 * MIB;

export function judgeHot(facts: HotFacts): Finding[] {
  const { directory: subject, unreadable, creating, holder, check } = facts;
  if (unreadable !== undefined)
    return [
      {
        level: 'damage',
        subject,
        what: unreadable,
        next: ['restore log.json from a copy, or take the log over from its directory as a whole'],
      },
    ];
  const findings: Finding[] = [];
  if (creating)
    findings.push({
      level: 'note',
      subject,
      what: 'it is being made, or its making was cut off; the next open begins it anew',
    });
  if (holder !== undefined) {
    const silent = holder.answers ? '' : ', and does not answer on its socket: it is stopped, busy, or serves no tail';
    const what = `process ${holder.pid} has it open (${holder.role})${silent}`;
    findings.push({ level: holder.answers ? 'ok' : 'attention', subject, what });
  }
  if (check !== undefined && 'reason' in check) findings.push(damaged(facts, check));
  else if (check !== undefined) {
    const what = `whole as far back as a crash could have touched it: up to LSN ${check.tip}, ${check.trajectories} trajectories; varve verify reads all of it`;
    findings.push({ level: 'ok', subject, what });
  }
  return [...findings, ...leftovers(facts), ...surroundings(facts)];
}

function damaged(facts: HotFacts, { lsn, reason }: { lsn: number; reason: string }): Finding {
  const { directory, copied } = facts;
  const next = [
    ...(copied === undefined
      ? [`varve doctor --hot ${directory} --copy /somewhere/else      # first of all: the evidence`]
      : []),
    `varve sidecar --once ${directory}      # take over into warm what is whole before the damage`,
    `mv ${directory} ${directory}.damaged      # then the worker may begin a new log in its place`,
  ];
  const what = `DAMAGED at LSN ${lsn}: ${reason}${copied === undefined ? '' : `; copied to ${copied}`}`;
  return { level: 'damage', subject: directory, what, next };
}

/** What processes that are gone left behind. */
function leftovers(facts: HotFacts): Finding[] {
  const { directory: subject, holder, writer, socket, temporaries, host } = facts;
  if (holder !== undefined) return [];
  const findings: Finding[] = [];
  const isOurs = writer === undefined || writer.host === host;
  if (writer !== undefined && !isOurs) {
    const what = `writer.json names process ${writer.pid} on host ${writer.host}; whether that is alive cannot be told from here`;
    findings.push({
      level: 'attention',
      subject,
      what,
      next: [`varve doctor --hot ${subject}      # on ${writer.host}`],
    });
  }
  if (!isOurs) return findings;
  if (writer !== undefined) {
    const what = `writer.json names process ${writer.pid}, which is gone`;
    findings.push({ level: 'note', subject, what, remove: `${subject}/writer.json` });
  }
  if (socket !== undefined) {
    findings.push({ level: 'note', subject, what: `nobody answers at ${socket}`, remove: socket });
  }
  for (const { path, pid, isAlive, ageMs } of temporaries) {
    if (isAlive || ageMs < LEFT_AFTER_MS) continue;
    findings.push({ level: 'note', subject, what: `${path} was left by process ${pid}, which is gone`, remove: path });
  }
  return findings;
}

function surroundings(facts: HotFacts): Finding[] {
  const { directory: subject, mode, hasBallast, fileSystem, freeBytes, totalBytes } = facts;
  const findings: Finding[] = [];
  if ((mode & 0o077) !== 0) {
    const what = `others can read it (mode ${(mode & 0o777).toString(8)}); it holds everything that agents said and saw`;
    findings.push({ level: 'attention', subject, what, next: [`chmod 700 ${subject}`] });
  }
  if (fileSystem.warning !== undefined) {
    findings.push({ level: 'attention', subject, what: `it lies on ${fileSystem.type}: ${fileSystem.warning}` });
  }
  if (freeBytes < Math.min(FREE_BYTES_MIN, totalBytes / 20)) {
    const what = `${Math.round(freeBytes / MIB)} MiB are free: new trajectories and intents are refused`;
    findings.push({
      level: 'problem',
      subject,
      what,
      next: ['free space on its disk, or let the log trim what was replicated'],
    });
  }
  if (!hasBallast) {
    findings.push({
      level: 'note',
      subject,
      what: 'it has no ballast file: given up for a full disk, or not laid yet',
    });
  }
  return findings;
}

export type WarmFacts = {
  readonly server: string;
  /** Why it cannot be asked. */
  readonly unreachable: string | undefined;
  /** Our own, and nobody has started it: that is no fault. */
  readonly notStarted: boolean;
  readonly pending: readonly string[];
  readonly unknown: readonly string[];
  /** undefined: the tables are not there yet. */
  readonly state: WarmState | undefined;
};

export type WarmState = {
  readonly days_ahead: number;
  readonly clock_skew_ms: number;
  readonly held: readonly { readonly reason: string; readonly events: number; readonly trajectories: number }[];
  readonly blocks: number;
  readonly missing: readonly { readonly log_id: string; readonly from_lsn: number; readonly to_lsn: number }[];
  readonly behind: readonly { readonly directory: string; readonly host: string; readonly records: number }[];
};

const DAYS_AHEAD_MIN = 2;
const SKEW_MS_MAX = 5000;

export function judgeWarm(facts: WarmFacts): Finding[] {
  const { server: subject, unreachable, notStarted, pending, unknown, state } = facts;
  if (notStarted)
    return [{ level: 'note', subject, what: 'the embedded server is not running; whoever needs it starts it' }];
  if (unreachable !== undefined) {
    return [{ level: 'problem', subject, what: unreachable, next: ['varve config      # which database is meant'] }];
  }
  const findings: Finding[] = [];
  if (pending.length > 0) {
    findings.push({ level: 'problem', subject, what: `it lacks ${pending.join(', ')}`, next: ['varve migrate'] });
  }
  if (unknown.length > 0) {
    findings.push({
      level: 'note',
      subject,
      what: `a newer varve has added ${unknown.join(', ')}; they may be used together`,
    });
  }
  if (state === undefined) return findings;
  return [...findings, ...partitionsOf(subject, state), ...heldOf(subject, state)];
}

function partitionsOf(subject: string, { days_ahead, clock_skew_ms }: WarmState): Finding[] {
  const findings: Finding[] = [];
  if (days_ahead < DAYS_AHEAD_MIN) {
    const what = `partitions are there for ${days_ahead} days ahead; a running sidecar makes them`;
    findings.push({
      level: 'problem',
      subject,
      what,
      next: ['varve sidecar      # or look why the one that runs does not'],
    });
  } else {
    findings.push({
      level: 'ok',
      subject,
      what: `it answers, is migrated, and has partitions for ${days_ahead} days ahead`,
    });
  }
  if (Math.abs(clock_skew_ms) > SKEW_MS_MAX) {
    const what = `its clock and this host's are ${Math.round(clock_skew_ms / 1000)} s apart: leases and partitions go by its clock`;
    findings.push({ level: 'attention', subject, what, next: ['synchronise both clocks (chrony, systemd-timesyncd)'] });
  }
  return findings;
}

function heldOf(subject: string, { held, blocks, missing, behind }: WarmState): Finding[] {
  const findings: Finding[] = held.map(({ reason, events, trajectories }) => ({
    level: reason === 'waiting' ? 'note' : 'attention',
    subject,
    what: `${events} events of ${trajectories} trajectories are held back: ${reason}`,
    next: [`varve quarantine list --reason ${reason}`],
  }));
  if (blocks > 0)
    findings.push({ level: 'note', subject, what: `${blocks} blocks keep what logs send for a trajectory out` });
  for (const { log_id, from_lsn, to_lsn } of missing) {
    const what = `records ${from_lsn} to ${to_lsn} of log ${log_id} were trimmed there and are not here: the database went back`;
    findings.push({ level: 'attention', subject, what, next: ['restore them from cold, or from a newer backup'] });
  }
  for (const { directory, host, records } of behind) {
    findings.push({ level: 'note', subject, what: `${directory} on ${host} is ${records} records ahead of warm` });
  }
  return findings;
}

const RANK: Readonly<Record<Level, number>> = { ok: 0, note: 0, attention: 3, problem: 4, damage: 5 };

/** Exit code of the worst of them. */
export function exitCodeOf(findings: readonly Finding[]): number {
  return Math.max(0, ...findings.map(({ level }) => RANK[level]));
}
