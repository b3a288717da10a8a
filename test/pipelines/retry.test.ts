import assert from 'node:assert/strict';
import * as fc from 'fast-check';
import { FileStore } from '../../cold/file-store.ts';
import { pauseBefore, putIfAbsentSurely, type Retry, retry } from '../../pipelines/retry.ts';
import { ERROR_CODES, type ErrorCode, isVarveError, VarveError } from '../../schemas/errors.ts';
import { MIB } from '../../schemas/limits.ts';
import { FaultStore, type StoreFault } from '../support/fault-store.ts';
import { noise, patternSource, read, rejects, sourceOf } from '../support/object-store-contract.ts';
import { runs } from '../support/property.ts';
import { TempDirectory } from '../support/temp.ts';

const FAST = { firstPauseMs: 1, longestPauseMs: 2 };
const never = new AbortController().signal;

describe('retry', () => {
  it('tries again exactly what the table of codes says, and nothing that is no VarveError', async () => {
    for (const code of Object.keys(ERROR_CODES) as ErrorCode[]) {
      const work = failingWork(3, () => new VarveError(code, 'x'));
      const outcome = retry(work.run, never, FAST);
      if (ERROR_CODES[code].retry && code !== 'ABORTED') {
        assert.equal(await outcome, 'done');
        assert.equal(work.calls(), 4);
      } else {
        await rejects(outcome, code);
        assert.equal(work.calls(), 1, code);
      }
    }
    const bug = new TypeError('bug');
    const work = failingWork(3, () => bug);
    await assert.rejects(retry(work.run, never, FAST), (error) => error === bug);
    assert.equal(work.calls(), 1);
  });

  it('ends after so many tries, with the last error', async () => {
    let n = 0;
    const work = failingWork(100, () => new VarveError('STORE_UNAVAILABLE', `failure ${++n}`));
    await assert.rejects(retry(work.run, never, { ...FAST, attempts: 4 }), { message: 'failure 4' });
    assert.equal(work.calls(), 4);
  });

  it('begins no try later than the time it has', async () => {
    const work = failingWork(1e6, later);
    const startedMs = performance.now();
    await rejects(retry(work.run, never, { ...FAST, attempts: 1e6, withinMs: 60 }), 'STORE_UNAVAILABLE');
    assert.ok(performance.now() - startedMs < 1000);
    assert.ok(work.calls() > 2);
  });

  it('tells of every failure that it tries again, and shows the work all of them', async () => {
    const told: Retry[] = [];
    const seen: number[] = [];
    const work = failingWork(2, later);
    await retry(
      async (signal, failures) => {
        seen.push(failures.length);
        return await work.run(signal);
      },
      never,
      { ...FAST, onRetry: (one) => told.push(one) },
    );
    assert.deepEqual(
      told.map(({ failures }) => failures),
      [1, 2],
    );
    assert.ok(told.every(({ error }) => error.code === 'STORE_UNAVAILABLE'));
    assert.deepEqual(seen, [0, 1, 2]);
  });

  it('stops at once when aborted: before, or in a pause', async () => {
    const work = failingWork(100, later);
    await rejects(retry(work.run, AbortSignal.abort()), 'ABORTED');
    assert.equal(work.calls(), 0);
    const abort = new AbortController();
    const startedMs = performance.now();
    setTimeout(() => abort.abort(), 20);
    const slow = { firstPauseMs: 1e6, longestPauseMs: 1e6, withinMs: 1e9 };
    await assert.rejects(retry(work.run, abort.signal, slow), (error) => {
      assert.ok(isVarveError(error, 'ABORTED') && isVarveError(error.cause, 'STORE_UNAVAILABLE'));
      return true;
    });
    assert.ok(performance.now() - startedMs < 5000);
    assert.equal(work.calls(), 1);
  });

  it('takes the defaults for what is not given', async () => {
    const work = failingWork(1, later);
    assert.equal(await retry(work.run, never, { attempts: undefined, firstPauseMs: 1 }), 'done');
  });

  it('pauses between nothing and a bound that doubles up to the longest', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 1000 }),
        fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }),
        (n, chance) => {
          const pauseMs = pauseBefore(n, 100, 20_000, chance);
          const bound = Math.min(20_000, 100 * 2 ** Math.min(n - 1, 30));
          assert.ok(pauseMs >= 0 && pauseMs < bound);
          assert.equal(pauseMs, Math.floor(bound * chance));
        },
      ),
      runs(200),
    );
  });
});

