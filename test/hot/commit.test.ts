import assert from 'node:assert/strict';
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { setImmediate as turnOfTheLoop } from 'node:timers/promises';
import type { Appended } from '../../hot/heads.ts';
import { HotLog } from '../../hot/log.ts';
import { isVarveError } from '../../schemas/errors.ts';
import { newTrajectoryId, type TrajectoryId } from '../../schemas/ids.ts';
import { KIB, MIB } from '../../schemas/limits.ts';
import { TempDirectory } from '../support/temp.ts';
import { all, denseLog, event, FINISH, intent, note, refused, result, SMALL, sequences } from './support/hot.ts';

const LARGE = 'x'.repeat(100 * KIB);
const notes = async (log: HotLog, id: TrajectoryId) => (await all(log.read(id))).map(({ payload }) => payload['n']);
const numbered = (n: number, text = '') => note(text, { n });

/** Makes the next blob write of this log fail, as a broken disk would. */
function breakBlobs(temp: TempDirectory): void {
  rmSync(temp.join('log', 'blobs', 'tmp'), { recursive: true });
  writeFileSync(temp.join('log', 'blobs', 'tmp'), '');
}

function mendBlobs(temp: TempDirectory): void {
  rmSync(temp.join('log', 'blobs', 'tmp'));
  mkdirSync(temp.join('log', 'blobs', 'tmp'));
}

/** Appends one after the other until the log takes no more; what was acknowledged, and why it ended. */
async function writeOn(
  log: HotLog,
  pace: number,
  text: (n: number) => string,
): Promise<{ id: TrajectoryId; acked: Appended[]; code: string }> {
  const id = newTrajectoryId();
  const acked: Appended[] = [];
  for (;;) {
    try {
      acked.push(await log.append(id, numbered(acked.length, text(acked.length))));
      // A writer does not always come back in the very next microtask.
      for (let i = 0; i < (acked.length + pace) % 7; i++) await Promise.resolve();
    } catch (error) {
      return { id, acked, code: isVarveError(error) ? error.code : String(error) };
    }
  }
}

