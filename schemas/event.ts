/**
 * The event, and event JSONL: one event a line, the canonical JSON of the eight fields, `cryptographic_hash` as 64
 * lower-case hex digits. A line is valid if and only if encoding what it says gives the same line again.
 */
import { canonicalJson, type JsonObject } from './canonical.ts';
import {
  chainHash,
  checkEventType,
  checkFencingToken,
  checkTurn,
  type Envelope,
  formatEnvelope,
  GENESIS_HASH,
  parseCreatedAt,
  payloadSha256,
} from './chain.ts';
import { VarveError } from './errors.ts';
import { parseTrajectoryId, type SequenceNumber, type TrajectoryId } from './ids.ts';

/** An event as every tier knows it. */
export type TrajectoryEvent = {
  readonly trajectory_id: TrajectoryId;
  readonly sequence_number: SequenceNumber;
  readonly event_type: string;
  readonly turn: number;
  /** `YYYY-MM-DDTHH:mm:ss.sssZ`. */
  readonly created_at: string;
  readonly fencing_token: number;
  readonly payload: JsonObject;
  /** 64 lower-case hex digits. */
  readonly cryptographic_hash: string;
};

const FIELDS = [
  'created_at',
  'cryptographic_hash',
  'event_type',
  'fencing_token',
  'payload',
  'sequence_number',
  'trajectory_id',
  'turn',
] as const satisfies readonly (keyof TrajectoryEvent)[];

/**
 * One line without its newline. All fields but the payload must already be legal; nothing is escaped in them.
 *
 * @throws VarveError as `canonicalJson` does, for the payload
 */
export function formatEventLine(event: TrajectoryEvent): string {
  // The payload is encoded by itself: its nesting and its JSON pointers count from the payload, not from the line.
  const [head, tail] = lineAround(event);
  return `${head}${canonicalJson(event.payload)}${tail}`;
}

/** What stands before and behind the payload. */
function lineAround(event: Omit<TrajectoryEvent, 'payload'>): readonly [string, string] {
  return [
    `{"created_at":"${event.created_at}","cryptographic_hash":"${event.cryptographic_hash}","event_type":"${event.event_type}","fencing_token":${event.fencing_token},"payload":`,
    `,"sequence_number":${event.sequence_number},"trajectory_id":"${event.trajectory_id}","turn":${event.turn}}`,
  ];
}

/**
 * Reads one line back. Says nothing about the chain: see `verifyEvent`.
 *
 * @throws VarveError INVALID_JSONL and the codes of the single fields.
 */
export function parseEventLine(line: string): TrajectoryEvent {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch (cause) {
    throw new VarveError('INVALID_JSONL', 'the line is not JSON', {}, cause);
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new VarveError('INVALID_JSONL', 'the line is not a JSON object', {});
  }
  const names = Object.keys(value);
  if (names.length !== FIELDS.length || FIELDS.some((field) => !Object.hasOwn(value, field))) {
    throw new VarveError('INVALID_JSONL', `an event line has exactly the fields ${FIELDS.join(', ')}`, {});
  }
  const event = value as TrajectoryEvent;
  checkFields(event);
  if (formatEventLine(event) !== line) {
    throw new VarveError('INVALID_JSONL', 'the line is not in canonical form (RFC 8785)', {});
  }
  return event;
}

function checkFields(event: TrajectoryEvent): void {
  parseTrajectoryId(event.trajectory_id);
  checkEventType(event.event_type);
  checkTurn(event.turn);
  checkFencingToken(event.fencing_token);
  parseCreatedAt(event.created_at);
  if (!Number.isSafeInteger(event.sequence_number) || event.sequence_number < 1) {
    throw new VarveError('INVALID_JSONL', 'sequence_number is not an integer from 1 to 2^53 − 1', {});
  }
  if (typeof event.payload !== 'object' || event.payload === null || Array.isArray(event.payload)) {
    throw new VarveError('INVALID_JSONL', 'payload is not a JSON object', {});
  }
  if (typeof event.cryptographic_hash !== 'string' || !/^[0-9a-f]{64}$/.test(event.cryptographic_hash)) {
    throw new VarveError('INVALID_JSONL', 'cryptographic_hash is not 64 lower-case hex digits', {});
  }
}

/** The envelope of an event whose payload has the given canonical text. */
export function envelopeOf(event: TrajectoryEvent, canonicalPayload: string): Envelope {
  const { created_at, event_type, fencing_token, sequence_number, trajectory_id, turn } = event;
  const payload_sha256 = payloadSha256(canonicalPayload);
  return { created_at, event_type, fencing_token, payload_sha256, sequence_number, trajectory_id, turn };
}

