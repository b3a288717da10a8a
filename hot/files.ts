/**
 * Files that are whole or not there: temporary name, fdatasync, rename, fsync of the folder.
 *
 * When `replaceFile` resolves, the new content survives a power cut; before that, the old one does. A temporary name is
 * never used twice, so two writers cannot splice each other's bytes.
 */
import { randomBytes } from 'node:crypto';
import { mkdir, open, readFile, rename, rm } from 'node:fs/promises';
import { dirname } from 'node:path';
import { type FailpointName, failpoint } from '../schemas/failpoint.ts';

const FILE_MODE = 0o600;
const FOLDER_MODE = 0o700;

export function temporaryName(path: string): string {
  return `${path}.${process.pid}.${randomBytes(6).toString('hex')}.tmp`;
}

export async function syncFolder(path: string): Promise<void> {
  const handle = await open(path, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/** Creates a folder and its parents; when it resolves, their entries survive a power cut. */
export async function makeFolder(path: string): Promise<void> {
  const first = await mkdir(path, { recursive: true, mode: FOLDER_MODE });
  if (first === undefined) return;
  for (let folder = path; folder.length >= first.length; folder = dirname(folder)) await syncFolder(dirname(folder));
}

export type Failpoints = { readonly beforeRename?: FailpointName; readonly afterRename?: FailpointName };

export async function replaceFile(path: string, content: Uint8Array | string, points: Failpoints = {}): Promise<void> {
  const temporary = temporaryName(path);
  try {
    const handle = await open(temporary, 'wx', FILE_MODE);
    try {
      await handle.writeFile(content);
      await handle.datasync();
    } finally {
      await handle.close();
    }
    if (points.beforeRename) failpoint(points.beforeRename);
    await rename(temporary, path);
  } catch (error) {
    await rm(temporary, { force: true });
    throw error;
  }
  if (points.afterRename) failpoint(points.afterRename);
  await syncFolder(dirname(path));
}

export async function removeFile(path: string): Promise<void> {
  await rm(path, { force: true });
}

/** undefined where there is no such file. */
export async function readIfThere(path: string): Promise<Buffer | undefined> {
  try {
    return await readFile(path);
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    throw error;
  }
}

/** The errno of a Node error, such as ENOENT. */
export function errnoOf(error: unknown): string | undefined {
  return error instanceof Error ? (error as NodeJS.ErrnoException).code : undefined;
}
