/**
 * The door of the log: everything that can be refused is refused here, before anything is written.
 *
 * `prepare` is a pure function of the event and the offload threshold. What it returns is the canonical text that will
 * be hashed and stored, and the bodies that must be blobs before it may be.
 */
import { canonicalJson, type JsonObject } from '../schemas/canonical.ts';
import { checkEventType, checkFencingToken, checkTurn, payloadSha256 } from '../schemas/chain.ts';
import { VarveError } from '../schemas/errors.ts';
import { checkPayload, kindCode } from '../schemas/kinds.ts';
import { PAYLOAD_BYTES_MAX } from '../schemas/limits.ts';
import { type BlobRef, mayHoldStub, type OffloadedBody, offload, stubsOf } from '../schemas/stubs.ts';
import { callTag, hasTag } from './index-block.ts';

/** An event as a caller gives it. */
export type EventInput = {
  readonly event_type: string;
  readonly turn: number;
  readonly payload: JsonObject;
  /** @default the trajectory's current token, 0 at its start */
  readonly fencing_token?: number;
};

/** An event with its recorded time and token, of an import or a restore. */
export type RecordedEvent = EventInput & {
  readonly created_at: string;
  readonly fencing_token: number;
  /** Where given, the event is refused unless it has this number in its trajectory. */
  readonly sequence_number?: number;
  /** Where given (64 hex digits), the event is refused unless it gets this hash. */
  readonly cryptographic_hash?: string;
};

/** An event that has passed the door. */
export type Prepared = {
  readonly event_type: string;
  readonly turn: number;
  readonly token: number | undefined;
  /** Canonical payload, stubs in place. */
  readonly text: string;
  readonly payloadBytes: number;
  readonly payload_sha256: string;
  readonly code: number;
  readonly tag: string;
  /** Hex hashes of all stubs. */
  readonly blobs: readonly string[];
  /** Bodies that this log must take in as blobs first. */
  readonly bodies: readonly OffloadedBody[];
  /** Stubs that came from the caller: their bodies must be in this log's blobs. */
  readonly refs: readonly BlobRef[];
};

const NONE: readonly never[] = [];

/** @throws VarveError with the code of what is wrong, and `details.pointer` where it is in the payload. */
export function prepare(event: EventInput, offloadOverBytes: number): Prepared {
  const { event_type, turn, payload, fencing_token: token } = event;
  const code = kindCode(event_type);
  if (code === 0) checkEventType(event_type);
  checkTurn(turn);
  if (token !== undefined) checkFencingToken(token);
  if (typeof payload !== 'object' || payload === null || Array.isArray(payload)) {
    throw new VarveError('INVALID_PAYLOAD', 'a payload is a JSON object', { pointer: '' });
  }
  if (Object.hasOwn(payload, '$redacted')) {
    throw new VarveError('REDACTED_AT_DOOR', 'a payload with the key $redacted exists only after an erasure', {});
  }
  let text = canonicalJson(payload);
  checkPayload(event_type, payload);
  let payloadBytes = text.length < PAYLOAD_BYTES_MAX / 3 ? -1 : Buffer.byteLength(text);
  let refs: readonly BlobRef[] = NONE;
  let bodies: readonly OffloadedBody[] = NONE;
  if (mayHoldStub(text)) refs = stubsOf(payload);
  // A string of n code units has at most 3n bytes of UTF-8; shorter payloads cannot hold one that is too long.
  if (text.length * 3 > offloadOverBytes) {
    if (payloadBytes < 0) payloadBytes = Buffer.byteLength(text);
    if (payloadBytes > offloadOverBytes) {
      const offloaded = offload(payload, payloadBytes, offloadOverBytes, PAYLOAD_BYTES_MAX);
      if (offloaded.bodies.length > 0) {
        bodies = offloaded.bodies;
        text = canonicalJson(offloaded.payload);
        payloadBytes = -1;
      }
    }
  }
  if (payloadBytes < 0) payloadBytes = Buffer.byteLength(text);
  return {
    event_type,
    turn,
    token,
    text,
    payloadBytes,
    payload_sha256: payloadSha256(text),
    code,
    tag: hasTag(code) ? callTag(payload['tool_call_id'] as string) : '',
    blobs: refs.length + bodies.length === 0 ? NONE : blobHashes(refs, bodies),
    bodies,
    refs,
  };
}

function blobHashes(refs: readonly BlobRef[], bodies: readonly OffloadedBody[]): string[] {
  return [...new Set([...refs.map((ref) => ref.sha256), ...bodies.map((body) => body.ref.sha256)])];
}
