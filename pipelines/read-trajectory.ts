/**
 * A trajectory, whatever tier it is in: cold up to its head, then warm, then hot, as one chain.
 *
 * It may move while it is read: replicated, compacted, dropped from warm between two pages, trimmed from hot. So each
 * tier is asked for the *next* event alone, in rounds, until no tier knows of a further one; before a round that follows
 * one without progress a newer cold snapshot is taken. An event leaves a tier only when the next one has it, so a round
 * or two find it there.
 *
 * Every event is checked against the one before it, whichever tier that came from: number, hash, payload. What is handed
 * out is a chain without gap or double, or it ends with an error that names tier and event. Events before the first that
 * any tier has are a loss, told and not thrown; so are events of a log that do not belong to the chain (another worker
 * went on: they are in quarantine, or will be), and what quarantine holds.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { readColdTrajectory } from '../cold/trajectory-reader.ts';
import { payloadSha256 } from '../schemas/chain.ts';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { isRedacted, type Link, linkBefore, type ProvenEvent, verifyLink } from '../schemas/event.ts';
import type { TrajectoryId } from '../schemas/ids.ts';
import { readPage, warmHeadOf } from '../warm/trajectory-reader.ts';
import { type HotPart, readPart } from './hot-parts.ts';
import { pauseBefore } from './retry.ts';
import type { Tier, Tiers } from './tiers.ts';

/** A run of events that came from one place. */
export type ReadPart = {
  readonly tier: Tier;
  /** The tier, or the log's directory. */
  readonly where: string;
  readonly first: number;
  readonly last: number;
};

/** Rounds that may bring nothing while some tier knows of more: an event can move twice. */
const IDLE_ROUNDS_MAX = 3;
/** Tries after errors that pass by themselves, without progress in between, and their pauses. */
const FAILURES_MAX = 5;
const FIRST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 5000;

export class TrajectoryReading implements AsyncIterable<ProvenEvent> {
  readonly trajectory_id: TrajectoryId;
  readonly #tiers: Tiers;
  readonly #signal: AbortSignal;
  #parts: ReadPart[] = [];
  readonly #losses = new Map<string, string>();
  /** Parts of logs that went another way. */
  readonly #aside = new Set<HotPart>();
  #link: Link | undefined;
  /** Number of the event that is wanted. */
  #next = 1;
  /** Highest number that a tier knew of in this round, and the lowest one from `#next` on that it could give. */
  #known = 0;
  #lowest = Number.POSITIVE_INFINITY;

  /** @param tiers resolved for this trajectory */
  constructor(tiers: Tiers, trajectory_id: TrajectoryId, signal: AbortSignal) {
    this.#tiers = tiers;
    this.trajectory_id = trajectory_id;
    this.#signal = signal;
  }

  /** Where the events came from, in order. */
  get parts(): readonly ReadPart[] {
    return this.#parts;
  }

