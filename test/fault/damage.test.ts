/**
 * Damage: every kind of broken file that a dead machine or a bad disk leaves. Never a log with a hole, never an
 * acknowledged event dropped in silence, never evidence destroyed:
 *
 *   a torn tail (the last record of the newest WAL)      opens, without that record's events and with all others
 *   anything missing or changed before it                HOT_DAMAGED, and every file is as it was
 *   what can be derived again (snapshots, sockets, …)    opens with everything
 *
 * Every case works on a copy of a log whose writer was killed. LOCK is never opened nor copied.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  cpSync,
  lstatSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { basename, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import { HotLog } from '../../hot/log.ts';
import { isVarveError, VarveError } from '../../schemas/errors.ts';
import { KIB } from '../../schemas/limits.ts';
import { checkGoesOn, checkLog } from '../support/check-log.ts';
import { FaultLog } from '../support/fault-log.ts';
import { modestOrSoak, sample, summarize } from '../support/scale.ts';
import { type Random, seededRandom } from '../support/seed.ts';
import { TempDirectory } from '../support/temp.ts';
import { readWal, type WalRecord, walFiles } from '../support/wal.ts';

describe('damage', () => {
  let home: TempDirectory;
  /** One WAL of several blocks, killed. */
  let oneWal: FaultLog;
  let copies = 0;

  before(async function () {
    this.timeout(60_000);
    home = new TempDirectory('damage');
    oneWal = new FaultLog(home.join('one-wal'), home.join('one-wal.ids'), 40);
    await using writer = oneWal.start([{ do: 'open' }, { do: 'append', events: 400 }, { do: 'die' }]);
    await writer.exit();
    assert.ok(oneWal.acknowledged.length >= 400, writer.stderr);
  });

  after(() => home[Symbol.dispose]());

  function copyOf(log: FaultLog): string {
    const copy = home.join(`copy-${copies++}`);
    copyLog(log.directory, copy);
    return copy;
  }

  it('a log whose last record is cut at any byte opens without that record alone, and goes on', async function () {
    this.timeout(modestOrSoak(60_000, 600_000));
    const wal = lastWal(oneWal.directory);
    const last = readWal(wal).at(-1) as WalRecord;
    const torn = oneWal.eventsIn(last.bytes);
    assert.ok(torn.length > 0, 'the last record holds no event');
    const cuts = sample(
      Array.from({ length: last.end - last.start + 1 }, (_, i) => last.start + i),
      24,
    );
    for (const length of cuts) {
      const copy = copyOf(oneWal);
      truncateSync(join(copy, 'db', basename(wal)), length);
      const lost = length < last.end ? torn : [];
      await opensWithout(oneWal, copy, lost, `cut at byte ${length - last.start} of ${last.end - last.start}`);
      rmSync(copy, { recursive: true });
    }
    summarize({ torn_tails: cuts.length });
  });

  it('what a crash leaves behind the last record, zeros or rubbish, is no damage', async () => {
    const random = seededRandom('rubbish behind the end');
    const rubbish = Buffer.from(Array.from({ length: 5000 }, () => random.between(0, 255)));
    for (const tail of [Buffer.alloc(4096), Buffer.alloc(64 * KIB), rubbish, rubbish.subarray(0, 3)]) {
      const copy = copyOf(oneWal);
      const wal = lastWal(copy);
      writeFileSync(wal, Buffer.concat([readFileSync(wal), tail]));
      await opensWithout(oneWal, copy, [], `${tail.length} bytes behind the end`);
    }
  });

  it('a bit flipped anywhere before the last record is damage', async function () {
    this.timeout(modestOrSoak(60_000, 300_000));
    const random = seededRandom('flipped bit');
    const flips = modestOrSoak(8, 80);
    for (let i = 0; i < flips; i++) {
      const copy = copyOf(oneWal);
      const at = flipIn(lastWal(copy), random, () => true);
      await isDamaged(copy, `a bit flipped at byte ${at}`);
    }
    summarize({ flipped_bits: flips });
  });

  it('a bit flipped in the last block of the WAL, with whole records behind it, is damage and no torn tail', async function () {
    this.timeout(60_000);
    const random = seededRandom('flipped bit in the last block');
    for (let i = 0; i < modestOrSoak(4, 40); i++) {
      const copy = copyOf(oneWal);
      const wal = lastWal(copy);
      const lastBlock = Math.floor((statSync(wal).size - 1) / (32 * KIB)) * 32 * KIB;
      const at = flipIn(wal, random, (record) => record.start >= lastBlock);
      await isDamaged(copy, `a bit flipped at byte ${at}, the last block begins at ${lastBlock}`);
    }
  });

  it('4 KiB of zeros in the middle of the WAL are damage', async function () {
    this.timeout(modestOrSoak(60_000, 300_000));
    const random = seededRandom('zeroed page');
    for (let i = 0; i < modestOrSoak(4, 40); i++) {
      const copy = copyOf(oneWal);
      const wal = lastWal(copy);
      const bytes = readFileSync(wal);
      const page = random.between(0, Math.floor((readWal(wal).at(-1) as WalRecord).start / 4096) - 1);
      bytes.fill(0, page * 4096, page * 4096 + 4096);
      writeFileSync(wal, bytes);
      await isDamaged(copy, `page ${page} zeroed`);
    }
  });

  it('an older WAL that is missing or cut short beside a newer one is damage', async function () {
    this.timeout(120_000);
    const two = await logWithTwoWals(home);
    const missing = copyOf(two);
    const [older, newer] = walFiles(join(missing, 'db')).filter((path) => statSync(path).size > 0);
    assert.ok(older !== undefined && newer !== undefined);
    rmSync(older);
    await isDamaged(missing, 'the older of two WALs missing');

    const cut = copyOf(two);
    const records = readWal(join(cut, 'db', basename(older)));
    truncateSync(join(cut, 'db', basename(older)), (records[Math.floor(records.length / 2)] as WalRecord).start);
    await isDamaged(cut, 'the older of two WALs cut at a record in its middle');

    const torn = copyOf(two);
    truncateSync(join(torn, 'db', basename(older)), (records.at(-1) as WalRecord).end - 1);
    await isDamaged(torn, 'the last record of the older of two WALs torn');
    // The two are whole otherwise: without damage the log has everything.
    await opensWithout(two, copyOf(two), [], 'two WALs, no damage');
  });

  for (const name of ['CURRENT', 'MANIFEST']) {
    it(`an emptied ${name} is damage`, async () => {
      const copy = copyOf(oneWal);
      const file = readdirSync(join(copy, 'db')).find((entry) => entry.startsWith(name)) as string;
      truncateSync(join(copy, 'db', file), 0);
      await isDamaged(copy, `${file} emptied`);
      rmSync(join(copy, 'db', file));
      await isDamaged(copy, `${file} missing`);
    });
  }

  it('a table file that is missing, emptied or changed never gives a log that claims to be whole', async function () {
    this.timeout(120_000);
    const random = seededRandom('table files');
    const log = new FaultLog(home.join('tables'), home.join('tables.ids'), 40);
    await using writer = log.start([
      { do: 'open', options: { writeBufferBytes: 256 * KIB } },
      { do: 'append', events: 2500 },
      { do: 'die' },
    ]);
    await writer.exit();
    const tables = readdirSync(join(log.directory, 'db')).filter((name) => name.endsWith('.sst'));
    assert.ok(tables.length > 0, 'nothing was flushed');
    for (const harm of ['missing', 'emptied', 'changed'] as const) {
      const copy = copyOf(log);
      const table = join(copy, 'db', random.pick(tables));
      if (harm === 'missing') rmSync(table);
      else if (harm === 'emptied') truncateSync(table, 0);
      else flip(table, random.between(0, Math.floor(statSync(table).size * 0.9)), random);
      await isFoundOut(log, copy, `${basename(table)} ${harm}`);
    }
  });

  it('a head snapshot that is gone, torn, changed or stale costs nothing', async function () {
    this.timeout(60_000);
    const random = seededRandom('head snapshots');
    const log = new FaultLog(home.join('heads'), home.join('heads.ids'), 40);
    const life = [{ do: 'open' }, { do: 'append', events: 200 }, { do: 'close' }] as const;
    await using first = log.start([...life]);
    await first.exit();
    const [stale] = snapshotsIn(log.directory);
    assert.ok(stale !== undefined, 'closing a log leaves a snapshot of its heads');
    const kept = readFileSync(join(log.directory, stale));
    await using second = log.start([...life, { do: 'open' }, { do: 'append', events: 50 }, { do: 'die' }]);
    await second.exit();
    for (const harm of ['gone', 'torn', 'emptied', 'changed', 'stale'] as const) {
      const copy = copyOf(log);
      for (const name of snapshotsIn(copy)) {
        const path = join(copy, name);
        const { size } = statSync(path);
        if (harm === 'gone' || harm === 'stale') rmSync(path);
        else if (harm === 'torn') truncateSync(path, random.between(1, size - 1));
        else if (harm === 'emptied') truncateSync(path, 0);
        else flip(path, random.between(0, size - 1), random);
      }
      if (harm === 'stale') writeFileSync(join(copy, stale), kept);
      await opensWithout(log, copy, [], `head snapshot ${harm}`);
    }
    const foreign = copyOf(log);
    for (const name of snapshotsIn(foreign)) rmSync(join(foreign, name));
    // The right name and the wrong log: only the hash at its LSN tells.
    const [place] = snapshotsIn(log.directory);
    const other = new FaultLog(home.join('other'), home.join('other.ids'), 40);
    await using third = other.start([...life]);
    await third.exit();
    cpSync(join(other.directory, snapshotsIn(other.directory)[0] as string), join(foreign, place as string));
    await opensWithout(log, foreign, [], 'head snapshot of another log');
  });

  it('ack.json or writer.json torn, emptied or gone costs nothing', async function () {
    this.timeout(60_000);
    const log = new FaultLog(home.join('acked'), home.join('acked.ids'), 40);
    await using writer = log.start([
      { do: 'open' },
      { do: 'append', events: 200 },
      { do: 'ack' },
      { do: 'append', events: 50 },
      { do: 'die' },
    ]);
    await writer.exit();
    for (const name of ['ack.json', 'writer.json']) {
      for (const harm of ['gone', 'torn', 'emptied', 'rubbish'] as const) {
        const copy = copyOf(log);
        const path = join(copy, name);
        if (harm === 'gone') rmSync(path);
        else if (harm === 'rubbish') writeFileSync(path, '\u0000{"pid":');
        else truncateSync(path, harm === 'torn' ? Math.floor(statSync(path).size / 2) : 0);
        await opensWithout(log, copy, [], `${name} ${harm}`);
      }
    }
  });

  it('a log that another process writes is locked and says by whom; when that dies it is taken over', async function () {
    this.timeout(60_000);
    const log = new FaultLog(home.join('locked'), home.join('locked.ids'), 40);
    await using writer = log.start([{ do: 'open' }, { do: 'append', events: null }]);
    await writer.line('ack ');
    const started = Date.now();
    const error = await HotLog.open(log.directory, { lockTimeoutMs: 300 }).then(
      () => assert.fail('two writers'),
      (reason: unknown) => reason,
    );
    assert.ok(isVarveError(error, 'HOT_LOCKED'), String(error));
    assert.equal(error.details['pid'], writer.pid);
    assert.match(error.message, new RegExp(`\\b${writer.pid}\\b`));
    assert.ok(Date.now() - started >= 290, 'it did not wait for the lock');

    const waiting = HotLog.open(log.directory, { lockTimeoutMs: 20_000, tail: false });
    await sleep(200);
    writer.kill();
    await writer.exited;
    const taken = await waiting;
    await checkLog(taken, log.ids, log.acknowledged);
    await checkGoesOn(taken, log.ids);
    await taken.close();
  });

  it('a log is locked for its own process as well', async () => {
    const copy = copyOf(oneWal);
    await using first = await HotLog.open(copy, { tail: false });
    await assert.rejects(HotLog.open(copy, { lockTimeoutMs: 100 }), (error) => {
      assert.ok(isVarveError(error, 'HOT_LOCKED'), String(error));
      assert.equal(error.details['pid'], process.pid);
      return true;
    });
    await checkGoesOn(first, oneWal.ids);
  });

  it('a writer.json of a dead process, or of a living one that is no writer, does not lock', async function () {
    this.timeout(60_000);
    const dead = spawnSync('true').pid;
    const stranger = spawn('sleep', ['60']);
    try {
      for (const pid of [dead, stranger.pid as number, process.pid, 1]) {
        const copy = copyOf(oneWal);
        const path = join(copy, 'writer.json');
        const owner = JSON.parse(readFileSync(path, 'utf8')) as { pid: number };
        assert.equal(typeof owner.pid, 'number');
        writeFileSync(path, JSON.stringify({ ...owner, pid }));
        const started = Date.now();
        await opensWithout(oneWal, copy, [], `writer.json names process ${pid}`);
        assert.ok(Date.now() - started < 3000, `it waited for process ${pid}`);
      }
    } finally {
      stranger.kill('SIGKILL');
    }
  });

  it('a socket that a dead writer left does not keep the next one from serving', async () => {
    const copy = copyOf(oneWal);
    await leaveSocket(join(copy, 'tail.sock'));
    assert.ok(lstatSync(join(copy, 'tail.sock')).isSocket());
    await opensWithout(oneWal, copy, [], 'a stale socket', true);
  });

  it('a directory that is no log is refused and not touched', async () => {
    const directory = home.join('no-log');
    cpSync(join(import.meta.dirname, '..', 'support'), directory, { recursive: true });
    const before = fingerprint(directory);
    await assert.rejects(HotLog.open(directory), (error) => error instanceof VarveError);
    assert.deepEqual(fingerprint(directory), before);
  });

  it('a log is not made anew where its database folder or its log.json has gone', async () => {
    for (const name of ['db', 'log.json']) {
      const copy = copyOf(oneWal);
      renameSync(join(copy, name), home.join(`gone-${name}`));
      const before = fingerprint(copy);
      const log = await HotLog.open(copy, { lockTimeoutMs: 500, tail: false }).catch((error: unknown) => error);
      if (log instanceof HotLog) {
        // log.json may be derived again; events may not.
        await checkLog(log, oneWal.ids, oneWal.acknowledged);
        await log.close();
        continue;
      }
      assert.ok(isVarveError(log), String(log));
      assert.deepEqual(fingerprint(copy), before, `without ${name} the log was refused and something was written`);
    }
  });
});

