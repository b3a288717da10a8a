/**
 * The columns of the cold tier: the same ones, in this order and with these types, in every data file.
 *
 *   the event           its fields by their names; `payload` as canonical text, where compaction may have replaced strings
 *                       by stubs; `payload_sha256` of the payload as it was appended
 *   shredded            fields of known kinds that queries ask for most, with types, so that no query parses JSON for
 *                       them. They repeat what the payload says, and are null where it says nothing
 *   the trajectory      tenant, date, model_version: where its files lie
 *
 * A row is valid if and only if its event is, and SHA-256(payload) = payload_sha256 where `offloaded` is null and the
 * payload is no `$redacted` stub. Text may hold any Unicode, U+0000 included.
 *
 * A column is never renamed, retyped or moved; new ones are added before `tenant`, under a new format number.
 */
import { canonicalJson, type Json, type JsonObject } from './canonical.ts';
import { payloadSha256 } from './chain.ts';
import type { TrajectoryEvent } from './event.ts';
import { type TrajectoryId, trajectoryStartMs } from './ids.ts';
import { isKnownEventType, type KnownEventType } from './kinds.ts';
import { CREATED_AT_MS_MAX } from './limits.ts';
import { countOf, objectOf, stringOf } from './reading.ts';
import { mayHoldStub, stubsOf } from './stubs.ts';

/** Of the columns. Files of different formats are never mixed by a compaction without conversion. */
export const COLUMNS_FORMAT = 1;

export type ColumnType = 'string' | 'long' | 'integer' | 'double' | 'boolean' | 'timestamp' | 'date' | 'strings';

export type Column = {
  readonly name: keyof ColdRow;
  readonly type: ColumnType;
  /** What it holds; published as the column's comment. */
  readonly about: string;
};

export type ColdRow = Omit<TrajectoryEvent, 'payload'> &
  Shredded &
  Placement & {
    /** Canonical text. */
    readonly payload: string;
    readonly payload_sha256: string;
    readonly offloaded: readonly string[] | null;
    readonly blob_refs: readonly string[];
    /** `YYYY-MM-DD`. */
    readonly date: string;
  };

export type Shredded = {
  readonly tool_name: string | null;
  readonly tool_call_id: string | null;
  readonly status: string | null;
  readonly decision: string | null;
  readonly settled_by: string | null;
  readonly role: string | null;
  readonly stop_reason: string | null;
  readonly model: string | null;
  readonly served_model_version: string | null;
  readonly input_tokens: number | null;
  readonly output_tokens: number | null;
  readonly cache_read_tokens: number | null;
  readonly cache_write_tokens: number | null;
  readonly reasoning_tokens: number | null;
  readonly cost_usd: number | null;
  readonly duration_ms: number | null;
  readonly reward: number | null;
  readonly verifier: string | null;
};

/** Where a trajectory lies, the same for all its events: see `Summary` in schemas/summary.ts. */
export type Placement = { readonly tenant: string; readonly model_version: string };

/** The model version of a trajectory that names none. */
export const MODEL_VERSION_UNKNOWN = 'unknown';

/** What a payload was before compaction replaced strings in it, or before an erasure. */
export type Original = {
  readonly payload_sha256: string;
  /** JSON pointers of the strings that were replaced; null after an erasure. */
  readonly offloaded: readonly string[] | null;
};

