/**
 * The events that all contenders append: results of tool calls with a payload of an exact canonical size. Their output
 * is lines as a tool prints them, with quotes and newlines to escape, and mostly random, so that no store gains by
 * compressing what real output would not let it.
 */
import { randomBytes } from 'node:crypto';
import { canonicalJson, type JsonObject } from '../../../schemas/canonical.ts';
import { formatEnvelope, payloadSha256 } from '../../../schemas/chain.ts';
import { newTrajectoryId, type SequenceNumber } from '../../../schemas/ids.ts';
import { KIB } from '../../../schemas/limits.ts';

export type Sample = {
  readonly event: { readonly event_type: string; readonly turn: number; readonly payload: JsonObject };
  /** Bytes of a record of this event, made beforehand, for what only writes: as long as what the others encode. */
  readonly record: Buffer;
  /** Bytes of envelope and canonical payload together: what counts as a byte of events. */
  readonly eventBytes: number;
};

/** Previous LSN, hash and envelope length: what a record has beside envelope and payload. */
const RECORD_HEADER_BYTES = 8 + 32 + 4;

/** A power of two, so that `samples[n & (SAMPLE_COUNT - 1)]` walks through them. */
export const SAMPLE_COUNT = 64;

export function makeSamples(payloadBytes: number = KIB): readonly Sample[] {
  return Array.from({ length: SAMPLE_COUNT }, () => makeSample(payloadBytes));
}

export function sampleAt(samples: readonly Sample[], n: number): Sample {
  return samples[n & (SAMPLE_COUNT - 1)] as Sample;
}

function makeSample(payloadBytes: number): Sample {
  const payload = makePayload(payloadBytes);
  const text = canonicalJson(payload);
  const envelope = formatEnvelope({
    created_at: new Date().toISOString(),
    event_type: 'ToolResult',
    fencing_token: 0,
    payload_sha256: payloadSha256(text),
    sequence_number: 1000 as SequenceNumber,
    trajectory_id: newTrajectoryId(),
    turn: 1,
  });
  return {
    event: { event_type: 'ToolResult', turn: 1, payload },
    record: Buffer.concat([Buffer.alloc(RECORD_HEADER_BYTES), Buffer.from(envelope), Buffer.from(text)]),
    eventBytes: envelope.length + Buffer.byteLength(text),
  };
}

function makePayload(payloadBytes: number): JsonObject {
  const payload = {
    tool_call_id: `call_${randomBytes(9).toString('base64url')}`,
    status: 'ok',
    settled_by: 'dispatch',
    duration_ms: 12.5,
    output: '',
  };
  return { ...payload, output: lines(payloadBytes - canonicalJson(payload).length) };
}

/** Text that takes exactly this many bytes inside a canonical payload. */
export function lines(bytes: number): string {
  let text = '';
  while (text.length < bytes) text += `-rw-r--r-- 1 root "${randomBytes(24).toString('base64')}"\n`;
  // Quotes and newlines take two bytes each once they are escaped, so the last bytes are found by trying.
  while (canonicalJson(text).length - 2 > bytes) text = text.slice(0, -1);
  if (canonicalJson(text).length - 2 < bytes) text += '.';
  return text;
}
