/**
 * The trajectory record R as the fold of its log: R = apply(… apply(R0, e1) …, et).
 *
 * Pure and total: no I/O, the same record for the same events, and never an error, whatever legal events come in whatever
 * order (imports and recovery need that; the order of the chapter is the Trajectory API's affair). R is plain JSON, so
 * that it can be a record snapshot.
 *
 * A `RolledBack` restores plan, versions, checkpoint and what the context shows as they were at its target. Counts,
 * tokens, budgets, intents and results stay: they happened. R holds a journal of what it may have to restore, the last
 * RECORD_JOURNAL_MAX changes; a rollback past it restores the oldest known values and sets `approximate`.
 */
import { type Call, isOpenIntent, isPendingApproval, stepCalls } from './calls.ts';
import type { Json, JsonObject } from './canonical.ts';
import { nextEntries } from './context.ts';
import type { ContextEntry } from './fields.ts';
import { CONTEXT_BASE_EVERY, RECORD_JOURNAL_MAX } from './limits.ts';
import { clip, compact, NOTHING_SHOWN, type Shown, showEvent } from './ranges.ts';
import { countOf, objectOf, objectsOf, stringOf } from './reading.ts';
import {
  addCounts,
  addTokens,
  type Counts,
  type Finished,
  type FoldedEvent,
  type Halt,
  NO_COUNTS,
  NO_TOKENS,
  nextFinished,
  nextHalted,
  rollbackTarget,
  type Status,
  statusOf,
  type Tokens,
} from './tally.ts';
import { crossedVersions, NO_VERSIONS, type Place, startedVersions, type Versions } from './versions.ts';

export type CheckpointMark = {
  readonly sequence_number: number;
  readonly covers_sequence_number: number;
  readonly record_snapshot_id: string | null;
  readonly workspace_snapshot_id: string | null;
};

/** The last ContextBuilt that the next one may build upon. */
export type ContextMark = {
  readonly sequence_number: number;
  readonly depth: number;
  readonly context_hash: string | null;
};

type Restorable = {
  readonly plan: Json;
  readonly versions: Versions;
  readonly shown: Shown;
  readonly checkpoint: CheckpointMark | null;
};

/** What an event replaced, by its sequence number. */
export type JournalEntry = { readonly sequence_number: number; readonly before: Partial<Restorable> };

export type TrajectoryRecord = Restorable & {
  /** Of the last event folded; 0: none. */
  readonly sequence_number: number;
  readonly turn: number;
  readonly status: Status;
  readonly finished: Finished | null;
  readonly halted: Halt | null;
  /** What is left, by name of the budget. */
  readonly budgets: readonly { readonly name: string; readonly remaining: number }[];
  /** Open calls, and the settled ones of the latest reply; see `schemas/calls.ts`. */
  readonly calls: readonly Call[];
  /** Results for calls that were not open: second ones, or without an intent. */
  readonly unmatched_results: number;
  readonly context: ContextMark | null;
  readonly counts: Counts;
  readonly tokens: Tokens;
  readonly takeover: 'none' | 'replicated';
  readonly journal: readonly JournalEntry[];
  /** A rollback to this event or a later one is exact. */
  readonly journal_from: number;
  readonly approximate: boolean;
};

/** R0. */
export const INITIAL_RECORD: TrajectoryRecord = {
  sequence_number: 0,
  turn: 0,
  status: 'running',
  finished: null,
  halted: null,
  plan: null,
  budgets: [],
  calls: [],
  unmatched_results: 0,
  shown: NOTHING_SHOWN,
  context: null,
  versions: NO_VERSIONS,
  checkpoint: null,
  counts: NO_COUNTS,
  tokens: NO_TOKENS,
  takeover: 'none',
  journal: [],
  journal_from: 0,
  approximate: false,
};

/**
 * R0 of a trajectory that goes on after `parent`, folded up to the event of the fork. It inherits plan, budgets, versions
 * and what the context shows; calls, checkpoints, counts and tokens are the parent's own.
 */
