/**
 * Holds a log against what was acknowledged. After any fault, a log that opens has
 *
 *   - every acknowledged event, at its LSN, with its hash and every byte of its payload, also of offloaded bodies;
 *   - nothing but events that somebody appended, in trajectories numbered 1, 2, 3 … whose hashes chain;
 *   - dense LSNs: one is absent only where the log says that it was trimmed, of a trajectory that may be;
 *   - events of one `appendAll` together or not at all;
 *   - heads that agree with its events; and it goes on.
 */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import type { HotLog } from '../../hot/log.ts';
import type { Trimmed } from '../../hot/read-check.ts';
import type { LogRecord } from '../../hot/record.ts';
import { type TrajectoryEvent, verifyEvent } from '../../schemas/event.ts';
import type { TrajectoryId } from '../../schemas/ids.ts';
import {
  eventFor,
  FINISH,
  GROUP,
  isGrouped,
  mayFinish,
  offloadedBody,
  storedPayloadText,
  type WorkloadEvent,
} from './workload.ts';

export type Acknowledged = {
  readonly n: number;
  readonly sequence_number: number;
  readonly lsn: bigint;
  readonly cryptographic_hash: string;
};

/** `ack` lines of `append-child.ts`; other lines are passed over. */
export function acknowledgedIn(lines: Iterable<string>): Acknowledged[] {
  const all: Acknowledged[] = [];
  for (const line of lines) {
    const [word, n, sequence_number, lsn, hash] = line.split(' ');
    if (word !== 'ack') continue;
    all.push({
      n: Number(n),
      sequence_number: Number(sequence_number),
      lsn: BigInt(lsn as string),
      cryptographic_hash: hash as string,
    });
  }
  return all;
}

export type Place = readonly [lsn: bigint, hash: string];

/** Those of the places that a log does not hold: gone, or another record. */
export async function missingIn(log: HotLog, places: readonly Place[]): Promise<Place[]> {
  const hashes = new Map<bigint, string>();
  for await (const record of log.readLog()) {
    if (record.kind !== 'trimmed') hashes.set(record.lsn, record.hash);
  }
  return places.filter(([lsn, hash]) => hashes.get(lsn) !== hash);
}

export type Checked = {
  /** Events that the log holds. */
  readonly events: number;
  /** Acknowledged events that a trim took away. */
  readonly trimmed: number;
  readonly lastLsn: bigint;
};

/** @throws AssertionError that names the first event or LSN that breaks a promise. */
export async function checkLog(
  log: HotLog,
  ids: readonly TrajectoryId[],
  acknowledged: readonly Acknowledged[],
): Promise<Checked> {
  const byLsn = new Map(acknowledged.map((one) => [one.lsn, one]));
  assert.equal(byLsn.size, acknowledged.length, 'an LSN was acknowledged twice');
  const trajectories = new Map(ids.map((id, n) => [id, n]));
  const state = new LogState(trajectories);
  for await (const record of log.readLog()) {
    const body = state.take(record);
    if (body !== undefined) await checkBody(log, body);
    if (record.kind === 'event') checkAgainst(byLsn.get(record.lsn), record.event, trajectories);
  }
  assert.equal(state.lastLsn, log.durableLsn, 'reading the log ends before durableLsn');
  const trimmed = await checkAbsent(log, acknowledged, ids, state);
  checkStarts(state);
  checkHeads(log, ids, acknowledged, state);
  return { events: state.events, trimmed, lastLsn: state.lastLsn };
}

