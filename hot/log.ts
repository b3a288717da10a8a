/**
 * The hot log: what a worker does with its own trajectories.
 *
 * When `append` resolves, an fdatasync that covers the event has returned: it survives `kill -9` and a power cut. In one
 * trajectory sequence numbers are 1, 2, 3 … and every hash covers the one before; in the log LSNs are 1, 2, 3 …. The
 * first error of any write ends the log until it is reopened, and what was not acknowledged by then is an *unknown
 * outcome*: it may be there. This file wires the parts together; each says its own contract.
 */
import { randomUUID } from 'node:crypto';
import { resolve } from 'node:path';
import { VarveError } from '../schemas/errors.ts';
import { failpoint } from '../schemas/failpoint.ts';
import { type Lsn, parseLsn, type TrajectoryId } from '../schemas/ids.ts';
import { Appender } from './appender.ts';
import type { Batch } from './batch.ts';
import { BlobStore } from './blobs.ts';
import { Budget, type BudgetOptions } from './budget.ts';
import { type CommitStages, GroupCommit, type Tip } from './commit.ts';
import type { CursorSource } from './cursor.ts';
import type { EventInput, RecordedEvent } from './door.ts';
import { removeFile } from './files.ts';
import type { Appended, Heads } from './heads.ts';
import { removeWriterFile, writeWriterFile } from './holder.ts';
import { Lookup } from './lookup.ts';
import type { Deletion } from './meta.ts';
import { checkedWindowBytes, type Opened, openFailed, openLog } from './open.ts';
import { compileOptions, type HotLogOptions, type Settings } from './options.ts';
import type { TailItem } from './read-check.ts';
import type { Position, StoredEvent } from './record.ts';
import { Replication } from './replication.ts';
import { isRocksError, type Rocks } from './rocks.ts';
import { SnapshotKeeper } from './snapshots.ts';
import type { Ack, Role } from './tail-protocol.ts';
import { checkSocketPath, TailServer } from './tail-server.ts';
import { type TrimReport, trim } from './trim.ts';
import { type VerifyReport, verify } from './verify.ts';

/** What only the log's own other entrances set. */
export type Entrance = {
  readonly role: Role;
  /** Somebody asked a drain to give the log up. */
  readonly onYield: () => void;
  /** Milliseconds since the epoch. */
  readonly clock: () => number;
};

type Parts = {
  readonly dir: string;
  readonly settings: Settings;
  readonly logId: string;
  readonly epoch: string;
  readonly clock: () => number;
  readonly db: Rocks;
  readonly heads: Heads;
  readonly commit: GroupCommit;
  readonly lookup: Lookup;
  readonly appender: Appender;
  readonly blobs: BlobStore;
  readonly budget: Budget;
  readonly replication: Replication;
};

export class HotLog {
  readonly #parts: Parts;
  readonly #snapshots: SnapshotKeeper;
  #floor: Tip;
  readonly #unfinished: Map<string, Deletion>;
  #tail: TailServer | undefined;
  #closing: Promise<void> | undefined;
  /** Trim and verify, one after the other. */
  #maintenance: Promise<unknown> = Promise.resolve();

  private constructor(parts: Parts, snapshots: SnapshotKeeper, opened: Opened) {
    this.#parts = parts;
    this.#snapshots = snapshots;
    this.#floor = opened.meta.floor;
    this.#unfinished = new Map(opened.meta.deletions);
  }

  /**
   * Opens a log, verified as far back as RocksDB's recovery could have touched it; makes it where there is none.
   *
   * @throws VarveError HOT_LOCKED (names the pid), HOT_DAMAGED (nothing was written), HOT_NOT_A_LOG, HOT_FORMAT_NEWER,
   * HOT_UNWRITABLE, HOT_DISK_FULL, SOCKET_PATH_TOO_LONG, INVALID_OPTION
   */
  static async open(dir: string, options: HotLogOptions = {}, entrance: Partial<Entrance> = {}): Promise<HotLog> {
    const path = resolve(dir);
    const settings = compileOptions(path, options);
    const hasTail = options.tail !== false;
    if (hasTail) checkSocketPath(settings.socketPath);
    const opened = await openLog(path, {
      create: options.create ?? true,
      lockTimeoutMs: options.lockTimeoutMs ?? 5000,
      writeBufferBytes: settings.writeBufferBytes,
      socketPath: settings.socketPath,
    });
    const role = entrance.role ?? 'writer';
    const clock = entrance.clock ?? Date.now;
    const epoch = randomUUID();
    try {
      failpoint('hot.open.before-epoch');
      await writeWriterFile(path, epoch, role, hasTail ? settings.socketPath : undefined);
      failpoint('hot.open.after-epoch');
      const log = await HotLog.#assemble(path, settings, options.budget ?? {}, opened, epoch, clock);
      if (hasTail) await log.#serve(role, entrance.onYield ?? (() => {}));
      return log;
    } catch (error) {
      await giveUp(path, epoch, opened.db);
      throw openFailed(path, error);
    }
  }

