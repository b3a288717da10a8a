/**
 * What replication has said, and who waits for it.
 *
 * An ack is taken only if it is of this log and its hash is at its LSN. It is in force at once and written to `ack.json`
 * soon after; losing it costs a repetition, never an event. A lower ack than the last one is taken too: PostgreSQL
 * decides, and it may have been restored.
 */
import { VarveError } from '../schemas/errors.ts';
import { type AckedAt, type AckFile, ackedBefore, checkAck, extendHistory, readAckFile, writeAckFile } from './ack.ts';
import type { Head, Heads } from './heads.ts';
import type { Ack, Held } from './tail-protocol.ts';

/** Acks come with every batch; the file is written at most this often. */
const WRITE_EVERY_MS = 200;
/** Positions of the history are this share of the trim delay apart. */
const HISTORY_SHARE = 16;

export type ReplicationNeeds = {
  readonly dir: string;
  readonly logId: string;
  readonly heads: Heads;
  readonly clock: () => number;
  readonly trimAfterMs: number;
  readonly durableLsn: () => number;
  /** Does the log hold this hash (hex) at this LSN, or has it trimmed that far? */
  readonly isAt: (lsn: number, hash: string) => Promise<boolean>;
  /** Which trajectory an LSN belongs to. */
  readonly trajectoryOf: (lsn: number) => Promise<string | undefined>;
  readonly onWriteError: (error: unknown) => void;
};

type Waiter = { readonly lsn: number; readonly resolve: () => void; readonly reject: (error: unknown) => void };

export class Replication {
  readonly #needs: ReplicationNeeds;
  #ack: Ack | undefined;
  #history: readonly AckedAt[] = [];
  #waiters = new Set<Waiter>();
  #timer: NodeJS.Timeout | undefined;
  #writing: Promise<void> = Promise.resolve();
  /** Acks are taken in the order in which they came. */
  #taking: Promise<unknown> = Promise.resolve();

  private constructor(needs: ReplicationNeeds) {
    this.#needs = needs;
  }

  static async open(needs: ReplicationNeeds): Promise<Replication> {
    const replication = new Replication(needs);
    const file = await readAckFile(needs.dir);
    if (file !== undefined && (await replication.#refusal(file)) === undefined) {
      const { history, ...ack } = file;
      replication.#ack = ack;
      replication.#history = history.filter(({ lsn }) => lsn <= ack.cursor.lsn);
      replication.#fence(ack.held);
    }
    return replication;
  }

  get ack(): Ack | undefined {
    return this.#ack;
  }

  /** LSN up to which everything was acknowledged at a time in milliseconds since the epoch. */
  ackedBefore(ms: number): number {
    return Math.min(ackedBefore(this.#history, ms), this.#ack?.cursor.lsn ?? 0);
  }

  /** @throws VarveError TAIL_PROTOCOL, TAIL_CURSOR_UNKNOWN, TAIL_CURSOR_AHEAD */
  take(ack: Ack): Promise<void> {
    const taken = this.#taking.then(() => this.#take(ack));
    this.#taking = taken.catch(() => {
      // Whoever sent that one is told.
    });
    return taken;
  }

  async #take(ack: Ack): Promise<void> {
    checkAck(ack);
    const refusal = await this.#refusal(ack);
    if (refusal !== undefined) throw refusal;
    this.#ack = ack;
    const { lsn } = ack.cursor;
    const kept = this.#history.filter((entry) => entry.lsn <= lsn);
    this.#history = extendHistory(kept, { at: this.#needs.clock(), lsn }, this.#needs.trimAfterMs / HISTORY_SHARE);
    this.#fence(ack.held);
    this.#writeSoon();
    await this.#settle();
  }

