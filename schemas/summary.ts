/**
 * The bounded summary of a trajectory that warm keeps in its row: what the fleet asks for without reading events.
 *
 * Advanced event by event, in order: stepping over a log in pieces gives what stepping over it at once gives. Status,
 * counts and tokens are those of the fold. It has a constant size: at most SUMMARY_OPEN_CALLS_MAX open calls by name,
 * then two numbers, which are exact as long as every request, intent and result beyond the named ones comes once.
 */
import type { Json } from './canonical.ts';
import { SUMMARY_OPEN_CALLS_MAX } from './limits.ts';
import { countOf, objectOf, stringOf } from './reading.ts';
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

export type OpenCall = {
  readonly tool_call_id: string;
  readonly tool_name: string | null;
  /** Sequence number of the request that no person has answered. */
  readonly approval_requested_at: number | null;
  /** Sequence number of the first intent without a result. */
  readonly intent_at: number | null;
};

export type Summary = {
  /** Of the last event; 0: none. */
  readonly sequence_number: number;
  readonly turn: number;
  readonly status: Status;
  readonly finished: Finished | null;
  readonly halted: Halt | null;
  readonly open_calls: readonly OpenCall[];
  readonly more_approvals: number;
  readonly more_intents: number;
  readonly counts: Counts;
  readonly tokens: Tokens;
  readonly started_at: string | null;
  readonly last_at: string | null;
  readonly task_started: boolean;
  readonly tenant: string;
  readonly agent: string | null;
  readonly model: string | null;
  /** As the cold tier partitions by it: served in the first reply, else the one that the start named. */
  readonly model_version: string | null;
  readonly served: boolean;
  readonly imported: boolean;
  readonly takeover: 'none' | 'replicated';
  readonly parent: { readonly trajectory_id: string; readonly sequence_number: number } | null;
  /** Null also after a rollback to before it, until the next one. */
  readonly checkpoint_at: number | null;
  readonly reward: number | null;
};

export const INITIAL_SUMMARY: Summary = {
  sequence_number: 0,
  turn: 0,
  status: 'running',
  finished: null,
  halted: null,
  open_calls: [],
  more_approvals: 0,
  more_intents: 0,
  counts: NO_COUNTS,
  tokens: NO_TOKENS,
  started_at: null,
  last_at: null,
  task_started: false,
  tenant: 'default',
  agent: null,
  model: null,
  model_version: null,
  served: false,
  imported: false,
  takeover: 'none',
  parent: null,
  checkpoint_at: null,
  reward: null,
};

/**
 * The summary after these events, which must be the next ones of the trajectory. A payload is looked at only where its
 * kind has a say in the summary: it may be one that is parsed when it is asked for.
 */
export function step(summary: Summary, events: Iterable<FoldedEvent>): Summary {
  let next = summary;
  for (const event of events) next = stepOne(next, event);
  return next;
}

function stepOne(summary: Summary, event: FoldedEvent): Summary {
  const open = nextOpen(summary, event);
  const finished = nextFinished(summary.finished, event);
  const halted = nextHalted(summary.halted, event);
  const approvals = open.more_approvals > 0 || open.open_calls.some((call) => call.approval_requested_at !== null);
  const intents = open.more_intents > 0 || open.open_calls.some((call) => call.intent_at !== null);
  return {
    ...summary,
    open_calls: open.open_calls,
    more_approvals: open.more_approvals,
    more_intents: open.more_intents,
    ...nextFacts(summary, event, finished),
    sequence_number: event.sequence_number,
    turn: event.turn,
    status: statusOf(finished, halted, approvals, intents),
    finished,
    halted,
    counts: addCounts(summary.counts, summary.turn, event),
    tokens: addTokens(summary.tokens, event),
    started_at: summary.started_at ?? event.created_at,
    last_at: event.created_at,
  };
}

type Open = Pick<Summary, 'open_calls' | 'more_approvals' | 'more_intents'>;

