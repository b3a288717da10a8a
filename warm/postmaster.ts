/**
 * What a PostgreSQL data folder says about its server: `postmaster.pid`, read and judged.
 *
 * The file's lines are pid, data folder, start time, port, socket folder, listen address, shared memory key, status
 * (PostgreSQL's `miscadmin.h`); a starting server writes them one after the other. The file outlives a server that was
 * killed, and its pid may by then belong to anybody (in a container that is the rule), so it counts only if that process
 * works in this data folder, or if its socket answers.
 */
import { readFile, readlink, realpath, stat } from 'node:fs/promises';
import { connect } from 'node:net';
import { join } from 'node:path';

/** Only names the socket: the server listens on no TCP port. */
export const SOCKET_PORT = 5432;

export type Postmaster = {
  readonly pid: number;
  /** '' until the server has made its socket. */
  readonly socketFolder: string;
  /** 'ready', 'starting', 'stopping', 'standby', or '' so far. */
  readonly status: string;
};

export type ServerState =
  | { readonly kind: 'none' }
  /** It was killed. `pidReused`: its pid is somebody else's now, and PostgreSQL itself would refuse to start over it. */
  | { readonly kind: 'stale'; readonly pidReused: boolean; readonly postmaster: Postmaster }
  /** Starting, recovering or stopping. */
  | { readonly kind: 'busy'; readonly postmaster: Postmaster }
  | { readonly kind: 'ready'; readonly postmaster: Postmaster };

export function socketPath(socketFolder: string): string {
  return join(socketFolder, `.s.PGSQL.${SOCKET_PORT}`);
}

export async function serverState(dataFolder: string): Promise<ServerState> {
  const postmaster = await readPostmaster(dataFolder);
  if (postmaster === undefined) return { kind: 'none' };
  // A server in another container answers on a shared folder although its pid means nothing here.
  if (postmaster.status === 'ready' && (await answers(postmaster.socketFolder))) return { kind: 'ready', postmaster };
  const alive = isAlive(postmaster.pid);
  if (alive && (await worksIn(postmaster.pid, dataFolder))) return { kind: 'busy', postmaster };
  return { kind: 'stale', pidReused: alive, postmaster };
}

/** undefined: no such file, or not even its pid is written yet. */
async function readPostmaster(dataFolder: string): Promise<Postmaster | undefined> {
  let text: string;
  try {
    text = await readFile(join(dataFolder, 'postmaster.pid'), 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
  const lines = text.split('\n').map((line) => line.trim());
  // Negative: a stand-alone backend, which is as much in the way.
  const pid = Math.abs(Number(lines[0]));
  if (!Number.isSafeInteger(pid) || pid === 0) return undefined;
  return { pid, socketFolder: lines[4] ?? '', status: lines[7] ?? '' };
}

/** Is that server's process there and really its own? */
export async function isRunning(pid: number, dataFolder: string): Promise<boolean> {
  return isAlive(pid) && (await worksIn(pid, dataFolder));
}

export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

/** A server runs as its data's owner, in its data folder. Where that cannot be seen, the pid file is believed. */
async function worksIn(pid: number, dataFolder: string): Promise<boolean> {
  if (process.platform !== 'linux') return true;
  try {
    const uid = /^Uid:\s+\d+\s+(\d+)/m.exec(await readFile(`/proc/${pid}/status`, 'utf8'))?.[1];
    if (Number(uid) !== (await stat(dataFolder)).uid) return false;
    return (await readlink(`/proc/${pid}/cwd`)) === (await realpath(dataFolder));
  } catch (error) {
    // Without an entry it has just ended, or is a zombie; with one it keeps others from looking.
    return !['ENOENT', 'ESRCH'].includes((error as NodeJS.ErrnoException).code ?? '');
  }
}

function answers(socketFolder: string): Promise<boolean> {
  if (socketFolder === '') return Promise.resolve(false);
  return new Promise((resolve) => {
    const socket = connect(socketPath(socketFolder));
    socket.once('connect', () => {
      socket.destroy();
      resolve(true);
    });
    socket.once('error', () => resolve(false));
  });
}
