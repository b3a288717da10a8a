/**
 * The stored forms of the hot log, all integers big-endian.
 *
 *   key    'e' ‖ u64 LSN              a record: an event, an anchor or a trim mark
 *   value  u64 LSN of the trajectory's previous record in this log (0: none)
 *          u32 length of the head, its top bit set for an anchor or a mark
 *          32-byte hash ‖ head ‖ body
 *
 * For an event the head is its envelope, the body its canonical payload and the hash its `cryptographic_hash`; hash and
 * head stand side by side so that the chain hash is taken in place. For an anchor or a mark the head is canonical JSON,
 * the body the head's SHA-256, and the hash that of the event it stands for.
 *
 *   key    'e' ‖ u64 last LSN ‖ 'i'   the index block of one batch: see `hot/index-block.ts`
 *   key    'a' ‖ name                 the log's own facts: see `hot/meta.ts`
 *
 * A batch is written atomically: its records, in order, then its index block.
 */
import { hash } from 'node:crypto';
import { canonicalJson, type JsonObject } from '../schemas/canonical.ts';
import { chainHash, type Envelope, parseEnvelope, payloadSha256 } from '../schemas/chain.ts';
import type { TrajectoryEvent } from '../schemas/event.ts';
import type { Lsn, SequenceNumber, TrajectoryId } from '../schemas/ids.ts';

export const RECORD_KEY_BYTES = 9;
export const INDEX_KEY_BYTES = 10;
const E = 0x65;
const I = 0x69;

/** Offsets in a value. */
export const HEAD_LENGTH_AT = 8;
export const HASH_AT = 12;
export const HEAD_AT = 44;
export const CONTROL_BIT = 0x8000_0000;

export function recordKey(lsn: number): Buffer {
  const key = Buffer.allocUnsafe(RECORD_KEY_BYTES);
  key[0] = E;
  writeU64(key, lsn, 1);
  return key;
}

export function indexKey(lastLsn: number): Buffer {
  const key = Buffer.allocUnsafe(INDEX_KEY_BYTES);
  key[0] = E;
  writeU64(key, lastLsn, 1);
  key[9] = I;
  return key;
}

export function keyLsn(key: Buffer): number {
  return readU64(key, 1);
}

export function isIndexKey(key: Buffer): boolean {
  return key.length === INDEX_KEY_BYTES;
}

/** Byte stores: six times as fast as two calls of `writeUInt32BE` (measured), and there are seven for every event. */
export function writeU64(buffer: Buffer, value: number, offset: number): void {
  const high = Math.floor(value / 0x1_0000_0000);
  const low = value >>> 0;
  buffer[offset] = high >>> 24;
  buffer[offset + 1] = high >>> 16;
  buffer[offset + 2] = high >>> 8;
  buffer[offset + 3] = high;
  buffer[offset + 4] = low >>> 24;
  buffer[offset + 5] = low >>> 16;
  buffer[offset + 6] = low >>> 8;
  buffer[offset + 7] = low;
}

export function readU64(buffer: Buffer, offset: number): number {
  return buffer.readUInt32BE(offset) * 0x1_0000_0000 + buffer.readUInt32BE(offset + 4);
}

/** Position and state of a trajectory where a log takes it over or has trimmed it. */
export type Position = {
  readonly trajectory_id: TrajectoryId;
  readonly sequence_number: SequenceNumber;
  /** 64 lower-case hex digits. */
  readonly cryptographic_hash: string;
  readonly created_at: string;
  readonly turn: number;
  readonly fencing_token: number;
};

/** An event as the hot log holds it; `payload` is parsed when it is first asked for. */
export class StoredEvent implements TrajectoryEvent {
  readonly trajectory_id: TrajectoryId;
  readonly sequence_number: SequenceNumber;
  readonly event_type: string;
  readonly turn: number;
  readonly created_at: string;
  readonly fencing_token: number;
  readonly payload_sha256: string;
  readonly cryptographic_hash: string;
  readonly lsn: Lsn;
  /** LSN of the trajectory's previous record in this log, 0 if there is none. */
  readonly previous_lsn: Lsn;
  /** The canonical payload's UTF-8 bytes, exactly as they were hashed. */
  readonly payload_bytes: Buffer;
  #payload: JsonObject | undefined;