export function childRecord(parent: TrajectoryRecord, trajectory_id: string): TrajectoryRecord {
  const { versions } = parent;
  const inherited = (place: Place | null) => (place === null ? null : { trajectory_id, ...place });
  return {
    ...INITIAL_RECORD,
    turn: parent.turn,
    plan: parent.plan,
    budgets: parent.budgets,
    versions: {
      ...versions,
      system_prompt: inherited(versions.system_prompt),
      prompt_template: inherited(versions.prompt_template),
      tools: inherited(versions.tools),
    },
    shown: { ...NOTHING_SHOWN, ranges: parent.shown.ranges.map((range) => ({ trajectory_id, ...range })) },
  };
}

export function fold(initial: TrajectoryRecord, events: Iterable<FoldedEvent>): TrajectoryRecord {
  let record = initial;
  for (const event of events) record = apply(record, event);
  return record;
}

/** R after one more event, which must be the next one of its trajectory. */
export function apply(record: TrajectoryRecord, event: FoldedEvent): TrajectoryRecord {
  const { calls, unmatched } = stepCalls(record.calls, event);
  const finished = nextFinished(record.finished, event);
  const halted = nextHalted(record.halted, event);
  const rolledBack = event.event_type === 'RolledBack';
  const base = rolledBack ? restore(record, rollbackTarget(event)) : record;
  const next = {
    ...base,
    sequence_number: event.sequence_number,
    turn: event.turn,
    status: statusOf(finished, halted, calls.some(isPendingApproval), calls.some(isOpenIntent)),
    finished,
    halted,
    calls,
    unmatched_results: record.unmatched_results + (unmatched ? 1 : 0),
    budgets: nextBudgets(record.budgets, event),
    counts: addCounts(record.counts, record.turn, event),
    tokens: addTokens(record.tokens, event),
    ...lastsOf(base, event),
  };
  return rolledBack ? next : journaled(next, event, changesOf(record, calls, event));
}

/** What a rollback does not restore: the last context is built upon only while all that it showed is still shown. */
function lastsOf(record: TrajectoryRecord, event: FoldedEvent): Pick<TrajectoryRecord, 'context' | 'takeover'> {
  const { context, takeover } = record;
  switch (event.event_type) {
    case 'TaskStarted':
      return { context, takeover: event.payload['takeover'] === 'replicated' ? 'replicated' : 'none' };
    case 'ContextBuilt':
      return { context: contextMark(context, event), takeover };
    case 'Compacted':
    case 'RolledBack':
      return { context: null, takeover };
    default:
      return { context, takeover };
  }
}

function contextMark(last: ContextMark | null, event: FoldedEvent): ContextMark {
  const base = countOf(objectsOf(event.payload['messages'])[0]?.['base']);
  // Upon another than the last one the depth is not known: the next context must be whole.
  const above = last !== null && last.sequence_number === base ? last.depth + 1 : CONTEXT_BASE_EVERY;
  const context_hash = stringOf(event.payload['context_hash']) ?? null;
  return { sequence_number: event.sequence_number, depth: base === undefined ? 0 : above, context_hash };
}

/** The restorable fields that the event changes. Given `calls` are those after it. */
function changesOf(record: TrajectoryRecord, calls: readonly Call[], event: FoldedEvent): Partial<Restorable> {
  const { payload, sequence_number } = event;
  switch (event.event_type) {
    case 'TaskStarted':
      return { ...planOf(payload), versions: startedVersions(record.versions, event) };
    case 'Noted':
      return planOf(payload);
    case 'DriftCrossed':
      return { versions: crossedVersions(record.versions, event) };
    case 'ModelReplied': {
      const served = stringOf(payload['served_model_version']) ?? null;
      const shown = showEvent(record.shown, sequence_number, false);
      if (served === null || served === record.versions.served_model_version) return { shown };
      return { shown, versions: { ...record.versions, served_model_version: served } };
    }
    case 'MessageAdded':
      return { shown: showEvent(record.shown, sequence_number, payload['role'] === 'user') };
    case 'ToolResult':
      return { shown: showEvent(record.shown, sequence_number, false) };
    case 'Compacted':
      return { shown: compacted(record.shown, calls, event) };
    case 'Checkpoint':
      return { checkpoint: checkpointMark(event) };
    default:
      return {};
  }
}

/**
 * Writes the changes, and into the journal what they replaced. Messages that only came after the others are not journaled:
 * clipping takes them back.
 */
