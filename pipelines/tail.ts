/**
 * `varve tail`: every durable event of a log as it happens, one line each, until a signal comes. It reads through the
 * writer's socket and takes nothing away from a sidecar that does the same. Where there is no writer it reads what the
 * files hold, waits for the next one, and goes on behind the last record that it printed.
 */
import { stat } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { findHolder, readWriterFile } from '../hot/holder.ts';
import { readLogFile } from '../hot/meta.ts';
import { databasePath } from '../hot/open.ts';
import type { TailItem } from '../hot/read-check.ts';
import { type Cursor, START } from '../hot/tail-protocol.ts';
import { TailReader } from '../hot/tail-reader.ts';
import { askTail } from '../hot/tail-server.ts';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { formatEventLine } from '../schemas/event.ts';
import { printFlowing } from './print.ts';
import { readLog } from './read-hot.ts';

export type TailOptions = {
  /** First LSN that is printed. @default what becomes durable from now on */
  readonly from: number | undefined;
  /** Only of the trajectory whose id begins so. */
  readonly trajectory: string;
  /** Events as JSONL. */
  readonly json: boolean;
};

const RECONNECT_MS = 200;
const WHO_MS = 1000;

export async function tail(directory: string, options: TailOptions, signal: AbortSignal): Promise<void> {
  const dir = resolve(directory);
  if ((await readLogFile(dir)) === undefined) {
    throw new VarveError('HOT_NOT_A_LOG', `${dir} is not a varve log: it has no log.json`, { dir });
  }
  // From an LSN on: a cursor is an LSN and its hash, and only the log knows that, so it is read from its start.
  let cursor = options.from === undefined ? await now(dir, signal) : START;
  let isWaiting = false;
  /** When the files were last read, as their folder says it. */
  let readAt = 0;
  while (!signal.aborted) {
    try {
      const reader = await TailReader.connect(dir, { cursor });
      isWaiting = false;
      cursor = await follow(reader, cursor, options, signal);
    } catch (error) {
      if (!isVarveError(error, 'TAIL_NO_WRITER') && !(error instanceof Lost)) throw error;
      if (error instanceof Lost) ({ cursor } = error);
      // A writer may have come and gone between two looks.
      const { mtimeMs } = await stat(databasePath(dir));
      if (mtimeMs !== readAt) cursor = await printBehind(dir, cursor, options, signal);
      readAt = mtimeMs;
      if (!isWaiting) process.stderr.write(`varve: nobody has ${dir} open; waiting for a writer\n`);
      isWaiting = true;
    }
    await sleep(RECONNECT_MS, undefined, { signal }).catch(() => undefined);
  }
}

/** The tail ended with its writer, behind this record. */
class Lost extends Error {
  readonly cursor: Cursor;

  constructor(cursor: Cursor) {
    super('the tail ended');
    this.cursor = cursor;
  }
}

async function follow(reader: TailReader, from: Cursor, options: TailOptions, signal: AbortSignal): Promise<Cursor> {
  const stop = () => void reader.close();
  signal.addEventListener('abort', stop, { once: true });
  let cursor = from;
  try {
    for await (const batch of reader) {
      await printFlowing(batch.records.map((item) => lineOf(item, options)).join(''));
      ({ cursor } = batch);
    }
  } catch (error) {
    if (isVarveError(error, 'TAIL_LOST')) throw new Lost(cursor);
    throw error;
  } finally {
    signal.removeEventListener('abort', stop);
    await reader.close();
  }
  return cursor;
}

function lineOf(item: TailItem, { from = 0, trajectory, json }: TailOptions): string {
  if (item.kind === 'trimmed') {
    const isAsked = item.to_lsn >= from && !json && trajectory === '';
    return isAsked ? `${item.from_lsn}–${item.to_lsn}  trimmed\n` : '';
  }
  if (item.lsn < from) return '';
  if (item.kind !== 'event') {
    const { trajectory_id, sequence_number } = item.position;
    if (json || !trajectory_id.startsWith(trajectory)) return '';
    return `${item.lsn}  ${trajectory_id}  ${item.kind} at event ${sequence_number}\n`;
  }
  const { event } = item;
  if (!event.trajectory_id.startsWith(trajectory)) return '';
  if (json) return `${formatEventLine(event)}\n`;
  const { created_at, trajectory_id, sequence_number, turn, event_type, payload_bytes } = event;
  return `${item.lsn}  ${created_at}  ${trajectory_id}  ${sequence_number}  turn ${turn}  ${event_type}  ${payload_bytes.length} bytes\n`;
}

/** What lies behind the cursor, up to the end of the log. */
async function printBehind(dir: string, from: Cursor, options: TailOptions, signal: AbortSignal): Promise<Cursor> {
  let cursor = from;
  try {
    for await (const item of readLog(dir, signal)) {
      const at = placeOf(item);
      if (at.lsn <= cursor.lsn) continue;
      await printFlowing(lineOf(item, options));
      cursor = at;
    }
  } catch (error) {
    // Files look damaged while a writer is at work on them.
    const isHeld = (await findHolder(dir, join(dir, 'tail.sock'))) !== undefined;
    if (!isVarveError(error, 'ABORTED') && !(isVarveError(error, 'HOT_DAMAGED') && isHeld)) throw error;
  }
  return cursor;
}

function placeOf(item: TailItem): Cursor {
  return { lsn: item.kind === 'trimmed' ? item.to_lsn : Number(item.lsn), hash: item.hash };
}

/** Where the log ends now. */
async function now(dir: string, signal: AbortSignal): Promise<Cursor> {
  const socket = (await readWriterFile(dir))?.socket ?? join(dir, 'tail.sock');
  const answer = await askTail(socket, 'who', WHO_MS);
  if (answer !== undefined) return answer.durable;
  let cursor = START;
  for await (const item of readLog(dir, signal)) cursor = placeOf(item);
  return cursor;
}