  constructor(lsn: number, previousLsn: number, envelope: Envelope, hashHex: string, payload: Buffer) {
    this.lsn = BigInt(lsn) as Lsn;
    this.previous_lsn = BigInt(previousLsn) as Lsn;
    this.trajectory_id = envelope.trajectory_id;
    this.sequence_number = envelope.sequence_number;
    this.event_type = envelope.event_type;
    this.turn = envelope.turn;
    this.created_at = envelope.created_at;
    this.fencing_token = envelope.fencing_token;
    this.payload_sha256 = envelope.payload_sha256;
    this.cryptographic_hash = hashHex;
    this.payload_bytes = payload;
  }

  get payload_text(): string {
    return this.payload_bytes.toString('utf8');
  }

  get payload(): JsonObject {
    this.#payload ??= JSON.parse(this.payload_text) as JsonObject;
    return this.#payload;
  }
}

/** What one LSN holds. */
export type LogRecord =
  | { readonly kind: 'event'; readonly lsn: Lsn; readonly hash: string; readonly event: StoredEvent }
  | { readonly kind: 'anchor'; readonly lsn: Lsn; readonly hash: string; readonly position: Position }
  | {
      readonly kind: 'trim';
      readonly lsn: Lsn;
      readonly hash: string;
      readonly position: Position;
      /** Every record of the trajectory up to this LSN is gone. */
      readonly through_lsn: Lsn;
    };

export type AnchorHead = Position & { readonly kind: 'anchor' };
export type TrimHead = Position & { readonly kind: 'trim'; readonly through_lsn: number };

/** Head and body of an anchor or a mark, and the head's length. */
export function encodeControl(control: AnchorHead | TrimHead): { readonly bytes: Buffer; readonly headBytes: number } {
  const head = Buffer.from(canonicalJson(control));
  return { bytes: Buffer.concat([head, hash('sha256', head, 'buffer')]), headBytes: head.length };
}

/**
 * Reads a value. undefined: it has no valid form, or its head, body and hash contradict each other; for an event that
 * is everything but the link to its predecessor, which `linksTo` checks.
 */
export function decodeRecord(lsn: number, value: Buffer): LogRecord | undefined {
  if (value.length < HEAD_AT) return undefined;
  const previousLsn = readU64(value, 0);
  const length = value.readUInt32BE(HEAD_LENGTH_AT);
  const hashHex = value.toString('hex', HASH_AT, HEAD_AT);
  if ((length & CONTROL_BIT) !== 0) return decodeControl(lsn, value, hashHex);
  if (HEAD_AT + length > value.length) return undefined;
  const envelope = parseEnvelope(value.toString('latin1', HEAD_AT, HEAD_AT + length));
  if (envelope === undefined) return undefined;
  const payload = value.subarray(HEAD_AT + length);
  if (payloadSha256(payload) !== envelope.payload_sha256) return undefined;
  const event = new StoredEvent(lsn, previousLsn, envelope, hashHex, payload);
  return { kind: 'event', lsn: event.lsn, hash: hashHex, event };
}

function decodeControl(lsn: number, value: Buffer, hashHex: string): LogRecord | undefined {
  const end = value.length - 32;
  if (end <= HEAD_AT) return undefined;
  const bytes = value.subarray(HEAD_AT, end);
  if (!hash('sha256', bytes, 'buffer').equals(value.subarray(end))) return undefined;
  const head = JSON.parse(bytes.toString('utf8')) as AnchorHead | TrimHead;
  if (head.cryptographic_hash !== hashHex) return undefined;
  const { trajectory_id, sequence_number, cryptographic_hash, created_at, turn, fencing_token } = head;
  const position = { trajectory_id, sequence_number, cryptographic_hash, created_at, turn, fencing_token };
  const at = BigInt(lsn) as Lsn;
  switch (head.kind) {
    case 'anchor':
      return { kind: 'anchor', lsn: at, hash: hashHex, position };
    case 'trim':
      return { kind: 'trim', lsn: at, hash: hashHex, position, through_lsn: BigInt(head.through_lsn) as Lsn };
  }
}

/** Does the value's hash cover its envelope and the given hash before it? */
export function linksTo(value: Buffer, previousHash: Uint8Array): boolean {
  const length = value.readUInt32BE(HEAD_LENGTH_AT);
  const envelope = value.toString('latin1', HEAD_AT, HEAD_AT + length);
  return chainHash(previousHash, envelope).equals(value.subarray(HASH_AT, HEAD_AT));
}