/** Opens with everything acknowledged but `lost`, none of which is there; goes on; opens again with all of that. */
async function opensWithout(
  log: FaultLog,
  copy: string,
  lost: readonly { readonly lsn: bigint }[],
  what: string,
  tail = false,
): Promise<void> {
  const gone = new Set(lost.map((one) => one.lsn));
  const kept = log.acknowledged.filter((one) => !gone.has(one.lsn));
  try {
    const first = await HotLog.open(copy, { lockTimeoutMs: 5000, tail });
    const { lastLsn } = await checkLog(first, log.ids, kept);
    for (const { lsn } of lost) assert.ok(lastLsn < lsn, `LSN ${lsn} of the torn record is there`);
    const appended = await checkGoesOn(first, log.ids);
    await first.close();
    const second = await HotLog.open(copy, { lockTimeoutMs: 5000, tail });
    await checkLog(second, log.ids, [...kept, ...appended]);
    await second.close();
  } catch (cause) {
    throw new Error(`${what}: ${cause instanceof Error ? cause.message : String(cause)}`, { cause });
  }
}

/** Refused as damaged, twice, and every file is as it was. */
async function isDamaged(copy: string, what: string): Promise<void> {
  const before = fingerprint(copy);
  for (const attempt of ['first', 'second']) {
    const result = await HotLog.open(copy, { lockTimeoutMs: 1000 }).catch((error: unknown) => error);
    if (result instanceof HotLog) {
      const { durableLsn } = result;
      await result.close();
      assert.fail(`${what}: the log opened and ends at LSN ${durableLsn}`);
    }
    assert.ok(isVarveError(result, 'HOT_DAMAGED'), `${what}: ${String(result)}`);
    assert.deepEqual(fingerprint(copy), before, `${what}: the ${attempt} refusal changed a file`);
  }
}

