/** Is a cursor of this log's past? A log that went back in time, or was replaced, is refused by name. */
import { VarveError } from '../schemas/errors.ts';
import type { Tip } from './commit.ts';
import { type Cursor, START } from './tail-protocol.ts';

export type CursorSource = {
  durable(): Tip;
  /** Everything up to this LSN is trimmed. */
  floorLsn(): number;
  /** Hex hash of the record at an LSN; undefined where neither it nor its index entry is there. */
  hashAt(lsn: number): Promise<string | undefined>;
};

/**
 * Where the cursor's record is trimmed with its index entry, only the log's identity can be compared; what is gone is
 * then named to the reader.
 *
 * @throws VarveError TAIL_CURSOR_UNKNOWN, TAIL_CURSOR_AHEAD, TAIL_PROTOCOL
 */
export async function checkCursor(
  source: CursorSource,
  logId: string,
  cursor: Cursor,
  cursorLogId: string | undefined,
): Promise<void> {
  if (!Number.isSafeInteger(cursor?.lsn) || cursor.lsn < 0 || typeof cursor.hash !== 'string') {
    throw new VarveError('TAIL_PROTOCOL', 'the cursor has not the form {lsn, hash}', {});
  }
  if (cursorLogId !== undefined && cursorLogId !== logId) {
    const message = `the cursor is of log ${cursorLogId}; this is log ${logId}`;
    throw new VarveError('TAIL_CURSOR_UNKNOWN', message, { log_id: logId });
  }
  if (cursor.lsn === 0 && cursor.hash === START.hash) return;
  const tip = source.durable();
  if (cursor.lsn > tip.lsn) {
    const message = `the cursor is at LSN ${cursor.lsn}, this log ends at ${tip.lsn}: it went back in time or was replaced`;
    throw new VarveError('TAIL_CURSOR_AHEAD', message, { cursor: cursor.lsn, durable: tip.lsn });
  }
  const found = await source.hashAt(cursor.lsn);
  if (found === cursor.hash || (found === undefined && cursor.lsn <= source.floorLsn())) return;
  const message = `LSN ${cursor.lsn} of this log is not the record that the cursor names: the log was restored or replaced`;
  throw new VarveError('TAIL_CURSOR_UNKNOWN', message, { cursor: cursor.lsn });
}