describe('putIfAbsentSurely', () => {
  let directory: TempDirectory;
  let store: FaultStore;
  beforeEach(async () => {
    directory = new TempDirectory('retry');
    store = new FaultStore(await FileStore.open(directory.join('root')));
  });
  afterEach(() => directory[Symbol.dispose]());

  const lost: StoreFault = { method: 'putIfAbsent', kind: 'after', code: 'STORE_AMBIGUOUS' };
  const never_arrived: StoreFault = { method: 'putIfAbsent', kind: 'before', code: 'STORE_AMBIGUOUS' };

  it("knows its own put again after an ambiguous try, and somebody else's for what it is", async () => {
    const ours = noise(200_000);
    store.inject(lost);
    assert.equal(await putIfAbsentSurely(store, 'ours', ours, never, FAST), 'created');
    store.inject(never_arrived);
    assert.equal(await putIfAbsentSurely(store, 'later', ours, never, FAST), 'created');
    for (const theirs of [Buffer.from('short'), Buffer.concat([ours.subarray(0, -1), Buffer.from('x')])]) {
      await store.put('theirs', theirs);
      store.inject(never_arrived);
      assert.equal(await putIfAbsentSurely(store, 'theirs', ours, never, FAST), 'exists');
      assert.ok(theirs.equals(await read(store, 'theirs')));
    }
  });

  it('compares long bodies without holding them, whatever the pieces', async () => {
    const bytes = 3 * MIB + 5;
    store.inject(lost);
    assert.equal(await putIfAbsentSurely(store, 'a', patternSource(bytes), never, FAST), 'created');
    const body = noise(300_001);
    store.inject(lost);
    assert.equal(await putIfAbsentSurely(store, 'b', sourceOf(body), never, FAST), 'created');
    store.inject(lost);
    assert.equal(await putIfAbsentSurely(store, 'empty', new Uint8Array(0), never, FAST), 'created');
  });

  it("does not take another's identical object for its own when nothing was ambiguous", async () => {
    await store.put('k', Buffer.from('same'));
    store.inject({ method: 'putIfAbsent', kind: 'before', code: 'STORE_THROTTLED' });
    assert.equal(await putIfAbsentSurely(store, 'k', Buffer.from('same'), never, FAST), 'exists');
  });

  it('looks again when the look fails, and still knows what was ambiguous', async () => {
    store.inject(
      lost,
      { method: 'head', kind: 'before', code: 'STORE_UNAVAILABLE' },
      { method: 'get', kind: 'cut', afterBytes: 3, code: 'STORE_UNAVAILABLE' },
    );
    assert.equal(await putIfAbsentSurely(store, 'k', Buffer.from('my bytes'), never, FAST), 'created');
    assert.equal(store.pending, 0);
  });

  it('of many who race through lost answers, exactly one has created', async function () {
    this.timeout(20_000);
    for (let round = 0; round < 10; round++) {
      store.inject(lost, never_arrived, lost, lost, never_arrived, { ...lost, kind: 'before', code: 'STORE_CONFLICT' });
      const policy = { ...FAST, attempts: 20 };
      const racers = Array.from({ length: 12 }, (_, i) =>
        putIfAbsentSurely(store, `race/${round}`, Buffer.from(`writer ${i}`), never, policy),
      );
      const outcomes = await Promise.all(racers);
      const winners = outcomes.flatMap((outcome, i) => (outcome === 'created' ? [`writer ${i}`] : []));
      assert.deepEqual(winners, [String(await read(store, `race/${round}`))]);
      assert.equal(store.pending, 0);
    }
  });

  it('gives up on what will not get better', async () => {
    store.inject({ method: 'putIfAbsent', kind: 'before', code: 'STORE_DENIED' });
    await rejects(putIfAbsentSurely(store, 'k', Buffer.from('x'), never, FAST), 'STORE_DENIED');
    assert.deepEqual(store.calls, ['putIfAbsent k']);
  });
});

function later(): VarveError {
  return new VarveError('STORE_UNAVAILABLE', 'later');
}

/** Fails so many times, then is done. */
function failingWork(times: number, failure: () => unknown) {
  let calls = 0;
  const run = async (_signal?: AbortSignal): Promise<string> => {
    calls += 1;
    if (calls <= times) throw failure();
    return 'done';
  };
  return { run, calls: () => calls };
}
