/**
 * Context assembly: from the entries of a `ContextBuilt` to the messages that the model was shown, and their hash.
 *
 * One pure function serves resume, replay, exports and the `messages` view, so that all of them see what the model saw.
 * It shows `MessageAdded`, `ModelReplied`, `ToolResult` and `Compacted`, skips what a `RolledBack` within the entries
 * took back, and never yields an orphan: a result without its call before it, a second result for one call, and a call
 * without a result are left out and named in `dropped` (every model API refuses a context that holds one).
 *
 * The hash covers role, tool-call id and the SHA-256 of each shown text: a stub and its body agree, wherever in the
 * context the text stands.
 */
import { hash } from 'node:crypto';
import { canonicalJson, type Json, type JsonObject } from './canonical.ts';
import { VarveError } from './errors.ts';
import type { TrajectoryEvent } from './event.ts';
import type { ContextEntry } from './fields.ts';
import { CONTEXT_BASE_EVERY } from './limits.ts';
import { isStub, objectsOf, stringOf, type Text, textOf } from './reading.ts';

/** One text, call, result or block that the model was shown. An event gives as many as it has blocks and calls. */
export type ContextMessage = {
  readonly role: string;
  /** `text`, `tool_call`, `tool_result`, or the type of a provider's block. */
  readonly type: string;
  readonly tool_call_id?: string;
  readonly tool_name?: string;
  /** Of a call: its arguments, verbatim. Absent where `block` says it all. */
  readonly text?: Text;
  /** The provider's block, where the message is one. */
  readonly block?: JsonObject;
  /** The text was cut to this many bytes of UTF-8; of a stub only the hash of the rest is known. */
  readonly cut?: number;
  readonly shown_sha256?: string;
  /** The event that holds it; absent for a text that no event holds. */
  readonly sequence_number?: number;
  /** Where the event is not of this trajectory. */
  readonly trajectory_id?: string;
};

export type DroppedMessage = {
  readonly message: ContextMessage;
  readonly reason: 'no_call' | 'no_result' | 'repeated';
};

export type AssembledContext = {
  readonly messages: readonly ContextMessage[];
  readonly dropped: readonly DroppedMessage[];
};

export type ContextEvent = Pick<TrajectoryEvent, 'event_type' | 'payload'>;
/** `trajectory_id` is given only where it is not this trajectory: an ancestor. */
export type ContextLookup = (sequence_number: number, trajectory_id?: string) => ContextEvent | undefined;

/**
 * @throws VarveError CONTEXT_INCOMPLETE where the lookup has no event for a place that an entry names.
 */
export function assembleContext(entries: readonly ContextEntry[], lookup: ContextLookup): AssembledContext {
  // Bases are followed backwards, then laid out oldest first.
  const layers = [entries];
  let before = Number.POSITIVE_INFINITY;
  for (let base = entries[0]?.base; base !== undefined; base = layers.at(-1)?.[0]?.base) {
    const messages = need(lookup, base, undefined).payload['messages'];
    if (!Array.isArray(messages) || base >= before) throw incomplete(base, undefined);
    layers.push(messages as ContextEntry[]);
    before = base;
  }
  const shown: ContextMessage[] = [];
  for (const layer of layers.toReversed()) {
    for (const entry of layer) showEntry(shown, entry, lookup);
  }
  return pairCalls(shown);
}

function showEntry(shown: ContextMessage[], entry: ContextEntry, lookup: ContextLookup): void {
  if (entry.at !== undefined) {
    const event = need(lookup, entry.at, undefined);
    shown.push(...cutFirst(messagesOf(event, entry.at, undefined), entry.cut, entry.shown_sha256));
  } else if (entry.from !== undefined) {
    showRange(shown, entry.from, entry.to, entry.trajectory_id, lookup);
  } else if (entry.text !== undefined) {
    const { text, tool_call_id } = entry;
    const role = entry.role ?? (tool_call_id === undefined ? 'user' : 'tool');
    if (tool_call_id === undefined) shown.push({ role, type: 'text', text });
    else shown.push({ role, type: role === 'assistant' ? 'tool_call' : 'tool_result', tool_call_id, text });
  }
}

function showRange(
  shown: ContextMessage[],
  from: number,
  to: number,
  trajectory_id: string | undefined,
  lookup: ContextLookup,
): void {
  for (let at = from; at <= to; at++) {
    const event = need(lookup, at, trajectory_id);
    const last = event.payload['to_sequence_number'];
    if (event.event_type !== 'RolledBack') shown.push(...messagesOf(event, at, trajectory_id));
    else if (typeof last === 'number') takeBack(shown, last, at, trajectory_id);
  }
}

/** Takes out what the events of one trajectory after `last` and before `at` showed. */
function takeBack(shown: ContextMessage[], last: number, at: number, trajectory_id: string | undefined): void {
  let kept = 0;
  for (const message of shown) {
    const place = message.sequence_number;
    if (place !== undefined && message.trajectory_id === trajectory_id && place > last && place < at) continue;
    shown[kept++] = message;
  }
  shown.length = kept;
}

