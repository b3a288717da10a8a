/**
 * The table log in an object store: snapshots of it, and the one way to change it.
 *
 * The put of a commit, if its version is absent, is the commit point of the cold tier. Before it there are only orphans.
 * Each commit is checked on the snapshot right before it (`table-log-plan.ts`), so the order of versions is the order in
 * which all commits were legal; who loses the race for a version plans again. A step of a run that was committed is
 * known by its `txn` for ever, also where the answer to the put was lost.
 *
 * Snapshots are cached and go on from the newest one that was read. Several tasks may share a log.
 */
import { randomUUID } from 'node:crypto';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { failpoint } from '../schemas/failpoint.ts';
import { collect, refuseAborted } from './body.ts';
import { readSegments } from './data-file.ts';
import type { DuckSource } from './duckdb.ts';
import type { CallOptions, ObjectStore, PutOutcome } from './object-store.ts';
import type { Segment, SegmentList } from './segments.ts';
import { COMMIT_BYTES_MAX, type Commit, checkKnown, formatCommit, newTable, parseCommit } from './table-actions.ts';
import { readCheckpoint, readHint, writeCheckpoint } from './table-checkpoint.ts';
import { commitKey, LOG_FOLDER, versionOfKey } from './table-keys.ts';
import {
  type CommitIntent,
  findNotLive,
  findOverlap,
  indexSegments,
  isCommitted,
  type LiveFile,
  neighboursOf,
  planCommit,
  type Refusal,
  replay,
  type Snapshot,
} from './table-log-plan.ts';

export type TableLogOptions = CallOptions & {
  /** For checkpoints. Not closed with the log. */
  readonly duck: DuckSource;
  /** Folder for copies of checkpoints. */
  readonly scratchDir: string;
  /** Commits from one checkpoint to the next; more make a first snapshot slower. @default 100 */
  readonly checkpointEvery?: number | undefined;
  /** Make the table where there is none. @default false: COLD_NO_TABLE */
  readonly create?: boolean | undefined;
  /** Milliseconds since the epoch. @default the system's clock */
  readonly now?: (() => number) | undefined;
};

export type CommitOutcome =
  /** It is in the log, at that version. */
  | { readonly kind: 'committed'; readonly version: number }
  /** This step was committed before; nothing was written. */
  | { readonly kind: 'already' }
  /** Somebody else took that version; nothing was written. Plan again. */
  | { readonly kind: 'lost'; readonly version: number }
  /** Not legal on the newest snapshot; nothing was written. Plan again, on another basis. */
  | Refusal;

export type SnapshotAt =
  | { readonly version: number; readonly timeMs?: never }
  /** The newest version of that time, in milliseconds since the epoch. */
  | { readonly timeMs: number; readonly version?: never };

const CHECKPOINT_EVERY = 100;
/** Snapshots of older versions that are kept: a comparison of two, and a step from one to the next. */
const OLDER_SNAPSHOTS = 3;
/** Commits that are fetched at once. */
const FETCHES = 16;
/** Segments that are kept for the next attempt or commit; some 500 bytes each. */
const CACHED_SEGMENTS_MAX = 200_000;

export class TableLog {
  readonly #store: ObjectStore;
  readonly #options: TableLogOptions;
  readonly #now: () => number;
  #newest: Snapshot | undefined;
  /** The one asked for last is last. */
  #older: readonly Snapshot[] = [];
  #checkpointVersion: number | undefined;
  /** By path; the one asked for last is last. Files never change. */
  readonly #segments = new Map<string, SegmentList>();
  #cachedSegments = 0;

  private constructor(store: ObjectStore, options: TableLogOptions) {
    this.#store = store;
    this.#options = options;
    this.#now = options.now ?? Date.now;
  }

  /** @throws VarveError COLD_NO_TABLE, COLD_TABLE_NEWER, COLD_LOG_INVALID */
  static async open(store: ObjectStore, options: TableLogOptions): Promise<TableLog> {
    const log = new TableLog(store, options);
    try {
      await log.snapshot(options);
    } catch (error) {
      if (options.create !== true || !isVarveError(error, 'COLD_NO_TABLE')) throw error;
      const timestamp = log.#now();
      const bytes = formatCommit({
        info: { timestamp, operation: 'CREATE' },
        actions: newTable(randomUUID(), timestamp),
      });
      // Whoever wins has made the table.
      await store.putIfAbsent(commitKey(0), bytes, options);
      await log.snapshot(options);
    }
    return log;
  }

