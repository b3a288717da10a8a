/**
 * The event kinds: table 1 of the chapter, and varve's own.
 *
 * A payload is valid if and only if every field that its kind names, where present, has the right type. Few fields are
 * required, because an import leaves absent what its format does not say: only those without which the event says
 * nothing. Fields that a kind does not name and kinds that are not listed pass byte-exactly.
 */
import { z } from 'zod';
import { escapePointer, type JsonObject } from './canonical.ts';
import { VarveError } from './errors.ts';
import {
  content,
  contextEntries,
  count,
  json,
  loose,
  name,
  partitionValue,
  sequenceNumber,
  sha256,
  text,
  time,
  toolCall,
  tools,
  trajectoryId,
  turnNumber,
  usage,
} from './fields.ts';

const amounts = z.record(name, z.number());

const TaskStarted = loose({
  task: text.exactOptional(),
  /** Who owns the trajectory; absent means `default`. */
  tenant: partitionValue.exactOptional(),
  agent: name.exactOptional(),
  labels: z.record(name, z.string()).exactOptional(),
  model: name.exactOptional(),
  model_version: partitionValue.exactOptional(),
  sampling_parameters: z.record(z.string(), json).exactOptional(),
  system_prompt: text.exactOptional(),
  prompt_template: text.exactOptional(),
  /** The SHA-256 of the template where the harness has no version for it; so for tools. */
  prompt_template_version: partitionValue.exactOptional(),
  tools: tools.exactOptional(),
  /** Version by name of the tool. */
  tool_schema_versions: z.record(name, partitionValue).exactOptional(),
  workspace_snapshot_id: name.exactOptional(),
  plan: json.exactOptional(),
  /** What may be spent, by name of the budget, in that budget's own unit. */
  budgets: amounts.exactOptional(),
  /** Branch or fork: this trajectory goes on after that event of another one. */
  parent: loose({ trajectory_id: trajectoryId, sequence_number: sequenceNumber }).exactOptional(),
  /** Only in imports. `id` is the source's own id. */
  source: loose({ format: name, mapping_version: count.exactOptional(), id: name.exactOptional() }).exactOptional(),
  takeover: z.enum(['none', 'replicated']).exactOptional(),
});

const ContextBuilt = loose({
  messages: contextEntries.exactOptional(),
  retrieved: z.array(loose({ id: name.exactOptional(), text: text.exactOptional() })).exactOptional(),
  context_hash: sha256.exactOptional(),
});

const ModelReplied = loose({
  content: content.exactOptional(),
  tool_calls: z.array(toolCall).exactOptional(),
  stop_reason: name.exactOptional(),
  usage: usage.exactOptional(),
  model: name.exactOptional(),
  served_model_version: partitionValue.exactOptional(),
  /** The provider's id of the reply. */
  reply_id: name.exactOptional(),
  duration_ms: z.number().min(0).exactOptional(),
});

const Authorized = loose({
  tool_call_id: name,
  decision: z.enum(['allow', 'deny', 'hold']),
  policy_version: partitionValue.exactOptional(),
  reason: text.exactOptional(),
  budget_remaining: amounts.exactOptional(),
});

const ApprovalRequested = loose({
  tool_call_id: name,
  request_id: name.exactOptional(),
  request: text.exactOptional(),
  arguments_sha256: sha256.exactOptional(),
  approver: name.exactOptional(),
  expires_at: time.exactOptional(),
});

const ApprovalResolved = loose({
  tool_call_id: name,
  decision: z.enum(['approved', 'denied', 'expired']),
  request_id: name.exactOptional(),
  arguments_sha256: sha256.exactOptional(),
  approver: name.exactOptional(),
  expires_at: time.exactOptional(),
  reason: text.exactOptional(),
});

const ToolIntent = loose({
  tool_call_id: name,
  tool_name: name.exactOptional(),
  arguments: text.exactOptional(),
  arguments_sha256: sha256.exactOptional(),
  idempotency_key: name.exactOptional(),
  /** What its tool declared. */
  settle: z.enum(['idempotency_key', 'probe', 'person']).exactOptional(),
  irreversible: z.boolean().exactOptional(),
  workspace: z.enum(['reapply', 'redo', 'escalate']).exactOptional(),
  barrier: z.boolean().exactOptional(),
});

