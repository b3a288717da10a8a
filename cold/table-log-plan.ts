/**
 * What the table log's commits add up to, and which commit may come next. Decides; touches nothing. `table-log.ts` reads
 * and writes.
 *
 * A snapshot is valid at one version for ever: live files, last step of every run, tombstones. A commit is legal on it
 * if and only if every file that it removes is live, and after its removes no segment of what it adds overlaps another
 * one, live or added: then no event is in two live files. What overlaps is refused, never replaced; the first one wins.
 */

import { hash } from 'node:crypto';
import { invariant, VarveError } from '../schemas/errors.ts';
import { COLUMNS_FORMAT } from '../schemas/parquet.ts';
import type { FileRange, LocalFile } from './parquet-writer.ts';
import { formatSegments, overlap, type Segment, type SegmentList } from './segments.ts';
import {
  type Action,
  type Add,
  type AddTags,
  COMMIT_BYTES_MAX,
  type Commit,
  formatCommit,
  invalidCommit,
  type MetaData,
  type Protocol,
  type Remove,
  type Txn,
} from './table-actions.ts';
import { derivedKey } from './table-keys.ts';

/** A file that a snapshot holds. */
export type LiveFile = {
  readonly add: Add;
  /** Path without its ending: see `parquetKey`, `segmentsKey`. */
  readonly stem: string;
  readonly rows: number;
  readonly min_trajectory_id: string;
  readonly max_trajectory_id: string;
  readonly segments: { readonly sha256: string; readonly count: number };
  /** Keys of its derived rows, relative to the store's root; undefined where it has none. */
  readonly trajectories: string | undefined;
  readonly imports: string | undefined;
};

export type Snapshot = {
  readonly version: number;
  /** When that version was committed, in milliseconds since the epoch; greater than at every version before. */
  readonly timestampMs: number;
  readonly protocol: Protocol;
  readonly metaData: MetaData;
  /** By path. */
  readonly files: ReadonlyMap<string, LiveFile>;
  /** By run id. */
  readonly txns: ReadonlyMap<string, Txn>;
  /** Files that were removed, by path. */
  readonly removed: ReadonlyMap<string, Remove>;
};

/** A data file that is in the store, read back, and wants to be live. */
export type NewFile = { readonly add: Add; readonly segments: SegmentList };

export type CommitIntent = {
  /** Whose it is, and the how manieth commit of that run: 1, 2 … A run never commits the same step twice. */
  readonly run: { readonly id: string; readonly step: number };
  /** For people: COMPACT, OPTIMIZE, EXPIRE. */
  readonly operation: string;
  readonly adds: readonly NewFile[];
  /** Paths. */
  readonly removes: readonly string[];
  /** false: the same events in other files. @default true */
  readonly dataChange?: boolean | undefined;
};

export type Refusal =
  /** Others have removed these files meanwhile. */
  | { readonly kind: 'not-live'; readonly paths: readonly string[] }
  /** A live file holds events of this segment. */
  | { readonly kind: 'overlap'; readonly segment: Segment; readonly path: string };

/** Removed files stay in checkpoints for this long: readers of an older snapshot may still look for them. */
const TOMBSTONE_MS = 7 * 24 * 3600 * 1000;
const PATH = /^(tenant=[a-z0-9._~-]+\/date=\d{4}-\d\d-\d\d\/model_version=[a-z0-9._~-]+\/[0-9a-f]{64})\.parquet$/;

type Building = {
  version: number;
  timestampMs: number;
  protocol: Protocol | undefined;
  metaData: MetaData | undefined;
  readonly files: Map<string, LiveFile>;
  readonly txns: Map<string, Txn>;
  readonly removed: Map<string, Remove>;
};

/** The snapshot after these commits, which follow each other. @throws VarveError COLD_LOG_INVALID */
export function replay(base: Snapshot | undefined, commits: readonly Commit[]): Snapshot {
  const building = begin(base?.version ?? -1, base);
  for (const commit of commits) apply(building, commit);
  return finished(building);
}

/** The snapshot that a checkpoint's actions are; the version and `info` are those of its commit. */
export function fromCheckpoint(checkpoint: Commit): Snapshot {
  const building = begin(checkpoint.version - 1, undefined);
  apply(building, checkpoint);
  return finished(building);
}

function begin(version: number, base: Snapshot | undefined): Building {
  return {
    version,
    timestampMs: base?.timestampMs ?? -1,
    protocol: base?.protocol,
    metaData: base?.metaData,
    files: new Map(base?.files),
    txns: new Map(base?.txns),
    removed: new Map(base?.removed),
  };
}

