/**
 * The ack file: what replication said last, and when it had come how far.
 *
 *   ack.json   {log_id, epoch, cursor: {lsn, hash}, held: […], history: [{at, lsn}, …]}
 *
 * It is a hint: PostgreSQL decides. It counts only if it is of this log and its hash is at its LSN; a torn, missing or
 * foreign file means that nothing was acknowledged. `history` keeps a few older positions with the time at which they
 * were reached, so that trim can tell what was acknowledged long enough ago, also after a restart.
 */
import { join } from 'node:path';
import { VarveError } from '../schemas/errors.ts';
import { readIfThere, replaceFile } from './files.ts';
import type { Ack } from './tail-protocol.ts';

/** A position and when it was reached, in milliseconds since the epoch. */
export type AckedAt = { readonly at: number; readonly lsn: number };

export type AckFile = Ack & { readonly history: readonly AckedAt[] };

const HISTORY_MAX = 32;

function pathIn(dir: string): string {
  return join(dir, 'ack.json');
}

/** undefined: torn, missing, or not an ack. Whether it counts, the log decides. */
export async function readAckFile(dir: string): Promise<AckFile | undefined> {
  const content = await readIfThere(pathIn(dir));
  if (content === undefined) return undefined;
  try {
    const file = JSON.parse(content.toString('utf8')) as AckFile;
    checkAck(file);
    return Array.isArray(file.history) ? file : { ...file, history: [] };
  } catch {
    return undefined;
  }
}

export function writeAckFile(dir: string, file: AckFile): Promise<void> {
  return replaceFile(pathIn(dir), `${JSON.stringify(file)}\n`, { beforeRename: 'hot.ack.before-rename' });
}

const isHash = (text: unknown): boolean => typeof text === 'string' && /^[0-9a-f]{64}$/.test(text);
const isLsn = (lsn: unknown): boolean => Number.isSafeInteger(lsn) && (lsn as number) >= 0;

/** @throws VarveError TAIL_PROTOCOL where a message is not an ack */
export function checkAck(ack: Ack): void {
  const legal =
    typeof ack === 'object' &&
    ack !== null &&
    typeof ack.log_id === 'string' &&
    typeof ack.epoch === 'string' &&
    isLsn(ack.cursor?.lsn) &&
    isHash(ack.cursor.hash) &&
    Array.isArray(ack.held) &&
    ack.held.every(
      (held) => typeof held.trajectory_id === 'string' && isLsn(held.from_lsn) && typeof held.reason === 'string',
    );
  if (!legal) throw new VarveError('TAIL_PROTOCOL', 'the ack has not the form {log_id, epoch, cursor, held}', {});
}

/** Adds a position to a history, at most one per `spacingMs`, the newest `HISTORY_MAX`. */
export function extendHistory(history: readonly AckedAt[], entry: AckedAt, spacingMs: number): readonly AckedAt[] {
  const last = history.at(-1);
  if (last !== undefined && (entry.lsn <= last.lsn || entry.at - last.at < spacingMs)) return history;
  return [...history, entry].slice(-HISTORY_MAX);
}

/** The furthest position that had been reached at a time. */
export function ackedBefore(history: readonly AckedAt[], at: number): number {
  return history.reduce((lsn, entry) => (entry.at <= at ? Math.max(lsn, entry.lsn) : lsn), 0);
}