export const COLUMNS = [
  { name: 'trajectory_id', type: 'string', about: 'UUIDv7, lower-case; its time is the start of the trajectory' },
  { name: 'sequence_number', type: 'long', about: 'Place in the trajectory: 1, 2, 3 without gaps' },
  { name: 'event_type', type: 'string', about: 'Kind of the event' },
  { name: 'turn', type: 'integer', about: 'Turn that it belongs to; never decreases' },
  { name: 'created_at', type: 'timestamp', about: 'When it was appended, exact to the millisecond, in UTC' },
  { name: 'fencing_token', type: 'long', about: 'Token of the lease under which it was written; 0 without leases' },
  {
    name: 'payload',
    type: 'string',
    about: 'Canonical JSON (RFC 8785); {"$blob":{"bytes","media_type","sha256"}} stands for a string kept as a blob',
  },
  { name: 'payload_sha256', type: 'string', about: 'SHA-256 in hex of the canonical payload as it was appended' },
  {
    name: 'offloaded',
    type: 'strings',
    about: 'JSON pointers of strings that compaction replaced by $blob stubs; null: none, payload_sha256 is of payload',
  },
  { name: 'blob_refs', type: 'strings', about: 'SHA-256 in hex of every blob that the payload refers to, ascending' },
  {
    name: 'cryptographic_hash',
    type: 'string',
    about: "SHA-256 in hex over the previous event's hash (32 zero bytes before the first) and this event's envelope",
  },
  { name: 'tool_name', type: 'string', about: 'ToolIntent, ToolResult: name of the tool' },
  {
    name: 'tool_call_id',
    type: 'string',
    about: 'Authorized, ApprovalRequested, ApprovalResolved, ToolIntent, ToolResult, Halted: the call',
  },
  {
    name: 'status',
    type: 'string',
    about: 'ToolResult: ok, error, denied, interrupted; TaskFinished: completed, failed, canceled',
  },
  {
    name: 'decision',
    type: 'string',
    about: 'Authorized: allow, deny, hold; ApprovalResolved: approved, denied, expired',
  },
  {
    name: 'settled_by',
    type: 'string',
    about: 'ToolResult: dispatch, idempotency_key, probe, inbox, person',
  },
  { name: 'role', type: 'string', about: 'MessageAdded: system, developer, user; Compacted: role of the summary' },
  { name: 'stop_reason', type: 'string', about: 'ModelReplied: why the model stopped, as the provider says it' },
  { name: 'model', type: 'string', about: 'TaskStarted: model asked for; ModelReplied: model that replied' },
  { name: 'served_model_version', type: 'string', about: 'ModelReplied, Compacted: version that served the call' },
  { name: 'input_tokens', type: 'long', about: 'ModelReplied, Compacted: all of the input, cached or not' },
  { name: 'output_tokens', type: 'long', about: 'ModelReplied, Compacted: all of the output' },
  { name: 'cache_read_tokens', type: 'long', about: 'Part of input_tokens' },
  { name: 'cache_write_tokens', type: 'long', about: 'Part of input_tokens' },
  { name: 'reasoning_tokens', type: 'long', about: 'Part of output_tokens' },
  { name: 'cost_usd', type: 'double', about: 'ModelReplied, Compacted: cost of the call as recorded' },
  { name: 'duration_ms', type: 'double', about: 'ModelReplied, ToolResult: duration of the call, in milliseconds' },
  { name: 'reward', type: 'double', about: 'TaskFinished: outcome.reward as recorded; later rewards are annotations' },
  { name: 'verifier', type: 'string', about: 'TaskFinished: outcome.verifier, who gave the reward' },
  { name: 'tenant', type: 'string', about: 'Who owns the trajectory' },
  { name: 'date', type: 'date', about: "UTC day of the trajectory's start, by its id" },
  {
    name: 'model_version',
    type: 'string',
    about: 'Version served in the first ModelReplied, else the one of TaskStarted, else unknown',
  },
] as const satisfies readonly Column[];

export const PARTITION_COLUMNS = ['tenant', 'date', 'model_version'] as const;

/** Day in UTC on which a trajectory started, `YYYY-MM-DD`. Ids are refused long before their year has five digits. */
export function dateOf(trajectory_id: TrajectoryId): string {
  // Rows come trajectory by trajectory.
  if (trajectory_id !== lastId) {
    lastDate = new Date(Math.min(trajectoryStartMs(trajectory_id), CREATED_AT_MS_MAX)).toISOString().slice(0, 10);
    lastId = trajectory_id;
  }
  return lastDate;
}

let lastId = '';
let lastDate = '';

/**
 * The row of an event, whose payload is as it is to be stored. Pure. `original` where the payload is no longer the one
 * that was appended.
 *
 * @throws VarveError as `canonicalJson` does; STUB_MALFORMED
 */