  /** What is not among the events and should be, or might. */
  get losses(): readonly string[] {
    return [...this.#losses.values()];
  }

  /** The last event that was handed out. */
  get head(): Link | undefined {
    return this.#link;
  }

  /** @throws VarveError INVALID_OPTION: no tier knows it. TRAJECTORY_GAP, TRAJECTORY_BROKEN, TRAJECTORY_FORK, and what tiers throw */
  async *[Symbol.asyncIterator](): AsyncGenerator<ProvenEvent> {
    let idle = 0;
    let failures = 0;
    let missedAt = 0;
    for (let round = 0; ; round++) {
      const before = this.#next;
      this.#known = 0;
      this.#lowest = Number.POSITIVE_INFINITY;
      try {
        if (round > 0) await this.#tiers.cold?.refresh(this.#signal);
        yield* this.#cold();
        yield* this.#warm();
        yield* this.#hot();
        failures = this.#next > before ? 0 : failures;
      } catch (error) {
        // The files of an older snapshot may have been rewritten into others since.
        if (isVarveError(error, 'COLD_OBJECT_MISSING') && missedAt !== this.#next) {
          missedAt = this.#next;
          continue;
        }
        const hasMoved = this.#next > before;
        failures = hasMoved ? 1 : failures + 1;
        // Not `retry`: what was handed out cannot be taken back, so it goes on behind that.
        if (!isVarveError(error) || !error.retry || error.code === 'ABORTED' || failures > FAILURES_MAX) throw error;
        const pauseMs = pauseBefore(failures, FIRST_PAUSE_MS, LONGEST_PAUSE_MS, Math.random());
        await sleep(pauseMs, undefined, { signal: this.#signal }).catch(() => undefined);
        continue;
      }
      if (this.#next > this.#known) break;
      idle = this.#next > before ? 0 : idle + 1;
      if (idle >= IDLE_ROUNDS_MAX) this.#passOver();
    }
    if (this.#link === undefined) throw this.#tiers.notFound(this.trajectory_id);
  }

  async *#cold(): AsyncGenerator<ProvenEvent> {
    const { cold } = this.#tiers;
    if (cold === undefined) return;
    const all = await cold.segmentsOf(this.trajectory_id, this.#signal);
    const rest = all.filter(({ segment }) => segment.last_sequence_number >= this.#next);
    this.#offers(rest[0]?.segment.first_sequence_number, rest.at(-1)?.segment.last_sequence_number);
    if (this.#lowest > this.#next) return;
    const gap = rest.findIndex(({ segment }, i) => {
      const previous = rest[i - 1]?.segment;
      return previous !== undefined && segment.first_sequence_number > previous.last_sequence_number + 1;
    });
    const placed = gap === -1 ? rest : rest.slice(0, gap);
    const options = { from: this.#next, signal: this.#signal };
    for await (const event of readColdTrajectory(cold.reader, placed, options)) {
      this.#take(event, 'cold', 'cold');
      yield event;
    }
  }

  async *#warm(): AsyncGenerator<ProvenEvent> {
    const { warm } = this.#tiers;
    if (warm === undefined) return;
    const head = await warmHeadOf(warm, this.trajectory_id);
    if (head === undefined) return;
    // Where only warm is asked, what it once had and dropped is nobody's promise.
    if (this.#tiers.only === undefined) this.#known = Math.max(this.#known, head.last_sequence_number);
    this.#lose('held', head.held > 0 ? `quarantine holds ${head.held} more events` : undefined);
    for (;;) {
      if (this.#signal.aborted) throw new VarveError('ABORTED', 'reading was aborted');
      const page = await readPage(warm, this.trajectory_id, this.#next - 1);
      if (page.length === 0) return;
      for (const event of page) {
        this.#offers(event.sequence_number, event.sequence_number);
        if (event.sequence_number > this.#next) return;
        if (!isRedacted(event.payload_bytes) && payloadSha256(event.payload_bytes) !== event.payload_sha256) {
          throw this.#broken(event, 'warm', 'its payload has another hash');
        }
        this.#take(event, 'warm', 'warm');
        yield event;
      }
    }
  }

  async *#hot(): AsyncGenerator<ProvenEvent> {
    for (const part of this.#hotParts()) {
      if (part.last >= this.#next) this.#lowest = Math.min(this.#lowest, Math.max(part.first, this.#next));
      if (part.last < this.#next || part.first > this.#next) continue;
      for await (const event of readPart(part, this.trajectory_id, this.#next - 1, this.#signal)) {
        const { sequence_number, cryptographic_hash } = event;
        if (sequence_number === this.#next - 1 && cryptographic_hash === this.#link?.cryptographic_hash) continue;
        if (sequence_number > this.#next) {
          this.#lowest = Math.min(this.#lowest, sequence_number);
          break;
        }
        if (sequence_number < this.#next || !this.#follows(event)) {
          this.#fork(part, sequence_number);
          break;
        }
        this.#take(event, 'hot', part.directory);
        yield event;
      }
    }
    // What went another way is no promise of more.
    this.#known = Math.max(this.#known, ...this.#hotParts().map(({ last }) => last));
  }

  #hotParts(): HotPart[] {
    return (this.#tiers.hot?.of(this.trajectory_id) ?? []).filter((part) => !this.#aside.has(part));
  }

  #offers(first: number | undefined, last: number | undefined): void {
    if (first === undefined || last === undefined || last < this.#next) return;
    this.#known = Math.max(this.#known, last);
    this.#lowest = Math.min(this.#lowest, Math.max(first, this.#next));
  }

  /** The chain goes on with this event. */
  #take(event: ProvenEvent, tier: Tier, where: string): void {
    const { sequence_number, cryptographic_hash } = event;
    const link = this.#link ?? (sequence_number === 1 ? linkBefore(this.trajectory_id) : undefined);
    try {
      if (link !== undefined) verifyLink(link, event, event.payload_sha256);
    } catch (error) {
      throw this.#broken(event, where, 'it does not follow the event before it', error);
    }
    for (const part of this.#hotParts()) {
      if (part.last === sequence_number && part.head_hash !== cryptographic_hash) this.#fork(part, part.last, tier);
    }
    const { trajectory_id, turn, created_at, fencing_token } = event;
    this.#link = { trajectory_id, sequence_number, turn, created_at, fencing_token, cryptographic_hash };
    this.#next = sequence_number + 1;
    const last = this.#parts.at(-1);
    if (last?.where === where) this.#parts[this.#parts.length - 1] = { ...last, last: sequence_number };
    else this.#parts.push({ tier, where, first: sequence_number, last: sequence_number });
  }

  #follows(event: ProvenEvent): boolean {
    if (this.#link === undefined) return true;
    try {
      verifyLink(this.#link, event, event.payload_sha256);
      return true;
    } catch (error) {
      if (isVarveError(error)) return false;
      throw error;
    }
  }

  /** A log has other events than those handed out. Warm and cold decide; two logs alone do not. */
  #fork(part: HotPart, sequence_number: number, tier: Tier = this.#parts.at(-1)?.tier ?? 'hot'): void {
    if (tier === 'hot') {
      const { where } = this.#parts.at(-1) ?? { where: 'another log' };
      const message = `${part.directory} and ${where} have different events ${sequence_number} of ${this.trajectory_id}, and no other tier has one`;
      throw new VarveError('TRAJECTORY_FORK', message, { trajectory_id: this.trajectory_id, sequence_number });
    }
    this.#aside.add(part);
    const text = `${part.directory} has events up to ${part.last} that do not belong to it: another worker went on`;
    this.#lose(part.directory, text);
  }

  /** Nobody has the next event, and somebody has a later one. */
  #passOver(): void {
    const { trajectory_id } = this;
    const last = Number.isFinite(this.#lowest) ? this.#lowest - 1 : this.#known;
    const what = last === this.#next ? `event ${last}` : `events ${this.#next} to ${last}`;
    if (this.#link !== undefined || !Number.isFinite(this.#lowest)) {
      const [trouble] = this.#tiers.troubles;
      const where = trouble === undefined ? 'in no tier' : `in no tier that can be asked; ${trouble.text}`;
      const details = { trajectory_id, first: this.#next, last };
      throw new VarveError(trouble?.error.code ?? 'TRAJECTORY_GAP', `${what} of ${trajectory_id}: ${where}`, details);
    }
    this.#lose('start', `${what}: in no tier that was asked`);
    this.#next = this.#lowest;
  }

  #lose(about: string, text: string | undefined): void {
    if (text === undefined) this.#losses.delete(about);
    else this.#losses.set(about, text);
  }

  #broken({ sequence_number }: ProvenEvent, where: string, what: string, cause?: unknown): VarveError {
    const { trajectory_id } = this;
    const message = `event ${sequence_number} of ${trajectory_id} in ${where}: ${what}`;
    return new VarveError('TRAJECTORY_BROKEN', message, { trajectory_id, sequence_number, where }, cause);
  }
}
