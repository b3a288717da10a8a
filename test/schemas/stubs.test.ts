import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import * as fc from 'fast-check';
import { canonicalJson, type Json, type JsonObject } from '../../schemas/canonical.ts';
import { NAME_BYTES_MAX } from '../../schemas/limits.ts';
import {
  mayHoldStub,
  type Offloaded,
  offload,
  type Stub,
  stubFor,
  stubsOf,
  TEXT_MEDIA_TYPE,
} from '../../schemas/stubs.ts';
import { anyObject } from '../support/events.ts';
import { runs } from '../support/property.ts';

const OVER = 4096;
const FIT = 12_000;

/** Texts of all sizes around the limits, in ASCII and in code points of four bytes. */
const sized = fc
  .tuple(
    fc.constantFrom('x', 'é', '\u{1f600}', '\u0000'),
    fc.constantFrom(1, 300, 1024, 1025, 1300, 4096, 4097, 6000),
    fc.nat(1),
  )
  .map(([unit, bytes, more]) => unit.repeat(Math.ceil(bytes / Buffer.byteLength(unit)) + more));
const payloads: fc.Arbitrary<JsonObject> = fc
  .tuple(
    anyObject,
    fc.array(sized, { maxLength: 8 }),
    fc.dictionary(fc.constantFrom('b', 'a/b', 'c~', '__proto__'), sized),
  )
  .map(([more, list, named]) => ({ more, list, named: Object.fromEntries(Object.entries(named)) }));

function size(payload: JsonObject): number {
  return Buffer.byteLength(canonicalJson(payload));
}

/** undefined: it does not fit and nothing is left to move. */
function run(payload: JsonObject): Offloaded | undefined {
  try {
    return offload(payload, size(payload), OVER, FIT);
  } catch (error) {
    assert.equal((error as { code: string }).code, 'EVENT_TOO_LARGE');
    return undefined;
  }
}

/** Puts the bodies back. */
function restored(value: Json, bodies: ReadonlyMap<string, Buffer>): Json {
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) return value.map((element) => restored(element, bodies));
  if (Object.hasOwn(value, '$blob')) return bodies.get((value as Stub).$blob.sha256)?.toString() ?? value;
  return Object.fromEntries(
    Object.entries(value as JsonObject).map(([key, member]) => [key, restored(member, bodies)]),
  );
}

function strings(value: Json): string[] {
  if (typeof value === 'string') return [value];
  if (typeof value !== 'object' || value === null) return [];
  return Object.values(value).flatMap(strings);
}

describe('offloading', () => {
  it('makes a payload fit, moves all strings over the threshold, and no name', () => {
    fc.assert(
      fc.property(payloads, (payload) => {
        const moved = run(payload);
        if (moved === undefined) return;
        assert.ok(size(moved.payload) <= FIT);
        assert.ok(strings(moved.payload).every((text) => Buffer.byteLength(text) <= OVER));
        assert.ok(moved.bodies.every(({ body }) => body.length > NAME_BYTES_MAX));
      }),
      runs(150),
    );
  });

  it('moves strings and nothing else: with the bodies back, the payload is the same', () => {
    fc.assert(
      fc.property(payloads, (payload) => {
        const moved = run(payload);
        if (moved === undefined) return;
        const bodies = new Map(moved.bodies.map(({ ref, body }) => [ref.sha256, body]));
        assert.equal(canonicalJson(restored(moved.payload, bodies)), canonicalJson(payload));
        for (const { ref, body } of moved.bodies) {
          assert.equal(ref.sha256, createHash('sha256').update(body).digest('hex'));
          assert.equal(ref.bytes, body.length);
        }
        assert.deepEqual(stubsOf(moved.payload).length, moved.bodies.length);
      }),
      runs(150),
    );
  });

  it('is a pure function of the payload: not of its key order, and the input is left alone', () => {
    fc.assert(
      fc.property(payloads, (payload) => {
        const before = canonicalJson(payload);
        const moved = run(payload);
        const turned = run(Object.fromEntries(Object.entries(payload).toReversed()));
        assert.equal(canonicalJson(payload), before);
        if (moved === undefined) assert.equal(turned, undefined);
        else assert.equal(canonicalJson(turned?.payload), canonicalJson(moved.payload));
      }),
      runs(100),
    );
  });

  it('is idempotent', () => {
    fc.assert(
      fc.property(payloads, (payload) => {
        const moved = run(payload);
        if (moved === undefined) return;
        const again = run(moved.payload);
        assert.deepEqual(again?.bodies, []);
        assert.equal(canonicalJson(again?.payload), canonicalJson(moved.payload));
      }),
      runs(100),
    );
  });

  it('takes the largest first, ties by JSON pointer, and stops as soon as it fits', () => {
    const text = 'x'.repeat(3000);
    const payload = { c: text, a: text, b: text, d: `${text}yy`, e: text };
    const moved = offload(payload, size(payload), OVER, size(payload) - 3500);
    assert.deepEqual(
      moved.bodies.map(({ pointer }) => pointer),
      ['/d', '/a'],
    );
  });

  it('says that nothing is left to move where names alone are too large', () => {
    const payload = { names: Array.from({ length: 20 }, (_, i) => `${i}`.padEnd(NAME_BYTES_MAX, 'n')) };
    assert.throws(() => offload(payload, size(payload), OVER, FIT), { code: 'EVENT_TOO_LARGE' });
  });
});

describe('stubs', () => {
  const good = stubFor(Buffer.from('body'));

  it('are found in canonical order, and the quick look never misses one', () => {
    const other = stubFor(Buffer.from('other'), 'image/png');
    const payload = { z: good, a: [{ b: other }], text: '{"$blob":1}', '$blob ': 1 };
    assert.deepEqual(stubsOf(payload), [other.$blob, good.$blob]);
    assert.ok(mayHoldStub(canonicalJson(payload)));
    assert.ok(!mayHoldStub(canonicalJson({ text: '{"$blob":1}', a: '$blob', list: ['"$blob":'] })));
    assert.equal(good.$blob.media_type, TEXT_MEDIA_TYPE);
  });

  const ref = good.$blob;
  const refused: readonly [string, Json][] = [
    ['a key more', { $blob: ref, x: 1 }],
    ['a key more inside', { $blob: { ...ref, x: 1 } }],
    ['no media type', { $blob: { sha256: ref.sha256, bytes: 1 } }],
    ['an empty media type', { $blob: { ...ref, media_type: '' } }],
    ['an upper-case hash', { $blob: { ...ref, sha256: ref.sha256.toUpperCase() } }],
    ['a negative length', { $blob: { ...ref, bytes: -1 } }],
    ['a length that is no integer', { $blob: { ...ref, bytes: 1.5 } }],
    ['a string', { $blob: ref.sha256 }],
    ['null', { $blob: null }],
    ['a list', { $blob: [ref.sha256, 1, 'text/plain'] }],
  ];
  for (const [what, stub] of refused) {
    it(`are refused with ${what}`, () => {
      assert.throws(() => stubsOf({ a: [stub] }), { code: 'STUB_MALFORMED', details: { pointer: '/a/0' } });
    });
  }
});
