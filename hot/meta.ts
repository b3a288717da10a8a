/**
 * What a log says about itself.
 *
 * Outside the database, `log.json` names the directory: `{format, log_id, state}`. It is written as `creating` before
 * the database exists and as `ready` once its first keys are durable, so a creation that was cut off holds nothing
 * acknowledged and starts again. Inside, under `a‖…`:
 *
 *   a‖log              {format, log_id}: the database belongs to this directory
 *   a‖floor            {lsn, hash, bytes}: everything up to this LSN is trimmed, index blocks too
 *   a‖t‖trajectory     the trajectory's newest trim mark
 *   a‖d‖trajectory     a deletion that its mark announced and that has not been finished
 *
 * These keys sort before the log's own. A file of RocksDB spans all keys that were written with it: one that reached
 * from the records to a later key would overlap with every record to come, and be rewritten with each of them (3.9
 * bytes written per byte where it should be 2.1). For the same reason nothing is written here at an open (the epoch, a
 * new UUID at every read-write open that labels and decides nothing, is in `writer.json`) nor by `adopt` (5.6): only trim
 * does, and it compacts. The floor never passes an anchor that no trim mark stands for.
 */
import { join } from 'node:path';
import { VarveError } from '../schemas/errors.ts';
import type { Tip } from './commit.ts';
import { readIfThere, replaceFile } from './files.ts';
import type { TrimHead } from './record.ts';
import type { Rocks } from './rocks.ts';

export const HOT_FORMAT = 1;

export const LOG_KEY = Buffer.from('alog');
export const FLOOR_KEY = Buffer.from('afloor');

type Prefix = 't' | 'd';

export function metaKey(prefix: Prefix, idBytes: string): Buffer {
  return Buffer.from(`a${prefix}${idBytes}`, 'latin1');
}

export type LogFile = {
  readonly format: number;
  readonly log_id: string;
  readonly state: 'creating' | 'ready';
};

export function logFilePath(dir: string): string {
  return join(dir, 'log.json');
}

/** undefined: the directory has no `log.json`. */
export async function readLogFile(dir: string): Promise<LogFile | undefined> {
  const content = await readIfThere(logFilePath(dir));
  if (content === undefined) return undefined;
  let file: Partial<LogFile>;
  try {
    file = JSON.parse(content.toString('utf8')) as Partial<LogFile>;
  } catch (cause) {
    throw new VarveError(
      'HOT_DAMAGED',
      `${logFilePath(dir)} is not JSON; nothing was opened for writing`,
      { dir },
      cause,
    );
  }
  const { format, log_id, state } = file;
  if (typeof format === 'number' && format > HOT_FORMAT) {
    const message = `${dir} has format ${format}; this varve reads formats up to ${HOT_FORMAT}: upgrade it`;
    throw new VarveError('HOT_FORMAT_NEWER', message, { dir, format });
  }
  if (format !== HOT_FORMAT || typeof log_id !== 'string' || (state !== 'creating' && state !== 'ready')) {
    throw new VarveError('HOT_FORMAT_UNKNOWN', `${logFilePath(dir)} is not a varve log's`, { dir });
  }
  return { format, log_id, state };
}

export function writeLogFile(dir: string, file: LogFile): Promise<void> {
  return replaceFile(logFilePath(dir), `${JSON.stringify(file)}\n`);
}

/** Everything under `a‖…`. */
export type Meta = {
  readonly logId: string | undefined;
  readonly floor: Tip;
  readonly marks: ReadonlyMap<string, TrimHead>;
  readonly deletions: ReadonlyMap<string, Deletion>;
};

/** Records of one trajectory that are to go: those up to this LSN. */
export type Deletion = { readonly through_lsn: number };

export const EMPTY_FLOOR: Tip = { lsn: 0, hash: '0'.repeat(64), bytes: 0 };

export async function readMeta(db: Rocks): Promise<Meta> {
  let logId: string | undefined;
  let floor = EMPTY_FLOOR;
  const marks = new Map<string, TrimHead>();
  const deletions = new Map<string, Deletion>();
  // A single read first: it leaves a key behind to which an iterator that fails can be led back (see `hot/rocks.ts`).
  await db.get(LOG_KEY).catch(() => undefined);
  for await (const rows of db.pages({ gte: Buffer.from('a'), lte: Buffer.from('b') })) {
    for (const [key, value] of rows) {
      const json = value.toString('utf8');
      const idBytes = key.toString('latin1', 2);
      if (key.equals(LOG_KEY)) logId = (JSON.parse(json) as { log_id: string }).log_id;
      else if (key.equals(FLOOR_KEY)) floor = JSON.parse(json) as Tip;
      else if (key.length !== 18) continue;
      else if (key[1] === 0x74) marks.set(idBytes, JSON.parse(json) as TrimHead);
      else if (key[1] === 0x64) deletions.set(idBytes, JSON.parse(json) as Deletion);
    }
  }
  return { logId, floor, marks, deletions };
}
