/**
 * Which files a query reads: those of one snapshot, and no others. Decides; touches nothing.
 *
 * A data file has one tenant, one date and one model version, by the table log; its derived files lie in the same
 * partition. So what a filter leaves out has no row that it lets through, and no row is filtered otherwise.
 */
import type { CachedObject } from './object-cache.ts';
import type { PartitionValues } from './table-actions.ts';
import { parquetKey } from './table-keys.ts';
import type { LiveFile, Snapshot } from './table-log-plan.ts';

export type FileFilter = {
  readonly tenant?: string | undefined;
  /** First and last day, `YYYY-MM-DD`, both included: of the start of the trajectory, by its id. */
  readonly from?: string | undefined;
  readonly to?: string | undefined;
};

/** Views that have files. */
export type FiledView = 'events' | 'trajectories' | 'imports';

export type QueryFile = CachedObject & { readonly partition: PartitionValues };
export type EventsFile = QueryFile & { readonly bytes: number; readonly rows: number };

export type QueryFiles = {
  readonly version: number;
  readonly timestampMs: number;
  readonly events: readonly EventsFile[];
  readonly trajectories: readonly QueryFile[];
  readonly imports: readonly QueryFile[];
  /** Data files that name no rows of trajectories: the view `trajectories` lacks theirs. */
  readonly withoutTrajectories: number;
};

/** In the order of their keys. */
export function filesOf(snapshot: Snapshot, filter: FileFilter = {}): QueryFiles {
  const live = [...snapshot.files.values()]
    .filter(({ add }) => isWanted(add.partitionValues, filter))
    .toSorted((a, b) => (a.stem < b.stem ? -1 : 1));
  const { version, timestampMs } = snapshot;
  return {
    version,
    timestampMs,
    events: live.map((file) => ({ ...of(file, parquetKey(file.stem)), bytes: file.add.size, rows: file.rows })),
    trajectories: live.flatMap((file) => (file.trajectories === undefined ? [] : [of(file, file.trajectories)])),
    imports: live.flatMap((file) => (file.imports === undefined ? [] : [of(file, file.imports)])),
    withoutTrajectories: live.filter(({ add }) => add.tags.trajectories === undefined).length,
  };
}

function isWanted({ tenant, date }: PartitionValues, filter: FileFilter): boolean {
  if (filter.tenant !== undefined && tenant !== filter.tenant) return false;
  return (filter.from === undefined || date >= filter.from) && (filter.to === undefined || date <= filter.to);
}

function of({ add }: LiveFile, key: string): QueryFile {
  // A file's name is the SHA-256 of its bytes.
  const sha256 = key.slice(key.lastIndexOf('/') + 1, -'.parquet'.length);
  return { key, sha256, partition: add.partitionValues };
}
