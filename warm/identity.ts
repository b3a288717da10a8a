/**
 * As whom the server's programs run. PostgreSQL refuses root, and its data folder must belong to whoever runs it.
 *
 * An ordinary user runs it as itself. Root runs it as the owner of the data that is there; for new data as `postgres` or
 * `nobody` where they can reach folder and programs, else, as under a 0700 folder, inside a user namespace in which root
 * is called 65534: there its files still belong to root. The namespace also helps a user without a name (`docker run
 * --user 1234`), which initdb refuses.
 */
import { execFile } from 'node:child_process';
import { stat } from 'node:fs/promises';
import { userInfo } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { VarveError } from '../schemas/errors.ts';
import type { Binaries } from './binaries.ts';

export type Identity = {
  /** Command and arguments to put before a program; it replaces itself, so the pid is the program's. */
  readonly prefix: readonly string[];
  /** To whom the server's folders must belong, where that is not this process's user. */
  readonly owner?: { readonly uid: number; readonly gid: number };
};

const NAMESPACE: Identity = { prefix: ['unshare', '--user', '--map-user=65534', '--map-group=65534'] };
const SYSTEM_USERS = ['postgres', 'nobody'] as const;

const run = promisify(execFile);

/** @throws VarveError WARM_START_FAILED with what to do about it */
export async function chooseIdentity(folder: string, dataFolder: string, binaries: Binaries): Promise<Identity> {
  const data = await stat(dataFolder).catch(() => undefined);
  const uid = process.getuid?.();
  if (uid === undefined) return { prefix: [] };
  if (uid !== 0) {
    if (data !== undefined && data.uid !== uid) throw foreign(dataFolder, data.uid);
    return hasName() || !(await runs(NAMESPACE, folder, binaries)) ? { prefix: [] } : NAMESPACE;
  }
  for (const owner of data === undefined ? await systemUsers() : [{ uid: data.uid, gid: data.gid }]) {
    if (owner.uid === 0) break;
    const identity = { prefix: ['setpriv', `--reuid=${owner.uid}`, `--regid=${owner.gid}`, '--clear-groups'], owner };
    if (await runs(identity, folder, binaries)) return identity;
    if (data !== undefined) throw foreign(dataFolder, owner.uid);
  }
  if (await runs(NAMESPACE, folder, binaries)) return NAMESPACE;
  throw new VarveError(
    'WARM_START_FAILED',
    `PostgreSQL refuses to run as root, no system user can reach both ${folder} and ${binaries.folder}, and user ` +
      'namespaces are not permitted here. Let others enter these folders (chmod o+x), or run as an ordinary user, or ' +
      'set DATABASE_URL',
    { folder },
  );
}

function foreign(dataFolder: string, uid: number): VarveError {
  const message = `${dataFolder} belongs to user ${uid}, as whom PostgreSQL cannot be run here: run varve as that user, who must be able to enter the folder`;
  return new VarveError('WARM_START_FAILED', message, { dataFolder, uid });
}

function hasName(): boolean {
  try {
    return userInfo().username !== '';
  } catch {
    return false;
  }
}

async function systemUsers(): Promise<{ uid: number; gid: number }[]> {
  const users: { uid: number; gid: number }[] = [];
  for (const name of SYSTEM_USERS) {
    try {
      const uid = Number((await run('id', ['-u', name])).stdout);
      users.push({ uid, gid: Number((await run('id', ['-g', name])).stdout) });
    } catch {
      // No such user here.
    }
  }
  return users;
}

/** Tries it: can the program be loaded, and the folder entered? */
async function runs(identity: Identity, folder: string, binaries: Binaries): Promise<boolean> {
  const [command, ...rest] = [...identity.prefix, 'sh', '-c', 'test -x "$1" && "$2" --version', 'sh'];
  try {
    await run(command, [...rest, folder, join(binaries.folder, 'postgres')], { env: binaries.env });
    return true;
  } catch {
    return false;
  }
}