/** Either it is refused as damaged, or `verify` says so, or a read does; never a whole log with other content. */
async function isFoundOut(log: FaultLog, copy: string, what: string): Promise<void> {
  const before = fingerprint(copy);
  const opened = await HotLog.open(copy, { lockTimeoutMs: 1000, tail: false }).catch((error: unknown) => error);
  if (!(opened instanceof HotLog)) {
    assert.ok(isVarveError(opened, 'HOT_DAMAGED'), `${what}: ${String(opened)}`);
    assert.deepEqual(fingerprint(copy), before, `${what}: the refusal changed a file`);
    return;
  }
  try {
    const error = await checkLog(opened, log.ids, log.acknowledged).then(
      () => undefined,
      (reason: unknown) => reason,
    );
    // The changed byte may be one that nothing depends on: a filter, a property, padding.
    if (error !== undefined)
      assert.ok(isVarveError(error, 'HOT_DAMAGED'), `${what}: reading it gave ${inspect(error)}`);
  } finally {
    await opened.close();
  }
}

/** Everything about every file but the bytes of LOCK, which is never opened. */
function fingerprint(directory: string): Record<string, string> {
  const all: Record<string, string> = {};
  for (const entry of readdirSync(directory, { recursive: true, withFileTypes: true })) {
    const path = join(entry.parentPath, entry.name);
    if (entry.name === 'LOCK') continue;
    all[path] = entry.isFile() ? createHash('sha256').update(readFileSync(path)).digest('hex') : 'no file';
  }
  return all;
}