function journaled(record: TrajectoryRecord, event: FoldedEvent, changes: Partial<Restorable>): TrajectoryRecord {
  const { shown, ...rest } = changes;
  const before: Record<string, unknown> = {};
  for (const field of Object.keys(rest) as (keyof typeof rest)[]) before[field] = record[field];
  const appended =
    shown === undefined || (event.event_type !== 'Compacted' && shown.latest_user === record.shown.latest_user);
  if (!appended) before['shown'] = record.shown;
  if (Object.keys(before).length === 0) return { ...record, ...changes };
  const entry: JournalEntry = { sequence_number: event.sequence_number, before };
  const journal = [...record.journal, entry].slice(-RECORD_JOURNAL_MAX);
  const full = record.journal.length === RECORD_JOURNAL_MAX;
  const journal_from = full ? (record.journal[0]?.sequence_number ?? 0) : record.journal_from;
  return { ...record, ...changes, journal, journal_from };
}

/** The record's restorable fields as they were after the event `target`. */
function restore(record: TrajectoryRecord, target: number): TrajectoryRecord {
  let restored = record;
  let kept = record.journal.length;
  for (let entry = record.journal[kept - 1]; entry !== undefined && entry.sequence_number > target; ) {
    restored = { ...restored, ...entry.before };
    entry = record.journal[--kept - 1];
  }
  return {
    ...restored,
    shown: clip(restored.shown, target),
    journal: record.journal.slice(0, kept),
    approximate: record.approximate || target < record.journal_from,
  };
}

function planOf(payload: JsonObject): Partial<Restorable> {
  const plan = payload['plan'];
  return plan === undefined ? {} : { plan };
}

/** Named budgets take the new amounts; the others stay as they are. */
function nextBudgets(budgets: TrajectoryRecord['budgets'], event: FoldedEvent): TrajectoryRecord['budgets'] {
  const field =
    event.event_type === 'TaskStarted' ? 'budgets' : event.event_type === 'Authorized' ? 'budget_remaining' : undefined;
  const named = field === undefined ? undefined : objectOf(event.payload[field]);
  if (named === undefined) return budgets;
  const amounts = new Map(budgets.map(({ name, remaining }) => [name, remaining]));
  for (const [name, amount] of Object.entries(named)) {
    // Plus 0, because −0 would not survive a snapshot.
    if (typeof amount === 'number') amounts.set(name, amount + 0);
  }
  return Array.from(amounts, ([name, remaining]) => ({ name, remaining }));
}

/** A compaction never covers a call that is still open, nor what follows it (the reply and its results stay together). */
function compacted(shown: Shown, calls: readonly Call[], event: FoldedEvent): Shown {
  const { payload, sequence_number } = event;
  const open = calls.filter((call) => isOpenIntent(call) || isPendingApproval(call));
  const border = Math.min(sequence_number, ...open.map((call) => call.sequence_number)) - 1;
  const to = Math.min(countOf(payload['to_sequence_number']) ?? border, border);
  return compact(shown, sequence_number, countOf(payload['from_sequence_number']), to, 'summary' in payload);
}

function checkpointMark(event: FoldedEvent): CheckpointMark {
  const { payload, sequence_number } = event;
  return {
    sequence_number,
    covers_sequence_number: countOf(payload['covers_sequence_number']) ?? sequence_number - 1,
    record_snapshot_id: stringOf(payload['record_snapshot_id']) ?? null,
    workspace_snapshot_id: stringOf(payload['workspace_snapshot_id']) ?? null,
  };
}

export function openIntents(record: TrajectoryRecord): readonly Call[] {
  return record.calls.filter(isOpenIntent);
}

export function pendingApprovals(record: TrajectoryRecord): readonly Call[] {
  return record.calls.filter(isPendingApproval);
}

/** Entries of a ContextBuilt that shows what the record shows; a constant number of them where only messages were added. */
export function entriesOf(record: TrajectoryRecord): ContextEntry[] {
  const last = record.context;
  const added: ContextEntry[] = [];
  for (const { from, to, trajectory_id } of record.shown.ranges) {
    const start = Math.max(from, (last?.sequence_number ?? 0) + 1);
    if (trajectory_id === undefined && start <= to) added.push({ from: start, to });
  }
  return nextEntries(last ?? undefined, added, () => record.shown.ranges);
}
