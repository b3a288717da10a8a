/**
 * A PostgreSQL server of our own on this machine: attach to it, or start it.
 *
 *     <folder>/data          the cluster
 *     <folder>/s             its Unix socket, mode 0700; under /tmp where that path is too long for a socket
 *     <folder>/lib           links to the npm package's libraries
 *     <folder>/postgres.log  starts, stops and crashes; no statements, no values
 *
 * `startEmbedded` resolves when the server takes connections. Any number of processes may call it at once on one folder
 * and get the same server: a cluster appears whole by a rename, and `postmaster.pid` lets only one server work on it.
 * The server is nobody's child: it outlives its starter, also one killed by `kill -9`, until somebody calls `stop`.
 *
 * It listens on the socket alone, never on TCP, and trusts who gets that far: the folder's mode is the password. So it
 * serves its own user and root; whoever wants more sets DATABASE_URL.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { chmod, chown, lstat, mkdir, open, readFile, rename, rm, rmdir, stat } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { VarveError } from '../schemas/errors.ts';
import { MIB } from '../schemas/limits.ts';
import { type Binaries, findBinaries } from './binaries.ts';
import { createCluster, majorOf, makeOwned, makeRoot } from './cluster.ts';
import { chooseIdentity, type Identity } from './identity.ts';
import { isRunning, type Postmaster, type ServerState, SOCKET_PORT, serverState, socketPath } from './postmaster.ts';

export type EmbeddedOptions = {
  /** Folder of the only PostgreSQL programs that may be used. @default the npm package's, else the system's newest */
  readonly binFolder?: string;
  /** false syncs nothing: a power cut may destroy the cluster. For tests. @default true */
  readonly durable?: boolean;
  /** Longest wait for a server that starts or recovers, in milliseconds; it goes on doing so. @default 60000 */
  readonly startTimeoutMs?: number;
};

/** fast: ends transactions, writes a checkpoint. immediate: as a crash; the next start replays the WAL. */
export type StopMode = 'fast' | 'immediate';

/** sockaddr_un.sun_path, less its final zero. */
const SOCKET_PATH_BYTES_MAX = 107;
const LOG_BYTES_MAX = 8 * MIB;
const POLL_MS = 10;
/** Over a killed server a start fails for as long as that server's processes live; six tries span four seconds. */
const START_ATTEMPTS = 6;
const START_PAUSE_MS = 250;
/** Asked while it recovers from a crashed process, PostgreSQL 18 never ends a fast stop (seen); an immediate one loses nothing. */
const FAST_STOP_TIMEOUT_MS = 10_000;
const STOP_TIMEOUT_MS = 60_000;

const SETTINGS = {
  listen_addresses: '',
  unix_socket_permissions: '0700',
  shared_buffers: '128MB',
  timezone: 'UTC',
  log_timezone: 'UTC',
  lc_messages: 'C',
  jit: 'off',
  // Above ERROR: errors go to who caused them, and their texts may quote values.
  log_min_messages: 'log',
  // No statements either, neither of a session that is ended nor of a process that crashes.
  log_min_error_statement: 'panic',
  log_error_verbosity: 'terse',
} as const;
const DURABLE = { fsync: 'on', synchronous_commit: 'on', full_page_writes: 'on' } as const;
const NOT_DURABLE = { fsync: 'off', synchronous_commit: 'off', full_page_writes: 'off' } as const;

export class EmbeddedServer {
  /** For `openPool` and for psql. */
  readonly url: string;
  readonly pid: number;
  /** Was it running already? */
  readonly attached: boolean;
  readonly #root: string;

  /** Of `startEmbedded` and `attachEmbedded`. */
  constructor(root: string, { pid, socketFolder }: Postmaster, attached: boolean) {
    this.url = `postgresql://postgres@localhost/postgres?host=${encodeURIComponent(socketFolder)}&port=${SOCKET_PORT}`;
    this.pid = pid;
    this.attached = attached;
    this.#root = root;
  }