/** Appends to trajectories that are there and to a new one, and finds it. */
export async function checkGoesOn(log: HotLog, ids: readonly TrajectoryId[]): Promise<Acknowledged[]> {
  const before = log.durableLsn;
  const open = [...ids.keys()].filter((n) => !isGrouped(n) && !mayFinish(n));
  const appended: Acknowledged[] = [];
  for (const n of [open[0], open[Math.floor(open.length / 2)], open.at(-1)]) {
    if (n === undefined) continue;
    const id = ids[n] as TrajectoryId;
    const s = (log.head(id)?.sequence_number ?? 0) + 1;
    const result = await log.append(id, eventFor(n, s));
    assert.equal(result.sequence_number, s);
    assert.equal(result.lsn, before + BigInt(appended.length) + 1n, 'the LSN does not follow the last one');
    const { sequence_number, lsn, cryptographic_hash } = result;
    appended.push({ n, sequence_number, lsn, cryptographic_hash });
  }
  assert.ok(appended.length > 0, 'no trajectory to go on with');
  let found = 0;
  for await (const record of log.readLog(before)) {
    assert.ok(record.kind === 'event');
    assert.equal(record.hash, appended[found]?.cryptographic_hash);
    found += 1;
  }
  assert.equal(found, appended.length, 'what was just appended is not read back');
  return appended;
}

type TrimMark = Extract<LogRecord, { kind: 'trim' }>;

class LogState {
  events = 0;
  lastLsn = 0n;
  readonly firstEvents = new Map<TrajectoryId, TrajectoryEvent>();
  readonly lastEvents = new Map<TrajectoryId, TrajectoryEvent>();
  readonly marks = new Map<TrajectoryId, TrimMark>();
  /** Ranges that the log itself calls trimmed. */
  readonly trimmed: { readonly from: bigint; readonly to: bigint }[] = [];
  readonly present = new Set<bigint>();
  readonly #trajectories: ReadonlyMap<TrajectoryId, number>;

  constructor(trajectories: ReadonlyMap<TrajectoryId, number>) {
    this.#trajectories = trajectories;
  }

  isTrimmed(lsn: bigint): boolean {
    return this.trimmed.some(({ from, to }) => from <= lsn && lsn <= to);
  }

  /** Returns the event if its body lies in a blob. */
  take(record: LogRecord | Trimmed): WorkloadEvent | undefined {
    const [from, to] =
      record.kind === 'trimmed' ? [BigInt(record.from_lsn), BigInt(record.to_lsn)] : [record.lsn, record.lsn];
    assert.equal(from, this.lastLsn + 1n, `LSN ${from} comes after ${this.lastLsn}`);
    this.lastLsn = to;
    switch (record.kind) {
      case 'event':
        this.present.add(to);
        return this.#takeEvent(record.event);
      case 'trim':
        this.marks.set(record.position.trajectory_id, record);
        return undefined;
      case 'trimmed':
        this.trimmed.push({ from, to });
        return undefined;
      case 'anchor':
        assert.fail(`LSN ${record.lsn} is an anchor: nobody adopted anything`);
    }
  }

  #takeEvent(event: Extract<LogRecord, { kind: 'event' }>['event']): WorkloadEvent | undefined {
    const name = `event ${event.sequence_number} of ${event.trajectory_id}`;
    const n = this.#trajectories.get(event.trajectory_id);
    assert.ok(n !== undefined, `${name}: nobody appended to that trajectory`);
    const previous = this.lastEvents.get(event.trajectory_id);
    // Where a trim took the events before it, the mark stands for them; marks come later in the log.
    if (previous === undefined) this.firstEvents.set(event.trajectory_id, event);
    if (previous !== undefined || event.sequence_number === 1) verifyEvent(previous, event);
    this.lastEvents.set(event.trajectory_id, event);
    this.events += 1;
    const wanted = event.event_type === 'TaskFinished' ? FINISH : eventFor(n, event.sequence_number);
    assert.equal(event.event_type, wanted.event_type, name);
    assert.equal(event.turn, wanted.turn, name);
    assert.equal(event.payload_text, storedPayloadText(wanted), `${name}: other bytes`);
    return offloadedBody(wanted) === undefined ? undefined : wanted;
  }
}

