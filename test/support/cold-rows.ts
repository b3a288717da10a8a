/** Trajectories as rows of the cold tier: chained, in order, of one partition. */

import type { Run } from '../../cold/row-check.ts';
import type { JsonObject } from '../../schemas/canonical.ts';
import { canonicalJson } from '../../schemas/canonical.ts';
import { chainHash, formatEnvelope, GENESIS_HASH, payloadSha256 } from '../../schemas/chain.ts';
import { envelopeOf, type TrajectoryEvent } from '../../schemas/event.ts';
import { parseTrajectoryId, type SequenceNumber, type TrajectoryId } from '../../schemas/ids.ts';
import { type Placement, rowOf } from '../../schemas/parquet.ts';
import { type OffloadedBody, offload } from '../../schemas/stubs.ts';

export const GENESIS = Buffer.from(GENESIS_HASH).toString('hex');
export const PLACE: Placement = { tenant: 'default', model_version: 'm-1' };
export const DAY_MS = Date.UTC(2024, 11, 1);

/** The n-th id of a day; ids ascend with n. */
export function idAt(n: number, startMs: number = DAY_MS): TrajectoryId {
  const ms = (startMs + n).toString(16).padStart(12, '0');
  return parseTrajectoryId(`${ms.slice(0, 8)}-${ms.slice(8)}-7000-8000-${n.toString(16).padStart(12, '0')}`);
}

export type Draft = { readonly event_type: string; readonly payload: JsonObject };

/** Events from `first` on, chained from `previous`. */
export function chain(
  trajectory_id: TrajectoryId,
  drafts: readonly Draft[],
  first = 1,
  previous: string = GENESIS,
): TrajectoryEvent[] {
  let hash: Uint8Array = Buffer.from(previous, 'hex');
  return drafts.map(({ event_type, payload }, i) => {
    const event = {
      trajectory_id,
      sequence_number: (first + i) as SequenceNumber,
      event_type,
      turn: first + i - 1,
      created_at: new Date(DAY_MS + 1000 * (first + i)).toISOString(),
      fencing_token: 0,
      payload,
      cryptographic_hash: '',
    };
    hash = chainHash(hash, formatEnvelope(envelopeOf(event, canonicalJson(payload))));
    return { ...event, cryptographic_hash: Buffer.from(hash).toString('hex') };
  });
}

/** One trajectory's rows as one run. */
export function runOf(events: readonly TrajectoryEvent[], previous_hash: string = GENESIS, place = PLACE): Run {
  return { previous_hash, rows: events.map((event) => rowOf(event, place)) };
}

/** The run cut after `at` rows. */
export function cut(run: Run, at: number): [Run, Run] {
  const head = run.rows[at - 1]?.cryptographic_hash ?? run.previous_hash;
  return [
    { previous_hash: run.previous_hash, rows: run.rows.slice(0, at) },
    { previous_hash: head, rows: run.rows.slice(at) },
  ];
}

/** A trajectory of so many notes of that many characters. */
export function notes(n: number, events: number, chars: number, place = PLACE): Run {
  const drafts = Array.from({ length: events }, (_, i) => ({
    event_type: 'Noted',
    payload: { note: textOf(chars, n * 1_000_003 + i) },
  }));
  return runOf(chain(idAt(n), drafts), GENESIS, place);
}

/** Text that compresses by a third, the same for the same seed. */
export function textOf(chars: number, seed: number): string {
  const words = new Uint32Array(Math.ceil((chars * 3) / 16) + 1);
  let state = (seed * 2_654_435_761 + 1) >>> 0;
  for (let i = 0; i < words.length; i++) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    words[i] = state;
  }
  return Buffer.from(words.buffer).toString('base64').slice(0, chars);
}

/** As compaction writes it: strings over so many bytes are bodies of their own. */
export function offloadedRun(
  events: readonly TrajectoryEvent[],
  overBytes: number,
  previous_hash: string = GENESIS,
  place = PLACE,
): { readonly run: Run; readonly bodies: readonly OffloadedBody[] } {
  const all: OffloadedBody[] = [];
  const rows = events.map((event) => {
    const text = canonicalJson(event.payload);
    const { payload, bodies } = offload(event.payload, Buffer.byteLength(text), overBytes, Number.MAX_SAFE_INTEGER);
    if (bodies.length === 0) return rowOf(event, place);
    all.push(...bodies);
    const original = { payload_sha256: payloadSha256(text), offloaded: bodies.map(({ pointer }) => pointer) };
    return rowOf({ ...event, payload }, place, original);
  });
  return { run: { previous_hash, rows }, bodies: all };
}