describe('group commit', () => {
  let temp: TempDirectory;
  beforeEach(() => {
    temp = new TempDirectory('commit');
  });
  afterEach(() => temp[Symbol.dispose]());
  const open = (options: object = {}) => HotLog.open(temp.join('log'), { ...SMALL, ...options });

  it('keeps the order of calls in each trajectory, whatever they have to wait for', async () => {
    await using log = await open({ commit: { maxBatchBytes: 20_000, maxQueuedBytes: 20_000 } });
    const ids = Array.from({ length: 4 }, () => newTrajectoryId());
    const calls: Promise<unknown>[] = [];
    for (let n = 0; n < 120; n += 2) {
      for (const id of ids) {
        if (n % 10 === 0) calls.push(log.appendAll(id, [numbered(n), numbered(n + 1, n % 20 === 0 ? LARGE + n : '')]));
        else
          calls.push(
            log.append(id, numbered(n, n % 6 === 0 ? LARGE + n : 'y'.repeat(n * 30))),
            log.append(id, numbered(n + 1)),
          );
      }
    }
    await Promise.all(calls);
    const wanted = Array.from({ length: 120 }, (_, n) => n);
    for (const id of ids) assert.deepEqual(await notes(log, id), wanted);
    await denseLog(log);
  });

  it('takes what arrives during a barrier under the next one, and no more than a batch holds', async () => {
    const appendMany = async (options: object) => {
      await using log = await HotLog.open(temp.join(String(Math.random())), { ...SMALL, ...options });
      const id = newTrajectoryId();
      await Promise.all(Array.from({ length: 200 }, (_, n) => log.append(id, numbered(n, 'x'.repeat(100)))));
      assert.deepEqual(
        await notes(log, id),
        Array.from({ length: 200 }, (_, n) => n),
      );
      return log.stages.flushes;
    };
    assert.equal(await appendMany({}), 1, 'one turn of the loop, one barrier');
    assert.equal(await appendMany({ commit: { maxBatchEvents: 10 } }), 20);
    assert.equal(await appendMany({ commit: { maxBatchEvents: 1 } }), 200);
    const byBytes = await appendMany({ commit: { maxBatchBytes: 10_000 } });
    assert.ok(byBytes > 5 && byBytes < 20, `${byBytes} batches`);
  });

  it('waits for company as long as it was told to', async () => {
    await using log = await open({ commit: { windowMs: 200 } });
    const first = log.append(newTrajectoryId(), note());
    await turnOfTheLoop();
    await turnOfTheLoop();
    const second = log.append(newTrajectoryId(), note());
    await Promise.all([first, second]);
    assert.equal(log.stages.flushes, 1);
  });

  it('keeps the events of one appendAll together, in LSN order and under one barrier', async () => {
    await using log = await open({ commit: { maxBatchEvents: 2 } });
    const id = newTrajectoryId();
    const other = newTrajectoryId();
    const before = Array.from({ length: 5 }, (_, n) => log.append(other, numbered(n)));
    const group = log.appendAll(
      id,
      Array.from({ length: 9 }, (_, n) => numbered(n, n === 4 ? LARGE : '')),
    );
    const after = Array.from({ length: 5 }, (_, n) => log.append(other, numbered(n)));
    const receipts = await group;
    await Promise.all([...before, ...after]);
    assert.deepEqual(
      receipts.map(({ sequence_number }) => Number(sequence_number)),
      [1, 2, 3, 4, 5, 6, 7, 8, 9],
    );
    const first = receipts[0]?.lsn as bigint;
    assert.deepEqual(
      receipts.map(({ lsn }) => lsn),
      receipts.map((_, i) => first + BigInt(i)),
    );
    assert.deepEqual(await log.appendAll(id, []), []);
  });

  it('lets appends wait at the door while the queue is full, and loses none', async () => {
    await using log = await open({ commit: { maxBatchBytes: 1, maxQueuedBytes: 1 } });
    const id = newTrajectoryId();
    const receipts = await Promise.all(Array.from({ length: 100 }, (_, n) => log.append(id, numbered(n))));
    assert.deepEqual(
      receipts.map(({ lsn }) => Number(lsn)),
      Array.from({ length: 100 }, (_, n) => n + 1),
    );
    assert.equal(log.stages.flushes, 100);
  });

  it('refuses appends as HOT_OVERLOADED when those that wait hold 256 MiB, their bodies counted', async () => {
    await using log = await open();
    const text = 'x'.repeat(16 * MIB);
    await log.blobs.put(Buffer.from(text));
    const outcomes = await Promise.allSettled(
      Array.from({ length: 18 }, (_, n) => log.append(newTrajectoryId(), numbered(n, text))),
    );
    const failures = outcomes
      .filter(({ status }) => status === 'rejected')
      .map((outcome) => (outcome as PromiseRejectedResult).reason as unknown);
    assert.ok(failures.length === 2 || failures.length === 3, `${failures.length} of 18 were refused`);
    for (const error of failures) assert.ok(isVarveError(error, 'HOT_OVERLOADED') && error.retry, String(error));
    await log.append(newTrajectoryId(), numbered(1, text));
    await denseLog(log);
  });

  it('repeats an append at its number while others never pause', async () => {
    await using log = await open();
    const id = newTrajectoryId();
    const first = await log.append(id, note('first'));
    let stop = false;
    const writers = Array.from({ length: 16 }, async () => {
      const own = newTrajectoryId();
      while (!stop) await log.append(own, note());
    });
    const again = await log.append(id, note('first'), { at: 1 });
    assert.equal(again.cryptographic_hash, first.cryptographic_hash);
    assert.equal((await log.verify()).damage, undefined);
    stop = true;
    await Promise.all(writers);
  });

  it('reads what is durable while the head runs ahead of it', async () => {
    await using log = await open({ commit: { windowMs: 20 } });
    const id = newTrajectoryId();
    await log.appendAll(id, [note(), note()]);
    for (const ahead of [FINISH, note('late'), FINISH]) {
      const durable = Number(log.head(id)?.sequence_number);
      const appended = log.append(id, ahead);
      const wanted = Array.from({ length: durable }, (_, i) => i + 1);
      const read = await Promise.all([sequences(log.read(id)), sequences(log.read(id, 2))]);
      assert.deepEqual(read, [wanted, wanted.slice(1)]);
      await appended;
    }
    const fresh = newTrajectoryId();
    const appended = log.appendAll(fresh, [note(), FINISH]);
    // It has entered the batch and not reached the disk.
    await turnOfTheLoop();
    assert.deepEqual([await sequences(log.read(fresh)), log.head(fresh)], [[], undefined]);
    await appended;
    assert.deepEqual(await sequences(log.read(fresh)), [1, 2]);
  });

  it('knows which intents have no result, in log order, also after reopening without a snapshot', async () => {
    const [a, b] = [newTrajectoryId(), newTrajectoryId()];
    await using log = await open();
    await log.appendAll(a, [intent('1'), intent('2')]);
    await log.append(b, intent('1'));
    await log.appendAll(a, [intent('3'), result('1'), result('unknown')]);
    const calls = async (log: HotLog) =>
      (await log.inDoubt()).map(({ trajectory_id, payload }) => [trajectory_id, payload['tool_call_id']]);
    const wanted = [
      [a, '2'],
      [b, '1'],
      [a, '3'],
    ];
    assert.deepEqual(await calls(log), wanted);
    await log.close();
    await using again = await open();
    assert.deepEqual(await calls(again), wanted);
    await again.append(a, event('ToolResult', { tool_call_id: '2' }));
    assert.deepEqual(await calls(again), wanted.slice(1));
  });
});

