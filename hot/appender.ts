/**
 * Turns what callers append into records: order, numbers, refusals.
 *
 * Sequence number, LSN and hash are assigned when a record enters the current batch, in one synchronous step behind
 * every check, so a refused event leaves no hole and the next one gets the number it would have had. Appends of one
 * trajectory enter in the order of the calls, also where one of them must wait for its blobs, for room in the queue or
 * for a look at a stored event.
 */
import { chainHash, checkFencingToken, checkTurn, formatEnvelope, parseCreatedAt } from '../schemas/chain.ts';
import { VarveError } from '../schemas/errors.ts';
import {
  parseTrajectoryId,
  type SequenceNumber,
  type TrajectoryId,
  trajectoryIdBytes,
  trajectoryStartMs,
} from '../schemas/ids.ts';
import { ID_AHEAD_MS_MAX, MIB } from '../schemas/limits.ts';
import type { BlobStore } from './blobs.ts';
import type { GroupCommit } from './commit.ts';
import { type EventInput, type Prepared, prepare, type RecordedEvent } from './door.ts';
import { type Appended, advance, Head, type Heads } from './heads.ts';
import { ANCHOR, TOOL_RESULT } from './index-block.ts';
import type { AnchorHead, Position, StoredEvent } from './record.ts';

export type AppenderOptions = {
  readonly offloadOverBytes: number;
  /** Milliseconds since the epoch. */
  readonly clock: () => number;
};

/** What an append needs of the rest of the log. */
export type AppenderNeeds = {
  readonly commit: GroupCommit;
  readonly heads: Heads;
  readonly blobs: BlobStore;
  /** Refuses what the disk budget has no room for. */
  readonly gate: (code: number, isNew: boolean) => void;
  /** The stored event, once it is durable. */
  readonly eventAt: (head: Head, sequence: number) => Promise<{ event: StoredEvent; receipt: Appended }>;
};

/** Bytes of payloads and bodies of appends that wait for room or blobs. */
const WAITING_BYTES_MAX = 256 * MIB;
/** Canonical payloads of one `appendAll`, which is one batch. */
const ALL_BYTES_MAX = 64 * MIB;
const ALL_EVENTS_MAX = 65_536;

/** Time and token of an event, where they are not the log's to choose. */
type Recorded = { readonly createdMs: number; readonly token: number; readonly hash: string | undefined };

export class Appender {
  readonly #needs: AppenderNeeds;
  readonly #options: AppenderOptions;
  /** The last append of a trajectory that has not entered a batch yet. */
  readonly #waiting = new Map<string, Promise<unknown>>();
  #waitingBytes = 0;
  #stopped: VarveError | undefined;
  #iso = '';
  #isoMs = -1;

  constructor(needs: AppenderNeeds, options: AppenderOptions) {
    this.#needs = needs;
    this.#options = options;
  }

