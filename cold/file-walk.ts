/**
 * The files of a folder tree in the order of their keys, unfinished ones among them.
 *
 * Holds the names of one folder per level. Folders that cannot hold a key of the prefix, or one after `startAfter`, are
 * not read. A file that goes while the walk is under way is left out.
 */
import type { Dirent } from 'node:fs';
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { refuseAborted } from './body.ts';
import { errnoOf, fileError } from './files.ts';
import { compareKeys, isSegment, TEMPORARY_PREFIX } from './keys.ts';

export type Found = {
  readonly key: string;
  readonly bytes: number;
  readonly modifiedMs: number;
  /** Set for a file that is being written, or was when its writer died. */
  readonly uploadId: string | undefined;
};

const TEMPORARY = /^\.varve-tmp\.(.+)\.([0-9a-f]{16})$/su;

export async function* walk(
  root: string,
  prefix: string,
  startAfter: string | undefined,
  signal: AbortSignal | undefined,
): AsyncGenerator<Found, void, void> {
  // Of the folders on the way to the prefix only the last one is worth reading.
  const folder = prefix.slice(0, prefix.lastIndexOf('/') + 1);
  yield* walkFolder({ root, prefix, startAfter, signal }, folder);
}

type Walk = {
  readonly root: string;
  readonly prefix: string;
  readonly startAfter: string | undefined;
  readonly signal: AbortSignal | undefined;
};

type Name = { readonly key: string; readonly path: string; readonly uploadId: string | undefined; isFolder: boolean };

async function* walkFolder(of: Walk, folder: string): AsyncGenerator<Found, void, void> {
  refuseAborted(of.signal);
  for (const name of await namesOf(of, folder)) {
    const { key, path, uploadId } = name;
    if (name.isFolder) {
      yield* walkFolder(of, key);
      continue;
    }
    refuseAborted(of.signal);
    try {
      const status = await stat(path);
      if (status.isFile()) yield { key, bytes: status.size, modifiedMs: status.mtimeMs, uploadId };
    } catch (error) {
      if (errnoOf(error) !== 'ENOENT') throw fileError(error, key);
    }
  }
}

/** What of a folder is to be looked at, in order; the key of a folder ends in `/`, which is what places it. */
async function namesOf(of: Walk, folder: string): Promise<Name[]> {
  const names: Name[] = [];
  for (const entry of await entriesOf(join(of.root, folder), folder)) {
    const path = join(of.root, folder, entry.name);
    const [, target, uploadId] = TEMPORARY.exec(entry.name) ?? [];
    const plain = target ?? entry.name;
    if (!isSegment(plain)) continue;
    const isFolder = entry.isDirectory() || (entry.isSymbolicLink() && (await isFolderAt(path)));
    if (isFolder && (entry.name.startsWith(TEMPORARY_PREFIX) || uploadId !== undefined)) continue;
    const key = folder + plain + (isFolder ? '/' : '');
    if (isWanted(of, key, isFolder)) names.push({ key, path, uploadId, isFolder });
  }
  return names.toSorted((a, b) => compareKeys(a.key, b.key));
}

function isWanted({ prefix, startAfter }: Walk, key: string, isFolder: boolean): boolean {
  if (!key.startsWith(prefix) && !(isFolder && prefix.startsWith(key))) return false;
  if (startAfter === undefined || compareKeys(key, startAfter) > 0) return true;
  return isFolder && startAfter.startsWith(key);
}

async function entriesOf(path: string, folder: string): Promise<Dirent[]> {
  try {
    return await readdir(path, { withFileTypes: true });
  } catch (error) {
    if (errnoOf(error) === 'ENOENT' || errnoOf(error) === 'ENOTDIR') return [];
    throw fileError(error, folder);
  }
}

async function isFolderAt(path: string): Promise<boolean> {
  try {
    return (await stat(path)).isDirectory();
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return false;
    throw error;
  }
}
