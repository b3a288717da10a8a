/** Where the events table's objects lie below the store's root. */

export const EVENTS_FOLDER = 'events/';
export const LOG_FOLDER = `${EVENTS_FOLDER}_delta_log/`;
export const LAST_CHECKPOINT_KEY = `${LOG_FOLDER}_last_checkpoint`;

/** @param stem path of the file relative to the table, without its ending */
export function parquetKey(stem: string): string {
  return `${EVENTS_FOLDER}${stem}.parquet`;
}

export function segmentsKey(stem: string): string {
  return `${EVENTS_FOLDER}${stem}.segments`;
}

/** A derived file, relative to the store's root; `folder` is that of the partition, with the slash behind it. */
export function derivedKey(table: 'trajectories' | 'imports', folder: string, sha256: string): string {
  return `${table}/${folder}${sha256}.parquet`;
}

export function commitKey(version: number): string {
  return `${LOG_FOLDER}${String(version).padStart(20, '0')}.json`;
}

export function checkpointKey(version: number): string {
  return `${LOG_FOLDER}${String(version).padStart(20, '0')}.checkpoint.parquet`;
}

/** The version that a key names; undefined for what is no commit. */
export function versionOfKey(key: string): number | undefined {
  const [, digits] = /^(\d{20})\.json$/.exec(key.slice(LOG_FOLDER.length)) ?? [];
  const version = Number(digits);
  return digits !== undefined && Number.isSafeInteger(version) && commitKey(version) === key ? version : undefined;
}
