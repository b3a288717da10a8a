/**
 * Looks at logs, warm tier and store for `varve doctor`, and touches nothing: no log is opened for writing, no server
 * started, no folder made.
 */
import { constants } from 'node:fs';
import { access, readdir, stat, statfs } from 'node:fs/promises';
import { hostname } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { parseStoreUrl } from '../cold/open-store.ts';
import { fileSystemOf } from '../hot/disk.ts';
import { findHolder, readWriterFile } from '../hot/holder.ts';
import { type LogFile, readLogFile } from '../hot/meta.ts';
import { checkLog } from '../hot/open.ts';
import { askTail } from '../hot/tail-server.ts';
import type { Config } from '../schemas/config.ts';
import { isVarveError } from '../schemas/errors.ts';
import { MIB } from '../schemas/limits.ts';
import { databaseNow } from '../warm/cursor-rows.ts';
import { attachEmbedded } from '../warm/embedded.ts';
import { migrationPlan } from '../warm/migrate.ts';
import { openPool, type Session, statement } from '../warm/pool.ts';
import { isAlive } from '../warm/postmaster.ts';
import type { Finding, HotFacts, WarmFacts, WarmState } from './doctor-plan.ts';
import { openColdStore } from './open-cold.ts';

const WRITE_BUFFER_BYTES = 16 * MIB;
const ASK_MS = 500;

export async function hotFacts(directory: string): Promise<HotFacts> {
  let file: LogFile | undefined;
  let unreadable: string | undefined;
  try {
    file = await readLogFile(directory);
    if (file === undefined) unreadable = 'it has no log.json';
  } catch (error) {
    if (!isVarveError(error)) throw error;
    unreadable = error.message;
  }
  const writer = await readWriterFile(directory);
  const socketPath = writer?.socket ?? join(directory, 'tail.sock');
  const holder = await findHolder(directory, socketPath);
  const answer = holder === undefined ? undefined : await askTail(socketPath, 'who', ASK_MS);
  const { mode } = await stat(directory);
  const { bavail, blocks, bsize } = await statfs(directory);
  const isFree = holder === undefined && file?.state === 'ready';
  return {
    directory,
    host: hostname(),
    log_id: file?.log_id,
    unreadable,
    creating: file?.state === 'creating',
    holder: holder === undefined ? undefined : { pid: holder.pid, role: holder.role, answers: answer !== undefined },
    writer,
    socket: (await isThere(socketPath)) && holder === undefined ? socketPath : undefined,
    temporaries: await temporariesOf(directory),
    mode,
    hasBallast: await isThere(join(directory, 'ballast')),
    fileSystem: await fileSystemOf(directory),
    freeBytes: bavail * bsize,
    totalBytes: blocks * bsize,
    check: isFree && file !== undefined ? await checked(directory, file, socketPath) : undefined,
    copied: undefined,
  };
}

/** A failed check is believed only if nobody has the log open before and after it. */
async function checked(directory: string, file: LogFile, socketPath: string): Promise<HotFacts['check']> {
  try {
    const { tip, heads } = await checkLog(directory, file, WRITE_BUFFER_BYTES);
    return { tip: tip.lsn, trajectories: heads.size };
  } catch (error) {
    if (!isVarveError(error, 'HOT_DAMAGED')) throw error;
    if ((await findHolder(directory, socketPath)) !== undefined) return undefined;
    const { lsn, reason } = error.details;
    return { lsn: Number(lsn ?? 0), reason: typeof reason === 'string' ? reason : error.message };
  }
}

/** `<name>.<pid>.<12 hex digits>.tmp` beside the log's files, `<pid>.<16 hex digits>` among its blobs. */
async function temporariesOf(directory: string): Promise<HotFacts['temporaries']> {
  const places = [
    { folder: directory, pattern: /\.(\d+)\.[0-9a-f]{12}\.tmp$/ },
    { folder: join(directory, 'blobs', 'tmp'), pattern: /^(\d+)\.[0-9a-f]{16}$/ },
  ];
  const found: HotFacts['temporaries'][number][] = [];
  for (const { folder, pattern } of places) {
    for (const name of await readdir(folder).catch(() => [])) {
      const pid = Number(pattern.exec(name)?.[1] ?? 0);
      const path = join(folder, name);
      const there = pid > 0 ? await stat(path).catch(() => undefined) : undefined;
      if (there === undefined) continue;
      found.push({ path, pid, isAlive: isAlive(pid), ageMs: Date.now() - there.mtimeMs });
    }
  }
  return found;
}

