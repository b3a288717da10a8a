/**
 * Logs written by hand: trajectories as chains of events, and logs that hold any of their events in any order, so that
 * a test says exactly what arrives. Hashes are real.
 */
import { randomBytes, randomUUID } from 'node:crypto';
import { canonicalJson, type JsonObject } from '../../schemas/canonical.ts';
import { chainHash, formatEnvelope, GENESIS_HASH, payloadSha256 } from '../../schemas/chain.ts';
import { newTrajectoryId, type SequenceNumber, type TrajectoryId } from '../../schemas/ids.ts';
import { NO_CURSOR, type WarmCursor } from '../../warm/cursor-rows.ts';
import type { Ingest, IngestCounts, IngestOutcome, WarmBatch } from '../../warm/ingest.ts';
import type { WarmEvent, WarmItem } from '../../warm/ingest-plan.ts';
import type { Refusal } from '../../warm/place.ts';

export type Draft = {
  readonly event_type?: string;
  readonly payload?: JsonObject;
  readonly turn?: number;
  readonly fencing_token?: number;
  readonly created_at?: string;
};

/** The events of one trajectory, in order; a fork shares its first ones. */
export class Chain {
  readonly id: TrajectoryId;
  readonly events: WarmEvent[];

  constructor(id: TrajectoryId = newTrajectoryId(), events: readonly WarmEvent[] = []) {
    this.id = id;
    this.events = [...events];
  }

  get length(): number {
    return this.events.length;
  }

  /** Adds an event; what the draft leaves out is that of the last one. */
  add(draft: Draft = {}): WarmEvent {
    const last = this.events.at(-1);
    const sequence_number = (this.length + 1) as SequenceNumber;
    const payload = draft.payload ?? { n: sequence_number };
    const text = canonicalJson(payload);
    const envelope = {
      created_at: draft.created_at ?? last?.created_at ?? '2024-11-27T10:00:00.000Z',
      event_type: draft.event_type ?? 'Noted',
      fencing_token: draft.fencing_token ?? last?.fencing_token ?? 0,
      payload_sha256: payloadSha256(text),
      sequence_number,
      trajectory_id: this.id,
      turn: draft.turn ?? last?.turn ?? 0,
    };
    const previous = last === undefined ? GENESIS_HASH : Buffer.from(last.cryptographic_hash, 'hex');
    const cryptographic_hash = chainHash(previous, formatEnvelope(envelope)).toString('hex');
    const event = { ...envelope, payload, payload_bytes: Buffer.from(text), cryptographic_hash };
    this.events.push(event);
    return event;
  }

  grow(count: number, draft: Draft = {}): this {
    for (let i = 0; i < count; i++) this.add(draft);
    return this;
  }

  /** Another chain with the same events up to a number. */
  fork(at: number): Chain {
    return new Chain(this.id, this.events.slice(0, at));
  }

  at(sequence: number): WarmEvent {
    const event = this.events[sequence - 1];
    if (event === undefined) throw new Error(`the chain has ${this.length} events, not ${sequence}`);
    return event;
  }

  /** Events `from` to `to`, both included. */
  part(from: number, to: number = this.length): WarmEvent[] {
    return this.events.slice(from - 1, to);
  }
}

/** A hot log as the sidecar sees it. */
export class ScriptLog {
  readonly log_id: string = randomUUID();
  readonly items: WarmItem[] = [];
  readonly #cursors: WarmCursor[] = [NO_CURSOR];

  get lsn(): number {
    return this.#cursors.length - 1;
  }

  add(...events: readonly WarmEvent[]): this {
    for (const event of events) {
      this.items.push({ kind: 'event', lsn: this.lsn + 1, event });
      this.#cursors.push({ lsn: this.lsn + 1, hash: event.cryptographic_hash });
    }
    return this;
  }

  /** Announces that the log goes on behind this event. */
  anchor(event: WarmEvent): this {
    const { trajectory_id, sequence_number, cryptographic_hash, fencing_token } = event;
    const position = { trajectory_id, sequence_number, cryptographic_hash, fencing_token };
    this.items.push({ kind: 'anchor', lsn: this.lsn + 1, position });
    this.#cursors.push({ lsn: this.lsn + 1, hash: cryptographic_hash });
    return this;
  }

  /** Records that the log has let go of, up to this hash. */
  missing(count: number, hash: string): this {
    this.items.push({ kind: 'missing', from_lsn: this.lsn + 1, to_lsn: this.lsn + count });
    for (let i = 0; i < count; i++) this.#cursors.push({ lsn: this.lsn + 1, hash });
    return this;
  }

  cursorAt(lsn: number): WarmCursor {
    return this.#cursors[lsn] ?? NO_CURSOR;
  }

  get identity(): { log_id: string; epoch: string; host: string; directory: string } {
    return { log_id: this.log_id, epoch: randomUUID(), host: 'test', directory: `/logs/${this.log_id.slice(0, 8)}` };
  }

  /** What lies behind `from` up to `to`, as a batch. */
  batch(ingest: Ingest, from: number, to: number = this.lsn): WarmBatch {
    const items = this.items.filter((item) => {
      const last = item.kind === 'missing' ? item.to_lsn : item.lsn;
      return last > from && last <= to;
    });
    return ingest.prepare(items, this.cursorAt(from), this.cursorAt(to), this.lsn);
  }
}

/** Follows a script as a sidecar would: batch behind batch. */
export class Feed {
  readonly log: ScriptLog;
  readonly ingest: Ingest;
  lsn: number;

  constructor(log: ScriptLog, ingest: Ingest, lsn = 0) {
    this.log = log;
    this.ingest = ingest;
    this.lsn = lsn;
  }

  /** The next `count` LSNs in one batch; by default all that is left. */
  async apply(count: number = this.log.lsn - this.lsn, unfit?: ReadonlyMap<number, string>): Promise<IngestCounts> {
    const to = Math.min(this.log.lsn, this.lsn + count);
    const options = unfit === undefined ? {} : { unfit };
    const outcome: IngestOutcome = await this.ingest.apply(this.log.batch(this.ingest, this.lsn, to), options);
    if (outcome.kind !== 'applied') throw new Error(`the cursor is at ${outcome.cursor.lsn}, not at ${this.lsn}`);
    this.lsn = to;
    return outcome.counts;
  }
}

/** An id whose trajectory started then; the ids that this process mints stay as they are. */
export function idAt(ms: number): TrajectoryId {
  const time = ms.toString(16).padStart(12, '0');
  const random = randomBytes(9).toString('hex');
  return `${time.slice(0, 8)}-${time.slice(8)}-7${random.slice(0, 3)}-8${random.slice(3, 6)}-${random.slice(6, 18)}` as TrajectoryId;
}

export const NOTHING_REFUSED: ReadonlyMap<number, Refusal> = new Map();
