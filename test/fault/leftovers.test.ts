/**
 * Leftovers: what a dead writer leaves beside its events can be derived again, or says only who was there. Snapshots,
 * acks, writer.json and sockets may be gone, torn, changed, stale or foreign, and the log has everything; only a living
 * writer keeps it shut.
 */

import assert from 'node:assert/strict';
import type { ChildProcess } from 'node:child_process';
import { spawn, spawnSync } from 'node:child_process';
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
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { HotLog } from '../../hot/log.ts';
import { isVarveError, VarveError } from '../../schemas/errors.ts';
import { checkGoesOn, checkLog } from '../support/check-log.ts';
import { copyLog, fingerprint, flip, opensWithout, tryToOpen } from '../support/damage.ts';
import { FaultLog } from '../support/fault-log.ts';
import { seededRandom } from '../support/seed.ts';
import { TempDirectory } from '../support/temp.ts';

describe('leftovers of a dead writer', () => {
  let home: TempDirectory;
  /** Killed. */
  let killed: FaultLog;
  let copies = 0;

  before(async function () {
    this.timeout(60_000);
    home = new TempDirectory('left');
    killed = new FaultLog(home.join('killed'), home.join('killed.ids'), 40);
    await using writer = killed.start([{ do: 'open' }, { do: 'append', events: 400 }, { do: 'die' }]);
    await writer.exit();
    assert.ok(killed.acknowledged.length >= 400, writer.stderr);
  });

  after(() => home[Symbol.dispose]());

  function copyOf(log: FaultLog): string {
    const copy = home.join(`copy-${copies++}`);
    copyLog(log.directory, copy);
    return copy;
  }

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
    const copy = copyOf(killed);
    await using first = await HotLog.open(copy, { tail: false });
    await assert.rejects(HotLog.open(copy, { lockTimeoutMs: 100 }), (error) => {
      assert.ok(isVarveError(error, 'HOT_LOCKED'), String(error));
      assert.equal(error.details['pid'], process.pid);
      return true;
    });
    await checkGoesOn(first, killed.ids);
  });

  it('a writer.json of a dead process, or of a living one that is no writer, does not lock', async function () {
    this.timeout(60_000);
    const dead = spawnSync('true').pid;
    const stranger = spawn('sleep', ['60']);
    try {
      for (const pid of [dead, stranger.pid as number, process.pid, 1]) {
        const copy = copyOf(killed);
        const path = join(copy, 'writer.json');
        const owner = JSON.parse(readFileSync(path, 'utf8')) as { pid: number };
        assert.equal(typeof owner.pid, 'number');
        writeFileSync(path, JSON.stringify({ ...owner, pid }));
        const started = Date.now();
        await opensWithout(killed, copy, [], `writer.json names process ${pid}`);
        assert.ok(Date.now() - started < 3000, `it waited for process ${pid}`);
      }
    } finally {
      stranger.kill('SIGKILL');
    }
  });

  it('a copy of a log is not locked by the writer of the original', async function () {
    this.timeout(60_000);
    const log = new FaultLog(home.join('original'), home.join('original.ids'), 40);
    // Nothing is under way while the copy is made, so it is a whole log with a living process in its writer.json.
    await using writer = log.start([{ do: 'open' }, { do: 'append', events: 100 }, { do: 'wait', line: 'never' }]);
    await writer.line('done append');
    const started = Date.now();
    await opensWithout(log, copyOf(log), [], 'a copy');
    assert.ok(Date.now() - started < 3000, 'it waited for the writer of the original');
  });

  it('a socket that a dead writer left does not keep the next one from serving', async () => {
    const copy = copyOf(killed);
    await leaveSocket(join(copy, 'tail.sock'));
    assert.ok(lstatSync(join(copy, 'tail.sock')).isSocket());
    await opensWithout(killed, copy, [], 'a stale socket', true);
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
      const copy = copyOf(killed);
      renameSync(join(copy, name), home.join(`gone-${name}`));
      const before = fingerprint(copy);
      const log = await tryToOpen(copy, { lockTimeoutMs: 500, tail: false }, `without ${name}`);
      if (log instanceof HotLog) {
        // log.json may be derived again; events may not.
        await checkLog(log, killed.ids, killed.acknowledged);
        await log.close();
        continue;
      }
      assert.ok(isVarveError(log), String(log));
      assert.deepEqual(fingerprint(copy), before, `without ${name} the log was refused and something was written`);
    }
  });
});

function snapshotsIn(directory: string): string[] {
  return readdirSync(directory).filter((name) => name.startsWith('heads-'));
}

/** A socket file whose process is dead. */
async function leaveSocket(path: string): Promise<void> {
  const script = `require('node:net').createServer().listen(${JSON.stringify(path)}, () => process.kill(process.pid, 'SIGKILL'))`;
  const child: ChildProcess = spawn(process.execPath, ['-e', script], { stdio: 'ignore' });
  await new Promise((resolve) => child.once('exit', resolve));
}