  /**
   * Resolves when warm holds everything up to an LSN; what is *waiting* for a predecessor is waited for.
   *
   * @throws VarveError REPLICATION_HELD where warm holds the LSN's trajectory back for another reason
   */
  async whenReplicated(lsn: number, signal?: AbortSignal): Promise<void> {
    const aborted = new VarveError('ABORTED', 'the wait for replication was aborted', { lsn });
    if (signal?.aborted) throw aborted;
    await new Promise<void>((resolve, reject) => {
      const waiter = { lsn, resolve, reject };
      this.#waiters.add(waiter);
      signal?.addEventListener(
        'abort',
        () => {
          if (this.#waiters.delete(waiter)) reject(aborted);
        },
        { once: true },
      );
      this.#settle().catch(reject);
    });
  }

  /** Writes what is in force, and tells waiters that nothing more will come. */
  async close(reason: VarveError, write: boolean): Promise<void> {
    clearTimeout(this.#timer);
    const isDue = this.#timer !== undefined;
    this.#timer = undefined;
    for (const { reject } of this.#waiters) reject(reason);
    this.#waiters.clear();
    if (write && isDue) this.#write();
    await this.#writing;
  }

  async #refusal(ack: Ack): Promise<VarveError | undefined> {
    const { logId, durableLsn, isAt } = this.#needs;
    const { lsn, hash } = ack.cursor;
    const details = { lsn, log_id: logId };
    if (ack.log_id !== logId) {
      return new VarveError('TAIL_CURSOR_UNKNOWN', `the ack is of log ${ack.log_id}; this is log ${logId}`, details);
    }
    if (lsn > durableLsn()) {
      return new VarveError('TAIL_CURSOR_AHEAD', `the ack is of LSN ${lsn}; this log ends at ${durableLsn()}`, details);
    }
    if (lsn > 0 && !(await isAt(lsn, hash))) {
      return new VarveError('TAIL_CURSOR_UNKNOWN', `LSN ${lsn} of this log has not the hash of the ack`, details);
    }
    return undefined;
  }

  #fence(held: readonly Held[]): void {
    for (const { trajectory_id, from_lsn, reason } of held) {
      const head = reason === 'fenced' ? this.#needs.heads.get(trajectory_id as Head['id']) : undefined;
      // What was fenced stays so in warm; a later claim has adopted the trajectory behind it.
      if (head !== undefined && from_lsn > head.anchorLsn) head.guard = { fenced: true, deadlineMs: 0 };
    }
  }

  async #settle(): Promise<void> {
    const { ack } = this;
    if (ack === undefined) return;
    for (const waiter of this.#waiters) {
      if (waiter.lsn > ack.cursor.lsn) continue;
      const held = ack.held.length === 0 ? undefined : await this.#heldAt(waiter.lsn, ack.held);
      if (held?.reason === 'waiting' || !this.#waiters.delete(waiter)) continue;
      if (held === undefined) waiter.resolve();
      else waiter.reject(heldBack(waiter.lsn, held));
    }
  }

  async #heldAt(lsn: number, held: readonly Held[]): Promise<Held | undefined> {
    const trajectory = await this.#needs.trajectoryOf(lsn);
    return held.find((entry) => entry.trajectory_id === trajectory && entry.from_lsn <= lsn);
  }

  #writeSoon(): void {
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined;
      this.#write();
    }, WRITE_EVERY_MS).unref();
  }

  #write(): void {
    this.#writing = this.#writeBehind(this.#writing);
  }

  async #writeBehind(before: Promise<void>): Promise<void> {
    await before;
    if (this.#ack === undefined) return;
    const file: AckFile = { ...this.#ack, history: this.#history };
    await writeAckFile(this.#needs.dir, file).catch(this.#needs.onWriteError);
  }
}

function heldBack(lsn: number, held: Held): VarveError {
  const message = `warm holds ${held.trajectory_id} back from LSN ${held.from_lsn} (${held.reason}); see \`varve quarantine list\``;
  return new VarveError('REPLICATION_HELD', message, { lsn, ...held });
}
