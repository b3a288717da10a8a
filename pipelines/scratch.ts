/**
 * A folder of its own below the configured one, for files in the making. It goes with whoever opened it; what one that
 * was killed has left is removed by the next on the same host.
 */
import { randomBytes } from 'node:crypto';
import { mkdir, readdir, rm } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join, resolve } from 'node:path';
import { makeFolder, scratchError } from '../cold/files.ts';
import { isAlive } from '../warm/postmaster.ts';

export type Scratch = AsyncDisposable & { readonly path: string };

/** @throws VarveError COLD_DISK_FULL, COLD_FILE_UNREADABLE */
export async function openScratch(folder: string): Promise<Scratch> {
  const parent = resolve(folder);
  const host = hostname().replaceAll(/[^A-Za-z0-9.-]/g, '-');
  const path = join(parent, `varve-${host}-${process.pid}-${randomBytes(4).toString('hex')}`);
  try {
    // For its owner alone: what is in it are payloads.
    await makeFolder(parent);
    await removeAbandoned(parent, host);
    await mkdir(path, { mode: 0o700 });
  } catch (error) {
    throw scratchError(error);
  }
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true, maxRetries: 3 }) };
}

async function removeAbandoned(parent: string, host: string): Promise<void> {
  const prefix = `varve-${host}-`;
  for (const name of await readdir(parent)) {
    if (!name.startsWith(prefix)) continue;
    const [pid] = name.slice(prefix.length).split('-');
    if (pid === undefined || isAlive(Number(pid))) continue;
    await rm(join(parent, name), { recursive: true, force: true });
  }
}