  append(id: TrajectoryId, event: EventInput, at: number | undefined): Promise<Appended> {
    try {
      this.#assertOpen();
      const prepared = prepare(event, this.#options.offloadOverBytes);
      const head = this.#needs.heads.get(id);
      const isNext = at === undefined || at === (head?.sequence ?? 0) + 1;
      if (isNext && this.#mayEnter(id, prepared)) return this.#enter(this.#openHead(id, head), prepared);
      if (at !== undefined) return this.#appendAt(id, prepared, at);
      this.#check(this.#openHead(id, head), [prepared], undefined);
      return this.#inOrder(id, [prepared], () => this.#enter(this.#openHead(id), prepared));
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /** One batch: all are there after a crash, or none. */
  async appendAll(id: TrajectoryId, events: readonly EventInput[]): Promise<Appended[]> {
    this.#assertOpen();
    const prepared = events.map((event) => prepare(event, this.#options.offloadOverBytes));
    checkTotal(prepared);
    if (prepared.length === 0) return [];
    this.#check(this.#openHead(id), prepared, undefined);
    return this.#inOrder(id, prepared, () => this.#enterAll(id, prepared, undefined));
  }

  async appendRecorded(id: TrajectoryId, events: readonly RecordedEvent[]): Promise<Appended[]> {
    this.#assertOpen();
    const prepared = events.map((event) => prepare(event, this.#options.offloadOverBytes));
    const recorded = events.map((event) => ({
      createdMs: parseCreatedAt(event.created_at),
      token: event.fencing_token,
      hash: event.cryptographic_hash,
    }));
    checkTotal(prepared);
    if (prepared.length === 0) return [];
    return this.#inOrder(id, prepared, () => {
      const head = this.#openHead(id);
      events.forEach((event, i) => {
        const next = head.sequence + 1 + i;
        if (event.sequence_number === undefined || event.sequence_number === next) return;
        const code = event.sequence_number < next ? 'SEQUENCE_TAKEN' : 'SEQUENCE_AHEAD';
        throw new VarveError(code, `event ${event.sequence_number} of ${id}: number ${next} comes next`, { next });
      });
      return this.#enterAll(id, prepared, recorded);
    });
  }

  /** Writes an anchor, from which the trajectory goes on. Resolves when it is durable. */
  async adopt(position: Position): Promise<void> {
    this.#assertOpen();
    const id = parseTrajectoryId(position.trajectory_id);
    const createdMs = parseCreatedAt(position.created_at);
    checkTurn(position.turn);
    checkFencingToken(position.fencing_token);
    if (!Number.isSafeInteger(position.sequence_number) || position.sequence_number < 1) {
      throw new VarveError('INVALID_OPTION', 'a trajectory is adopted at a sequence number from 1', {});
    }
    if (!/^[0-9a-f]{64}$/.test(position.cryptographic_hash)) {
      throw new VarveError('INVALID_OPTION', 'a trajectory is adopted at a hash of 64 lower-case hex digits', {});
    }
    await this.#inOrder(id, [], () => {
      const { commit, heads } = this.#needs;
      const head = heads.get(id) ?? new Head(id, trajectoryIdBytes(id));
      if (position.fencing_token < head.token) {
        const message = `${id} is adopted under token ${position.fencing_token}, but this log has written under ${head.token}`;
        throw new VarveError('FENCING_TOKEN_WENT_BACK', message, { token: head.token });
      }
      const trimmed = head.trimmed?.sequence ?? 0;
      if (position.sequence_number < trimmed) {
        const message = `${id} is adopted at ${position.sequence_number}, but this log has let go of it up to ${trimmed}: warm had that once`;
        throw new VarveError('ADOPT_BEHIND', message, { trimmed });
      }
      const { trajectory_id, sequence_number, cryptographic_hash, created_at, turn, fencing_token } = position;
      const anchor: AnchorHead = {
        kind: 'anchor',
        trajectory_id,
        sequence_number,
        cryptographic_hash,
        created_at,
        turn,
        fencing_token,
      };
      const lsn = commit.nextLsn();
      const entry = {
        code: ANCHOR,
        id: head.idBytes,
        lsn,
        sequence: sequence_number,
        previousLsn: head.lsn,
        hash: Buffer.from(cryptographic_hash, 'hex').toString('latin1'),
        turn,
        token: fencing_token,
        createdMs,
        tag: '',
        blobs: [],
      };
      commit.batch.addControl(entry, anchor, [], head);
      heads.add(head);
      advance(head, entry);
      head.guard = undefined;
      const durable = commit.whenDurable();
      commit.schedule();
      return durable;
    });
  }

  /** Refuses every further call with this error. Resolves when nothing that was taken waits to enter a batch. */
  async stop(error: VarveError): Promise<void> {
    this.#stopped = error;
    while (this.#waiting.size > 0) await Promise.allSettled(this.#waiting.values());
  }

  #assertOpen(): void {
    if (this.#stopped !== undefined) throw this.#stopped;
    this.#assertTaking();
  }

  #assertTaking(): void {
    const { ended } = this.#needs.commit;
    if (ended !== undefined) throw ended;
  }

  #mayEnter(id: TrajectoryId, { bodies, refs }: Prepared): boolean {
    if (bodies.length + refs.length > 0 || !this.#needs.commit.hasRoom) return false;
    return this.#waiting.size === 0 || !this.#waiting.has(id);
  }

  /** The head of a trajectory; for a new one, a head that is not in the log yet. */
  #openHead(id: TrajectoryId, known: Head | undefined = this.#needs.heads.get(id)): Head {
    if (known !== undefined) return known;
    parseTrajectoryId(id);
    const ahead = trajectoryStartMs(id) - this.#options.clock();
    if (ahead > ID_AHEAD_MS_MAX) {
      const message = `${id} starts ${Math.round(ahead / 1000)} s ahead of this worker's clock; at most ${ID_AHEAD_MS_MAX / 1000} s are taken`;
      throw new VarveError('ID_AHEAD_OF_CLOCK', message, { ahead_ms: ahead });
    }
    return new Head(id, trajectoryIdBytes(id));
  }

  /** Everything about an event that depends on its trajectory. */
  #check(head: Head, events: readonly Prepared[], recorded: readonly Recorded[] | undefined): void {
    let { turn, token, createdMs } = head;
    for (const [i, event] of events.entries()) {
      if (event.turn < turn) throw refusal(head, 'TURN_WENT_BACK', `turn ${event.turn} after ${turn}`);
      const eventToken = recorded?.[i]?.token ?? event.token ?? token;
      if (eventToken < token) throw refusal(head, 'FENCING_TOKEN_WENT_BACK', `token ${eventToken} after ${token}`);
      const eventMs = recorded?.[i]?.createdMs ?? createdMs;
      if (eventMs < createdMs) throw refusal(head, 'CREATED_AT_WENT_BACK', 'created_at is before the event before it');
      if (head.guard !== undefined) checkGuard(head, event);
      this.#needs.gate(event.code, head.sequence === 0 && i === 0);
      turn = event.turn;
      token = eventToken;
      createdMs = eventMs;
    }
  }

  #enter(head: Head, event: Prepared): Promise<Appended> {
    this.#assertTaking();
    this.#check(head, [event], undefined);
    this.#add(head, event, Math.max(this.#options.clock(), head.createdMs), event.token ?? head.token);
    const { commit } = this.#needs;
    const durable = commit.whenDurable();
    commit.schedule();
    return durable;
  }

  async #enterAll(
    id: TrajectoryId,
    events: readonly Prepared[],
    recorded: readonly Recorded[] | undefined,
  ): Promise<Appended[]> {
    this.#assertTaking();
    const head = this.#openHead(id);
    this.#check(head, events, recorded);
    if (recorded !== undefined) checkHashes(head, events, recorded);
    const { commit } = this.#needs;
    const { batch } = commit;
    const receipts = events.map((event, i) => {
      const { createdMs, token } = recorded?.[i] ?? {
        createdMs: Math.max(this.#options.clock(), head.createdMs),
        token: event.token ?? head.token,
      };
      this.#add(head, event, createdMs, token);
      return batch.receipts.at(-1) as Appended;
    });
    const durable = commit.whenDurable();
    commit.schedule();
    await durable;
    return receipts;
  }

  #add(head: Head, event: Prepared, createdMs: number, token: number): void {
    const { commit, heads } = this.#needs;
    try {
      const entry = commit.batch.addEvent(head, commit.nextLsn(), event, createdMs, this.#isoOf(createdMs), token);
      if (head.sequence === 0) heads.add(head);
      advance(head, entry);
    } catch (error) {
      // A number was taken and its record was not written (no memory is left): the log must not go on over a hole.
      throw commit.fail(error);
    }
  }

  #isoOf(ms: number): string {
    if (ms !== this.#isoMs) {
      this.#isoMs = ms;
      this.#iso = new Date(ms).toISOString();
    }
    return this.#iso;
  }

