/** Hot logs of one test beside each other, written in this process, and copies of them. */
import { cpSync } from 'node:fs';
import { join } from 'node:path';
import type { Appended } from '../../hot/heads.ts';
import { HotLog } from '../../hot/log.ts';
import type { HotLogOptions } from '../../hot/options.ts';
import type { StoredEvent } from '../../hot/record.ts';
import type { JsonObject } from '../../schemas/canonical.ts';
import { newTrajectoryId, type TrajectoryId } from '../../schemas/ids.ts';

export const SMALL: HotLogOptions = { writeBufferBytes: 1 << 20, lockTimeoutMs: 10_000 };

/** Opens a log, lets `work` have it, and closes it. */
export async function withLog<T>(
  directory: string,
  work: (log: HotLog) => Promise<T>,
  options: HotLogOptions = SMALL,
): Promise<T> {
  await using log = await HotLog.open(directory, options);
  return await work(log);
}

/** Appends to one trajectory, a new one where none is named. */
export async function grow(
  log: HotLog,
  count: number,
  id: TrajectoryId = newTrajectoryId(),
  payload: JsonObject = { note: 'more' },
): Promise<Appended[]> {
  const all: Appended[] = [];
  for (let n = 0; n < count; n++) {
    all.push(await log.append(id, { event_type: 'Noted', turn: 0, payload: { ...payload, n } }));
  }
  return all;
}

export async function eventsFrom(log: HotLog, id: TrajectoryId, from = 1): Promise<StoredEvent[]> {
  const events: StoredEvent[] = [];
  for await (const event of log.read(id, from)) events.push(event);
  return events;
}

/** Takes a trajectory's first events into another log, as they are. */
export async function copyEvents(from: HotLog, to: HotLog, id: TrajectoryId, count: number): Promise<void> {
  const events = (await eventsFrom(from, id)).slice(0, count);
  await to.appendRecorded(
    id,
    events.map(({ event_type, turn, payload, created_at, fencing_token, cryptographic_hash }) => ({
      event_type,
      turn,
      payload,
      created_at,
      fencing_token,
      cryptographic_hash,
    })),
  );
}

/** A copy of a log that nobody has open, or whose writer was killed: everything but RocksDB's lock. */
export function copyLog(from: string, to: string): void {
  cpSync(from, to, {
    recursive: true,
    filter: (path) => path !== join(from, 'db', 'LOCK') && !path.endsWith('.sock'),
  });
}