describe('the first failed write', () => {
  let temp: TempDirectory;
  beforeEach(() => {
    temp = new TempDirectory('failed');
  });
  afterEach(() => temp[Symbol.dispose]());
  const open = (options: object = {}) => HotLog.open(temp.join('log'), { ...SMALL, ...options });

  it('ends the log: everything is refused, what is durable is still read, and reopening goes on', async () => {
    const log = await open();
    const id = newTrajectoryId();
    await log.append(id, note('before'));
    breakBlobs(temp);
    await refused(log.append(id, note(LARGE)), 'HOT_FAILED');
    await refused(log.append(id, note()), 'HOT_FAILED');
    await refused(log.append(id, note('before'), { at: 1 }), 'HOT_FAILED');
    await refused(log.appendAll(newTrajectoryId(), [note()]), 'HOT_FAILED');
    await refused(log.trim(), 'HOT_FAILED');
    await refused(log.whenReplicated(log.durableLsn), 'HOT_FAILED');
    assert.deepEqual(await sequences(log.read(id)), [1]);
    assert.equal(log.durableLsn, 1n);
    assert.equal(log.head(id)?.sequence_number, 1);
    await log.close();
    await log.close();

    mendBlobs(temp);
    await using again = await open();
    assert.equal((await again.append(id, note(LARGE), { at: 2 })).sequence_number, 2);
    assert.equal((await again.verify({ deep: true })).damage, undefined);
  });

  it('answers every append that was under way, also those that wait for room', async () => {
    const log = await open({ commit: { maxBatchBytes: 1, maxQueuedBytes: 1 } });
    const id = newTrajectoryId();
    await log.append(id, numbered(0));
    breakBlobs(temp);
    const calls = Array.from({ length: 3000 }, (_, n) => log.append(id, numbered(n + 1)));
    calls.push(log.append(newTrajectoryId(), note(LARGE)));
    const outcomes = await Promise.allSettled(calls);
    const acked = outcomes.filter(({ status }) => status === 'fulfilled').length;
    assert.ok(acked < 3000, 'the failure came too late to be seen');
    for (const outcome of outcomes.slice(acked)) {
      assert.ok(
        outcome.status === 'rejected' && isVarveError(outcome.reason, 'HOT_FAILED'),
        'an append behind the failure',
      );
    }
    await log.close();

    mendBlobs(temp);
    await using again = await open();
    const stored = await notes(again, id);
    assert.ok(stored.length >= acked + 1, 'an acknowledged event is gone');
    assert.deepEqual(
      stored,
      Array.from({ length: stored.length }, (_, n) => n),
    );
    // Whoever does not know repeats with the number, and gets what is there or what is new.
    for (let n = acked + 1; n < acked + 4; n++) {
      assert.equal((await again.append(id, numbered(n), { at: n + 1 })).sequence_number, n + 1);
    }
    assert.deepEqual(
      (await notes(again, id)).slice(0, acked + 4),
      Array.from({ length: acked + 4 }, (_, n) => n),
    );
  });
});