/** A copy of a log that nobody has open. Sockets stay behind; LOCK is not opened. */
function copyLog(from: string, to: string): void {
  cpSync(from, to, {
    recursive: true,
    filter: (path) => basename(path) !== 'LOCK' && !lstatSync(path).isSocket(),
  });
}

function lastWal(directory: string): string {
  return walFiles(join(directory, 'db')).findLast((path) => statSync(path).size > 0) as string;
}

function snapshotsIn(directory: string): string[] {
  return readdirSync(directory).filter((name) => name.startsWith('heads-'));
}

/** Flips a bit in a record, other than the last, that `where` allows; returns the offset. */
function flipIn(wal: string, random: Random, where: (record: WalRecord) => boolean): number {
  const records = readWal(wal).slice(0, -1).filter(where);
  const record = random.pick(records);
  const at = random.between(record.start, record.end - 1);
  flip(wal, at, random);
  return at;
}

function flip(path: string, at: number, random: Random): void {
  const bytes = readFileSync(path);
  bytes[at] = (bytes[at] as number) ^ (1 << random.between(0, 7));
  writeFileSync(path, bytes);
}

/** A writer that was stopped, and killed, while two of its WALs held events: one is being flushed. */
async function logWithTwoWals(home: TempDirectory): Promise<FaultLog> {
  const log = new FaultLog(home.join('two-wals'), home.join('two-wals.ids'), 200);
  await using writer = log.start([
    { do: 'open', options: { writeBufferBytes: 512 * KIB } },
    { do: 'append', events: null },
  ]);
  await writer.line('ack ');
  const database = join(log.directory, 'db');
  for (const deadline = Date.now() + 60_000; Date.now() < deadline; await sleep(1)) {
    if (walFiles(database).length < 2) continue;
    writer.kill('SIGSTOP');
    await sleep(5);
    const sizes = walFiles(database).map((path) => statSync(path).size);
    if (sizes.length === 2 && sizes.every((size) => size > 20 * KIB)) {
      writer.kill();
      await writer.exited;
      return log;
    }
    writer.kill('SIGCONT');
  }
  throw new Error('no moment with two WALs was found');
}

/** A socket file whose process is dead. */
async function leaveSocket(path: string): Promise<void> {
  const script = `require('node:net').createServer().listen(${JSON.stringify(path)}, () => process.kill(process.pid, 'SIGKILL'))`;
  const child: ChildProcess = spawn(process.execPath, ['-e', script], { stdio: 'ignore' });
  await new Promise((resolve) => child.once('exit', resolve));
}
