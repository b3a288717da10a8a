/**
 * Holds a process's system calls against its acknowledgements: pure, from the calls and from the WALs that it left.
 *
 * An event is *covered* by a sync of its WAL that began after the write of its last byte had returned; an
 * acknowledgement is sound if such a sync had returned before the acknowledgement's write began. The same for what an
 * event refers to: a blob's bytes are synced before its rename, and its folder, with every new folder above it, after
 * that and before the event itself is written.
 */
import { basename, dirname } from 'node:path';
import { type Call, quotedIn } from './strace.ts';

/** Where the record of an event ends. */
export type EventPlace = { readonly wal: string; readonly end: number; readonly blobs: readonly string[] };

const SYNCS = new Set(['fdatasync', 'fsync']);
const WRITES = new Set(['write', 'pwrite64', 'writev']);

/** What is wrong, one line each. */
export function brokenBarriers(
  calls: readonly Call[],
  acknowledgements: readonly { readonly key: string; readonly call: Call }[],
  places: ReadonlyMap<string, EventPlace>,
): string[] {
  const broken: string[] = [];
  for (const { key, call } of acknowledgements) {
    const place = places.get(key);
    if (place === undefined) {
      broken.push(`${key}: acknowledged, and no WAL has it`);
      continue;
    }
    const write = writeOf(calls, place);
    if (write === undefined) {
      broken.push(`${key}: no write reaches byte ${place.end} of ${basename(place.wal)}`);
      continue;
    }
    if (
      !calls.some(
        (sync) => isSyncOf(sync, place.wal) && write.endedAt < sync.startedAt && sync.endedAt < call.startedAt,
      )
    ) {
      broken.push(`${key}: acknowledged before a sync that covers byte ${place.end} of ${basename(place.wal)}`);
    }
    for (const blob of place.blobs) broken.push(...brokenBlob(calls, blob, write).map((what) => `${key}: ${what}`));
  }
  return broken;
}

/** The write that brought the file to that length. WALs are written from start to end, each by one process. */
function writeOf(calls: readonly Call[], { wal, end }: EventPlace): Call | undefined {
  let length = 0;
  for (const call of calls) {
    if (!WRITES.has(call.name) || call.path !== wal || call.result < 0) continue;
    length += call.result;
    if (length >= end) return call;
  }
  return undefined;
}

function isSyncOf(call: Call, path: string): boolean {
  return SYNCS.has(call.name) && call.path === path && call.result === 0;
}

function brokenBlob(calls: readonly Call[], blob: string, event: Call): string[] {
  const rename = calls.find((call) => call.name.startsWith('rename') && quotedIn(call.args)[1] === blob);
  if (rename === undefined) return [`blob ${basename(blob)} was never renamed to its name`];
  const temporary = quotedIn(rename.args)[0] as string;
  const broken: string[] = [];
  const lastWrite = calls.findLast((call) => WRITES.has(call.name) && call.path === temporary);
  const isSynced = calls.some(
    (call) =>
      isSyncOf(call, temporary) && call.startedAt > (lastWrite?.endedAt ?? -1) && call.endedAt < rename.startedAt,
  );
  if (!isSynced) broken.push(`blob ${basename(blob)} was renamed before its bytes were synced`);
  if (!isFolderSynced(calls, dirname(blob), rename, event)) {
    broken.push(`blob ${basename(blob)}: its folder was not synced before the event was written`);
  }
  for (let folder = dirname(blob); folder !== dirname(folder); folder = dirname(folder)) {
    const made = calls.find(
      (call) => call.name.startsWith('mkdir') && call.result === 0 && quotedIn(call.args)[0] === folder,
    );
    if (made !== undefined && !isFolderSynced(calls, dirname(folder), made, event)) {
      broken.push(`blob ${basename(blob)}: folder ${folder} is new and its entry was not synced`);
    }
  }
  return broken;
}

function isFolderSynced(calls: readonly Call[], folder: string, after: Call, before: Call): boolean {
  return calls.some(
    (call) => isSyncOf(call, folder) && call.startedAt > after.endedAt && call.endedAt < before.startedAt,
  );
}