describe('close', () => {
  let temp: TempDirectory;
  beforeEach(() => {
    temp = new TempDirectory('close');
  });
  afterEach(() => temp[Symbol.dispose]());
  const open = (options: object = {}) => HotLog.open(temp.join('log'), { ...SMALL, ...options });

  for (const [how, options] of [
    ['writers that never pause', {}],
    ['a window', { commit: { windowMs: 5 } }],
    ['a full queue', { commit: { maxBatchBytes: 1, maxQueuedBytes: 1 } }],
  ] as const) {
    it(`ends under ${how}; what was acknowledged is there afterwards and nothing else`, async () => {
      const log = await open(options);
      const writers = Array.from({ length: 32 }, (_, i) =>
        writeOn(log, i, (n) => ((n + i) % 9 === 0 ? `${LARGE}${n}` : '')),
      );
      const busy = newTrajectoryId();
      for (let n = 0; n < 5; n++) await log.append(busy, note());
      await Promise.all([log.close(), log.close()]);
      const ended = await Promise.all(writers);
      for (const { code } of ended) assert.equal(code, 'HOT_CLOSED');

      await using again = await open();
      for (const { id, acked } of ended) {
        const there = acked.length === 0 ? [] : (await all(again.read(id))).map((event) => event.cryptographic_hash);
        assert.deepEqual(
          there,
          acked.map((receipt) => receipt.cryptographic_hash),
        );
      }
      assert.equal((await again.verify({ deep: true })).damage, undefined);
    });
  }

  it('takes what was called before it and refuses what is called after it', async () => {
    const log = await open({ commit: { windowMs: 10 } });
    const id = newTrajectoryId();
    const before = [log.append(id, note(LARGE)), log.append(id, note()), log.appendAll(id, [note(), note()])];
    const closed = log.close();
    await refused(log.append(id, note()), 'HOT_CLOSED');
    await Promise.all(before);
    await closed;
    await using again = await open();
    assert.deepEqual(await sequences(again.read(id)), [1, 2, 3, 4]);
  });

  it('ends readers that are in the middle with HOT_CLOSED', async () => {
    const log = await open();
    const id = newTrajectoryId();
    for (let n = 0; n < 40; n++) await log.append(id, note('x'.repeat(20_000)));
    const reader = log.read(id);
    const logReader = log.readLog();
    const unread = log.read(id);
    await reader.next();
    await logReader.next();
    // Pages under way when the database is closed under them.
    const running = Promise.allSettled(Array.from({ length: 8 }, () => all(log.readLog())));
    await log.close();
    await refused(all(reader), 'HOT_CLOSED');
    await refused(all(unread), 'HOT_CLOSED');
    await all(logReader).catch((error: unknown) => assert.ok(isVarveError(error, 'HOT_CLOSED'), String(error)));
    for (const outcome of await running) {
      if (outcome.status === 'rejected') assert.ok(isVarveError(outcome.reason, 'HOT_CLOSED'), String(outcome.reason));
      else assert.equal(outcome.value.length, 40);
    }
  });

  it('waits for a trim that is under way', async () => {
    const log = await open();
    const id = newTrajectoryId();
    await log.appendAll(id, [note(), FINISH]);
    const trimming = log.trim();
    await log.close();
    await trimming.catch((error: unknown) => assert.ok(isVarveError(error, 'HOT_CLOSED'), String(error)));
  });

  it('is safe where the log was never used', async () => {
    await (await open()).close();
    await using log = await open({ create: false });
    assert.equal(log.durableLsn, 0n);
    assert.deepEqual(await denseLog(log), []);
  });
});