function need(lookup: ContextLookup, at: number, trajectory_id: string | undefined): ContextEvent {
  const event = lookup(at, trajectory_id);
  if (event === undefined) throw incomplete(at, trajectory_id);
  return event;
}

function incomplete(sequence_number: number, trajectory_id: string | undefined): VarveError {
  const of = trajectory_id === undefined ? 'this trajectory' : trajectory_id;
  const message = `the context names event ${sequence_number} of ${of}, which is not at hand: read it from the tier that has it`;
  return new VarveError('CONTEXT_INCOMPLETE', message, { sequence_number, trajectory_id });
}

/** What one event shows, in order. `at` is its sequence number. */
export function messagesOf(event: ContextEvent, at: number, trajectory_id?: string): ContextMessage[] {
  const place = { sequence_number: at, ...(trajectory_id === undefined ? {} : { trajectory_id }) };
  const { payload } = event;
  switch (event.event_type) {
    case 'MessageAdded':
      return contentOf(payload['content'], { role: stringOf(payload['role']) ?? 'user', type: 'text', ...place });
    case 'Compacted':
      return contentOf(payload['summary'], { role: stringOf(payload['role']) ?? 'user', type: 'text', ...place });
    case 'ToolResult': {
      const tool_call_id = payload['tool_call_id'];
      if (typeof tool_call_id !== 'string') return [];
      const result = { role: 'tool', type: 'tool_result', tool_call_id, ...place };
      const parts = contentOf(payload['output'], result).map((part) => ({ ...part, type: 'tool_result' }));
      // A call must have its result, also where nothing came out.
      return parts.length > 0 ? parts : [{ ...result, text: '' }];
    }
    case 'ModelReplied':
      return replyOf(payload, place);
    default:
      return [];
  }
}

type Place = { readonly sequence_number: number; readonly trajectory_id?: string };

function replyOf(payload: JsonObject, place: Place): ContextMessage[] {
  const base = { role: 'assistant', ...place };
  const calls = new Map<string, ContextMessage>();
  for (const call of objectsOf(payload['tool_calls'])) {
    const tool_call_id = call['tool_call_id'];
    if (typeof tool_call_id !== 'string' || calls.has(tool_call_id)) continue;
    const named = typeof call['tool_name'] === 'string' ? { tool_name: call['tool_name'] } : {};
    const text = textOf(call['arguments']) ?? '';
    calls.set(tool_call_id, { ...base, type: 'tool_call', tool_call_id, ...named, text });
  }
  const out: ContextMessage[] = [];
  for (const part of contentOf(payload['content'], { ...base, type: 'text' })) {
    const id = part.block?.['tool_call_id'];
    const call = typeof id === 'string' ? calls.get(id) : undefined;
    // A block with the id of a call only keeps that call's place among the others.
    if (call === undefined) out.push(part);
    else if (calls.delete(id as string)) out.push(call);
  }
  return [...out, ...calls.values()];
}

/** A text, or one message a block. */
function contentOf(content: Json | undefined, base: Omit<ContextMessage, 'text' | 'block'>): ContextMessage[] {
  const text = textOf(content);
  if (text !== undefined) return [{ ...base, text }];
  return objectsOf(content).map((block) => {
    const text = textOf(block['text']);
    const type = stringOf(block['type']) ?? base.type;
    return { ...base, type, ...(text === undefined ? {} : { text }), block };
  });
}

/** Shortens the first text that is not a call: arguments are shown whole or not at all. */
function cutFirst(messages: ContextMessage[], cut: number, shown_sha256: string): ContextMessage[] {
  const first = messages.findIndex((message) => message.text !== undefined && message.type !== 'tool_call');
  return messages.map((message, i) => {
    if (i !== first || message.text === undefined) return message;
    const text = typeof message.text === 'string' ? cutText(message.text, cut) : message.text;
    return { ...message, text, cut, shown_sha256 };
  });
}

/** Leaves out every call and result that has no partner. */
function pairCalls(shown: readonly ContextMessage[]): AssembledContext {
  const dropped = new Map<ContextMessage, DroppedMessage['reason']>();
  const open = new Map<string, ContextMessage>();
  let answering: { tool_call_id: string; sequence_number: number | undefined } | undefined;
  for (const message of shown) {
    const { tool_call_id, sequence_number } = message;
    if (tool_call_id === undefined) continue;
    if (message.type === 'tool_call') {
      if (open.has(tool_call_id)) dropped.set(message, 'repeated');
      else open.set(tool_call_id, message);
    } else if (open.delete(tool_call_id)) {
      answering = { tool_call_id, sequence_number };
    } else if (answering?.tool_call_id !== tool_call_id || answering.sequence_number !== sequence_number) {
      // Otherwise it is a further block of the result that has just closed the call.
      dropped.set(message, 'no_call');
    }
  }
  for (const message of open.values()) dropped.set(message, 'no_result');
  return {
    messages: shown.filter((message) => !dropped.has(message)),
    dropped: [...dropped].map(([message, reason]) => ({ message, reason })),
  };
}

/**
 * Where a compaction that wants to reach up to the event `to` may end: before every call of these messages whose result
 * comes later or not at all, because half a call in a summary is an orphan in the context.
 */