function checkAgainst(
  acknowledged: Acknowledged | undefined,
  event: TrajectoryEvent,
  trajectories: ReadonlyMap<TrajectoryId, number>,
): void {
  if (acknowledged === undefined) return;
  const { n, sequence_number, cryptographic_hash } = acknowledged;
  const stored = {
    n: trajectories.get(event.trajectory_id),
    sequence_number: event.sequence_number,
    cryptographic_hash: event.cryptographic_hash,
  };
  assert.deepEqual(stored, { n, sequence_number, cryptographic_hash }, `LSN ${acknowledged.lsn} holds another event`);
}

async function checkBody(log: HotLog, event: WorkloadEvent): Promise<void> {
  const body = offloadedBody(event) as Buffer;
  const sha256 = createHash('sha256').update(body).digest('hex');
  const chunks: Buffer[] = [];
  for await (const chunk of log.blobs.get(sha256)) chunks.push(chunk);
  assert.ok(Buffer.concat(chunks).equals(body), `blob ${sha256} holds other bytes`);
}

/** Only a trajectory that may finish is ever trimmed here, and whoever reads below says so. Returns how many are gone. */
async function checkAbsent(
  log: HotLog,
  acknowledged: readonly Acknowledged[],
  ids: readonly TrajectoryId[],
  state: LogState,
): Promise<number> {
  let trimmed = 0;
  for (const { n, sequence_number, lsn } of acknowledged) {
    if (state.present.has(lsn)) continue;
    const id = ids[n] as TrajectoryId;
    const name = `acknowledged event ${sequence_number} of trajectory ${n} at LSN ${lsn}`;
    assert.ok(state.isTrimmed(lsn) && mayFinish(n), `${name} is lost`);
    // The last mark of a trajectory may lie below the log's floor itself; then its head alone is left.
    const through = state.marks.get(id)?.through_lsn ?? log.head(id)?.lsn ?? 0n;
    assert.ok(through >= lsn, `${name} is lost: its mark says ${through}`);
    await assert.rejects(log.read(id, sequence_number).next(), { code: 'HOT_TRIMMED' }, name);
    trimmed += 1;
  }
  return trimmed;
}

/** A trajectory starts at 1, or at most one after what its mark says is gone. */
function checkStarts(state: LogState): void {
  for (const [id, first] of state.firstEvents) {
    if (first.sequence_number === 1) continue;
    const position = state.marks.get(id)?.position;
    const name = `${id} begins with event ${first.sequence_number}`;
    assert.ok(position !== undefined, `${name} and has no trim mark`);
    assert.ok(
      first.sequence_number <= position.sequence_number + 1,
      `${name}, its mark says ${position.sequence_number}`,
    );
    if (first.sequence_number <= position.sequence_number) continue;
    verifyEvent({ ...position, event_type: 'trim', payload: {} }, first);
  }
}

function checkHeads(
  log: HotLog,
  ids: readonly TrajectoryId[],
  acknowledged: readonly Acknowledged[],
  state: LogState,
): void {
  for (const [n, id] of ids.entries()) {
    const head = log.head(id);
    const last = state.lastEvents.get(id);
    if (last !== undefined) {
      assert.equal(head?.sequence_number, last.sequence_number, `head of trajectory ${n}`);
      assert.equal(head?.cryptographic_hash, last.cryptographic_hash, `head of trajectory ${n}`);
    } else if (head !== undefined) {
      assert.ok(mayFinish(n) && state.isTrimmed(head.lsn), `trajectory ${n} has a head and no events`);
      const position = state.marks.get(id)?.position ?? acknowledged.find((one) => one.lsn === head.lsn);
      assert.equal(head.sequence_number, position?.sequence_number, `head of trajectory ${n}, which has no events`);
      assert.equal(head.cryptographic_hash, position?.cryptographic_hash, `head of trajectory ${n}`);
    }
    if (isGrouped(n) && !mayFinish(n) && head !== undefined) {
      assert.equal(head.sequence_number % GROUP, 0, `an appendAll of trajectory ${n} is there in part`);
    }
  }
}