const ToolResult = loose({
  tool_call_id: name,
  tool_name: name.exactOptional(),
  status: z.enum(['ok', 'error', 'denied', 'interrupted']).exactOptional(),
  /** What the model was shown. */
  output: content.exactOptional(),
  /** The whole body, where it was longer. */
  output_ref: text.exactOptional(),
  settled_by: z.enum(['dispatch', 'idempotency_key', 'probe', 'inbox', 'person']).exactOptional(),
  duration_ms: z.number().min(0).exactOptional(),
});

const Compacted = loose({
  /** As produced. Absent: the turns were dropped from the context and nothing stands in their place. */
  summary: text.exactOptional(),
  role: name.exactOptional(),
  /** The events covered, both ends included. Absent: from the first one, and up to this one. */
  from_sequence_number: sequenceNumber.exactOptional(),
  to_sequence_number: sequenceNumber.exactOptional(),
  /** The same in turns, for people. */
  from_turn: turnNumber.exactOptional(),
  to_turn: turnNumber.exactOptional(),
  usage: usage.exactOptional(),
  served_model_version: partitionValue.exactOptional(),
});

const Checkpoint = loose({
  /** The event up to which the snapshots hold everything, and its hash. */
  covers_sequence_number: sequenceNumber.exactOptional(),
  covers_hash: sha256.exactOptional(),
  record_snapshot_id: name.exactOptional(),
  workspace_snapshot_id: name.exactOptional(),
});

const MessageAdded = loose({
  role: z.enum(['system', 'developer', 'user']),
  content,
  author: name.exactOptional(),
});

const InputRead = loose({
  /** `clock`, `random`, `id`, `listing`, `retrieval`, or the harness's own. */
  input: name,
  /** What was asked for. */
  query: text.exactOptional(),
  value: json.exactOptional(),
});

const DriftCrossed = loose({
  what: z.enum(['model', 'prompt_template', 'tool_schema']),
  /** Of the model or the tool. */
  name: name.exactOptional(),
  old_version: partitionValue.exactOptional(),
  new_version: partitionValue.exactOptional(),
  system_prompt: text.exactOptional(),
  prompt_template: text.exactOptional(),
  tools: tools.exactOptional(),
});

const RolledBack = loose({
  /** The last event that still counts; 0: none does. */
  to_sequence_number: count,
  reason: text.exactOptional(),
});

const Halted = loose({ reason: text.exactOptional(), tool_call_id: name.exactOptional() });

const Resumed = loose({ author: name.exactOptional(), reason: text.exactOptional() });

const TaskFinished = loose({
  status: z.enum(['completed', 'failed', 'canceled']),
  outcome: loose({
    reward: z.number().exactOptional(),
    verifier: name.exactOptional(),
    metrics: amounts.exactOptional(),
  }).exactOptional(),
  reason: text.exactOptional(),
});

const Noted = loose({ note: text.exactOptional(), plan: json.exactOptional() });

export const KINDS = {
  TaskStarted,
  ContextBuilt,
  ModelReplied,
  Authorized,
  ApprovalRequested,
  ApprovalResolved,
  ToolIntent,
  ToolResult,
  Compacted,
  Checkpoint,
  MessageAdded,
  InputRead,
  DriftCrossed,
  RolledBack,
  Halted,
  Resumed,
  TaskFinished,
  Noted,
} as const;

export type KnownEventType = keyof typeof KINDS;
export type PayloadOf<Kind extends KnownEventType> = z.infer<(typeof KINDS)[Kind]>;

/**
 * Code of each kind in the index blocks of a hot log. A stored format: a code never changes and is never given away
 * again; a new kind takes the next free number.
 */
export const KIND_CODES = {
  TaskStarted: 1,
  ContextBuilt: 2,
  ModelReplied: 3,
  Authorized: 4,
  ApprovalRequested: 5,
  ApprovalResolved: 6,
  ToolIntent: 7,
  ToolResult: 8,
  Compacted: 9,
  Checkpoint: 10,
  MessageAdded: 11,
  InputRead: 12,
  DriftCrossed: 13,
  RolledBack: 14,
  Halted: 15,
  Resumed: 16,
  TaskFinished: 17,
  Noted: 18,
} as const satisfies Record<KnownEventType, number>;