  /** Runs `enter` behind the trajectory's waiting appends, with blobs durable and room in the queue. */
  #inOrder<T>(id: TrajectoryId, events: readonly Prepared[], enter: () => Promise<T>): Promise<T> {
    const bytes = events.reduce((sum, event) => sum + heldBytes(event), 0);
    if (this.#waitingBytes + bytes > WAITING_BYTES_MAX) {
      const message = `appends of ${this.#waitingBytes} bytes wait for the disk already; wait for some of them`;
      throw new VarveError('HOT_OVERLOADED', message, { waiting_bytes: this.#waitingBytes });
    }
    this.#waitingBytes += bytes;
    const before = this.#waiting.get(id);
    const hashes = events.flatMap((event) => event.blobs);
    const entered = this.#ready(before, events, hashes)
      // Wrapped, so that what waits behind this append waits for its entry, not for its barrier.
      .then(() => ({ durable: enter() }))
      .finally(() => {
        this.#waitingBytes -= bytes;
        if (this.#waiting.get(id) === entered) this.#waiting.delete(id);
      });
    this.#waiting.set(id, entered);
    const durable = entered.then((entry) => entry.durable);
    const unpin = () => {
      for (const sha256 of hashes) this.#needs.blobs.unpin(sha256);
    };
    durable.then(unpin, unpin);
    return durable;
  }

  async #ready(
    before: Promise<unknown> | undefined,
    events: readonly Prepared[],
    hashes: readonly string[],
  ): Promise<void> {
    const { blobs, commit } = this.#needs;
    for (const sha256 of hashes) blobs.pin(sha256);
    await before?.catch(() => {
      // Its own caller is told.
    });
    for (const { refs, bodies } of events) {
      for (const { sha256, bytes } of refs) {
        const size = await blobs.size(sha256);
        if (size === bytes) continue;
        const found = size === undefined ? 'is not in this log' : `has ${size} bytes, not ${bytes}`;
        throw new VarveError('BLOB_MISSING', `blob ${sha256} ${found}: put it first`, { sha256 });
      }
      for (const { body } of bodies) {
        await blobs.put(body).catch((error: unknown) => {
          throw commit.fail(error);
        });
      }
    }
    this.#assertTaking();
    while (!commit.hasRoom) {
      await commit.progress();
      this.#assertTaking();
    }
  }

  /** Append at a number that is not the next one: the stored event again, or a refusal. */
  #appendAt(id: TrajectoryId, prepared: Prepared, at: number): Promise<Appended> {
    return this.#inOrder(id, [prepared], async () => {
      const head = this.#openHead(id);
      const next = head.sequence + 1;
      if (at === next) return this.#enter(head, prepared);
      if (!Number.isSafeInteger(at) || at < 1 || at > next) {
        throw new VarveError('SEQUENCE_AHEAD', `${id} goes on at ${next}, not at ${at}`, { next });
      }
      const { event, receipt } = await this.#needs.eventAt(head, at);
      const { event_type, turn, payload_sha256 } = event;
      const isSame =
        event_type === prepared.event_type && turn === prepared.turn && payload_sha256 === prepared.payload_sha256;
      if (isSame) return receipt;
      throw new VarveError('SEQUENCE_TAKEN', `event ${at} of ${id} is there and is another one`, { at });
    });
  }
}

