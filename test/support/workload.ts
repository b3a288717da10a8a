/**
 * What the children of the fault tests append. Event `s` of trajectory `n` is a pure function of (n, s), so whoever
 * checks a log recomputes every byte of it and needs nothing but the numbers.
 *
 * About one event in 64 has a body over the offload threshold and becomes a blob. Trajectories with n % 7 = 3 append by
 * `appendAll`, three events at a time: they are there in threes or not at all. Trajectories with n % 10 = 9 may be
 * finished by `TaskFinished`.
 */
import { hash } from 'node:crypto';
import { canonicalJson, type JsonObject } from '../../schemas/canonical.ts';
import { newTrajectoryId, type TrajectoryId } from '../../schemas/ids.ts';
import { OFFLOAD_OVER_BYTES } from '../../schemas/limits.ts';
import { Random } from './seed.ts';

export type WorkloadEvent = { readonly event_type: string; readonly turn: number; readonly payload: JsonObject };

export const GROUP = 3;

export function isGrouped(n: number): boolean {
  return n % 7 === 3;
}

export function mayFinish(n: number): boolean {
  return n % 10 === 9;
}

export function newTrajectoryIds(count: number): TrajectoryId[] {
  return Array.from({ length: count }, () => newTrajectoryId());
}

/** Text to cut bodies from: every kind of code unit that has given a store trouble, but no surrogates to cut apart. */
const TEXT = makeText(1 << 20);

function makeText(length: number): string {
  const random = new Random(20_240_917);
  const rare = ['\u0000', '\n', '"', '\\', '\u001f', '\u2028', 'é', '漢', '\ufffd', '\u007f'];
  let text = '';
  while (text.length < length)
    text += random.next() < 0.1 ? random.pick(rare) : random.next().toString(36).slice(2, 10);
  return text.slice(0, length);
}

function bodyOf(n: number, s: number): string {
  const random = new Random(n * 1_000_003 + s);
  const isBlob = random.next() < 1 / 64;
  const length = isBlob ? random.between(OFFLOAD_OVER_BYTES + 1, 3 * OFFLOAD_OVER_BYTES) : random.between(0, 1500);
  const start = random.between(0, TEXT.length - length);
  return TEXT.slice(start, start + length);
}

export function eventFor(n: number, s: number): WorkloadEvent {
  const payload = { n, s, text: bodyOf(n, s), half: s / 2, tags: ['a', { deep: [s, null, s % 2 === 0] }] };
  return { event_type: s % 5 === 0 ? 'Noted' : 'bench.Event', turn: Math.floor(s / 4), payload };
}

/** Turn 2^20 lies past every turn of `eventFor`. */
export const FINISH: WorkloadEvent = {
  event_type: 'TaskFinished',
  turn: 1 << 20,
  payload: { status: 'completed', outcome: { reward: 1 } },
};

/** The body of a text that is offloaded, undefined where it stays in the payload. */
export function offloadedBody(event: WorkloadEvent): Buffer | undefined {
  const body = Buffer.from((event.payload['text'] as string | undefined) ?? '');
  return body.byteLength > OFFLOAD_OVER_BYTES ? body : undefined;
}

/** Canonical text of the payload as a log must store it, stub and all. */
export function storedPayloadText(event: WorkloadEvent): string {
  const body = offloadedBody(event);
  if (body === undefined) return canonicalJson(event.payload);
  const $blob = {
    sha256: hash('sha256', body, 'hex'),
    bytes: body.byteLength,
    media_type: 'text/plain; charset=utf-8',
  };
  return canonicalJson({ ...event.payload, text: { $blob } });
}