async function isThere(path: string): Promise<boolean> {
  return (await stat(path).catch(() => undefined)) !== undefined;
}

export async function warmFacts(config: Config): Promise<WarmFacts> {
  const { databaseUrl, directory, statementTimeoutMs } = config.warm;
  const nothing = { unreachable: undefined, notStarted: false, pending: [], unknown: [], state: undefined };
  let server = resolve(directory);
  try {
    const url = databaseUrl ?? (await attachEmbedded(directory))?.url;
    if (url === undefined) return { ...nothing, server, notStarted: true };
    await using pool = await openPool(url, { max: 2, statementTimeoutMs, applicationName: 'varve doctor' });
    ({ server } = pool);
    const { pending, unknown } = await migrationPlan(pool);
    const state = pending.length > 0 ? undefined : await pool.lend(warmState);
    const names = (migrations: readonly { readonly name: string }[]) => migrations.map(({ name }) => name);
    return { ...nothing, server, pending: names(pending), unknown: names(unknown), state };
  } catch (error) {
    if (!isVarveError(error)) throw error;
    return { ...nothing, server, unreachable: `${error.message} [${error.code}]` };
  }
}

const DAYS_AHEAD = statement<{ days: number }>(
  'doctor.days_ahead',
  `SELECT count(*) AS days FROM event_partitions
   WHERE lower_id > varve_uuid_floor(varve_now()) AND to_regclass(quote_ident(name)) IS NOT NULL`,
);
const HELD = statement<WarmState['held'][number]>(
  'doctor.held',
  `SELECT reason, count(*) AS events, count(DISTINCT trajectory_id) AS trajectories
   FROM quarantine WHERE state = 'held' GROUP BY reason ORDER BY reason`,
);
const BLOCKS = statement<{ blocks: number }>('doctor.blocks', `SELECT count(*) AS blocks FROM blocks`);
const MISSING = statement<WarmState['missing'][number]>(
  'doctor.missing',
  `SELECT log_id, from_lsn, to_lsn FROM missing_records ORDER BY log_id, from_lsn LIMIT 100`,
);
const BEHIND = statement<WarmState['behind'][number]>(
  'doctor.behind',
  `SELECT directory, host, unreplicated_records AS records FROM replication_lag
   WHERE unreplicated_records > 0 ORDER BY unreplicated_records DESC LIMIT 100`,
);

async function warmState(session: Session): Promise<WarmState> {
  const before = Date.now();
  const now = await databaseNow(session);
  const clock_skew_ms = now - (before + Date.now()) / 2;
  return {
    clock_skew_ms,
    days_ahead: (await session.query(DAYS_AHEAD))[0]?.days ?? 0,
    held: await session.query(HELD),
    blocks: (await session.query(BLOCKS))[0]?.blocks ?? 0,
    missing: await session.query(MISSING),
    behind: await session.query(BEHIND),
  };
}

/**
 * Can the store be used? Of a folder its mode tells. One behind a network is asked as a sidecar asks it at its start:
 * it puts a probe and removes it again, the one thing that a doctor writes.
 */
export async function judgeStore(config: Config): Promise<Finding> {
  try {
    const address = parseStoreUrl(config.cold.store);
    if (address.kind === 's3') {
      await using store = await openColdStore(config);
      return { level: 'ok', subject: store.url, what: 'it answers, and keeps conditional puts' };
    }
    const path = resolve(address.path);
    const folder = await existing(path);
    await access(folder, constants.R_OK | constants.W_OK | constants.X_OK);
    const what = folder === path ? 'it can be written' : 'it is not there yet; it can be made';
    return { level: folder === path ? 'ok' : 'note', subject: `file:${path}`, what };
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === undefined) throw error;
    const what = isVarveError(error) ? `${error.message} [${error.code}]` : `it cannot be written (${code})`;
    return { level: 'problem', subject: 'the object store', what, next: ['varve config      # which store is meant'] };
  }
}

/** The folder itself, or the nearest one above it that is there. */
async function existing(path: string): Promise<string> {
  if ((await isThere(path)) || dirname(path) === path) return path;
  return existing(dirname(path));
}
