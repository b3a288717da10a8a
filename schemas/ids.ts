/**
 * Identifiers and the numbers that must not be mixed up.
 *
 * A trajectory id is a UUIDv7 (RFC 9562, section 5.7) in lower-case text: 48 bits of Unix milliseconds, so that the
 * order of ids is the order of starts and an id alone names its day in every tier.
 */
import { randomBytes } from 'node:crypto';
import { VarveError } from './errors.ts';
import { ID_AHEAD_MS_MAX } from './limits.ts';

declare const brand: unique symbol;
type Brand<Base, Name extends string> = Base & { readonly [brand]: Name };

/** UUIDv7, lower-case. */
export type TrajectoryId = Brand<string, 'TrajectoryId'>;
/** Place of an event in its trajectory: 1, 2, 3 … without gaps. */
export type SequenceNumber = Brand<number, 'SequenceNumber'>;
/** Place of a record in one hot log: 1, 2, 3 … without gaps. A bigint, so that it cannot pass for a sequence number. */
export type Lsn = Brand<bigint, 'Lsn'>;

const UUID_V7 = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;

/** @throws VarveError INVALID_ID for anything but a lower-case UUIDv7. */
export function parseTrajectoryId(text: string): TrajectoryId {
  if (typeof text !== 'string' || !UUID_V7.test(text)) {
    throw new VarveError('INVALID_ID', `not a lower-case UUIDv7: ${describe(text)}`, {});
  }
  return text as TrajectoryId;
}

/** Start of the trajectory in milliseconds since the epoch, as the id itself says. */
export function trajectoryStartMs(id: TrajectoryId): number {
  return Number.parseInt(id.slice(0, 8) + id.slice(9, 13), 16);
}

export function trajectoryIdFromBytes(bytes: Uint8Array, offset = 0): TrajectoryId {
  const hex = Buffer.from(bytes.buffer, bytes.byteOffset + offset, 16).toString('hex');
  return formatUuid(hex) as TrajectoryId;
}

/** The 16 bytes of an id, as a latin1 string: cheap to keep and to write into a buffer. */
export function trajectoryIdBytes(id: TrajectoryId): string {
  return Buffer.from(id.replaceAll('-', ''), 'hex').toString('latin1');
}

let lastMs = 0;
let counter = 0;

/** A clock that went back by more than this is believed, in milliseconds: half of what a log bears an id to be ahead. */
const BACK_MS_MAX = ID_AHEAD_MS_MAX / 2;

/**
 * Mints an id. Ids of one process ascend strictly, also within a millisecond and when the clock steps back a little:
 * `rand_a` is a 12-bit counter with a random start (RFC 9562, section 6.2, method 1), and a full counter borrows the next
 * millisecond. A clock that was wrong by more and was set right is followed back, since ids ahead of it are refused.
 */
export function newTrajectoryId(nowMs: number = Date.now()): TrajectoryId {
  const bytes = randomBytes(16);
  if (nowMs > lastMs || nowMs < lastMs - BACK_MS_MAX) {
    lastMs = nowMs;
    counter = bytes.readUInt16BE(6) & 0x7ff;
  } else if (++counter > 0xfff) {
    lastMs += 1;
    counter = bytes.readUInt16BE(6) & 0x7ff;
  }
  bytes.writeUIntBE(lastMs, 0, 6);
  bytes.writeUInt16BE(0x7000 | counter, 6);
  bytes.writeUInt8(0x80 | (bytes.readUInt8(8) & 0x3f), 8);
  return formatUuid(bytes.toString('hex')) as TrajectoryId;
}

/** @throws VarveError NOT_AN_LSN for negative numbers and for what is past 2^53 − 1. */
export function parseLsn(value: bigint | number): Lsn {
  const lsn = typeof value === 'number' && Number.isSafeInteger(value) ? BigInt(value) : value;
  if (typeof lsn !== 'bigint' || lsn < 0n || lsn > BigInt(Number.MAX_SAFE_INTEGER)) {
    throw new VarveError('NOT_AN_LSN', `not an LSN: ${String(value)}`, {});
  }
  return lsn as Lsn;
}

function formatUuid(hex: string): string {
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20)}`;
}

function describe(value: unknown): string {
  return typeof value === 'string' ? JSON.stringify(value.slice(0, 80)) : typeof value;
}
