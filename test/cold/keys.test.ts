import assert from 'node:assert/strict';
import * as fc from 'fast-check';
import { checkKey, checkPrefix, compareKeys, isSegment } from '../../cold/keys.ts';
import { isVarveError } from '../../schemas/errors.ts';
import { runs } from '../support/property.ts';

describe('keys', () => {
  it('are ordered as their bytes of UTF-8 are', () => {
    const text = fc.string({
      unit: fc.oneof(fc.constantFrom('a', '/', '\uff5e', '\u{1f600}', '\ue000', 'é'), fc.string()),
    });
    fc.assert(
      fc.property(text, text, (a, b) => {
        fc.pre(a.isWellFormed() && b.isWellFormed());
        assert.equal(Math.sign(compareKeys(a, b)), Buffer.compare(Buffer.from(a), Buffer.from(b)));
      }),
      runs(2000),
    );
  });

  it('have prefixes that are legal: every beginning of a legal key is one', () => {
    const key = 'a b/ü\u{1f600}/..c/.varve-tm/x';
    checkKey(key);
    const points = Array.from(key);
    for (const end of points.keys()) checkPrefix(points.slice(0, end).join(''));
    checkPrefix('a/.');
    checkPrefix('a/..');
  });

  it('that no store could hold are told by name', () => {
    for (const key of ['', 'a//b', '..', 'a/./b', 'x\u0085y', 'x'.repeat(221)]) {
      assert.throws(
        () => checkKey(key),
        (error) => isVarveError(error, 'STORE_KEY_INVALID') && error.details['key'] === key,
      );
    }
    assert.ok(isSegment('a b%20'));
    for (const name of ['a\nb', '.', '.varve-tmp.x', '\ud800']) assert.ok(!isSegment(name), name);
  });
});
