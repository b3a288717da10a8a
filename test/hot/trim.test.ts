import assert from 'node:assert/strict';
import { readdirSync, rmSync } from 'node:fs';
import { setImmediate as turnOfTheLoop } from 'node:timers/promises';
import fc from 'fast-check';
import type { EventInput } from '../../hot/door.ts';
import { HotLog } from '../../hot/log.ts';
import type { TrimReport } from '../../hot/trim.ts';
import { planTrim, type TrimCandidate } from '../../hot/trim-plan.ts';
import { newTrajectoryId, type TrajectoryId } from '../../schemas/ids.ts';
import { KIB } from '../../schemas/limits.ts';
import { Child } from '../support/child.ts';
import { runs } from '../support/property.ts';
import { TempDirectory } from '../support/temp.ts';
import {
  ackTo,
  all,
  crashCopy,
  denseLog,
  event,
  FINISH,
  intent,
  note,
  refused,
  result,
  SMALL,
  sequences,
} from './support/hot.ts';

const LARGE = 'x'.repeat(100 * KIB);
const checkpoint = event('Checkpoint', { covers_sequence_number: 1 });
const context = (...messages: { from?: number; to?: number; base?: number }[]): EventInput =>
  event('ContextBuilt', { messages });
const from = (first: number, to = first) => ({ from: first, to });

describe('the plan of a trim', () => {
  const candidate: fc.Arbitrary<TrimCandidate> = fc
    .record({
      finished: fc.boolean(),
      sequence: fc.nat(20),
      lsn: fc.nat(100),
      trimmedSequence: fc.nat(20),
      neededFrom: fc.option(fc.integer({ min: 1, max: 25 }), { nil: undefined }),
      held: fc.boolean(),
    })
    .map((fields) => ({ ...fields, trajectory_id: newTrajectoryId() }));

  it('lets go of nothing that is held, needed, not acknowledged, not there or gone already', () => {
    fc.assert(
      fc.property(fc.array(candidate, { maxLength: 8 }), fc.nat(100), (candidates, ackedLsn) => {
        const steps = planTrim(candidates, ackedLsn);
        for (const { trajectory_id, through_sequence } of steps) {
          const of = candidates.find((each) => each.trajectory_id === trajectory_id) as TrimCandidate;
          assert.equal(of.held, false);
          assert.ok(through_sequence <= of.sequence && through_sequence > of.trimmedSequence, 'not there, or gone');
          if (of.finished)
            assert.ok(of.lsn <= ackedLsn && through_sequence === of.sequence, 'not acknowledged, or not whole');
          else assert.ok(of.neededFrom !== undefined && through_sequence < of.neededFrom, 'it is needed');
        }
        const planned = new Set(steps.map(({ trajectory_id }) => trajectory_id));
        for (const each of candidates) {
          const isDue = each.finished && !each.held && each.lsn <= ackedLsn && each.sequence > each.trimmedSequence;
          if (isDue) assert.ok(planned.has(each.trajectory_id), 'a finished trajectory that may go stays');
        }
      }),
      runs(300),
    );
  });
});

