/**
 * Opening a log: look before touching.
 *
 * RocksDB's own recovery skips damage in the middle of its write-ahead log without a word and removes the evidence
 * (measured). So a log is first read without opening anything for writing: LSNs dense and hashes linked over at least
 * the last four write buffers, heads in agreement, nothing missing that a snapshot or an ack has seen. Only then is it
 * opened for writing, and only if its end is still where the check found it. A failed check is believed only if nobody
 * had the log open before and after it; then nothing is opened for writing.
 */
import { randomUUID } from 'node:crypto';
import { access, constants, readdir, rm, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { failpoint } from '../schemas/failpoint.ts';
import { readAckFile } from './ack.ts';
import type { Tip } from './commit.ts';
import { errnoOf, makeFolder } from './files.ts';
import type { Heads } from './heads.ts';
import { findHolder, type Holder } from './holder.ts';
import { decodeIndexBlock } from './index-block.ts';
import { HOT_FORMAT, LOG_KEY, type LogFile, type Meta, readLogFile, readMeta, writeLogFile } from './meta.ts';
import { indexKey, isIndexKey, keyLsn, recordKey } from './record.ts';
import { isLockHeld, Rocks, RocksError } from './rocks.ts';
import { type Damage, headsAtFloor, Scan } from './scan.ts';
import { listSnapshots, readSnapshot, type Snapshot } from './snapshots.ts';
import { brokenTable } from './table-files.ts';
import { askTail } from './tail-server.ts';
import { hiddenBatch } from './wal-check.ts';

export type OpenOptions = {
  readonly create: boolean;
  readonly lockTimeoutMs: number;
  readonly writeBufferBytes: number;
  readonly socketPath: string;
};

/** A log whose end has been verified. */
export type Checked = {
  readonly logId: string;
  readonly tip: Tip;
  readonly heads: Heads;
  readonly meta: Meta;
  /** Places of the head snapshots that count, newest first, back to the one that the check began at. */
  readonly snapshots: readonly Tip[];
};

export type Opened = Checked & { readonly db: Rocks };

/** A check covers this many write buffers: more than RocksDB ever holds only in its write-ahead log. */
const CHECKED_WRITE_BUFFERS = 4;
const RETRY_MS = 25;
const EMPTY_DIRECTORY_NAMES = new Set(['lost+found']);

export function databasePath(dir: string): string {
  return join(dir, 'db');
}

/** Bytes before the log's end that every open verifies. */
export function checkedWindowBytes(writeBufferBytes: number): number {
  return CHECKED_WRITE_BUFFERS * writeBufferBytes;
}

/**
 * Opens a log for writing, making it where there is none. Waits up to `lockTimeoutMs` for another process.
 *
 * @throws VarveError HOT_LOCKED (names the pid), HOT_DAMAGED, HOT_NOT_A_LOG, HOT_FORMAT_NEWER, HOT_UNWRITABLE
 */
export async function openLog(dir: string, options: OpenOptions): Promise<Opened> {
  const deadline = performance.now() + options.lockTimeoutMs;
  for (;;) {
    const holder = await findHolder(dir, options.socketPath);
    if (holder?.role === 'drain') await askTail(holder.socket ?? options.socketPath, 'yield', 250);
    if (holder === undefined) {
      const opened = await attempt(dir, options);
      if (opened !== undefined) return opened;
    }
    if (performance.now() >= deadline) throw locked(dir, holder ?? (await findHolder(dir, options.socketPath)));
    await sleep(RETRY_MS);
  }
}

/** undefined: another process was quicker. */
async function attempt(dir: string, options: OpenOptions): Promise<Opened | undefined> {
  const file = await prepareDirectory(dir, options);
  if (file.state === 'creating') return create(dir, file, options);
  let checked: Checked;
  try {
    checked = await checkLog(dir, file, options.writeBufferBytes);
  } catch (error) {
    // A writer that is at work makes a read-only look inconsistent.
    if (isVarveError(error, 'HOT_DAMAGED') && (await findHolder(dir, options.socketPath)) !== undefined)
      return undefined;
    throw error;
  }
  const db = await lock(dir, options, false);
  if (db === undefined) return undefined;
  const tip = await readTip(db, checked.meta.floor);
  if (tip.lsn === checked.tip.lsn && tip.hash === checked.tip.hash) return { ...checked, db };
  await db.close();
  return undefined;
}

async function prepareDirectory(dir: string, options: OpenOptions): Promise<LogFile> {
  try {
    if (options.create) await makeFolder(dir);
    if (!(await stat(dir)).isDirectory()) throw notALog(dir, 'it is not a directory');
    await access(dir, constants.R_OK | constants.W_OK | constants.X_OK);
  } catch (error) {
    if (isVarveError(error)) throw error;
    const errno = errnoOf(error);
    // Where it was to be made, Node says this of a read-only file system too.
    if (errno === 'ENOENT' && !options.create) throw notALog(dir, 'there is no such directory');
    if (errno === 'ENOTDIR' || errno === 'EEXIST') throw notALog(dir, 'it is not a directory');
    const message = `${dir} cannot be written (${errno ?? String(error)}); check its owner, its mode and its mount`;
    throw new VarveError('HOT_UNWRITABLE', message, { dir }, error);
  }
  const file = await readLogFile(dir);
  if (file !== undefined) return file;
  const names = (await readdir(dir)).filter((name) => !EMPTY_DIRECTORY_NAMES.has(name) && !name.endsWith('.tmp'));
  if (names.length > 0) throw notALog(dir, `it has no log.json, but holds ${names.slice(0, 3).join(', ')}`);
  if (!options.create) throw notALog(dir, 'it is empty');
  const created: LogFile = { format: HOT_FORMAT, log_id: randomUUID(), state: 'creating' };
  failpoint('hot.open.before-create');
  await writable(dir, () => writeLogFile(dir, created));
  return created;
}

/** Nothing in a log that is still being created was ever acknowledged: it starts from nothing. */
async function create(dir: string, file: LogFile, options: OpenOptions): Promise<Opened | undefined> {
  const db = await lock(dir, options, true);
  if (db === undefined) return undefined;
  const now = await readLogFile(dir);
  if (now?.state !== 'creating' || now.log_id !== file.log_id) {
    // Somebody else made the log between our look and our lock.
    await db.close();
    return undefined;
  }
  await writable(dir, async () => {
    await db.write((batch) => {
      batch.put(LOG_KEY, Buffer.from(JSON.stringify({ format: file.format, log_id: file.log_id })));
    }, true);
    failpoint('hot.open.after-create');
    await writeLogFile(dir, { ...file, state: 'ready' });
  });
  const meta = await readMeta(db);
  return { logId: file.log_id, tip: meta.floor, heads: headsAtFloor(meta), meta, snapshots: [], db };
}

/** Takes RocksDB's lock. undefined: it is held. */
async function lock(dir: string, options: OpenOptions, createIfMissing: boolean): Promise<Rocks | undefined> {
  const { writeBufferBytes } = options;
  if (createIfMissing) await writable(dir, () => makeFolder(databasePath(dir)));
  try {
    return await Rocks.open(databasePath(dir), { readOnly: false, createIfMissing, writeBufferBytes });
  } catch (error) {
    if (isLockHeld(error)) return undefined;
    if (createIfMissing && error instanceof RocksError && /corruption|not exist|invalid/i.test(error.message)) {
      // A creation that was cut off; nothing in it was acknowledged.
      await rm(databasePath(dir), { recursive: true, force: true });
      return lock(dir, options, createIfMissing);
    }
    throw openFailed(dir, error);
  }
}

/**
 * Verifies the end of a log without opening anything for writing.
 *
 * @throws VarveError HOT_DAMAGED; `details.lsn` is the first record that cannot be trusted
 */
export async function checkLog(dir: string, file: LogFile, writeBufferBytes: number): Promise<Checked> {
  let db: Rocks;
  try {
    db = await Rocks.open(databasePath(dir), { readOnly: true, createIfMissing: false, writeBufferBytes });
  } catch (error) {
    throw damaged(dir, { lsn: 0, reason: 'the database does not open' }, error);
  }
  try {
    const table = await brokenTable(db, databasePath(dir));
    if (table !== undefined) throw damaged(dir, { lsn: 0, reason: table });
    const meta = await readMeta(db);
    if (meta.logId !== file.log_id) {
      throw damaged(dir, {
        lsn: 0,
        reason: `the database is of log ${meta.logId ?? 'none'}, log.json of ${file.log_id}`,
      });
    }
    const tip = await readTip(db, meta.floor);
    const start = await chooseStart(dir, db, meta, tip, checkedWindowBytes(writeBufferBytes));
    const scan = new Scan(meta, start.from);
    scan.onBlock = ({ lsn }) => {
      if (lsn !== start.newer?.place.lsn || headsAgree(scan.heads, start.newer, meta)) return;
      scan.damage = { lsn, reason: 'the head snapshot and the records disagree' };
    };
    const damage =
      (await scan.run(db)) ??
      (await missedWitness(dir, file.log_id, scan.tip)) ??
      (await hiddenBatch(databasePath(dir), scan.tip.lsn));
    if (damage !== undefined) throw damaged(dir, damage);
    return { logId: file.log_id, tip: scan.tip, heads: scan.heads, meta, snapshots: start.snapshots };
  } catch (error) {
    if (error instanceof RocksError) throw damaged(dir, { lsn: 0, reason: error.message }, error);
    throw error;
  } finally {
    await db.close();
  }
}

/** The last batch of the log, or its floor where everything is trimmed. */
export async function readTip(db: Rocks, floor: Tip): Promise<Tip> {
  const range = { gte: recordKey(floor.lsn + 1), lte: Buffer.from('f'), reverse: true, pageBytes: 1 };
  for await (const rows of db.pages(range)) {
    for (const [key, value] of rows) {
      const block = isIndexKey(key) ? decodeIndexBlock(keyLsn(key), value) : undefined;
      // A record behind the last index block: the scan will say so.
      if (block === undefined) return { lsn: keyLsn(key), hash: '', bytes: Number.MAX_SAFE_INTEGER };
      const hash = Buffer.from(block.entries.at(-1)?.hash ?? '', 'latin1').toString('hex');
      return { lsn: block.lastLsn, hash, bytes: block.bytes };
    }
  }
  return floor;
}

type Start = {
  readonly from: { readonly heads: Heads; readonly tip: Tip };
  readonly newer?: Snapshot;
  readonly snapshots: readonly Tip[];
};

/** Where a check begins: the newest good snapshot that lies far enough back, else the floor. */
async function chooseStart(dir: string, db: Rocks, meta: Meta, tip: Tip, windowBytes: number): Promise<Start> {
  let newer: Snapshot | undefined;
  const snapshots: Tip[] = [];
  for (const lsn of await listSnapshots(dir)) {
    if (lsn > tip.lsn || lsn <= meta.floor.lsn) continue;
    const snapshot = await readSnapshot(dir, lsn);
    if (snapshot === undefined || !(await isOfLog(db, snapshot))) continue;
    snapshots.push(snapshot.place);
    if (tip.bytes - snapshot.place.bytes >= windowBytes) {
      const from = { heads: snapshot.heads, tip: snapshot.place };
      return newer === undefined ? { from, snapshots } : { from, newer, snapshots };
    }
    newer ??= snapshot;
  }
  const from = { heads: headsAtFloor(meta), tip: meta.floor };
  return newer === undefined ? { from, snapshots } : { from, newer, snapshots };
}

async function isOfLog(db: Rocks, { place }: Snapshot): Promise<boolean> {
  const value = await db.get(indexKey(place.lsn));
  const block = value === undefined ? undefined : decodeIndexBlock(place.lsn, value);
  const hash = block?.entries.at(-1)?.hash;
  return (
    hash !== undefined && Buffer.from(hash, 'latin1').toString('hex') === place.hash && block?.bytes === place.bytes
  );
}

function headsAgree(heads: Heads, snapshot: Snapshot, meta: Meta): boolean {
  let agreed = 0;
  for (const theirs of snapshot.heads) {
    const ours = heads.get(theirs.id);
    if (ours === undefined) {
      // Below the floor only its newest trim mark speaks of a trajectory, and that may be younger than the snapshot.
      if (theirs.lsn <= meta.floor.lsn && meta.marks.has(theirs.idBytes)) continue;
      return false;
    }
    if (ours.sequence !== theirs.sequence || ours.hash !== theirs.hash || ours.lsn !== theirs.lsn) return false;
    agreed += 1;
  }
  return agreed === heads.size;
}

/** Snapshots and acks are written for durable records only: one that lies ahead of the end proves a loss. */
async function missedWitness(dir: string, logId: string, tip: Tip): Promise<Damage | undefined> {
  for (const lsn of await listSnapshots(dir)) {
    if (lsn <= tip.lsn) break;
    if ((await readSnapshot(dir, lsn)) === undefined) continue;
    return { lsn: tip.lsn + 1, reason: `the log ends at LSN ${tip.lsn}, but a head snapshot has seen ${lsn}` };
  }
  const ack = await readAckFile(dir);
  if (ack?.log_id === logId && ack.cursor.lsn > tip.lsn) {
    return { lsn: tip.lsn + 1, reason: `the log ends at LSN ${tip.lsn}, but ${ack.cursor.lsn} was replicated` };
  }
  return undefined;
}

async function writable<T>(dir: string, action: () => Promise<T>): Promise<T> {
  try {
    return await action();
  } catch (error) {
    throw openFailed(dir, error);
  }
}

/** What the disk or the database said to an open for writing, with a code; anything else as it is. */
export function openFailed(dir: string, error: unknown): unknown {
  if (!(error instanceof RocksError) && errnoOf(error) === undefined) return error;
  const text = error instanceof Error ? error.message : String(error);
  if (/no space|ENOSPC|EDQUOT/i.test(text)) {
    return new VarveError('HOT_DISK_FULL', `the disk of ${dir} is full: free space and open again`, { dir }, error);
  }
  return new VarveError('HOT_UNWRITABLE', `${dir} cannot be opened for writing (${text})`, { dir }, error);
}

function damaged(dir: string, damage: Damage, cause?: unknown): VarveError {
  const message = `${dir} is damaged at LSN ${damage.lsn}: ${damage.reason}. Nothing was opened for writing. Copy the directory before anything else (all but db/LOCK), then drain what is whole and restore the rest from warm`;
  return new VarveError('HOT_DAMAGED', message, { dir, ...damage }, cause);
}

function notALog(dir: string, why: string): VarveError {
  return new VarveError('HOT_NOT_A_LOG', `${dir} is not a varve log: ${why}`, { dir, parent: dirname(dir) });
}

function locked(dir: string, holder: Holder | undefined): VarveError {
  const who =
    holder === undefined
      ? 'another process'
      : `process ${holder.pid}${holder.pid === process.pid ? ' (this one)' : ''}`;
  return new VarveError('HOT_LOCKED', `${dir} is open in ${who}; stop it, or wait for it`, { dir, pid: holder?.pid });
}
