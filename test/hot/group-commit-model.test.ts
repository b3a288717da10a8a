import assert from 'node:assert/strict';
import * as fc from 'fast-check';
import { effectiveLatencyMs, expectedBatch } from '../../hot/group-commit-model.ts';

describe('the model of group commit', () => {
  it('expects at least one event a barrier, at most the largest batch, and what the window collects between', () => {
    assert.equal(expectedBatch(100, 0, 64), 1);
    assert.equal(expectedBatch(100, 2, 64), 1);
    assert.equal(expectedBatch(10_000, 2, 64), 20);
    assert.equal(expectedBatch(1_000_000, 2, 64), 64);
  });

  it('never expects fewer events at a higher rate or with a longer window', () => {
    const positive = fc.double({ min: 0, max: 1e6, noNaN: true });
    fc.assert(
      fc.property(positive, positive, positive, fc.integer({ min: 1, max: 4096 }), (rate, windowMs, more, maxBatch) => {
        const batch = expectedBatch(rate, windowMs, maxBatch);
        assert.ok(batch >= 1 && batch <= maxBatch);
        assert.ok(expectedBatch(rate + more, windowMs, maxBatch) >= batch);
        assert.ok(expectedBatch(rate, windowMs + more, maxBatch) >= batch);
      }),
    );
  });

  it('charges an event half the window and its share of the write and of the barrier', () => {
    assert.equal(effectiveLatencyMs(0, 0.05, 0.2, 1), 0.25);
    assert.equal(effectiveLatencyMs(2, 0.4, 6, 64), 1.1);
  });
});
