import assert from 'node:assert/strict';
import canonicalize from 'canonicalize';
import * as fc from 'fast-check';
import { canonicalJson, escapePointer, type Json } from '../../schemas/canonical.ts';
import { anyJson, anyText } from '../support/events.ts';
import { runs } from '../support/property.ts';

function named(keys: readonly string[]): Json {
  return Object.fromEntries(keys.map((key) => [key, key]));
}

function nested(levels: number): Json {
  let value: Json = [];
  for (let i = 1; i < levels; i++) value = i % 2 === 0 ? [value] : { a: value };
  return value;
}

describe('canonical JSON', () => {
  it('is what an independent implementation of RFC 8785 writes', () => {
    fc.assert(
      fc.property(anyJson, (value) => assert.equal(canonicalJson(value), canonicalize(value))),
      runs(600),
    );
  });

  it('agrees with that implementation on every double', () => {
    fc.assert(
      fc.property(fc.double({ noNaN: true, noDefaultInfinity: true }), (value) => {
        assert.equal(canonicalJson(value), canonicalize(value));
        assert.equal(JSON.parse(canonicalJson(value)), value === 0 ? 0 : value);
      }),
      runs(600),
    );
    for (const value of [-0, 5e-324, -5e-324, 2.225073858507201e-308, 2 ** 53 - 1, 1e21, 1e-7, Number.MAX_VALUE]) {
      assert.equal(canonicalJson(value), canonicalize(value));
    }
  });

  it('survives parsing: the text of what the text says is the text', () => {
    fc.assert(
      fc.property(anyJson, (value) => {
        const text = canonicalJson(value);
        assert.equal(canonicalJson(JSON.parse(text)), text);
      }),
      runs(300),
    );
  });

  it('keeps every string, U+0000, control characters and astral text among them', () => {
    fc.assert(
      fc.property(anyText, (text) => assert.equal(JSON.parse(canonicalJson(text)), text)),
      runs(400),
    );
    assert.equal(canonicalJson('\u0000\u001f\u007f\u2028\u{1f600}/'), '"\\u0000\\u001f\u007f\u2028\u{1f600}/"');
  });

  it('orders keys by UTF-16 code units, and keeps __proto__ as a key', () => {
    const value = JSON.parse('{"\\ufb33":1,"\\ud83d\\ude00":2,"10":3,"9":4,"":5,"__proto__":6,"B":7,"a":8}') as Json;
    assert.equal(canonicalJson(value), '{"":5,"10":3,"9":4,"B":7,"__proto__":6,"a":8,"\u{1f600}":2,"\ufb33":1}');
  });

  it('does not depend on the order in which keys were set', () => {
    fc.assert(
      fc.property(fc.uniqueArray(anyText, { maxLength: 12 }), fc.nat(), (keys, turn) => {
        const at = keys.length === 0 ? 0 : turn % keys.length;
        const turned = [...keys.slice(at), ...keys.slice(0, at)];
        assert.equal(canonicalJson(named(keys)), canonicalJson(named(turned)));
      }),
      runs(200),
    );
  });

  const cycle: Record<string, unknown> = { a: 1 };
  cycle['self'] = cycle;
  const hole: unknown[] = [1];
  hole[2] = 3;
  const refused: readonly [string, unknown, string, string][] = [
    ['NaN', { a: [1, { b: Number.NaN }] }, 'NUMBER_NOT_FINITE', '/a/1/b'],
    ['infinity', [Number.NEGATIVE_INFINITY], 'NUMBER_NOT_FINITE', '/0'],
    ['half of a surrogate pair', { 'a/b~c': 'x\ud800' }, 'STRING_NOT_WELL_FORMED', '/a~1b~0c'],
    ['half of a pair in a long string', { a: 'x'.repeat(100) + '\udc00' }, 'STRING_NOT_WELL_FORMED', '/a'],
    ['half of a pair in a key', { a: { '\udc00': 1 } }, 'STRING_NOT_WELL_FORMED', '/a'],
    ['undefined', { a: undefined }, 'INVALID_PAYLOAD', '/a'],
    ['undefined by itself', undefined, 'INVALID_PAYLOAD', ''],
    ['a function', { a: () => 1 }, 'INVALID_PAYLOAD', '/a'],
    ['a symbol', [Symbol('s')], 'INVALID_PAYLOAD', '/0'],
    ['a bigint', { n: 1n }, 'INVALID_PAYLOAD', '/n'],
    ['a date', { at: new Date(0) }, 'INVALID_PAYLOAD', '/at'],
    ['a map', { m: new Map([[1, 2]]) }, 'INVALID_PAYLOAD', '/m'],
    ['a buffer', { b: Buffer.from('a') }, 'INVALID_PAYLOAD', '/b'],
    ['a boxed string', { s: Object('a') }, 'INVALID_PAYLOAD', '/s'],
    ['a hole in an array', { h: hole }, 'INVALID_PAYLOAD', '/h/1'],
    ['toJSON', { t: { toJSON: () => 1 } }, 'INVALID_PAYLOAD', '/t/toJSON'],
  ];
  for (const [what, value, code, pointer] of refused) {
    it(`refuses ${what} and names the place`, () => {
      assert.throws(
        () => canonicalJson(value),
        (error: { code: string; details: { pointer: string } }) => {
          assert.equal(error.code, code);
          assert.equal(error.details.pointer, pointer);
          return true;
        },
      );
    });
  }

  it('takes 256 levels of nesting and refuses 257, and cycles', () => {
    assert.equal(canonicalJson(nested(256)).length > 0, true);
    for (const value of [nested(257), cycle]) {
      assert.throws(() => canonicalJson(value), { code: 'NESTING_TOO_DEEP' });
    }
  });

  it('escapes pointers by RFC 6901', () => assert.equal(escapePointer('a/b~1'), 'a~1b~01'));
});
