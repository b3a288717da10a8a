/**
 * How the events behind a fork become a trajectory of their own. Decides; touches nothing.
 *
 * The hash of an event covers its trajectory's id, so each is encoded anew. The branch begins with a `TaskStarted` that
 * names its parent; behind it come the events, the first of them as number 2, with their own type, turn, time and token.
 *
 * Payloads stay as they are but for the sequence numbers in them, which move along: what lay before the fork is the
 * parent's. Some of it cannot be said from a branch (a part of a message of the parent, a context built upon one of the
 * parent's). Then the field goes. Every payload that was changed names the event that it was, in `branched_from`, and
 * that one stays in quarantine as its log wrote it.
 */
import { canonicalJson, type Json, type JsonObject } from '../schemas/canonical.ts';
import { chainHash, formatEnvelope, payloadSha256 } from '../schemas/chain.ts';
import type { SequenceNumber, TrajectoryId } from '../schemas/ids.ts';
import { PAYLOAD_BYTES_MAX } from '../schemas/limits.ts';
import { countOf, objectsOf } from '../schemas/reading.ts';
import type { WarmEvent } from './ingest-plan.ts';

export type Branch = {
  readonly branch_id: TrajectoryId;
  /** The trajectory that forked. */
  readonly origin_id: TrajectoryId;
  /** Last number before the fork; 0: it forked at its first event. */
  readonly forked_after: number;
  /** Is the event before the fork known to be the parent's? Then the branch may name it. */
  readonly has_parent: boolean;
};

export type BranchPosition = { readonly sequence_number: number; readonly hash: string };

/** Number in the branch of an event of the origin. */
export function branchNumber(branch: Branch, sequence_number: number): number {
  return sequence_number - branch.forked_after + 1;
}

/** The first event of the branch, which `first` follows. */
export function branchStart(
  branch: Branch,
  first: WarmEvent,
  facts: { readonly tenant: string; readonly agent: string | null },
): WarmEvent {
  const { origin_id, forked_after, has_parent } = branch;
  const own = first.event_type === 'TaskStarted' ? first.payload : {};
  const tenant = typeof own['tenant'] === 'string' ? own['tenant'] : facts.tenant;
  const agent = typeof own['agent'] === 'string' ? own['agent'] : facts.agent;
  const payload: JsonObject = {
    tenant,
    ...(agent === null ? {} : { agent }),
    ...(has_parent ? { parent: { trajectory_id: origin_id, sequence_number: forked_after } } : {}),
    source: { format: 'varve.branch', id: origin_id },
  };
  return encode(branch.branch_id, { ...first, event_type: 'TaskStarted' }, payload, {
    sequence_number: 0,
    hash: '0'.repeat(64),
  });
}

/** An event of the origin as the branch's next one. */
export function branchEvent(branch: Branch, event: WarmEvent, before: BranchPosition): WarmEvent {
  const changed = rebased(branch, event);
  const origin = { trajectory_id: branch.origin_id, sequence_number: event.sequence_number };
  if (changed === undefined) return encode(branch.branch_id, event, event.payload, before);
  let payload: JsonObject = { ...changed, branched_from: origin };
  if (Buffer.byteLength(canonicalJson(payload)) > PAYLOAD_BYTES_MAX) {
    const { messages: _, ...rest } = payload;
    payload = rest;
  }
  return encode(branch.branch_id, event, payload, before);
}

function encode(trajectory_id: TrajectoryId, event: WarmEvent, payload: JsonObject, before: BranchPosition): WarmEvent {
  const text = canonicalJson(payload);
  const { event_type, turn, created_at, fencing_token } = event;
  const envelope = {
    trajectory_id,
    sequence_number: (before.sequence_number + 1) as SequenceNumber,
    event_type,
    turn,
    created_at,
    fencing_token,
    payload_sha256: payloadSha256(text),
  };
  const cryptographic_hash = chainHash(Buffer.from(before.hash, 'hex'), formatEnvelope(envelope)).toString('hex');
  return { ...envelope, cryptographic_hash, payload, payload_bytes: Buffer.from(text) };
}

/** undefined: nothing in the payload counts events. */
function rebased(branch: Branch, event: WarmEvent): JsonObject | undefined {
  const { payload } = event;
  switch (event.event_type) {
    case 'ContextBuilt':
      return 'messages' in payload ? withMessages(branch, payload) : undefined;
    case 'RolledBack': {
      const to = countOf(payload['to_sequence_number']);
      // To before the fork: the branch can only go back to its own beginning.
      return to === undefined ? undefined : { ...payload, to_sequence_number: Math.max(1, branchNumber(branch, to)) };
    }
    case 'Compacted':
      return withRange(branch, payload);
    case 'Checkpoint':
      return withoutCover(branch, payload);
    default:
      return undefined;
  }
}

function withRange(branch: Branch, payload: JsonObject): JsonObject | undefined {
  const from = countOf(payload['from_sequence_number']);
  const to = countOf(payload['to_sequence_number']);
  if (from === undefined && to === undefined) return undefined;
  const { from_sequence_number: _, ...rest } = payload;
  return {
    ...rest,
    ...(from !== undefined && from > branch.forked_after ? { from_sequence_number: branchNumber(branch, from) } : {}),
    ...(to === undefined ? {} : { to_sequence_number: Math.max(1, branchNumber(branch, to)) }),
  };
}

/** The snapshots are of the origin's events: a branch cannot be restored from them. */
function withoutCover(branch: Branch, payload: JsonObject): JsonObject | undefined {
  const covers = countOf(payload['covers_sequence_number']);
  if (covers === undefined && !('covers_hash' in payload)) return undefined;
  const { covers_sequence_number: _, covers_hash: __, ...rest } = payload;
  if (covers === undefined || covers <= branch.forked_after) return rest;
  return { ...rest, covers_sequence_number: branchNumber(branch, covers) };
}

function withMessages(branch: Branch, payload: JsonObject): JsonObject {
  const { messages, ...rest } = payload;
  const entries: Json[] = [];
  for (const entry of objectsOf(messages)) {
    const mapped = entriesOf(branch, entry);
    if (mapped === undefined) return rest;
    entries.push(...mapped);
  }
  return { ...rest, messages: entries };
}

/** undefined: it cannot be said from the branch. */
function entriesOf(branch: Branch, entry: JsonObject): JsonObject[] | undefined {
  const { forked_after, origin_id, has_parent } = branch;
  if (typeof entry['trajectory_id'] === 'string') return undefined;
  for (const name of ['at', 'base'] as const) {
    const number = countOf(entry[name]);
    if (number === undefined) continue;
    return number > forked_after ? [{ ...entry, [name]: branchNumber(branch, number) }] : undefined;
  }
  const from = countOf(entry['from']);
  const to = countOf(entry['to']);
  if (from === undefined || to === undefined) return [entry];
  if (from <= forked_after && !has_parent) return undefined;
  const entries: JsonObject[] = [];
  if (from <= forked_after) entries.push({ trajectory_id: origin_id, from, to: Math.min(to, forked_after) });
  if (to > forked_after) {
    entries.push({
      from: branchNumber(branch, Math.max(from, forked_after + 1)),
      to: branchNumber(branch, to),
    });
  }
  return entries;
}