export function rowOf(event: TrajectoryEvent, place: Placement, original?: Original): ColdRow {
  const payload = canonicalJson(event.payload);
  const known: Partial<Shredded> = isKnownEventType(event.event_type)
    ? shredKnown(event.event_type, event.payload)
    : NOTHING;
  // Every field by name: copies of whole objects would cost as much as all else here.
  return {
    trajectory_id: event.trajectory_id,
    sequence_number: event.sequence_number,
    event_type: event.event_type,
    turn: event.turn,
    created_at: event.created_at,
    fencing_token: event.fencing_token,
    payload,
    payload_sha256: original?.payload_sha256 ?? payloadSha256(payload),
    offloaded: original?.offloaded ?? null,
    blob_refs: mayHoldStub(payload) ? blobRefsOf(event.payload) : NO_BLOBS,
    cryptographic_hash: event.cryptographic_hash,
    tool_name: known.tool_name ?? null,
    tool_call_id: known.tool_call_id ?? null,
    status: known.status ?? null,
    decision: known.decision ?? null,
    settled_by: known.settled_by ?? null,
    role: known.role ?? null,
    stop_reason: known.stop_reason ?? null,
    model: known.model ?? null,
    served_model_version: known.served_model_version ?? null,
    input_tokens: known.input_tokens ?? null,
    output_tokens: known.output_tokens ?? null,
    cache_read_tokens: known.cache_read_tokens ?? null,
    cache_write_tokens: known.cache_write_tokens ?? null,
    reasoning_tokens: known.reasoning_tokens ?? null,
    cost_usd: known.cost_usd ?? null,
    duration_ms: known.duration_ms ?? null,
    reward: known.reward ?? null,
    verifier: known.verifier ?? null,
    tenant: place.tenant,
    date: dateOf(event.trajectory_id),
    model_version: place.model_version,
  };
}

const NO_BLOBS: readonly string[] = [];
const NOTHING: Partial<Shredded> = {};

function blobRefsOf(payload: JsonObject): string[] {
  return [...new Set(stubsOf(payload).map(({ sha256 }) => sha256))].toSorted();
}

/** Total: an erased payload has no fields, and what has another type than its kind says is left out. */
function shredKnown(event_type: KnownEventType, payload: JsonObject): Partial<Shredded> {
  const text = (field: string) => stringOf(payload[field]) ?? null;
  const tool_call_id = text('tool_call_id');
  switch (event_type) {
    case 'TaskStarted':
      return { model: text('model') };
    case 'ModelReplied': {
      const known = spent(payload);
      known.stop_reason = text('stop_reason');
      known.model = text('model');
      known.duration_ms = numberOf(payload['duration_ms']);
      return known;
    }
    case 'Compacted':
      return { ...spent(payload), role: text('role') };
    case 'MessageAdded':
      return { role: text('role') };
    case 'Authorized':
    case 'ApprovalResolved':
      return { tool_call_id, decision: text('decision') };
    case 'ApprovalRequested':
    case 'Halted':
      return { tool_call_id };
    case 'ToolIntent':
      return { tool_call_id, tool_name: text('tool_name') };
    case 'ToolResult': {
      const [status, settled_by] = [text('status'), text('settled_by')];
      return {
        tool_call_id,
        tool_name: text('tool_name'),
        status,
        settled_by,
        duration_ms: numberOf(payload['duration_ms']),
      };
    }
    case 'TaskFinished': {
      const outcome = objectOf(payload['outcome']) ?? {};
      return {
        status: text('status'),
        reward: numberOf(outcome['reward']),
        verifier: stringOf(outcome['verifier']) ?? null,
      };
    }
    case 'ContextBuilt':
    case 'Checkpoint':
    case 'InputRead':
    case 'DriftCrossed':
    case 'RolledBack':
    case 'Resumed':
    case 'Noted':
      return {};
  }
}

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

/** Of a model call. */
function spent(payload: JsonObject): Mutable<Partial<Shredded>> {
  const usage = objectOf(payload['usage']) ?? {};
  return {
    served_model_version: stringOf(payload['served_model_version']) ?? null,
    input_tokens: countOf(usage['input_tokens']) ?? null,
    output_tokens: countOf(usage['output_tokens']) ?? null,
    cache_read_tokens: countOf(usage['cache_read_tokens']) ?? null,
    cache_write_tokens: countOf(usage['cache_write_tokens']) ?? null,
    reasoning_tokens: countOf(usage['reasoning_tokens']) ?? null,
    cost_usd: numberOf(usage['cost_usd']),
  };
}

/** −0 has no canonical form, so it is 0 here as well. */
function numberOf(value: Json | undefined): number | null {
  return typeof value === 'number' && Number.isFinite(value) ? value + 0 : null;
}