function nextOpen(summary: Open, event: FoldedEvent): Open {
  if (event.event_type === 'RolledBack') return withdrawn(summary, rollbackTarget(event));
  const change = changeOf(event);
  const id = change === undefined ? undefined : stringOf(event.payload['tool_call_id']);
  if (id === undefined || change === undefined) return summary;
  const { open_calls } = summary;
  const at = open_calls.findIndex((call) => call.tool_call_id === id);
  const known = open_calls[at] ?? { tool_call_id: id, tool_name: null, approval_requested_at: null, intent_at: null };
  const next = change.of(known);
  const isOpen = next.approval_requested_at !== null || next.intent_at !== null;
  if (at !== -1) return { ...summary, open_calls: isOpen ? open_calls.with(at, next) : open_calls.toSpliced(at, 1) };
  // A result or an answer for a call that is not named closes one of the others, if there are any.
  const more = {
    open_calls,
    more_approvals: Math.max(0, summary.more_approvals + change.approvals),
    more_intents: Math.max(0, summary.more_intents + change.intents),
  };
  if (!isOpen || open_calls.length >= SUMMARY_OPEN_CALLS_MAX) return more;
  return { ...summary, open_calls: [...open_calls, next] };
}

/** What an event does to its call, and to the numbers where the call has no name. */
type Change = { readonly of: (call: OpenCall) => OpenCall; readonly approvals: number; readonly intents: number };

function changeOf(event: FoldedEvent): Change | undefined {
  const at = event.sequence_number;
  switch (event.event_type) {
    case 'ApprovalRequested':
      return { of: (call) => ({ ...call, approval_requested_at: at }), approvals: 1, intents: 0 };
    case 'ApprovalResolved':
      return { of: (call) => ({ ...call, approval_requested_at: null }), approvals: -1, intents: 0 };
    case 'ToolIntent':
      return {
        of: (call) => ({
          ...call,
          tool_name: stringOf(event.payload['tool_name']) ?? call.tool_name,
          approval_requested_at: null,
          intent_at: call.intent_at ?? at,
        }),
        approvals: 0,
        intents: 1,
      };
    case 'ToolResult':
      return { of: (call) => ({ ...call, approval_requested_at: null, intent_at: null }), approvals: 0, intents: -1 };
    default:
      return undefined;
  }
}

/** A rollback withdraws requests, never intents: those happened. */
function withdrawn(summary: Open, target: number): Open {
  const open_calls = summary.open_calls
    .map((call) =>
      call.approval_requested_at !== null && call.approval_requested_at > target
        ? { ...call, approval_requested_at: null }
        : call,
    )
    .filter((call) => call.approval_requested_at !== null || call.intent_at !== null);
  return { ...summary, open_calls };
}

function nextFacts(summary: Summary, event: FoldedEvent, finished: Finished | null): Partial<Summary> {
  const { sequence_number } = event;
  switch (event.event_type) {
    case 'TaskStarted': {
      // A second one moves nothing: the tenant decides who may read the trajectory.
      if (summary.task_started) return {};
      const { payload } = event;
      return {
        task_started: true,
        tenant: stringOf(payload['tenant']) ?? 'default',
        agent: stringOf(payload['agent']) ?? null,
        model: stringOf(payload['model']) ?? null,
        model_version: summary.served ? summary.model_version : (stringOf(payload['model_version']) ?? null),
        imported: 'source' in payload,
        takeover: payload['takeover'] === 'replicated' ? 'replicated' : 'none',
        parent: parentOf(payload['parent']) ?? null,
      };
    }
    case 'ModelReplied': {
      if (summary.served || summary.counts.model_replies > 0) return {};
      const served = stringOf(event.payload['served_model_version']);
      return served === undefined ? {} : { model_version: served, served: true };
    }
    case 'Checkpoint':
      return { checkpoint_at: sequence_number };
    case 'RolledBack':
      return {
        ...(finished === null ? { reward: null } : {}),
        ...((summary.checkpoint_at ?? 0) > rollbackTarget(event) ? { checkpoint_at: null } : {}),
      };
    case 'TaskFinished': {
      // Plus 0, because −0 would not survive storage.
      const reward = objectOf(event.payload['outcome'])?.['reward'];
      return finished?.sequence_number === sequence_number && typeof reward === 'number' ? { reward: reward + 0 } : {};
    }
    default:
      return {};
  }
}

function parentOf(value: Json | undefined): Summary['parent'] | undefined {
  const trajectory_id = stringOf(objectOf(value)?.['trajectory_id']);
  const sequence_number = countOf(objectOf(value)?.['sequence_number']);
  if (trajectory_id === undefined || sequence_number === undefined) return undefined;
  return { trajectory_id, sequence_number };
}