  /** The newest version: everything that was committed before the call. */
  async snapshot(options: CallOptions = {}): Promise<Snapshot> {
    const base = this.#newest ?? (await this.#fromCheckpoint(options));
    const snapshot = await this.#goOn(base, undefined, options);
    checkKnown(snapshot.protocol, snapshot.metaData);
    if (snapshot.version > (this.#newest?.version ?? -1)) this.#newest = snapshot;
    return snapshot;
  }

  /** An older version, whose files may be gone where a policy expired them. @throws VarveError COLD_NO_VERSION */
  async snapshotAt(at: SnapshotAt, options: CallOptions = {}): Promise<Snapshot> {
    const newest = await this.snapshot(options);
    const version = at.version ?? (await this.#versionAt(at.timeMs, newest, options));
    if (!Number.isSafeInteger(version) || version < 0 || version > newest.version) {
      throw new VarveError('COLD_NO_VERSION', `the table has versions 0 to ${newest.version}`, { version });
    }
    if (version === newest.version) return newest;
    const nearest = this.#older
      .filter((older) => older.version <= version)
      .toSorted(byVersion)
      .at(-1);
    const base = nearest ?? (await this.#fromCheckpoint(options, version));
    const snapshot = base?.version === version ? base : await this.#goOn(base, version, options);
    this.#older = [...this.#older.filter((older) => older.version !== version), snapshot].slice(-OLDER_SNAPSHOTS);
    return snapshot;
  }

  /**
   * One attempt. When it resolves to 'committed', the commit is durable and every reader sees it. The files of the
   * intent must have been read back.
   *
   * @throws VarveError COLD_COMMIT_INVALID; STORE_*: nothing was written, but after STORE_AMBIGUOUS, when the same call
   * again tells
   */
  async commit(intent: CommitIntent, options: CallOptions = {}): Promise<CommitOutcome> {
    const index = indexSegments(intent);
    const snapshot = await this.snapshot(options);
    if (isCommitted(snapshot, intent.run)) return { kind: 'already' };
    const refusal = findNotLive(snapshot, intent) ?? (await this.#findOverlap(snapshot, intent, index, options));
    if (refusal !== undefined) return refusal;
    const { commit, bytes } = planCommit(snapshot, intent, this.#now());
    refuseAborted(options.signal);
    failpoint('cold.commit.before-put');
    const outcome = await this.#put(commit.version, bytes, options); // COMMIT POINT. Only orphans before.
    failpoint('cold.commit.after-put');
    if (outcome === 'exists') return { kind: 'lost', version: commit.version };
    if (this.#newest?.version === snapshot.version) this.#newest = replay(snapshot, [commit]);
    return { kind: 'committed', version: commit.version };
  }

  /**
   * Writes a checkpoint of the newest version if enough commits have come since the last one. To be called after
   * commits; a failure leaves everything as it was, and the next call does it.
   */
  async checkpointIfDue(options: CallOptions = {}): Promise<'written' | 'exists' | 'not-due'> {
    const snapshot = await this.snapshot(options);
    const every = this.#options.checkpointEvery ?? CHECKPOINT_EVERY;
    if (snapshot.version - (this.#checkpointVersion ?? 0) < every) return 'not-due';
    // Somebody else may have written one.
    this.#checkpointVersion = (await readHint(this.#store, options))?.version;
    if (snapshot.version - (this.#checkpointVersion ?? 0) < every) return 'not-due';
    const outcome = await writeCheckpoint(this.#store, this.#options, snapshot, options);
    if (outcome === 'written') this.#checkpointVersion = snapshot.version;
    return outcome;
  }

  /** What a live file holds, proven by its tags. @throws VarveError COLD_SEGMENTS_INVALID, STORE_MISSING */
  async segmentsOf(file: LiveFile, options: CallOptions = {}): Promise<readonly Segment[]> {
    return (await this.segmentListOf(file, options)).segments;
  }

  /** As `segmentsOf`, with where the rows lie in the file. */
  async segmentListOf(file: LiveFile, options: CallOptions = {}): Promise<SegmentList> {
    const { path } = file.add;
    const loaded = this.#segments.get(path) ?? (await readSegments(this.#store, file.stem, file.segments, options));
    // Somebody else may have loaded it meanwhile.
    const list = this.#segments.get(path) ?? loaded;
    if (!this.#segments.has(path)) this.#cachedSegments += list.segments.length;
    this.#segments.delete(path);
    this.#segments.set(path, list);
    for (const [oldest, { segments }] of this.#segments) {
      if (this.#cachedSegments <= CACHED_SEGMENTS_MAX) break;
      this.#segments.delete(oldest);
      this.#cachedSegments -= segments.length;
    }
    return list;
  }

  async #findOverlap(
    snapshot: Snapshot,
    intent: CommitIntent,
    index: ReadonlyMap<string, readonly Segment[]>,
    options: CallOptions,
  ): Promise<Refusal | undefined> {
    for (const file of neighboursOf(snapshot, intent)) {
      const refusal = findOverlap(index, await this.segmentsOf(file, options), file.add.path);
      if (refusal !== undefined) return refusal;
    }
    return undefined;
  }

  /** 'exists' only where the version holds other bytes. */
  async #put(version: number, bytes: Buffer, options: CallOptions): Promise<PutOutcome> {
    const key = commitKey(version);
    let doubt: unknown;
    try {
      if ((await this.#store.putIfAbsent(key, bytes, options)) === 'created') return 'created';
    } catch (error) {
      if (!isVarveError(error, 'STORE_AMBIGUOUS')) throw error;
      doubt = error;
    }
    try {
      // An earlier try of the same request may have been the winner.
      const there = await collect(this.#store.get(key, options), COMMIT_BYTES_MAX);
      return there.equals(bytes) ? 'created' : 'exists';
    } catch (error) {
      // Nothing is there yet: the put may still arrive. Whoever calls again finds its txn, or takes the version.
      throw doubt ?? error;
    }
  }

  async #fromCheckpoint(options: CallOptions, upTo = Number.POSITIVE_INFINITY): Promise<Snapshot | undefined> {
    const hint = await readHint(this.#store, options);
    if (hint === undefined || hint.version > upTo) return undefined;
    const { info } = await this.#readCommit(hint.version, options);
    const snapshot = await readCheckpoint(this.#store, this.#options, hint, info, options);
    this.#checkpointVersion = Math.max(hint.version, this.#checkpointVersion ?? 0);
    return snapshot;
  }

  /** The base and all commits behind it, up to a version where one is given. */
  async #goOn(base: Snapshot | undefined, upTo: number | undefined, options: CallOptions): Promise<Snapshot> {
    const first = (base?.version ?? -1) + 1;
    const last = upTo ?? (await this.#lastVersion(first, options));
    let snapshot = base;
    for (let from = first; from <= last; from += FETCHES) {
      const versions = Array.from({ length: Math.min(FETCHES, last - from + 1) }, (_, i) => from + i);
      snapshot = replay(snapshot, await Promise.all(versions.map((version) => this.#readCommit(version, options))));
    }
    if (snapshot !== undefined) return snapshot;
    throw new VarveError('COLD_NO_TABLE', `there is no table in ${this.#store.url}`, { url: this.#store.url });
  }

  /** The newest version there is, `first` − 1 where there is none from `first` on. @throws VarveError COLD_LOG_INVALID */
  async #lastVersion(first: number, options: CallOptions): Promise<number> {
    let last = first - 1;
    const startAfter = first === 0 ? undefined : commitKey(last);
    for await (const { key } of this.#store.list(LOG_FOLDER, { ...options, startAfter })) {
      const version = versionOfKey(key);
      if (version === undefined) continue;
      if (version !== last + 1) {
        const message = `commit ${last + 1} of the table log (${commitKey(last + 1)}) is missing, and ${key} is there`;
        throw new VarveError('COLD_LOG_INVALID', message, { version: last + 1, key: commitKey(last + 1) });
      }
      last = version;
    }
    return last;
  }

  async #readCommit(version: number, options: CallOptions): Promise<Commit> {
    const bytes = await collect(this.#store.get(commitKey(version), options), COMMIT_BYTES_MAX);
    return parseCommit(bytes, version);
  }

  /** −1: the table is younger. Timestamps ascend with versions. */
  async #versionAt(timeMs: number, newest: Snapshot, options: CallOptions): Promise<number> {
    if (newest.timestampMs <= timeMs) return newest.version;
    let [low, high] = [-1, newest.version];
    while (high - low > 1) {
      const middle = Math.floor((low + high) / 2);
      const { info } = await this.#readCommit(middle, options);
      if (info.timestamp <= timeMs) low = middle;
      else high = middle;
    }
    return low;
  }
}

function byVersion(a: Snapshot, b: Snapshot): number {
  return a.version - b.version;
}
