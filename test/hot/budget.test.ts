import assert from 'node:assert/strict';
import { existsSync, statSync } from 'node:fs';
import { judge } from '../../hot/budget.ts';
import { HotLog } from '../../hot/log.ts';
import { newTrajectoryId } from '../../schemas/ids.ts';
import { MIB } from '../../schemas/limits.ts';
import { TempDirectory } from '../support/temp.ts';
import { event, FINISH, intent, note, refused, result, SMALL } from './support/hot.ts';

const PETABYTE = 2 ** 50;

describe('the disk budget of a log', () => {
  it('is judged by what is free and what is used, and by whether there is ballast to give up', () => {
    const thresholds = { freeBytes: 100, directoryBytes: 1000 };
    const table = [
      [{ free: 100, used: 1000 }, true, 'roomy'],
      [{ free: 100, used: 1000 }, false, 'roomy'],
      [{ free: 99, used: 0 }, true, 'tight'],
      [{ free: 50, used: 0 }, true, 'tight'],
      [{ free: 49, used: 0 }, true, 'critical'],
      [{ free: 99, used: 0 }, false, 'critical'],
      [{ free: 5000, used: 1001 }, true, 'tight'],
      [{ free: 5000, used: 1001 }, false, 'critical'],
      [{ free: 0, used: 0 }, true, 'critical'],
    ] as const;
    for (const [room, hasBallast, wanted] of table) {
      assert.equal(judge({ ...room, total: 10_000 }, thresholds, hasBallast), wanted, JSON.stringify(room));
    }
  });

  it('refuses new trajectories and new intents from the first append on, and lets what is under way pass', async () => {
    using temp = new TempDirectory('budget');
    const known = newTrajectoryId();
    await using before = await HotLog.open(temp.join('log'), SMALL);
    await before.append(known, intent('out'));
    await before.close();

    await using log = await HotLog.open(temp.join('log'), { ...SMALL, budget: { freeBytes: PETABYTE } });
    const error = await refused(log.append(newTrajectoryId(), note()), 'HOT_OVER_BUDGET');
    assert.equal(error.retry, true);
    await refused(log.append(known, intent('new')), 'HOT_OVER_BUDGET');
    await refused(log.appendAll(known, [note(), intent('new')]), 'HOT_OVER_BUDGET');
    await refused(
      log.appendRecorded(newTrajectoryId(), [{ ...note(), created_at: '2024-01-01T00:00:00.000Z', fencing_token: 0 }]),
      'HOT_OVER_BUDGET',
    );
    const passed = [result('out'), event('ModelReplied', { content: 'x' }), note('y'.repeat(100_000)), FINISH];
    for (const [i, event] of passed.entries()) {
      assert.equal((await log.append(known, event)).sequence_number, i + 2);
    }
    assert.equal((await log.verify()).damage, undefined);
  });

  it('counts the bytes of the directory where that is limited, and takes new work again when there is room', async () => {
    using temp = new TempDirectory('budget');
    await using log = await HotLog.open(temp.join('log'), {
      ...SMALL,
      budget: { freeBytes: 1, ballastBytes: 0, directoryBytes: 2 * MIB },
    });
    assert.equal(await log.budget.refresh(), 'roomy');
    const { sha256 } = await log.blobs.put(Buffer.alloc(3 * MIB));
    assert.equal(await log.budget.refresh(), 'tight');
    assert.ok(log.budget.room.used > 3 * MIB, `${log.budget.room.used} bytes are counted`);
    await refused(log.append(newTrajectoryId(), note()), 'HOT_OVER_BUDGET');
    assert.equal((await log.trim()).blobs, 1, `${sha256} is not referenced`);
    assert.equal(await log.budget.refresh(), 'roomy');
    await log.append(newTrajectoryId(), note());
  });

  it('lays ballast of real blocks while there is room, and gives it up when there is little', async () => {
    using temp = new TempDirectory('budget');
    const ballast = temp.join('log', 'ballast');
    const ballastBytes = MIB + 1;
    await using roomy = await HotLog.open(temp.join('log'), { ...SMALL, budget: { freeBytes: 1, ballastBytes } });
    await roomy.budget.refresh();
    assert.equal(statSync(ballast).size, ballastBytes);
    assert.ok(statSync(ballast).blocks * 512 >= ballastBytes, 'a hole gives nothing back');
    await roomy.close();

    await using tight = await HotLog.open(temp.join('log'), {
      ...SMALL,
      budget: { freeBytes: PETABYTE, ballastBytes },
    });
    assert.equal(await tight.budget.refresh(), 'critical');
    assert.equal(existsSync(ballast), false);
    assert.equal(await tight.budget.refresh(), 'critical', 'and it stays so');
  });
});