describe('trim', () => {
  let temp: TempDirectory;
  let log: HotLog;
  beforeEach(async () => {
    temp = new TempDirectory('trim');
    log = await open();
  });
  afterEach(async () => {
    assert.equal((await log.verify({ deep: true })).damage, undefined);
    await denseLog(log);
    await log.close();
    temp[Symbol.dispose]();
  });
  const open = (options: object = {}, clock: () => number = Date.now) =>
    HotLog.open(temp.join('log'), { ...SMALL, ...options }, { clock });

  async function reopen(how: 'as it is' | 'without snapshots', options: object = {}): Promise<void> {
    await log.close();
    if (how === 'without snapshots') {
      for (const name of readdirSync(temp.join('log'))) if (name.startsWith('heads-')) rmSync(temp.join('log', name));
    }
    log = await open(options);
  }

  async function ackAndTrim(): Promise<TrimReport> {
    await ackTo(log);
    return log.trim();
  }

  const running: readonly (readonly [what: string, events: readonly EventInput[], left: number])[] = [
    ['everything where there is no checkpoint', [note(), context(from(2)), intent('a'), note()], 1],
    ['from its last checkpoint', [note(), checkpoint, note(), checkpoint, note()], 4],
    ['its oldest open intent', [note(), intent('a'), intent('b'), result('b'), checkpoint], 2],
    ['nothing of an intent that has its result', [note(), intent('a'), result('a'), checkpoint], 4],
    ['the oldest event that its context shows', [note(), note(), note(), context(from(3)), checkpoint], 3],
    ['the context itself', [note(), context(), note(), checkpoint], 2],
    [
      'what the contexts below its context show',
      [note(), note(), context(from(2)), context({ base: 3 }, from(4)), checkpoint],
      2,
    ],
    [
      'nothing more where an older context is not in use',
      [note(), context(from(1)), note(), context(from(3)), checkpoint],
      3,
    ],
    ['what it can follow where a base refers to itself', [note(), note(), context({ base: 3 }), checkpoint], 3],
    [
      'what it can follow where bases go round',
      [note(), note(), context({ base: 4 }), context({ base: 3 }), checkpoint],
      3,
    ],
    ['what it can follow where a base lies ahead', [note(), note(), context({ base: 9 }), checkpoint], 3],
  ];
  for (const [what, events, left] of running) {
    it(`keeps of a running trajectory ${what}`, async () => {
      const id = newTrajectoryId();
      await log.appendAll(id, events);
      await ackAndTrim();
      const wanted = events.map((_, i) => i + 1).slice(left - 1);
      assert.deepEqual(await sequences(log.read(id, left)), wanted);
      if (left > 1) await refused(all(log.read(id, left - 1)), 'HOT_TRIMMED');
      await ackAndTrim();
      for (const how of ['as it is', 'without snapshots'] as const) {
        await reopen(how);
        assert.deepEqual(await sequences(log.read(id, left)), wanted, how);
      }
    });
  }

  it('lets a finished trajectory go whole, says so, and goes on at the next number and on the same hash', async () => {
    const id = newTrajectoryId();
    const other = newTrajectoryId();
    await log.append(other, note());
    await log.appendAll(id, [note(), checkpoint, context(from(1)), intent('open'), FINISH]);
    const head = log.head(id);
    const report = await ackAndTrim();
    assert.deepEqual([report.trajectories, report.events], [1, 5]);
    const error = await refused(all(log.read(id)), 'HOT_TRIMMED');
    assert.deepEqual([error.details['tier'], error.details['first_available']], ['warm', 6]);
    assert.deepEqual(await log.inDoubt(), [], 'warm lists the open intents of what was trimmed');
    assert.equal(log.head(id)?.cryptographic_hash, head?.cryptographic_hash);

    const late = await log.append(id, note('late'));
    assert.equal(late.sequence_number, 6);
    assert.deepEqual(await sequences(log.read(id, 6)), [6]);
    // It is a running one again, and trims go on over it.
    assert.equal((await ackAndTrim()).trajectories, 0);
    for (const how of ['as it is', 'without snapshots'] as const) {
      await reopen(how);
      assert.deepEqual(await sequences(log.read(id, 6)), [6]);
      await refused(all(log.read(id, 5)), 'HOT_TRIMMED');
      assert.equal((await log.trim()).trajectories, 0);
    }
    await log.append(id, FINISH);
    assert.equal((await ackAndTrim()).events, 2);
    assert.equal((await log.append(id, note())).sequence_number, 8);
    assert.deepEqual(await sequences(log.read(other)), [1]);
  });

  it('keeps what is held, what is not acknowledged, and what was acknowledged too recently', async () => {
    await log.close();
    let now = Date.now();
    log = await open({ retention: { trimAfterMs: 1000, blobGraceMs: 0 } }, () => now);
    const [held, late, due] = [newTrajectoryId(), newTrajectoryId(), newTrajectoryId()];
    for (const id of [held, due, late]) await log.appendAll(id, [note(), FINISH]);
    assert.equal((await log.trim()).trajectories, 0, 'nothing was acknowledged');
    await ackTo(log, 4, [{ trajectory_id: held, from_lsn: 1, reason: 'gap' }]);
    now += 999;
    assert.equal((await log.trim()).trajectories, 0, 'a second has not passed');
    now += 1;
    assert.equal((await log.trim()).trajectories, 1);
    await refused(all(log.read(due)), 'HOT_TRIMMED');
    assert.deepEqual(await sequences(log.read(held)), [1, 2]);
    assert.deepEqual(await sequences(log.read(late)), [1, 2]);
    await ackTo(log);
    now += 1000;
    assert.equal((await log.trim()).trajectories, 2, 'what was held and what was late');
  });

  it('keeps a number below an ack that went back', async () => {
    const [a, b] = [newTrajectoryId(), newTrajectoryId()];
    for (const id of [a, b]) await log.appendAll(id, [note(), FINISH]);
    await ackTo(log);
    await ackTo(log, 2);
    assert.equal((await log.trim()).trajectories, 1, 'PostgreSQL decides, and it may have been restored');
    assert.deepEqual(await sequences(log.read(b)), [1, 2]);
  });

  it('moves its floor over batches of which nothing is needed, and everything below stays explained', async () => {
    const done = newTrajectoryId();
    const stays = newTrajectoryId();
    for (let n = 0; n < 20; n++) await log.append(done, note(`${n}`));
    await log.append(done, FINISH);
    const kept = await log.append(stays, note());
    for (let n = 0; n < 5; n++) await log.append(done, note(`${n}`));
    await log.append(done, FINISH);
    const { floor_lsn, events } = await ackAndTrim();
    assert.deepEqual([floor_lsn, events], [Number(kept.lsn) - 1, 27]);
    const trimmed = (await denseLog(log)).filter(({ kind }) => kind === 'trimmed');
    assert.deepEqual(
      trimmed.map((item) => item.kind === 'trimmed' && [item.from_lsn, item.to_lsn]),
      [
        [1, 21],
        [23, 28],
      ],
    );
    await log.append(stays, FINISH);
    await ackAndTrim();
    const last = await ackAndTrim();
    assert.equal(last.floor_lsn, Number(log.durableLsn), 'nothing is left but what the marks say');
    for (const how of ['as it is', 'without snapshots'] as const) {
      await reopen(how);
      assert.equal((await log.append(stays, note())).sequence_number, how === 'as it is' ? 3 : 4);
      assert.equal(log.head(done)?.sequence_number, 27);
    }
  });

  it('reads what is behind a floor in the middle of a trajectory, also where heads are rebuilt', async () => {
    const id = newTrajectoryId();
    const other = newTrajectoryId();
    for (let n = 0; n < 5; n++) await log.append(id, note());
    // One batch keeps the index of both.
    await Promise.all([log.append(other, note()), log.appendAll(id, [note(), note(), note(), note(), checkpoint])]);
    for (let n = 0; n < 6; n++) await log.append(id, note());
    const { floor_lsn } = await ackAndTrim();
    assert.equal(floor_lsn, 5);
    for (const how of ['as it is', 'without snapshots'] as const) {
      await reopen(how);
      assert.deepEqual(await sequences(log.read(id, 10)), [10, 11, 12, 13, 14, 15, 16]);
      assert.deepEqual(await sequences(log.read(id, 13)), [13, 14, 15, 16]);
      await refused(all(log.read(id, 9)), 'HOT_TRIMMED');
    }
  });

  it('opens after a crash where a trajectory was trimmed again since the last snapshot', async () => {
    const [again, stays] = [newTrajectoryId(), newTrajectoryId()];
    await log.appendAll(again, [note(), FINISH]);
    await log.append(stays, note());
    assert.equal((await ackAndTrim()).floor_lsn, 2);
    await reopen('as it is');
    await log.appendAll(again, [note('late'), FINISH]);
    await ackAndTrim();
    await crashCopy(temp.join('log'), temp.join('copy'));
    await using copy = await HotLog.open(temp.join('copy'), SMALL);
    assert.equal(copy.head(again)?.sequence_number, 4);
    assert.equal((await copy.append(again, note())).sequence_number, 5);
    assert.deepEqual(await sequences(copy.read(stays)), [1]);
  });

  it('opens after a crash where a trimmed trajectory was adopted since the last snapshot', async () => {
    const [adopted, stays] = [newTrajectoryId(), newTrajectoryId()];
    await log.appendAll(adopted, [note(), FINISH]);
    await log.append(stays, note());
    assert.equal((await ackAndTrim()).floor_lsn, 2);
    await reopen('as it is');
    await log.append(adopted, note('late'));
    const { created_at } = await log.append(adopted, note('later'));
    await log.adopt(adopted, {
      sequence_number: 50 as never,
      cryptographic_hash: 'ab'.repeat(32),
      created_at,
      turn: 0,
      fencing_token: 7,
    });
    await crashCopy(temp.join('log'), temp.join('copy'));
    await using copy = await HotLog.open(temp.join('copy'), SMALL);
    assert.equal(copy.head(adopted)?.sequence_number, 50);
    assert.equal((await copy.verify()).damage, undefined);
  });

  it('goes on over trajectories that this log adopted: nothing below an anchor can go or be asked for', async () => {
    const id = newTrajectoryId();
    const at = { cryptographic_hash: 'ab'.repeat(32), created_at: new Date().toISOString(), turn: 0, fencing_token: 1 };
    await log.append(id, note('set aside'));
    await log.adopt(id, { ...at, sequence_number: 100 as never });
    await log.append(id, checkpoint);
    assert.equal((await ackAndTrim()).trajectories, 0, 'what lies below the checkpoint was written elsewhere');
    await log.append(id, context({ base: 90 }, from(101)));
    assert.equal((await ackAndTrim()).trajectories, 0);
    await log.appendAll(id, [context(from(102)), checkpoint]);
    assert.equal((await ackAndTrim()).trajectories, 1);
    assert.deepEqual(await sequences(log.read(id, 102)), [102, 103, 104]);
    await log.append(id, FINISH);
    assert.equal((await ackAndTrim()).trajectories, 1, 'finished, it goes whole, the suffix that was set aside too');
  });

  it('lets blobs go only when nothing names them any more', async () => {
    const [a, b] = [newTrajectoryId(), newTrajectoryId()];
    await log.append(a, note(LARGE));
    await log.append(a, note(`${LARGE}only a`));
    await log.append(b, note(LARGE));
    const blobs = () => all(log.blobs.list());
    assert.equal((await blobs()).length, 2);
    await log.append(a, FINISH);
    assert.equal((await ackAndTrim()).blobs, 1);
    assert.equal((await blobs()).length, 1);
    await reopen('without snapshots');
    assert.equal((await log.trim()).blobs, 0);
    await log.append(b, FINISH);
    const report = await ackAndTrim();
    assert.deepEqual([report.blobs, report.blob_bytes], [1, LARGE.length]);
    assert.deepEqual(await blobs(), []);
    // What comes back afterwards is written again.
    await log.append(b, note(LARGE));
    assert.deepEqual((await log.verify({ deep: true })).bad_blobs, []);
    assert.equal((await ackAndTrim()).blobs, 0);
  });

  it('never takes a blob from an append that is under way', async () => {
    const id = newTrajectoryId();
    await log.append(id, note());
    await ackTo(log);
    let stop = false;
    const trims = (async () => {
      while (!stop) await log.trim();
    })();
    for (let round = 0; round < 15; round++) {
      await Promise.all(
        Array.from({ length: 4 }, (_, i) => log.append(id, note(`${LARGE}${i < 2 ? i : `${round} ${i}`}`))),
      );
    }
    stop = true;
    await trims;
    assert.deepEqual((await log.verify({ deep: true })).bad_blobs, []);
  });

  it('goes on while others append, and never takes what they need', async () => {
    const running = Array.from({ length: 8 }, async (_, i) => {
      const kept: TrajectoryId[] = [];
      for (let n = 0; n < 30; n++) {
        const id = newTrajectoryId();
        await log.appendAll(id, [note(), note()]);
        if ((n + i) % 2 === 0) await log.append(id, FINISH);
        else kept.push(id);
      }
      return kept;
    });
    const ends = Promise.all(running);
    let trimmed = 0;
    for (let ended = false; !ended; ) {
      ended = (await Promise.race([ends, turnOfTheLoop()])) !== undefined;
      trimmed += (await ackAndTrim()).events;
    }
    assert.equal(trimmed, (8 * 30 * 3) / 2);
    for (const id of (await ends).flat()) assert.deepEqual(await sequences(log.read(id)), [1, 2]);
  });
});

