/** Folders that survive a power cut, and errors of the file system in the store's terms. */
import { mkdir, mkdtemp, open, rm, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { type ErrorCode, isVarveError, VarveError } from '../schemas/errors.ts';

export const FILE_MODE = 0o600;
const FOLDER_MODE = 0o700;

export async function syncFolder(path: string): Promise<void> {
  const handle = await open(path, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/** Creates a folder and its parents; when it resolves, the entries of those that it created survive a power cut. */
export async function makeFolder(path: string): Promise<void> {
  try {
    await mkdir(path, { mode: FOLDER_MODE });
  } catch (error) {
    if ((await stat(path).catch(() => undefined))?.isDirectory() === true) return;
    const parent = dirname(path);
    if (errnoOf(error) !== 'ENOENT' || parent === path) throw error;
    // Not `recursive`: that says ENOENT of a full disk, and below /proc it never ends.
    await makeFolder(parent);
    await mkdir(path, { mode: FOLDER_MODE }).catch((again: unknown) => {
      if (errnoOf(again) !== 'EEXIST') throw again;
    });
  }
  await syncFolder(dirname(path));
}

/** The errno of a Node error, such as ENOENT. */
export function errnoOf(error: unknown): string | undefined {
  return error instanceof Error ? (error as NodeJS.ErrnoException).code : undefined;
}

const CODES: Readonly<Record<string, ErrorCode>> = {
  ENOENT: 'STORE_MISSING',
  EACCES: 'STORE_DENIED',
  EPERM: 'STORE_DENIED',
  EROFS: 'STORE_DENIED',
  ENOSPC: 'STORE_FULL',
  EDQUOT: 'STORE_FULL',
  EFBIG: 'STORE_TOO_LARGE',
  ENAMETOOLONG: 'STORE_KEY_INVALID',
  // A folder where an object should be, or the other way round.
  EEXIST: 'STORE_KEY_INVALID',
  EISDIR: 'STORE_KEY_INVALID',
  ENOTDIR: 'STORE_KEY_INVALID',
  ELOOP: 'STORE_REFUSED',
  EXDEV: 'STORE_REFUSED',
};

/** What the system said of a key, as an error of the port. Other things than system errors pass through. */
export function fileError(error: unknown, key: string): unknown {
  const errno = errnoOf(error);
  if (isVarveError(error) || errno === undefined) return error;
  const code = CODES[errno] ?? 'STORE_UNAVAILABLE';
  return new VarveError(code, `${key}: ${errno}`, { key, errno }, error);
}

/** The scratch folder's errors are the file system's, not the store's. */
export function scratchError(error: unknown): unknown {
  const named = fileError(error, 'scratch folder');
  if (named === error || !(named instanceof VarveError)) return error;
  const code = named.code === 'STORE_FULL' ? 'COLD_DISK_FULL' : 'COLD_FILE_UNREADABLE';
  return new VarveError(code, named.message, named.details, error);
}

/** What `work` gives, which has a folder of its own below `scratchDir` meanwhile. Errors of the store are VarveErrors. */
export async function inScratch<T>(
  scratchDir: string,
  prefix: string,
  work: (folder: string) => Promise<T>,
): Promise<T> {
  let folder: string | undefined;
  try {
    await makeFolder(scratchDir);
    folder = await mkdtemp(join(scratchDir, prefix));
    return await work(folder);
  } catch (error) {
    throw scratchError(error);
  } finally {
    if (folder !== undefined) await rm(folder, { recursive: true, force: true });
  }
}
