/**
 * A trajectory for reading: what each event says, in few facts and its texts. Pure.
 *
 * Texts over a limit are cut on a code point border and say how long they are; what was offloaded says so, with its size
 * and hash. Of a kind that is not known, all of the payload is its text.
 */
import { type Call, type CallState, classifyCall, isOpenIntent } from '../schemas/calls.ts';
import { canonicalJson, type Json, type JsonObject } from '../schemas/canonical.ts';
import { cutText } from '../schemas/context.ts';
import type { TrajectoryEvent } from '../schemas/event.ts';
import type { TrajectoryRecord } from '../schemas/fold.ts';
import { isKnownEventType, type KnownEventType } from '../schemas/kinds.ts';
import { isStub, objectsOf, stringOf } from '../schemas/reading.ts';
import type { BlobRef } from '../schemas/stubs.ts';

export type ShownText = {
  readonly name: string;
  readonly text?: string;
  /** Length of the whole text, in bytes of UTF-8. */
  readonly bytes: number;
  readonly cut?: true;
  /** It is not in the event: a blob holds it. */
  readonly blob?: BlobRef;
};

export type ShownCall = {
  readonly tool_call_id: string;
  readonly tool_name?: string;
  readonly arguments?: ShownText;
  /** Only while it has no result. */
  readonly state?: CallState;
};

export type Entry = {
  readonly sequence_number: number;
  readonly event_type: string;
  readonly created_at: string;
  readonly facts: Readonly<Record<string, Json>>;
  readonly texts: readonly ShownText[];
  /** Of a reply. */
  readonly calls?: readonly ShownCall[];
  /** Of an intent. */
  readonly state?: CallState;
};

export type TranscriptOptions = {
  /** Longest text that is shown whole, in bytes of UTF-8. */
  readonly textBytesMax: number;
  /** Is this the log that wrote it, to its end? See `classifyCall`. */
  readonly isWholeLog: boolean;
};

/** What is shown of each kind: short fields in one line, long ones as texts. */
const SHOWN: Readonly<
  Record<KnownEventType, { readonly facts: readonly string[]; readonly texts: readonly string[] }>
> = {
  TaskStarted: {
    facts: ['agent', 'tenant', 'model', 'model_version', 'takeover', 'parent', 'source', 'labels'],
    texts: ['task', 'system_prompt'],
  },
  ContextBuilt: { facts: ['context_hash', 'messages'], texts: [] },
  ModelReplied: { facts: ['model', 'served_model_version', 'stop_reason', 'usage', 'duration_ms'], texts: ['content'] },
  Authorized: { facts: ['tool_call_id', 'decision', 'policy_version'], texts: ['reason'] },
  ApprovalRequested: { facts: ['tool_call_id', 'request_id', 'approver', 'expires_at'], texts: ['request'] },
  ApprovalResolved: { facts: ['tool_call_id', 'decision', 'approver'], texts: ['reason'] },
  ToolIntent: {
    facts: ['tool_call_id', 'tool_name', 'idempotency_key', 'settle', 'irreversible', 'workspace', 'barrier'],
    texts: ['arguments'],
  },
  ToolResult: { facts: ['tool_call_id', 'status', 'settled_by', 'duration_ms'], texts: ['output', 'output_ref'] },
  Compacted: { facts: ['from_sequence_number', 'to_sequence_number', 'from_turn', 'to_turn'], texts: ['summary'] },
  Checkpoint: { facts: ['covers_sequence_number', 'record_snapshot_id', 'workspace_snapshot_id'], texts: [] },
  MessageAdded: { facts: ['role', 'author'], texts: ['content'] },
  InputRead: { facts: ['input'], texts: ['query', 'value'] },
  DriftCrossed: { facts: ['what', 'name', 'old_version', 'new_version'], texts: [] },
  RolledBack: { facts: ['to_sequence_number'], texts: ['reason'] },
  Halted: { facts: ['tool_call_id'], texts: ['reason'] },
  Resumed: { facts: ['author'], texts: ['reason'] },
  TaskFinished: { facts: ['status', 'outcome'], texts: ['reason'] },
  Noted: { facts: [], texts: ['note', 'plan'] },
};

export function describeEvent(event: TrajectoryEvent, calls: readonly Call[], options: TranscriptOptions): Entry {
  const { sequence_number, event_type, created_at, payload } = event;
  const place = { sequence_number, event_type, created_at };
  if (!isKnownEventType(event_type)) {
    const text = shownText('payload', canonicalJson(payload), options.textBytesMax);
    return { ...place, facts: {}, texts: [text] };
  }
  const { facts, texts } = SHOWN[event_type];
  const entry: Entry = {
    ...place,
    facts: Object.fromEntries(facts.flatMap((name) => (name in payload ? [[name, factOf(name, payload)]] : []))),
    texts: texts.flatMap((name) => textsOf(name, payload[name], options.textBytesMax)),
  };
  if (event_type === 'ModelReplied') return { ...entry, calls: callsOf(event, calls, options) };
  if (event_type !== 'ToolIntent') return entry;
  const call = openCall(calls, stringOf(payload['tool_call_id']), sequence_number);
  return { ...entry, state: call === undefined ? 'settled' : classifyCall(call, options.isWholeLog) };
}