function apply(building: Building, { version, info, actions }: Commit): void {
  invariant(version === building.version + 1, `commit ${version} is not behind ${building.version}`);
  if (info.timestamp <= building.timestampMs) throw invalidCommit(version, 'is not later than the one before');
  building.version = version;
  building.timestampMs = info.timestamp;
  for (const action of actions) {
    if ('protocol' in action) building.protocol = action.protocol;
    else if ('metaData' in action) building.metaData = action.metaData;
    else if ('txn' in action) building.txns.set(action.txn.appId, action.txn);
    else if ('remove' in action) {
      building.files.delete(action.remove.path);
      building.removed.set(action.remove.path, action.remove);
    } else {
      building.files.set(action.add.path, liveFile(action.add, version));
      building.removed.delete(action.add.path);
    }
  }
}

function finished({ protocol, metaData, ...rest }: Building): Snapshot {
  if (protocol === undefined || metaData === undefined) throw invalidCommit(0, 'names no protocol or no metaData');
  return { ...rest, protocol, metaData };
}

/** @throws VarveError COLD_LOG_INVALID */
export function liveFile(add: Add, version: number): LiveFile {
  const [, stem] = PATH.exec(add.path) ?? [];
  const stats = parseStats(add.stats);
  const { segments, segments_sha256, trajectories, imports } = add.tags ?? {};
  const count = Number(segments);
  if (stem === undefined || stats === undefined || segments_sha256 === undefined || !Number.isSafeInteger(count)) {
    throw invalidCommit(version, `adds a file that is not varve's: ${add.path.slice(0, 400)}`);
  }
  const folder = stem.slice(0, stem.lastIndexOf('/') + 1);
  return {
    add,
    stem,
    rows: stats.numRecords,
    min_trajectory_id: stats.minValues.trajectory_id,
    max_trajectory_id: stats.maxValues.trajectory_id,
    segments: { sha256: segments_sha256, count },
    trajectories:
      trajectories === undefined || trajectories === NO_ROWS
        ? undefined
        : derivedKey('trajectories', folder, trajectories),
    imports: imports === undefined ? undefined : derivedKey('imports', folder, imports),
  };
}

type Bounds = { readonly trajectory_id: string; readonly sequence_number: number; readonly created_at: string };
type Stats = { readonly numRecords: number; readonly minValues: Bounds; readonly maxValues: Bounds };

function parseStats(text: string): Stats | undefined {
  try {
    const stats = JSON.parse(text) as Stats;
    const isWhole =
      Number.isSafeInteger(stats.numRecords) &&
      typeof stats.minValues.trajectory_id === 'string' &&
      typeof stats.maxValues.trajectory_id === 'string';
    return isWhole ? stats : undefined;
  } catch {
    return undefined;
  }
}

/** Stands for the name of a derived file where no trajectory of the data file ends in it. */
export const NO_ROWS = 'none';

/** What an `add` says of the derived files that go with a data file. */
export type DerivedNames = Pick<AddTags, 'trajectories' | 'imports' | 'cut'>;

/** A written file as the log will name it. */
export function newFile(file: LocalFile, nowMs: number, derived: DerivedNames = {}): NewFile {
  const { expected, list, partition, range, stem } = file;
  const add: Add = {
    path: `${stem}.parquet`,
    partitionValues: partition,
    size: list.bytes,
    modificationTime: nowMs,
    dataChange: true,
    stats: formatStats(expected.rows, [expected.min_trajectory_id, expected.max_trajectory_id], range),
    tags: {
      columns_format: String(COLUMNS_FORMAT),
      segments: String(list.segments.length),
      segments_sha256: hash('sha256', formatSegments(list), 'hex'),
      ...derived,
    },
  };
  return { add, segments: list };
}

function formatStats(numRecords: number, ids: readonly [string, string], range: FileRange): string {
  const bounds = (i: 0 | 1): Bounds => ({
    trajectory_id: ids[i],
    sequence_number: range.sequence_number[i],
    created_at: range.created_at[i],
  });
  const nullCount = { trajectory_id: 0, sequence_number: 0, created_at: 0 };
  return JSON.stringify({ numRecords, minValues: bounds(0), maxValues: bounds(1), nullCount });
}

/** Has this step of the run been committed, or a later one? */
export function isCommitted(snapshot: Snapshot, run: CommitIntent['run']): boolean {
  const txn = snapshot.txns.get(run.id);
  return txn !== undefined && txn.version >= run.step;
}

/** Removes that are no longer possible. @throws VarveError COLD_COMMIT_INVALID: never was */
export function findNotLive(snapshot: Snapshot, intent: CommitIntent): Refusal | undefined {
  const paths = [...intent.adds.map(({ add }) => add.path), ...intent.removes];
  if (new Set(paths).size !== paths.length || paths.length === 0) {
    throw new VarveError('COLD_COMMIT_INVALID', 'a commit names each file once, and one file at least');
  }
  const missing = intent.removes.filter((path) => !snapshot.files.has(path));
  return missing.length === 0 ? undefined : { kind: 'not-live', paths: missing };
}