describe('a trim that was cut off', () => {
  for (const point of [
    'hot.trim.after-marks',
    'hot.trim.mid-delete',
    'hot.trim.before-floor',
    'hot.trim.after-floor',
  ]) {
    it(`at ${point} is finished by the next one`, async () => {
      using temp = new TempDirectory('cut');
      const options = { ...SMALL, writeBufferBytes: 64 * KIB };
      const [done, stays] = [newTrajectoryId(), newTrajectoryId()];
      const log = await HotLog.open(temp.join('log'), options);
      await log.append(done, note(LARGE));
      // More than are deleted at once.
      await log.appendAll(
        done,
        Array.from({ length: 1500 }, () => note()),
      );
      await log.append(done, FINISH);
      await log.append(stays, note());
      await ackTo(log);
      await log.close();

      await using child = Child.start(
        '../hot/support/trim-child.ts',
        { directory: temp.join('log'), options },
        { env: { VARVE_FAILPOINT: point } },
      );
      assert.equal((await child.exit()).signal, 'SIGKILL');

      await using again = await HotLog.open(temp.join('log'), options);
      await refused(all(again.read(done)), 'HOT_TRIMMED');
      assert.equal((await again.verify()).damage, undefined);
      await denseLog(again);
      await again.trim();
      assert.deepEqual(await all(again.blobs.list()), []);
      assert.equal((await again.verify()).events, 1, 'only the trajectory that stays');
      assert.equal((await again.append(done, note())).sequence_number, 1503);
      assert.deepEqual(await sequences(again.read(stays)), [1]);
    });
  }
});