// Maps, because an event type may be `constructor` or `__proto__`.
const schemas = new Map<string, z.ZodType>(Object.entries(KINDS));
const codes = new Map<string, number>(Object.entries(KIND_CODES));

export function isKnownEventType(event_type: string): event_type is KnownEventType {
  return schemas.has(event_type);
}

/** 0: not a kind of ours. */
export function kindCode(event_type: string): number {
  return codes.get(event_type) ?? 0;
}

/**
 * Refuses a payload of a known kind with a known field of the wrong type, and any payload that is itself a stub or an
 * erasure. Kinds that are not known pass. Whether the payload has a canonical form is not looked at here.
 *
 * @throws VarveError INVALID_PAYLOAD with the JSON pointer, REDACTED_AT_DOOR, STUB_MALFORMED
 */
export function checkPayload(event_type: string, payload: JsonObject): void {
  if (typeof payload !== 'object' || payload === null || Array.isArray(payload)) {
    throw new VarveError('INVALID_PAYLOAD', 'the payload itself: not a JSON object', { pointer: '' });
  }
  if (Object.hasOwn(payload, '$redacted')) {
    const message = 'a payload with the key $redacted stands only where an erasure is on record';
    throw new VarveError('REDACTED_AT_DOOR', message, { pointer: '/$redacted' });
  }
  if (Object.hasOwn(payload, '$blob')) {
    const message = 'the payload itself: a stub stands for a string, and a payload is an object';
    throw new VarveError('STUB_MALFORMED', message, { pointer: '' });
  }
  const fields = fieldsByKind.get(event_type);
  if (fields === undefined || areValid(fields, payload)) return;
  // Again and as a whole, for the words of the refusal.
  const checked = schemas.get(event_type)?.safeParse(payload);
  if (checked === undefined || checked.success) return;
  const { path, reason } = firstIssue(checked.error.issues);
  const pointer = path.map((key) => `/${escapePointer(String(key))}`).join('');
  throw new VarveError('INVALID_PAYLOAD', `${event_type} ${pointer || 'itself'}: ${reason}`, { event_type, pointer });
}

type Field = { readonly name: string; readonly schema: z.ZodType; readonly isOptional: boolean };

/** zod runs the schema of an absent field too, and makes an issue of it first; most fields of a payload are absent. */
const fieldsByKind: ReadonlyMap<string, readonly Field[]> = new Map(
  Object.entries(KINDS).map(([kind, { shape }]) => [kind, Object.entries(shape).map(toField)]),
);

function toField([name, schema]: [string, z.ZodType]): Field {
  if (schema instanceof z.ZodOptional) return { name, schema: schema.unwrap() as z.ZodType, isOptional: true };
  return { name, schema, isOptional: false };
}

function areValid(fields: readonly Field[], payload: JsonObject): boolean {
  for (const { name, schema, isOptional } of fields) {
    const value = payload[name];
    if (value === undefined) {
      if (!isOptional) return false;
    } else if (!schema.safeParse(value).success) {
      return false;
    }
  }
  return true;
}

type Found = { readonly path: readonly PropertyKey[]; readonly reason: string };

/** The first issue; of a union, that of the form which fits best: the fewest issues, and furthest into the value. */
function firstIssue(issues: readonly z.core.$ZodIssue[]): Found {
  const issue = issues[0];
  if (issue === undefined) return { path: [], reason: 'invalid' };
  // A key's own issues carry no path of their own.
  if (issue.code === 'invalid_key') return { path: issue.path, reason: `key: ${firstIssue(issue.issues).reason}` };
  if (issue.code !== 'invalid_union') return { path: issue.path, reason: issue.message };
  const forms = issue.errors
    .map((issues) => ({ issues: issues.length, found: firstIssue(issues) }))
    .filter(({ found }) => found.path.length > 0)
    .toSorted((a, b) => a.issues - b.issues || b.found.path.length - a.found.path.length);
  const best = forms[0]?.found;
  if (best === undefined) return { path: issue.path, reason: issue.message };
  return { path: [...issue.path, ...best.path], reason: best.reason };
}