function refusal(
  head: Head,
  code: 'TURN_WENT_BACK' | 'FENCING_TOKEN_WENT_BACK' | 'CREATED_AT_WENT_BACK',
  what: string,
): VarveError {
  const message = `event ${head.sequence + 1} of ${head.id}: ${what}`;
  return new VarveError(code, message, { trajectory_id: head.id, sequence_number: head.sequence + 1 });
}

/** Bytes that an append keeps in memory while it waits. */
function heldBytes({ payloadBytes, bodies }: Prepared): number {
  return bodies.reduce((sum, { body }) => sum + body.byteLength, payloadBytes);
}

function checkGuard(head: Head, event: Prepared): void {
  const { guard } = head;
  if (guard === undefined || (!guard.fenced && performance.now() < guard.deadlineMs)) return;
  if (event.code === TOOL_RESULT && head.openIntents?.has(event.tag)) return;
  const why = guard.fenced ? 'another worker holds a higher token' : 'its lease has run out';
  const message = `${head.id}: ${why}; only results of open intents are taken. Claim it again, or stop`;
  throw new VarveError('HOT_FENCED', message, { trajectory_id: head.id });
}

function checkTotal(events: readonly Prepared[]): void {
  const bytes = events.reduce((sum, event) => sum + event.payloadBytes, 0);
  if (bytes <= ALL_BYTES_MAX && events.length <= ALL_EVENTS_MAX) return;
  const message = `${events.length} events of ${bytes} bytes are too much for one batch; append them in parts`;
  throw new VarveError('EVENT_TOO_LARGE', message, { bytes, events: events.length });
}

/** Recorded hashes are checked before anything is written. */
function checkHashes(head: Head, events: readonly Prepared[], recorded: readonly Recorded[]): void {
  if (recorded.every(({ hash }) => hash === undefined)) return;
  let previous: Uint8Array = Buffer.from(head.hash, 'latin1');
  for (const [i, event] of events.entries()) {
    const { createdMs, token, hash } = recorded[i] as Recorded;
    const sequence_number = (head.sequence + 1 + i) as SequenceNumber;
    const envelope = formatEnvelope({
      created_at: new Date(createdMs).toISOString(),
      event_type: event.event_type,
      fencing_token: token,
      payload_sha256: event.payload_sha256,
      sequence_number,
      trajectory_id: head.id,
      turn: event.turn,
    });
    previous = chainHash(previous, envelope);
    if (hash === undefined || Buffer.from(previous).toString('hex') === hash) continue;
    const message = `event ${sequence_number} of ${head.id} was recorded with another hash: it, or one before it, is not the same`;
    throw new VarveError('CHAIN_BROKEN', message, { trajectory_id: head.id, sequence_number });
  }
}
