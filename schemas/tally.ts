/**
 * What the fold and the summary both count, and the status that both derive: one set of rules, so that a trajectory's own
 * record and the fleet's view of it agree. Counts and tokens only grow: what a rolled-back turn spent stays spent.
 */
import type { JsonObject } from './canonical.ts';
import type { TrajectoryEvent } from './event.ts';
import { countOf, objectOf, stringOf } from './reading.ts';

export type Status = 'running' | 'waiting_approval' | 'waiting_result' | 'halted' | 'completed' | 'failed' | 'canceled';

export type FinishedStatus = Extract<Status, 'completed' | 'failed' | 'canceled'>;
export type Finished = { readonly sequence_number: number; readonly status: FinishedStatus };
export type Halt = { readonly sequence_number: number; readonly tool_call_id?: string };

/** What an event's fold reads of it. */
export type FoldedEvent = Pick<TrajectoryEvent, 'sequence_number' | 'event_type' | 'turn' | 'created_at' | 'payload'>;

export type Counts = {
  readonly events: number;
  /** Turns in which anything happened. */
  readonly turns: number;
  readonly messages_added: number;
  readonly model_replies: number;
  readonly approvals_requested: number;
  readonly tool_intents: number;
  /** Every `ToolResult`, also a second one for the same call. */
  readonly tool_results: number;
  readonly tool_errors: number;
  readonly compactions: number;
  readonly checkpoints: number;
  readonly rollbacks: number;
};

export const NO_COUNTS: Counts = {
  events: 0,
  turns: 0,
  messages_added: 0,
  model_replies: 0,
  approvals_requested: 0,
  tool_intents: 0,
  tool_results: 0,
  tool_errors: 0,
  compactions: 0,
  checkpoints: 0,
  rollbacks: 0,
};

const COUNTED = new Map<string, keyof Counts>([
  ['MessageAdded', 'messages_added'],
  ['ModelReplied', 'model_replies'],
  ['ApprovalRequested', 'approvals_requested'],
  ['ToolIntent', 'tool_intents'],
  ['ToolResult', 'tool_results'],
  ['Compacted', 'compactions'],
  ['Checkpoint', 'checkpoints'],
  ['RolledBack', 'rollbacks'],
]);

/** `turn`: that of the event before. */
export function addCounts(counts: Counts, turn: number, event: FoldedEvent): Counts {
  const turns = counts.events === 0 || event.turn !== turn ? counts.turns + 1 : counts.turns;
  const next = { ...counts, events: counts.events + 1, turns };
  const counted = COUNTED.get(event.event_type);
  if (counted !== undefined) next[counted] += 1;
  if (event.event_type === 'ToolResult' && event.payload['status'] === 'error') next.tool_errors += 1;
  return next;
}

/** As `usage` says them; see `schemas/fields.ts`. */
export type Tokens = {
  readonly input_tokens: number;
  readonly output_tokens: number;
  readonly cache_read_tokens: number;
  readonly cache_write_tokens: number;
};

export const NO_TOKENS: Tokens = { input_tokens: 0, output_tokens: 0, cache_read_tokens: 0, cache_write_tokens: 0 };

/** Tokens are spent by replies and by the summaries of compactions. */
export function addTokens(tokens: Tokens, event: FoldedEvent): Tokens {
  if (event.event_type !== 'ModelReplied' && event.event_type !== 'Compacted') return tokens;
  const usage = objectOf(event.payload['usage']);
  if (usage === undefined) return tokens;
  return {
    input_tokens: plus(tokens.input_tokens, usage, 'input_tokens'),
    output_tokens: plus(tokens.output_tokens, usage, 'output_tokens'),
    cache_read_tokens: plus(tokens.cache_read_tokens, usage, 'cache_read_tokens'),
    cache_write_tokens: plus(tokens.cache_write_tokens, usage, 'cache_write_tokens'),
  };
}

/** Saturates: a sum past 2^53 − 1 would be refused by every tier. */
function plus(sum: number, usage: JsonObject, field: string): number {
  return Math.min(sum + (countOf(usage[field]) ?? 0), Number.MAX_SAFE_INTEGER);
}

/** The first `TaskFinished` decides; a rollback to before it takes it back. */
export function nextFinished(finished: Finished | null, event: FoldedEvent): Finished | null {
  if (event.event_type === 'RolledBack') return beforeRollback(finished, event);
  if (event.event_type !== 'TaskFinished' || finished !== null) return finished;
  const status = event.payload['status'];
  if (status !== 'completed' && status !== 'failed' && status !== 'canceled') return null;
  return { sequence_number: event.sequence_number, status };
}

export function nextHalted(halted: Halt | null, event: FoldedEvent): Halt | null {
  if (event.event_type === 'RolledBack') return beforeRollback(halted, event);
  if (event.event_type === 'Resumed') return null;
  if (event.event_type !== 'Halted') return halted;
  const tool_call_id = stringOf(event.payload['tool_call_id']);
  const { sequence_number } = event;
  return tool_call_id === undefined ? { sequence_number } : { sequence_number, tool_call_id };
}

/** The last event that still counts after a `RolledBack`; of a broken one, the event before it. */
export function rollbackTarget(event: FoldedEvent): number {
  return Math.min(countOf(event.payload['to_sequence_number']) ?? Number.MAX_SAFE_INTEGER, event.sequence_number - 1);
}

function beforeRollback<T extends { readonly sequence_number: number }>(mark: T | null, event: FoldedEvent): T | null {
  return mark !== null && mark.sequence_number > rollbackTarget(event) ? null : mark;
}

export function statusOf(
  finished: Finished | null,
  halted: Halt | null,
  approvalsPending: boolean,
  resultsPending: boolean,
): Status {
  if (finished !== null) return finished.status;
  if (halted !== null) return 'halted';
  if (approvalsPending) return 'waiting_approval';
  return resultsPending ? 'waiting_result' : 'running';
}