  static async #assemble(
    dir: string,
    settings: Settings,
    budgetOptions: BudgetOptions,
    opened: Opened,
    epoch: string,
    clock: () => number,
  ): Promise<HotLog> {
    const { db, heads, meta, logId } = opened;
    for (const head of heads) {
      const mark = meta.marks.get(head.idBytes);
      if (mark !== undefined) head.trimmed = { sequence: mark.sequence_number, lsn: mark.through_lsn };
    }
    heads.settle();
    const blobs = await BlobStore.open(dir);
    const budget = await Budget.open(dir, budgetOptions);
    const snapshots = new SnapshotKeeper(dir, heads, checkedWindowBytes(settings.writeBufferBytes), opened.snapshots);
    let publish: ((batch: Batch) => void) | undefined;
    let floor = () => meta.floor;
    const commit = new GroupCommit(db, settings.commit, opened.tip, {
      onTaken: (batch) => snapshots.onTaken(batch),
      onDurable: (batch) => {
        budget.note(batch.bytes);
        snapshots.onDurable(batch, (error) => commit.fail(error));
        publish?.(batch);
      },
      onFailed: () => {},
    });
    const lookup = new Lookup(
      db,
      heads,
      () => commit.durable,
      () => floor(),
    );
    const replication = await Replication.open({
      dir,
      logId,
      heads,
      clock,
      trimAfterMs: settings.trimAfterMs,
      durableLsn: () => commit.durable.lsn,
      isAt: async (lsn, hash) => ((await lookup.hashAt(lsn)) ?? (lsn <= floor().lsn ? hash : '')) === hash,
      trajectoryOf: (lsn) => lookup.trajectoryOf(lsn),
      onWriteError: (error) => commit.fail(error),
    });
    const appender = new Appender(
      {
        commit,
        heads,
        blobs,
        gate: (code, isNew) => budget.gate(code, isNew),
        eventAt: async (head, sequence) => {
          await commit.flushed();
          return lookup.eventAt(head, sequence).catch((error: unknown) => {
            throw isRocksError(error) ? unreadable(dir, error) : error;
          });
        },
      },
      { offloadOverBytes: settings.offloadOverBytes, clock },
    );
    const parts = {
      dir,
      settings,
      logId,
      epoch,
      clock,
      db,
      heads,
      commit,
      lookup,
      appender,
      blobs,
      budget,
      replication,
    };
    const log = new HotLog(parts, snapshots, opened);
    publish = (batch) => log.#tail?.publish(batch);
    floor = () => log.#floor;
    return log;
  }

  /** Identity of this log, for ever. */
  get logId(): string {
    return this.#parts.logId;
  }

  /** Identity of this opening. */
  get epoch(): string {
    return this.#parts.epoch;
  }

  get dir(): string {
    return this.#parts.dir;
  }

  /** Bodies too bulky for the log. */
  get blobs(): BlobStore {
    return this.#parts.blobs;
  }

  get budget(): Budget {
    return this.#parts.budget;
  }

  /** Histograms of the commit's stages, in nanoseconds, and the number of barriers. */
  get stages(): CommitStages & { readonly flushes: number } {
    const { stages, flushes } = this.#parts.commit;
    return { ...stages, flushes };
  }

  /** Last LSN that an fdatasync covers. */
  get durableLsn(): Lsn {
    return BigInt(this.#parts.commit.durable.lsn) as Lsn;
  }

  /**
   * Appends one event. When it resolves, the event is durable.
   *
   * With `at`, the event is meant to have that sequence number: where it is there already with the same type, turn and
   * payload, its receipt comes back; this is how an append whose outcome is unknown is repeated.
   *
   * @throws VarveError before anything is written: what the event is refused for (see `schemas/errors.ts`), HOT_FENCED,
   * HOT_OVER_BUDGET, HOT_OVERLOADED, SEQUENCE_TAKEN, SEQUENCE_AHEAD, BLOB_MISSING. With unknown outcome: HOT_FAILED,
   * HOT_DISK_FULL
   */
  append(trajectory: TrajectoryId, event: EventInput, options?: { readonly at?: number }): Promise<Appended> {
    return this.#parts.appender.append(trajectory, event, options?.at);
  }

  /** Appends several events of one trajectory under one barrier: after a crash all of them are there, or none. */
  appendAll(trajectory: TrajectoryId, events: readonly EventInput[]): Promise<Appended[]> {
    return this.#parts.appender.appendAll(trajectory, events);
  }

  /**
   * Appends events as they were recorded elsewhere, all or none: time and token are taken over, hashes verified, so that
   * imports and restores reproduce the same hashes.
   *
   * @throws VarveError as `append`, and CHAIN_BROKEN, CREATED_AT_WENT_BACK
   */
  appendRecorded(trajectory: TrajectoryId, events: readonly RecordedEvent[]): Promise<Appended[]> {
    return this.#parts.appender.appendRecorded(trajectory, events);
  }

  /** Makes this log go on behind an event that was written elsewhere. Durable when it resolves. */
  adopt(trajectory: TrajectoryId, at: Omit<Position, 'trajectory_id'>): Promise<void> {
    return this.#parts.appender.adopt({ ...at, trajectory_id: trajectory });
  }

  /**
   * States the lease under which a trajectory is written. From `validForMs` on (already less any margin), and at once
   * where the token is lower than another worker's, only results of open intents are taken. `Infinity` lifts it.
   */
  lease(trajectory: TrajectoryId, validForMs: number): void {
    const head = this.#parts.heads.get(trajectory);
    if (head === undefined) throw new VarveError('HOT_UNKNOWN_TRAJECTORY', `this log has nothing of ${trajectory}`, {});
    const fenced = head.guard?.fenced ?? false;
    head.guard =
      fenced || Number.isFinite(validForMs) ? { fenced, deadlineMs: performance.now() + validForMs } : undefined;
  }

  /** The last acknowledged event of a trajectory. */
  head(trajectory: TrajectoryId): Appended | undefined {
    return this.#parts.heads.get(trajectory)?.durable;
  }

  /** Ids of the trajectories of which this log has a head, also where their events are trimmed. */
  *trajectories(): Generator<TrajectoryId> {
    for (const head of this.#parts.heads) if (head.durable !== undefined) yield head.id;
  }

  /**
   * Durable events of a trajectory in order, streamed.
   *
   * @throws VarveError HOT_TRIMMED (names the tier that has them), HOT_UNKNOWN_TRAJECTORY, HOT_DAMAGED
   */
  read(trajectory: TrajectoryId, from = 1): AsyncGenerator<StoredEvent> {
    return this.#reading(this.#parts.lookup.events(trajectory, from));
  }

  /** Durable records behind an LSN in order, streamed, up to the end of the log. */
  async *readLog(after: Lsn | number = 0): AsyncGenerator<TailItem> {
    for await (const records of this.#reading(this.#parts.lookup.log(Number(parseLsn(after))))) yield* records;
  }

  /** Intents without a result, in log order: each *in doubt* until it is settled. */
  async inDoubt(): Promise<StoredEvent[]> {
    this.#assertOpen();
    const { commit, heads, lookup } = this.#parts;
    const lsns: number[] = [];
    for (const { openIntents, trimmed } of heads) {
      // Those of a finished trajectory may be trimmed: warm lists them.
      for (const lsn of openIntents?.values() ?? []) if (lsn > (trimmed?.lsn ?? 0)) lsns.push(lsn);
    }
    const found: StoredEvent[] = [];
    for (const lsn of lsns.toSorted((a, b) => a - b)) {
      if (lsn > commit.durable.lsn) continue;
      const record = await lookup.record(lsn);
      if (record.kind === 'event') found.push(record.event);
    }
    return found;
  }

  /** What a cursor is checked against. */
  get cursorSource(): CursorSource {
    const { commit, lookup } = this.#parts;
    return { durable: () => commit.durable, floorLsn: () => this.#floor.lsn, hashAt: (lsn) => lookup.hashAt(lsn) };
  }

  /** What replication said last. */
  get acked(): Ack | undefined {
    return this.#parts.replication.ack;
  }

  /** Takes an ack over, as the tail does. @throws VarveError TAIL_CURSOR_UNKNOWN, TAIL_CURSOR_AHEAD, TAIL_PROTOCOL */
  async acknowledge(ack: Ack): Promise<void> {
    this.#assertOpen();
    await this.#parts.replication.take(ack);
  }

  /** Resolves when warm holds everything up to an LSN. @throws VarveError REPLICATION_HELD, ABORTED */
  whenReplicated(lsn: Lsn, options: { readonly signal?: AbortSignal } = {}): Promise<void> {
    const { commit, replication } = this.#parts;
    if (commit.ended !== undefined) return Promise.reject(commit.ended);
    return replication.whenReplicated(Number(lsn), options.signal);
  }

  /** Lets go of what was acknowledged long enough ago and is needed no more. Appends go on meanwhile. */
  trim(): Promise<TrimReport> {
    const { db, commit, heads, blobs, lookup, replication, settings, clock } = this.#parts;
    return this.#maintain(() => {
      const nowMs = clock();
      const held = new Set(replication.ack?.held.map(({ trajectory_id }) => trajectory_id));
      const ackedLsn = replication.ackedBefore(nowMs - settings.trimAfterMs);
      const setFloor = (floor: Tip) => {
        this.#floor = floor;
      };
      return trim(
        { db, commit, heads, blobs, lookup, floor: () => this.#floor, setFloor, unfinished: this.#unfinished },
        { ackedLsn, held, blobGraceMs: settings.blobGraceMs, nowMs },
      );
    });
  }

  /** Reads all of the log and checks every hash, link and blob. Damage is in the report, not thrown. */
  verify(options: { readonly deep?: boolean; readonly signal?: AbortSignal } = {}): Promise<VerifyReport> {
    const { db, blobs, commit } = this.#parts;
    return this.#maintain(async () => {
      await commit.flushed();
      return verify(db, blobs, options);
    });
  }

  /** Flushes what is queued, saves the heads and gives the log up. Idempotent; also after a failure. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #close(): Promise<void> {
    const { dir, db, epoch, commit, appender, budget, replication } = this.#parts;
    const closed = new VarveError('HOT_CLOSED', `${dir} is closed`, { dir });
    await appender.stop(closed);
    commit.end(closed);
    commit.stop();
    await commit.flushed();
    const failed = commit.failed !== undefined;
    await this.#maintenance.catch(() => {
      // Its own caller is told.
    });
    if (this.#tail !== undefined) {
      await this.#tail.close();
      await removeFile(this.#parts.settings.socketPath);
    }
    await replication.close(closed, !failed);
    await budget.close();
    failpoint('hot.close.before-snapshot');
    try {
      if (!failed) await this.#snapshots.close(commit.durable);
    } finally {
      // Also where the snapshot found no room: who finds the file waits for this process as long as it lives.
      await giveUp(dir, epoch, db);
    }
  }

  #assertOpen(): void {
    const { dir } = this.#parts;
    if (this.#closing !== undefined) throw new VarveError('HOT_CLOSED', `${dir} is closed`, { dir });
  }

  async *#reading<T>(source: AsyncGenerator<T>): AsyncGenerator<T> {
    const { dir } = this.#parts;
    this.#assertOpen();
    try {
      yield* source;
    } catch (error) {
      if (!isRocksError(error)) throw error;
      if (this.#closing === undefined) throw unreadable(dir, error);
      throw new VarveError('HOT_CLOSED', `${dir} was closed under a reader`, { dir }, error);
    }
  }

  #maintain<T>(work: () => Promise<T>): Promise<T> {
    const { commit } = this.#parts;
    const done = this.#maintenance
      .catch(() => {
        // The caller of that one is told.
      })
      .then(() => {
        if (commit.ended !== undefined) throw commit.ended;
        return work();
      });
    this.#maintenance = done;
    return done;
  }

  async #serve(role: Role, onYield: () => void): Promise<void> {
    const { settings, logId, epoch, commit, lookup, replication } = this.#parts;
    this.#tail = await TailServer.listen(settings.socketPath, {
      ...this.cursorSource,
      identity: { log_id: logId, epoch, role },
      flushes: () => commit.flushes,
      rows: (from, to, pageBytes) => lookup.rows(from, to, pageBytes),
      trimmed: (from, to) => lookup.trimmed(from, to),
      unpin: (batch) => commit.unpin(batch),
      onAck: (ack) => replication.take(ack),
      onYield,
    });
    this.#tail.unref();
  }
}

/** The lock is given up last: while it is held, nobody else's `writer.json` can be there. */
async function giveUp(dir: string, epoch: string, db: Rocks): Promise<void> {
  try {
    await removeWriterFile(dir, epoch);
  } finally {
    await db.close();
  }
}

/** RocksDB found one of its own checksums broken, or the disk did. */
function unreadable(dir: string, cause: Error): VarveError {
  return new VarveError('HOT_DAMAGED', `${dir} cannot be read (${cause.message}): run verify`, { dir }, cause);
}
