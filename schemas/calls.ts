/**
 * The state of every tool call that recovery may ask about (chapter, table 3): all calls without a result, and the
 * settled ones of the latest reply.
 *
 * A call is known by its id, which is unique among the calls that are open at one time, not in a trajectory: some models
 * number their calls anew in every reply. What happened in the world is never taken back: a rollback forgets proposals
 * and requests, but an intent stays open until a result settles it.
 */
import { objectsOf, stringOf } from './reading.ts';
import { type FoldedEvent, rollbackTarget } from './tally.ts';

/** The sequence numbers are those of the events that said it. */
export type Call = {
  readonly tool_call_id: string;
  readonly tool_name: string | null;
  /** The first event that named the call. */
  readonly sequence_number: number;
  readonly authorized: { readonly sequence_number: number; readonly decision: string | null } | null;
  /** A person has been asked and has not answered. */
  readonly request: { readonly sequence_number: number; readonly expires_at: string | null } | null;
  readonly answer: { readonly sequence_number: number; readonly decision: string | null } | null;
  /** The first intent since the last result. */
  readonly intent: {
    readonly sequence_number: number;
    readonly idempotency_key: string | null;
    readonly settle: string | null;
  } | null;
  readonly result: { readonly sequence_number: number; readonly status: string | null } | null;
};

export type CallState = 'not_sent' | 'settled' | 'in_doubt';

/**
 * What recovery must take a call for.
 *
 * @param wholeLog is this the log that wrote it, to its end? Where its tail may be lost, the absence of an intent proves
 * nothing, and every call without a result is in doubt.
 */
export function classifyCall(call: Call, wholeLog: boolean): CallState {
  if (call.result !== null) return 'settled';
  return call.intent !== null || !wholeLog ? 'in_doubt' : 'not_sent';
}

export function isOpenIntent(call: Call): boolean {
  return call.intent !== null && call.result === null;
}

export function isPendingApproval(call: Call): boolean {
  return call.request !== null && call.result === null;
}

export type CallsStep = {
  readonly calls: readonly Call[];
  /** A `ToolResult` for a call that was not open: recorded, and folded no further. */
  readonly unmatched: boolean;
};

/** Calls after one more event. */
export function stepCalls(calls: readonly Call[], event: FoldedEvent): CallsStep {
  if (event.event_type === 'ModelReplied') return { calls: propose(calls, event), unmatched: false };
  if (event.event_type === 'RolledBack') return { calls: rollBack(calls, rollbackTarget(event)), unmatched: false };
  const tool_call_id = stringOf(event.payload['tool_call_id']);
  if (tool_call_id === undefined) return { calls, unmatched: false };
  const known = calls.find((call) => call.tool_call_id === tool_call_id);
  const open = known?.result === null ? known : undefined;
  const next = stepCall(open, known, tool_call_id, event);
  if (next === undefined) return { calls, unmatched: event.event_type === 'ToolResult' };
  const replaced = known === undefined ? [...calls, next] : calls.map((call) => (call === known ? next : call));
  return { calls: replaced, unmatched: false };
}

/** undefined: the event changes nothing. A new request or intent opens a settled call again. */
function stepCall(open: Call | undefined, known: Call | undefined, id: string, event: FoldedEvent): Call | undefined {
  const { sequence_number, payload } = event;
  const call = open ?? newCall(id, event);
  switch (event.event_type) {
    case 'Authorized':
      if (known !== open) return undefined;
      return { ...call, authorized: { sequence_number, decision: stringOf(payload['decision']) ?? null } };
    case 'ApprovalRequested':
      return {
        ...call,
        request: { sequence_number, expires_at: stringOf(payload['expires_at']) ?? null },
        answer: null,
      };
    case 'ApprovalResolved':
      if (open === undefined) return undefined;
      return { ...call, request: null, answer: { sequence_number, decision: stringOf(payload['decision']) ?? null } };
    case 'ToolIntent':
      return intended(call, event);
    case 'ToolResult':
      if (open === undefined) return undefined;
      return { ...call, request: null, result: { sequence_number, status: stringOf(payload['status']) ?? null } };
    default:
      return undefined;
  }
}

function newCall(tool_call_id: string, event: FoldedEvent, tool_name?: string): Call {
  return {
    tool_call_id,
    tool_name: tool_name ?? null,
    sequence_number: event.sequence_number,
    authorized: null,
    request: null,
    answer: null,
    intent: null,
    result: null,
  };
}

/** An intent ends the wait for an approval: the call is out. */
function intended(call: Call, event: FoldedEvent): Call {
  const { payload, sequence_number } = event;
  const tool_name = stringOf(payload['tool_name']) ?? call.tool_name;
  const idempotency_key = stringOf(payload['idempotency_key']) ?? call.intent?.idempotency_key ?? null;
  const settle = stringOf(payload['settle']) ?? call.intent?.settle ?? null;
  const first = call.intent?.sequence_number ?? sequence_number;
  return { ...call, tool_name, request: null, intent: { sequence_number: first, idempotency_key, settle } };
}

/** A reply lets go of the settled calls of earlier ones. A call that is open keeps its state when it is named again. */
function propose(calls: readonly Call[], event: FoldedEvent): readonly Call[] {
  const open = calls.filter((call) => call.result === null);
  const ids = new Set(open.map((call) => call.tool_call_id));
  for (const proposed of objectsOf(event.payload['tool_calls'])) {
    const tool_call_id = stringOf(proposed['tool_call_id']);
    if (tool_call_id === undefined || ids.has(tool_call_id)) continue;
    ids.add(tool_call_id);
    open.push(newCall(tool_call_id, event, stringOf(proposed['tool_name'])));
  }
  return open;
}

function rollBack(calls: readonly Call[], target: number): readonly Call[] {
  return calls
    .filter((call) => isOpenIntent(call) || call.sequence_number <= target)
    .map((call) => {
      const request = call.request !== null && call.request.sequence_number > target ? null : call.request;
      const decided = call.authorized !== null && call.authorized.sequence_number > target;
      const authorized = decided && call.intent === null ? null : call.authorized;
      return { ...call, request, authorized };
    });
}
