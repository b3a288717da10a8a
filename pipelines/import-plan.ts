/**
 * Decides what an import of event JSONL may append; touches nothing. `pipelines/import.ts` carries it out.
 *
 * Per trajectory, against what the log has of it:
 *
 *   an event that is there, the same      skipped
 *   an event that is there, another one   the trajectory is contradicted: nothing of it is appended, not from other lines
 *                                         and not from other files
 *   the next event, covering the head     to be appended
 *   anything else                         a bad line; what follows it in its trajectory has nothing to follow
 *
 * It holds 32 bytes for each event of the trajectories that the files name. That is the only thing that grows, and it has
 * a limit.
 */
import { chainHash, type Envelope, formatEnvelope, parseCreatedAt } from '../schemas/chain.ts';
import type { TrajectoryEvent } from '../schemas/event.ts';
import type { TrajectoryId } from '../schemas/ids.ts';

/** 128 MiB of hashes. */
export const EVENTS_MAX = 4_194_304;
const HASH_BYTES = 32;

/** What the log has of a trajectory, oldest first; `from` is the number of the first that is still there. */
export type Stored = {
  readonly from: number;
  readonly hashes: readonly Buffer[];
  readonly last: Pick<TrajectoryEvent, 'turn' | 'created_at' | 'fencing_token'> | undefined;
};

export type Verdict =
  | { readonly kind: 'append' | 'same' | 'trimmed' }
  | { readonly kind: 'bad' | 'contradiction'; readonly why: string }
  /** It comes behind a line of its trajectory that was refused. */
  | { readonly kind: 'after_bad' };

export class TrajectoryPlan {
  readonly trajectory_id: TrajectoryId;
  /** Last number that the log has. */
  readonly stored: number;
  contradiction: string | undefined;
  /** Number of the first event that was refused, or is missing. */
  refused_at: number | undefined;
  readonly #from: number;
  #hashes: Buffer;
  #count: number;
  #last: Stored['last'];

  constructor(trajectory_id: TrajectoryId, stored: Stored) {
    this.trajectory_id = trajectory_id;
    this.#from = stored.from;
    this.#count = stored.hashes.length;
    this.#hashes = Buffer.concat(stored.hashes);
    this.#last = stored.last;
    this.stored = this.last;
  }

  /** Last number that the log will have. */
  get last(): number {
    return this.#from + this.#count - 1;
  }

  /** Events whose hashes are held. */
  get count(): number {
    return this.#count;
  }

  /** Is this the event that the plan has at its number? */
  has({ sequence_number, cryptographic_hash }: TrajectoryEvent): boolean {
    return this.#at(sequence_number)?.toString('hex') === cryptographic_hash;
  }

  /** @param refusal why the event could not be appended, whatever is before it */
  take(event: TrajectoryEvent, envelope: Envelope, refusal: string | undefined): Verdict {
    const { sequence_number } = event;
    if (sequence_number < this.#from) return { kind: 'trimmed' };
    const before = sequence_number === 1 ? Buffer.alloc(HASH_BYTES) : this.#at(sequence_number - 1);
    const covers =
      before === undefined || chainHash(before, formatEnvelope(envelope)).toString('hex') === event.cryptographic_hash;
    if (sequence_number <= this.last) return this.#known(event, covers);
    if (this.refused_at !== undefined) return { kind: 'after_bad' };
    if (sequence_number > this.last + 1) {
      this.refused_at = this.last + 1;
      return { kind: 'bad', why: `event ${this.last + 1} of its trajectory is missing before it` };
    }
    const why = refusal ?? (covers ? this.#wentBack(event) : 'its hash does not cover it and the event before');
    if (why !== undefined) {
      this.refused_at = sequence_number;
      return { kind: 'bad', why };
    }
    this.#push(event);
    return { kind: 'append' };
  }

  #known(event: TrajectoryEvent, covers: boolean): Verdict {
    if (this.has(event)) {
      // The right hash on another content is no event at all.
      return covers ? { kind: 'same' } : { kind: 'bad', why: 'its hash does not cover it and the event before' };
    }
    const { sequence_number } = event;
    const whose = sequence_number <= this.stored ? 'the log has' : 'an earlier line is';
    this.contradiction ??= `event ${sequence_number}: ${whose} another one`;
    return { kind: 'contradiction', why: `${whose} another event ${sequence_number} of ${this.trajectory_id}` };
  }

  #wentBack({ turn, created_at, fencing_token }: TrajectoryEvent): string | undefined {
    const last = this.#last;
    if (last === undefined) return undefined;
    if (turn < last.turn) return 'its turn went back';
    if (parseCreatedAt(created_at) < parseCreatedAt(last.created_at)) return 'its created_at went back';
    return fencing_token < last.fencing_token ? 'its fencing token went back' : undefined;
  }

  #at(sequence_number: number): Buffer | undefined {
    const index = sequence_number - this.#from;
    if (index < 0 || index >= this.#count) return undefined;
    return this.#hashes.subarray(index * HASH_BYTES, (index + 1) * HASH_BYTES);
  }

  #push(event: TrajectoryEvent): void {
    const at = this.#count * HASH_BYTES;
    if (at + HASH_BYTES > this.#hashes.length) {
      const grown = Buffer.alloc(Math.max(16 * HASH_BYTES, 2 * this.#hashes.length));
      this.#hashes.copy(grown);
      this.#hashes = grown;
    }
    this.#hashes.write(event.cryptographic_hash, at, 'hex');
    this.#count += 1;
    const { turn, created_at, fencing_token } = event;
    this.#last = { turn, created_at, fencing_token };
  }
}