/** Segments that an intent adds, by trajectory. @throws VarveError COLD_COMMIT_INVALID: two of them overlap */
export function indexSegments(intent: CommitIntent): ReadonlyMap<string, readonly Segment[]> {
  const index = new Map<string, Segment[]>();
  for (const { add, segments } of intent.adds) {
    for (const segment of segments.segments) {
      const others = index.get(segment.trajectory_id) ?? [];
      if (others.some((other) => overlap(other, segment))) {
        const message = `two files of one commit hold the same events of ${segment.trajectory_id}: ${add.path}`;
        throw new VarveError('COLD_COMMIT_INVALID', message, { trajectory_id: segment.trajectory_id });
      }
      others.push(segment);
      index.set(segment.trajectory_id, others);
    }
  }
  return index;
}

/** Live files that stay and may hold a trajectory of what is added, by their smallest and largest ids. */
export function neighboursOf(snapshot: Snapshot, intent: CommitIntent): LiveFile[] {
  const leaving = new Set(intent.removes);
  const ranges = intent.adds.map(({ segments: { segments } }) => [
    segments[0]?.trajectory_id ?? '',
    segments.at(-1)?.trajectory_id ?? '',
  ]);
  return [...snapshot.files.values()].filter(
    ({ add, min_trajectory_id, max_trajectory_id }) =>
      !leaving.has(add.path) &&
      ranges.some(([first, last]) => (first as string) <= max_trajectory_id && min_trajectory_id <= (last as string)),
  );
}

/** @param index of `indexSegments` */
export function findOverlap(
  index: ReadonlyMap<string, readonly Segment[]>,
  live: readonly Segment[],
  path: string,
): Refusal | undefined {
  for (const there of live) {
    const segment = index.get(there.trajectory_id)?.find((added) => overlap(added, there));
    if (segment !== undefined) return { kind: 'overlap', segment, path };
  }
  return undefined;
}

export type PlannedCommit = { readonly commit: Commit; readonly bytes: Buffer };

/** The commit behind the snapshot, of an intent that is legal there. @throws VarveError COLD_COMMIT_INVALID: too long */
export function planCommit(snapshot: Snapshot, intent: CommitIntent, nowMs: number): PlannedCommit {
  // A clock that went back must not make versions unordered in time.
  const timestamp = Math.max(nowMs, snapshot.timestampMs + 1);
  const dataChange = intent.dataChange ?? true;
  const removes = intent.removes.toSorted().map((path): Action => {
    const add = snapshot.files.get(path)?.add;
    invariant(add !== undefined, `${path} is not live`);
    const { partitionValues, size } = add;
    const remove = {
      path,
      deletionTimestamp: timestamp,
      dataChange,
      extendedFileMetadata: true,
      partitionValues,
      size,
    };
    return { remove };
  });
  const adds = intent.adds
    .map(({ add }): Action & { add: Add } => ({ add: { ...add, dataChange } }))
    .toSorted((a, b) => (a.add.path < b.add.path ? -1 : 1));
  const txn = { appId: intent.run.id, version: intent.run.step, lastUpdated: timestamp };
  const info = { timestamp, operation: intent.operation };
  const commit = { version: snapshot.version + 1, info, actions: [{ txn }, ...removes, ...adds] };
  const bytes = formatCommit(commit);
  if (bytes.byteLength <= COMMIT_BYTES_MAX) return { commit, bytes };
  throw new VarveError('COLD_COMMIT_INVALID', `a commit has at most ${COMMIT_BYTES_MAX} bytes; name fewer files`);
}

/** Everything that a checkpoint of the snapshot holds, always in the same order. */
export function checkpointActions(snapshot: Snapshot): Action[] {
  const byKey = <T>(map: ReadonlyMap<string, T>): T[] =>
    [...map].toSorted(([a], [b]) => (a < b ? -1 : 1)).map(([, value]) => value);
  return [
    { protocol: snapshot.protocol },
    { metaData: snapshot.metaData },
    ...byKey(snapshot.txns).map((txn) => ({ txn })),
    ...byKey(snapshot.removed)
      .filter(({ deletionTimestamp }) => deletionTimestamp > snapshot.timestampMs - TOMBSTONE_MS)
      .map((remove) => ({ remove: { ...remove, dataChange: false } })),
    ...byKey(snapshot.files).map(({ add }) => ({ add: { ...add, dataChange: false } })),
  ];
}