/** A list only counts: what it names is in the events before. */
function factOf(name: string, payload: JsonObject): Json {
  const value = payload[name] as Json;
  return Array.isArray(value) ? value.length : value;
}

function textsOf(name: string, value: Json | undefined, bytesMax: number): ShownText[] {
  if (value === undefined) return [];
  if (isStub(value)) return [{ name, bytes: value.$blob.bytes, blob: value.$blob }];
  if (typeof value === 'string') return [shownText(name, value, bytesMax)];
  if (!Array.isArray(value)) return [shownText(name, canonicalJson(value), bytesMax)];
  return objectsOf(value).flatMap((block) => {
    const type = stringOf(block['type']) ?? name;
    return textsOf(type === 'text' ? name : `${name} (${type})`, block['text'] ?? canonicalJson(block), bytesMax);
  });
}

function shownText(name: string, text: string, bytesMax: number): ShownText {
  const bytes = Buffer.byteLength(text);
  return bytes <= bytesMax ? { name, text, bytes } : { name, text: cutText(text, bytesMax), bytes, cut: true };
}

function callsOf(event: TrajectoryEvent, calls: readonly Call[], options: TranscriptOptions): ShownCall[] {
  return objectsOf(event.payload['tool_calls']).flatMap((proposed) => {
    const tool_call_id = stringOf(proposed['tool_call_id']);
    if (tool_call_id === undefined) return [];
    const tool_name = stringOf(proposed['tool_name']);
    const [shown] = textsOf('arguments', proposed['arguments'], options.textBytesMax);
    const call = openCall(calls, tool_call_id, event.sequence_number);
    return [
      {
        tool_call_id,
        ...(tool_name === undefined ? {} : { tool_name }),
        ...(shown === undefined ? {} : { arguments: shown }),
        ...(call === undefined ? {} : { state: classifyCall(call, options.isWholeLog) }),
      },
    ];
  });
}

/** The call of the trajectory's end that has no result, if an event at this number is of it: ids come again. */
function openCall(calls: readonly Call[], id: string | undefined, sequence_number: number): Call | undefined {
  return calls.find(
    (call) => call.tool_call_id === id && call.result === null && call.sequence_number <= sequence_number,
  );
}

export type Totals = Pick<TrajectoryRecord, 'status' | 'turn' | 'counts' | 'tokens' | 'budgets'> & {
  readonly events: number;
  readonly first_sequence_number: number;
  readonly last_sequence_number: number;
  readonly in_doubt: number;
  readonly offloaded_bytes: number;
  readonly first_at: string | null;
  readonly last_at: string | null;
};

export type Reach = {
  readonly events: number;
  readonly first: number;
  readonly offloaded_bytes: number;
  readonly first_at: string | null;
  readonly last_at: string | null;
};

export function totalsOf(record: TrajectoryRecord, reach: Reach): Totals {
  const { status, turn, counts, tokens, budgets, calls, sequence_number } = record;
  return {
    status,
    turn,
    counts,
    tokens,
    budgets,
    events: reach.events,
    first_sequence_number: reach.first,
    last_sequence_number: sequence_number,
    in_doubt: calls.filter(isOpenIntent).length,
    offloaded_bytes: reach.offloaded_bytes,
    first_at: reach.first_at,
    last_at: reach.last_at,
  };
}

export function markdownOf(entry: Entry): string {
  const facts = Object.entries(entry.facts).map(([name, value]) => `${name} ${factText(value)}`);
  if (entry.state !== undefined) facts.unshift(`**${stateText(entry.state)}**`);
  const head = `**${entry.sequence_number} ${entry.event_type}** ${entry.created_at}`;
  const lines = [[head, ...facts].join(' · '), ''];
  for (const text of entry.texts) lines.push(...markdownText(text));
  for (const { tool_call_id, tool_name, arguments: shown, state } of entry.calls ?? []) {
    const suffix = state === undefined ? '' : ` · **${stateText(state)}**`;
    lines.push(`call \`${tool_call_id}\` ${tool_name ?? ''}${suffix}`, '');
    if (shown !== undefined) lines.push(...markdownText(shown));
  }
  return `${lines.join('\n')}\n`;
}

function factText(value: Json): string {
  return typeof value === 'object' ? `\`${canonicalJson(value)}\`` : String(value);
}

function stateText(state: CallState): string {
  switch (state) {
    case 'not_sent':
      return 'not sent';
    case 'settled':
      return 'settled';
    case 'in_doubt':
      return 'IN DOUBT';
  }
}

function markdownText({ name, text, bytes, cut, blob }: ShownText): string[] {
  if (blob !== undefined)
    return [`${name}: ${bytes} bytes of ${blob.media_type}, offloaded to blob ${blob.sha256}`, ''];
  const label = cut === true ? `${name} (the beginning of ${bytes} bytes; --full shows all)` : name;
  if (text === undefined) return [];
  // A fence longer than any within.
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
  const fence = '`'.repeat(longest + 1);
  return [`${label}:`, `${fence}text`, text, fence, ''];
}
