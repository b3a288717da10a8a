/**
 * The hash chain of a trajectory.
 *
 *   payload_sha256     = hex SHA-256 of the canonical payload
 *   envelope           = canonical JSON of exactly created_at, event_type, fencing_token, payload_sha256,
 *                        sequence_number, trajectory_id, turn
 *   cryptographic_hash = SHA-256(previous event's 32 bytes ‖ envelope); 32 zero bytes stand before the first event
 *
 * The payload enters by its hash alone, so a stub may replace it later and the chain still verifies. With the limits on
 * its fields an envelope has nothing to escape: a plain concatenation is its canonical form, here and in SQL
 * (`schemas/sql/envelope.sql`). An envelope is valid if and only if `formatEnvelope(parseEnvelope(text)) === text`.
 */
import { hash } from 'node:crypto';
import { VarveError } from './errors.ts';
import type { SequenceNumber, TrajectoryId } from './ids.ts';
import { CREATED_AT_MS_MAX, TURN_MAX } from './limits.ts';

export type Envelope = {
  readonly created_at: string;
  readonly event_type: string;
  readonly fencing_token: number;
  /** 64 lower-case hex digits. */
  readonly payload_sha256: string;
  readonly sequence_number: SequenceNumber;
  readonly trajectory_id: TrajectoryId;
  readonly turn: number;
};

/** What stands before the first event of a trajectory. */
export const GENESIS_HASH: Uint8Array = new Uint8Array(32);

/** Hex SHA-256 of a canonical payload's UTF-8 bytes. */
export function payloadSha256(canonicalPayload: string | Uint8Array): string {
  return hash('sha256', canonicalPayload, 'hex');
}

/** All fields must already be legal; nothing is escaped. */
export function formatEnvelope(envelope: Envelope): string {
  return `{"created_at":"${envelope.created_at}","event_type":"${envelope.event_type}","fencing_token":${envelope.fencing_token},"payload_sha256":"${envelope.payload_sha256}","sequence_number":${envelope.sequence_number},"trajectory_id":"${envelope.trajectory_id}","turn":${envelope.turn}}`;
}

/** 32 bytes: SHA-256 over the previous event's hash and this event's envelope. */
export function chainHash(previous: Uint8Array, envelope: string): Buffer {
  const input = Buffer.allocUnsafe(32 + envelope.length);
  input.set(previous, 0);
  input.write(envelope, 32, 'latin1');
  return hash('sha256', input, 'buffer');
}

const ENVELOPE =
  /^\{"created_at":"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)","event_type":"([A-Za-z][A-Za-z0-9._:/-]{0,127})","fencing_token":(0|[1-9]\d{0,15}),"payload_sha256":"([0-9a-f]{64})","sequence_number":([1-9]\d{0,15}),"trajectory_id":"([0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})","turn":(0|[1-9]\d{0,9})\}$/;

/** undefined: not a valid envelope. Decides nothing about hashes. */
export function parseEnvelope(text: string): Envelope | undefined {
  const match = ENVELOPE.exec(text);
  if (match === null) return undefined;
  const fencing_token = Number(match[3]);
  const sequence_number = Number(match[5]);
  const turn = Number(match[7]);
  if (!Number.isSafeInteger(fencing_token) || !Number.isSafeInteger(sequence_number) || turn > TURN_MAX) {
    return undefined;
  }
  return {
    created_at: match[1] as string,
    event_type: match[2] as string,
    fencing_token,
    payload_sha256: match[4] as string,
    sequence_number: sequence_number as SequenceNumber,
    trajectory_id: match[6] as TrajectoryId,
    turn,
  };
}

const EVENT_TYPE = /^[A-Za-z][A-Za-z0-9._:/-]{0,127}$/;

/** @throws VarveError INVALID_EVENT_TYPE */
export function checkEventType(event_type: string): void {
  if (typeof event_type === 'string' && EVENT_TYPE.test(event_type)) return;
  const shown = typeof event_type === 'string' ? JSON.stringify(event_type.slice(0, 80)) : typeof event_type;
  throw new VarveError('INVALID_EVENT_TYPE', `${shown} does not match ${String(EVENT_TYPE)}`, {});
}

/** @throws VarveError INVALID_TURN */
export function checkTurn(turn: number): void {
  if (Number.isInteger(turn) && turn >= 0 && turn <= TURN_MAX) return;
  throw new VarveError('INVALID_TURN', `turn ${String(turn)} is not an integer from 0 to ${TURN_MAX}`, {});
}

/** @throws VarveError INVALID_FENCING_TOKEN */
export function checkFencingToken(token: number): void {
  if (Number.isSafeInteger(token) && token >= 0) return;
  const message = `fencing token ${String(token)} is not an integer from 0 to 2^53 − 1`;
  throw new VarveError('INVALID_FENCING_TOKEN', message, {});
}

/**
 * Milliseconds since the epoch of a `created_at`, which has exactly the form `YYYY-MM-DDTHH:mm:ss.sssZ`.
 *
 * @throws VarveError INVALID_CREATED_AT
 */
export function parseCreatedAt(created_at: string): number {
  const ms = typeof created_at === 'string' && created_at.length === 24 ? Date.parse(created_at) : Number.NaN;
  // The round trip refuses February 30, a 24th hour and every other form that Date.parse is kind to.
  if (ms >= 0 && ms <= CREATED_AT_MS_MAX && new Date(ms).toISOString() === created_at) return ms;
  const message = 'created_at must be YYYY-MM-DDTHH:mm:ss.sssZ in the years 1970 to 9999';
  throw new VarveError('INVALID_CREATED_AT', message, { created_at: created_at.slice(0, 40) });
}
