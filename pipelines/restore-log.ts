/**
 * Restored trajectories in a hot log of their own, through the log's own recorded appends: the same numbers, times and
 * hashes, and every body in its blobs before the event that refers to it.
 *
 * Killed and run again it goes on behind what is there, which must be the same events. A log that has other
 * trajectories, other events, or more of them is somebody's log and is refused.
 */
import { HotLog } from '../hot/log.ts';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { isRedacted, type ProvenEvent } from '../schemas/event.ts';
import type { TrajectoryId } from '../schemas/ids.ts';
import { MIB, PAYLOAD_BYTES_MAX } from '../schemas/limits.ts';
import type { BodySource } from './restore-bodies.ts';
import type { RestoreTarget } from './restore-target.ts';

/** Events that are appended under one barrier, and bytes of their payloads. */
const GROUP_EVENTS = 256;
const GROUP_BYTES = MIB / 2;
const LOCK_TIMEOUT_MS = 1000;
/** A restore shares its memory with the reading of row groups, and nobody waits for its appends. */
const WRITE_BUFFER_BYTES = 4 * MIB;

export class LogTarget implements RestoreTarget {
  readonly #log: HotLog;
  readonly #bodies: BodySource;
  #id: TrajectoryId | undefined;
  /** What the log has of the trajectory. */
  #there = 0;
  #last: ProvenEvent | undefined;
  #group: ProvenEvent[] = [];
  #groupBytes = 0;

  private constructor(log: HotLog, bodies: BodySource) {
    this.#log = log;
    this.#bodies = bodies;
  }

  /** @throws VarveError INVALID_OPTION: it is another log. HOT_LOCKED and others, as `HotLog.open` */
  static async open(directory: string, ids: readonly TrajectoryId[], bodies: BodySource): Promise<LogTarget> {
    // No string is offloaded here: what was hashed stays as it is.
    const log = await HotLog.open(directory, {
      lockTimeoutMs: LOCK_TIMEOUT_MS,
      offloadOverBytes: PAYLOAD_BYTES_MAX,
      tail: false,
      writeBufferBytes: WRITE_BUFFER_BYTES,
    });
    const wanted = new Set(ids);
    for (const id of log.trajectories()) {
      if (wanted.has(id)) continue;
      await log.close();
      const message = `${directory} is another log: it has ${id}; nothing was written. Name a directory that is not there yet`;
      throw new VarveError('INVALID_OPTION', message, { directory, trajectory_id: id });
    }
    return new LogTarget(log, bodies);
  }

  async begin(id: TrajectoryId): Promise<void> {
    this.#id = id;
    this.#there = this.#log.head(id)?.sequence_number ?? 0;
    this.#last = undefined;
    this.#group = [];
    this.#groupBytes = 0;
  }

  async take(event: ProvenEvent): Promise<void> {
    const { sequence_number } = event;
    if (this.#last === undefined && sequence_number > 1) {
      throw this.#refusal('TRAJECTORY_GAP', `events 1 to ${sequence_number - 1} are missing, and a log begins with 1`);
    }
    if (sequence_number === this.#there) this.#compare(event);
    this.#last = event;
    if (sequence_number <= this.#there) return;
    if (isRedacted(event.payload_bytes)) {
      await this.#flush();
      throw this.#refusal('REDACTED_AT_DOOR', `event ${sequence_number} was erased, and no log takes that in`);
    }
    this.#group.push(event);
    this.#groupBytes += event.payload_bytes.byteLength;
    if (this.#group.length >= GROUP_EVENTS || this.#groupBytes >= GROUP_BYTES) await this.#flush();
  }

  async end(): Promise<string> {
    await this.#flush();
    const { sequence_number = 0 } = this.#last ?? {};
    if (this.#there > sequence_number) {
      throw this.#refusal('INVALID_OPTION', `${this.#log.dir} has ${this.#there} events of it, more than were found`);
    }
    return this.#log.dir;
  }

  async abandon(): Promise<number> {
    const id = this.#id;
    return id === undefined ? 0 : (this.#log.head(id)?.sequence_number ?? 0);
  }

  async finish(): Promise<void> {
    await this.#log.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#log.close();
  }

  #compare({ trajectory_id, sequence_number, cryptographic_hash }: ProvenEvent): void {
    if (this.#log.head(trajectory_id)?.cryptographic_hash === cryptographic_hash) return;
    throw this.#refusal('INVALID_OPTION', `${this.#log.dir} has another event ${sequence_number} of it`);
  }

  async #flush(): Promise<void> {
    const group = this.#group;
    const [first] = group;
    this.#group = [];
    this.#groupBytes = 0;
    if (first === undefined) return;
    for (const event of group) await this.#bring(event);
    await this.#log.appendRecorded(first.trajectory_id, group);
  }

  async #bring(event: ProvenEvent): Promise<void> {
    try {
      await this.#bodies.bring(event, this.#log.blobs);
    } catch (error) {
      if (!isVarveError(error, 'BLOB_MISSING')) throw error;
      throw this.#refusal('COLD_OBJECT_MISSING', error.message, error);
    }
  }

  #refusal(code: VarveError['code'], what: string, cause?: unknown): VarveError {
    return new VarveError(code, `${this.#id}: ${what}`, { trajectory_id: this.#id, directory: this.#log.dir }, cause);
  }
}