export function snapToWholeCalls(messages: readonly ContextMessage[], to: number): number {
  const calls: { from: number; to: number }[] = [];
  const open = new Map<string, { from: number; to: number }>();
  for (const { type, tool_call_id, sequence_number, trajectory_id } of messages) {
    if (tool_call_id === undefined || sequence_number === undefined || trajectory_id !== undefined) continue;
    if (type === 'tool_call' && !open.has(tool_call_id)) {
      const call = { from: sequence_number, to: Number.POSITIVE_INFINITY };
      open.set(tool_call_id, call);
      calls.push(call);
    } else if (type !== 'tool_call') {
      const call = open.get(tool_call_id);
      if (call !== undefined) call.to = sequence_number;
      open.delete(tool_call_id);
    }
  }
  let end = to;
  // Latest first: moving the end before one call may put it into the middle of an earlier one.
  for (const call of calls.toSorted((a, b) => b.from - a.from)) {
    if (call.from <= end && end < call.to) end = call.from - 1;
  }
  return end;
}

/** The longest beginning of a text that has at most `bytes` bytes of UTF-8 and ends between two code points. */
export function cutText(text: string, bytes: number): string {
  if (text.length * 3 <= bytes) return text;
  const room = new Uint8Array(Math.max(0, Math.min(bytes, text.length * 3)));
  return text.slice(0, new TextEncoder().encodeInto(text, room).read);
}

/** What the hash of a context covers of one message. A harness may keep these instead of hashing texts again. */
export type MessageDigest = { readonly role: string; readonly tool_call_id?: string; readonly sha256: string };

export function messageDigest(message: ContextMessage): MessageDigest {
  const { role, tool_call_id, text } = message;
  let sha256: string;
  if (text === undefined) sha256 = hash('sha256', canonicalJson(digested(message.block ?? null)), 'hex');
  else if (typeof text !== 'string' && message.shown_sha256 !== undefined) sha256 = message.shown_sha256;
  else sha256 = digested(text) as string;
  return tool_call_id === undefined ? { role, sha256 } : { role, sha256, tool_call_id };
}

/**
 * Hex SHA-256 over the canonical JSON of `{system_prompt, tools, messages: [{role, tool_call_id?, sha256}]}`, in which
 * every string of `system_prompt` and `tools` stands as the hex SHA-256 of its UTF-8, and a stub as its own hash.
 * Absent fields stay absent.
 */
export function contextHash(
  system_prompt: Json | undefined,
  tools: Json | undefined,
  messages: readonly (ContextMessage | MessageDigest)[],
): string {
  const covered: Record<string, Json> = {
    messages: messages.map((message) => ('sha256' in message ? message : messageDigest(message))),
  };
  if (system_prompt !== undefined) covered['system_prompt'] = digested(system_prompt);
  if (tools !== undefined) covered['tools'] = digested(tools);
  return hash('sha256', canonicalJson(covered), 'hex');
}

/** The same value with every string replaced by its hash, and every stub by the hash that it holds. */
export function digested(value: Json): Json {
  if (typeof value === 'string') return hash('sha256', value, 'hex');
  if (typeof value !== 'object' || value === null) return value;
  if (isStub(value)) return value.$blob.sha256;
  if (Array.isArray(value)) return value.map(digested);
  const copy: Record<string, Json> = Object.create(null);
  for (const [key, member] of Object.entries(value as JsonObject)) copy[key] = digested(member);
  return copy;
}

export type ContextReach = {
  /** Smallest sequence number of this trajectory that the entries name, a base included. Absent: they name none. */
  readonly oldest?: number;
  /** The earlier ContextBuilt that has to be followed too. */
  readonly base?: number;
};

/** How far back a `ContextBuilt` refers. Trimming must keep what is reached, following `base`. */
export function contextReach(payload: JsonObject): ContextReach {
  let oldest = Number.POSITIVE_INFINITY;
  let base: number | undefined;
  for (const entry of objectsOf(payload['messages'])) {
    if (typeof entry['trajectory_id'] === 'string') continue;
    for (const field of ['from', 'at', 'base']) {
      const at = entry[field];
      if (typeof at === 'number' && at < oldest) oldest = at;
    }
    if (typeof entry['base'] === 'number') base = entry['base'];
  }
  if (oldest === Number.POSITIVE_INFINITY) return {};
  return base === undefined ? { oldest } : { oldest, base };
}

/** The last ContextBuilt: its sequence number, and how many contexts since a whole one are built upon another. */
export type LastContext = { readonly sequence_number: number; readonly depth: number };

/**
 * Entries of the next ContextBuilt, where it shows all that the last one did and `added` after it: one more message costs
 * a constant. Whole at least every CONTEXT_BASE_EVERY, so that a reader follows a bounded number of bases.
 */
export function nextEntries(
  last: LastContext | undefined,
  added: readonly ContextEntry[],
  whole: () => readonly ContextEntry[],
): ContextEntry[] {
  if (last === undefined || last.depth + 1 >= CONTEXT_BASE_EVERY) return [...whole()];
  return [{ base: last.sequence_number }, ...added];
}