  /** As `stopEmbedded`. */
  async stop(mode?: StopMode): Promise<void> {
    await stopEmbedded(this.#root, mode);
  }
}

/**
 * When it resolves, no server works on the folder, whoever started it and however far it had come. A fast stop that takes
 * over 10 s becomes an immediate one.
 * @throws VarveError WARM_STOP_FAILED
 */
export async function stopEmbedded(folder: string, mode: StopMode = 'fast'): Promise<void> {
  const root = resolve(folder);
  const data = join(root, 'data');
  const state = await stateOf(data);
  const pid = state.kind === 'none' ? undefined : state.postmaster.pid;
  if (pid !== undefined && (await isRunning(pid, data))) {
    const stopped =
      (mode === 'fast' && (await signal(pid, data, 'SIGINT', FAST_STOP_TIMEOUT_MS))) ||
      (await signal(pid, data, 'SIGQUIT', STOP_TIMEOUT_MS));
    if (!stopped) throw new VarveError('WARM_STOP_FAILED', `PostgreSQL ${pid} does not stop`, { pid });
  }
  if ((await stateOf(data)).kind === 'ready') {
    throw new VarveError('WARM_STOP_FAILED', `the server in ${root} runs in another container: stop it there`, {
      root,
    });
  }
  // Under /tmp it would be litter. A server that somebody starts at this moment keeps it: then it is not empty.
  await rmdir(farSocketFolder(root)).catch(() => undefined);
}

/** true: that process is gone. */
async function signal(pid: number, dataFolder: string, name: NodeJS.Signals, timeoutMs: number): Promise<boolean> {
  try {
    process.kill(pid, name);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ESRCH') return true;
    throw new VarveError('WARM_STOP_FAILED', `PostgreSQL ${pid} belongs to another user`, { pid }, error);
  }
  for (const deadline = Date.now() + timeoutMs; Date.now() < deadline; await sleep(POLL_MS)) {
    if (!(await isRunning(pid, dataFolder))) return true;
  }
  return false;
}

/** The server on this folder if it takes connections now. */
export async function attachEmbedded(folder: string): Promise<EmbeddedServer | undefined> {
  const root = resolve(folder);
  const state = await stateOf(join(root, 'data'));
  return state.kind === 'ready' ? new EmbeddedServer(root, state.postmaster, true) : undefined;
}

/** @throws VarveError WARM_NO_SERVER, WARM_START_FAILED, WARM_NOT_READY */
export async function startEmbedded(folder: string, options: EmbeddedOptions = {}): Promise<EmbeddedServer> {
  const running = await attachEmbedded(folder);
  if (running !== undefined) return running;
  const root = resolve(folder);
  const data = join(root, 'data');
  const durable = options.durable ?? true;
  await makeRoot(root, durable);
  const binaries = await findBinaries(join(root, 'lib'), options.binFolder, await majorOf(data));
  const identity = await chooseIdentity(root, data, binaries);
  await createCluster(root, binaries, identity, durable);
  const socketFolder = await makeSocketFolder(root, identity);
  const launch: Launch = { root, data, binaries, identity, durable, socketFolder };
  return await startUntilReady(launch, Date.now() + (options.startTimeoutMs ?? 60_000));
}

type Launch = {
  readonly root: string;
  readonly data: string;
  readonly binaries: Binaries;
  readonly identity: Identity;
  readonly durable: boolean;
  readonly socketFolder: string;
};

async function stateOf(dataFolder: string): Promise<ServerState> {
  try {
    return await serverState(dataFolder);
  } catch (error) {
    const message = `${dataFolder} cannot be read: run as the user to whom it belongs`;
    throw new VarveError('WARM_START_FAILED', message, { dataFolder }, error);
  }
}

function farSocketFolder(root: string): string {
  return `/tmp/varve-${createHash('sha256').update(root).digest('hex').slice(0, 16)}`;
}

/** The same path at every start, so that a client finds its server again. */
async function makeSocketFolder(root: string, identity: Identity): Promise<string> {
  const near = join(root, 's');
  if (Buffer.byteLength(socketPath(near)) <= SOCKET_PATH_BYTES_MAX) {
    await makeOwned(near, identity);
    await chmod(near, 0o700);
    return near;
  }
  const far = farSocketFolder(root);
  await mkdir(far, { mode: 0o700 }).catch(() => undefined);
  // Anybody may make names in /tmp: a folder that is not surely ours is not used.
  const found = await lstat(far);
  const owner = identity.owner?.uid ?? process.getuid?.();
  const ours = found.uid === process.getuid?.() || found.uid === owner;
  if (!found.isDirectory() || !ours || (found.mode & 0o077) !== 0) {
    throw new VarveError('WARM_START_FAILED', `${far}, the socket's folder, belongs to somebody else`, { far });
  }
  if (identity.owner !== undefined) await chown(far, identity.owner.uid, identity.owner.gid);
  return far;
}

async function startUntilReady(launch: Launch, deadline: number): Promise<EmbeddedServer> {
  let child: Postgres | undefined;
  let overKilled = false;
  for (let attempts = 0; Date.now() < deadline; await sleep(POLL_MS)) {
    const state = await stateOf(launch.data);
    if (state.kind === 'ready') {
      return new EmbeddedServer(launch.root, state.postmaster, state.postmaster.pid !== child?.process.pid);
    }
    if (state.kind === 'busy' || child?.ended === false) continue;
    overKilled ||= state.kind === 'stale';
    if (child !== undefined) {
      attempts += 1;
      if (!overKilled || attempts === START_ATTEMPTS) throw await failed(launch, child);
      await sleep(START_PAUSE_MS * attempts);
    }
    if (state.kind === 'stale' && state.pidReused) await removeStale(launch, state.postmaster.pid);
    child = await spawnPostgres(launch);
  }
  const message = `PostgreSQL in ${launch.root} does not take connections yet (starting, recovering or stopping)`;
  throw new VarveError('WARM_NOT_READY', message, { root: launch.root });
}

/**
 * PostgreSQL takes a lock file's pid for a server if such a process exists; this one was seen to be something else. Two
 * starters may both come here, and one must not take away what the other's server has written since: moved first, then
 * looked at, and put back if it is not what was judged. PostgreSQL's own shared memory interlock backs this up.
 */
async function removeStale(launch: Launch, pid: number): Promise<void> {
  const moved = join(launch.data, `postmaster.pid.${process.pid}.stale`);
  const lock = join(launch.data, 'postmaster.pid');
  await rename(lock, moved).catch(() => undefined);
  const content = await readFile(moved, 'utf8').catch(() => '');
  if (content !== '' && Number(content.split('\n')[0]) !== pid) await rename(moved, lock);
  else await rm(moved, { force: true });
  await rm(`${socketPath(launch.socketFolder)}.lock`, { force: true });
}

type Postgres = { readonly process: ChildProcess; readonly logFrom: number; ended: boolean };

async function spawnPostgres(launch: Launch): Promise<Postgres> {
  const log = join(launch.root, 'postgres.log');
  const size = (await stat(log).catch(() => undefined))?.size ?? 0;
  if (size > LOG_BYTES_MAX) await rename(log, `${log}.1`);
  await using handle = await open(log, 'a', 0o600);
  const logFrom = (await handle.stat()).size;
  const settings = {
    ...SETTINGS,
    ...(launch.durable ? DURABLE : NOT_DURABLE),
    // A list of names, in which quotes guard commas and blanks.
    unix_socket_directories: `"${launch.socketFolder.replaceAll('"', '""')}"`,
  };
  const [command, ...rest] = [...launch.identity.prefix, join(launch.binaries.folder, 'postgres')];
  const args = [...rest, '-D', launch.data, '-p', String(SOCKET_PORT)];
  for (const [name, value] of Object.entries(settings)) args.push('-c', `${name}=${value}`);
  const stdio = ['ignore', handle.fd, handle.fd] as const;
  // A session of its own: neither Ctrl-C nor the end of a terminal reaches it.
  const child = spawn(command, args, {
    env: launch.binaries.env,
    cwd: '/',
    stdio: [...stdio],
    detached: true,
  });
  child.unref();
  const postgres: Postgres = { process: child, logFrom, ended: false };
  child.once('exit', () => (postgres.ended = true));
  child.once('error', () => (postgres.ended = true));
  return postgres;
}

async function failed(launch: Launch, child: Postgres): Promise<VarveError> {
  const log = join(launch.root, 'postgres.log');
  const text = (await readFile(log)).subarray(child.logFrom).toString('utf8').trim();
  const last = text.split('\n').slice(-3).join(' | ');
  return new VarveError('WARM_START_FAILED', `PostgreSQL in ${launch.root} does not start: ${last} (see ${log})`, {
    log,
    exit_code: child.process.exitCode,
  });
}
