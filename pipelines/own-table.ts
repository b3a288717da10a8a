/**
 * The one cold table that a database moves its events to. It only goes forward: another table, or one that is at an
 * earlier version than this database has seen, is refused before anything is written, a new table included.
 */
import type { DuckDb } from '../cold/duckdb.ts';
import type { ObjectStore } from '../cold/object-store.ts';
import { TableLog } from '../cold/table-log.ts';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { readSeenTable, type SeenTable, seeTable } from '../warm/compaction-rows.ts';
import { transaction, type WarmPool } from '../warm/pool.ts';

export type OwnTableParts = {
  readonly pool: WarmPool;
  readonly store: ObjectStore;
  readonly duck: DuckDb;
  readonly scratchDir: string;
};

/**
 * undefined: there is none yet, and with `readOnly` none is made.
 * @throws VarveError COLD_OTHER_TABLE, COLD_WENT_BACK
 */
export async function openOwnTable(
  { pool, store, duck, scratchDir }: OwnTableParts,
  readOnly: boolean,
): Promise<TableLog | undefined> {
  const { url } = store;
  const seen = await pool.lend(readSeenTable);
  const there = await TableLog.open(store, { duck, scratchDir }).catch((error: unknown) => {
    if (isVarveError(error, 'COLD_NO_TABLE')) return undefined;
    throw error;
  });
  if (there === undefined && seen !== undefined) throw other(seen, url, 'has none');
  if (there === undefined && readOnly) return undefined;
  const log = there ?? (await TableLog.open(store, { duck, scratchDir, create: true }));
  const { metaData, version } = await log.snapshot();
  const found: SeenTable = { table_id: metaData.id, url, version };
  if (seen !== undefined) check(found, seen);
  // Others may have noted theirs meanwhile.
  if (!readOnly) check(found, await transaction(pool, (tx) => seeTable(tx, found)));
  return log;
}

function check({ table_id, url, version }: SeenTable, seen: SeenTable): void {
  if (seen.table_id !== table_id) throw other(seen, url, 'is another one');
  if (seen.version <= version) return;
  const message = `the table at ${url} is at version ${version}, and this database has seen ${seen.version}: the store was restored to an earlier time. Restore it to a later one; what is only there must not be compacted over`;
  throw new VarveError('COLD_WENT_BACK', message, { url, version, seen: seen.version });
}

function other(seen: SeenTable, url: string, what: string): VarveError {
  const message = `this database moves its events to the table at ${seen.url}; ${url} ${what}. Set cold.store to the first, or, if that is gone for good, delete the row of cold_tables`;
  return new VarveError('COLD_OTHER_TABLE', message, { url, seen: seen.url });
}