/** An event as it was read back and proven, from whatever tier. */
export type ProvenEvent = TrajectoryEvent & {
  /** Hash under which the payload was appended; an erased payload has another one itself. */
  readonly payload_sha256: string;
  /** Canonical payload in UTF-8, as it was hashed. */
  readonly payload_bytes: Buffer;
};

/** A proven event whose payload is parsed when somebody looks into it. */
export class LazyEvent implements ProvenEvent {
  readonly trajectory_id: TrajectoryId;
  readonly sequence_number: SequenceNumber;
  readonly event_type: string;
  readonly turn: number;
  readonly created_at: string;
  readonly fencing_token: number;
  readonly payload_sha256: string;
  readonly payload_bytes: Buffer;
  readonly cryptographic_hash: string;
  #payload: JsonObject | undefined;

  constructor(event: Omit<ProvenEvent, 'payload' | 'payload_bytes'>, payload_bytes: Buffer) {
    this.trajectory_id = event.trajectory_id;
    this.sequence_number = event.sequence_number;
    this.event_type = event.event_type;
    this.turn = event.turn;
    this.created_at = event.created_at;
    this.fencing_token = event.fencing_token;
    this.payload_sha256 = event.payload_sha256;
    this.payload_bytes = payload_bytes;
    this.cryptographic_hash = event.cryptographic_hash;
  }

  get payload(): JsonObject {
    this.#payload ??= JSON.parse(this.payload_bytes.toString('utf8')) as JsonObject;
    return this.#payload;
  }
}

const REDACTED = Buffer.from('{"$redacted":');

/** Is this what stands for a payload after an erasure? It has one key. */
export function isRedacted(payload_bytes: Uint8Array): boolean {
  return REDACTED.equals(payload_bytes.subarray(0, REDACTED.length));
}

/** The line of an event with its newline, in UTF-8, from the payload's bytes as they are. */
export function lineOfProven(event: ProvenEvent): Buffer {
  const [head, tail] = lineAround(event);
  return Buffer.concat([Buffer.from(head), event.payload_bytes, Buffer.from(`${tail}\n`)]);
}

/** What the next event of a trajectory must follow. */
export type Link = Pick<
  TrajectoryEvent,
  'trajectory_id' | 'turn' | 'created_at' | 'fencing_token' | 'cryptographic_hash'
> & { readonly sequence_number: number };

/** What stands before an event of which only the hash before it is known; by default before the first of all. */
export function linkBefore(
  trajectory_id: TrajectoryId,
  sequence_number = 1,
  previous_hash: string = Buffer.from(GENESIS_HASH).toString('hex'),
): Link {
  const nothing = { turn: 0, created_at: '', fencing_token: 0 };
  return { trajectory_id, sequence_number: sequence_number - 1, ...nothing, cryptographic_hash: previous_hash };
}

/**
 * Checks that `event` follows `previous` (undefined: the event must be the first) in its trajectory: number, order of
 * turn, time and token, and hash.
 *
 * @throws VarveError CHAIN_BROKEN, TURN_WENT_BACK, CREATED_AT_WENT_BACK, FENCING_TOKEN_WENT_BACK
 */
export function verifyEvent(previous: TrajectoryEvent | undefined, event: TrajectoryEvent): void {
  const payload_sha256 = payloadSha256(canonicalJson(event.payload));
  verifyLink(previous ?? linkBefore(event.trajectory_id), event, payload_sha256);
}

/** As `verifyEvent`, of an event whose payload was appended under that hash. */
export function verifyLink(previous: Link, event: Omit<TrajectoryEvent, 'payload'>, payload_sha256: string): void {
  const { trajectory_id, sequence_number, event_type, turn, created_at, fencing_token } = event;
  const where = { trajectory_id, sequence_number };
  const name = `event ${sequence_number} of ${trajectory_id}`;
  const expected = previous.sequence_number + 1;
  if (sequence_number !== expected || previous.trajectory_id !== trajectory_id) {
    throw new VarveError('CHAIN_BROKEN', `${name}: number ${expected} was expected here`, where);
  }
  if (turn < previous.turn) throw new VarveError('TURN_WENT_BACK', `${name}: the turn went back`, where);
  if (created_at < previous.created_at) {
    throw new VarveError('CREATED_AT_WENT_BACK', `${name}: created_at went back`, where);
  }
  if (fencing_token < previous.fencing_token) {
    throw new VarveError('FENCING_TOKEN_WENT_BACK', `${name}: the fencing token went back`, where);
  }
  const envelope = { created_at, event_type, fencing_token, payload_sha256, sequence_number, trajectory_id, turn };
  const hash = chainHash(Buffer.from(previous.cryptographic_hash, 'hex'), formatEnvelope(envelope));
  if (hash.toString('hex') !== event.cryptographic_hash) {
    throw new VarveError('CHAIN_BROKEN', `${name}: the hash does not cover its envelope and the event before`, where);
  }
}
