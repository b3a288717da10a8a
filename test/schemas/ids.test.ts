import assert from 'node:assert/strict';
import * as fc from 'fast-check';
import {
  newTrajectoryId,
  parseLsn,
  parseTrajectoryId,
  trajectoryIdBytes,
  trajectoryIdFromBytes,
  trajectoryStartMs,
} from '../../schemas/ids.ts';
import { runs } from '../support/property.ts';

describe('ids', () => {
  it('follow back a clock that was far ahead, since a log refuses ids of the future', () => {
    const now = Date.now();
    newTrajectoryId(now + 86_400_000);
    assert.equal(trajectoryStartMs(newTrajectoryId(now)), now);
    assert.equal(trajectoryStartMs(newTrajectoryId(now - 5_000)), now);
  });

  it('ascend strictly within a millisecond, past a full counter, and when the clock steps back', () => {
    const now = Date.now();
    let last = '';
    for (let i = 0; i < 20_000; i++) {
      const id = newTrajectoryId(i % 3 === 0 ? now - 5_000 : now);
      assert.ok(id > last, `${id} does not follow ${last}`);
      parseTrajectoryId(id);
      last = id;
    }
  });

  it('name the time of their start', () => {
    const ahead = Date.now() + 2_000;
    assert.equal(trajectoryStartMs(newTrajectoryId(ahead)), ahead);
    assert.equal(trajectoryStartMs(parseTrajectoryId('ffffffff-ffff-7fff-bfff-ffffffffffff')), 2 ** 48 - 1);
  });

  it('are the same as text and as bytes', () => {
    fc.assert(
      fc.property(fc.uuid({ version: 7 }), fc.nat(40), (text, offset) => {
        const bytes = Buffer.concat([
          Buffer.alloc(offset),
          Buffer.from(trajectoryIdBytes(parseTrajectoryId(text)), 'latin1'),
        ]);
        assert.equal(trajectoryIdFromBytes(bytes, offset), text);
      }),
      runs(200),
    );
  });

  it('refuse everything that is not a lower-case UUIDv7', () => {
    const good = '01936f5a-5c00-7000-8000-000000000001';
    const bad = [good.replace('7000', '4000'), good.replace('8000', 'c000'), ` ${good}`, `${good}\n`, `{${good}}`, ''];
    bad.push('01936F5A-5C00-7000-8000-000000000001', good.replaceAll('-', ''));
    for (const text of bad) assert.throws(() => parseTrajectoryId(text), { code: 'INVALID_ID' });
    assert.throws(() => parseTrajectoryId(7 as unknown as string), { code: 'INVALID_ID' });
  });

  it('take an LSN from an integer of either kind, and nothing else', () => {
    assert.equal(parseLsn(0), 0n);
    assert.equal(parseLsn(Number.MAX_SAFE_INTEGER), 2n ** 53n - 1n);
    for (const value of [-1, -1n, 1.5, Number.NaN, 2 ** 53, 2n ** 53n]) {
      assert.throws(() => parseLsn(value), { code: 'NOT_AN_LSN' });
    }
  });
});
