import assert from 'node:assert/strict';
import * as fc from 'fast-check';
import { checkKey } from '../../cold/keys.ts';
import { partitionFolder, SLUG_BYTES_MAX, slugOf } from '../../cold/slug.ts';
import { runs } from '../support/property.ts';

const AWKWARD = [
  '',
  ' ',
  '.',
  '..',
  '/',
  'a/b',
  'a%2Fb',
  'a-b',
  'A-B',
  'a_b',
  'a b',
  'a=b',
  'x=1',
  '007',
  '7',
  '4.10',
  '4.1',
  '1e5',
  '2024-01-01',
  'NULL',
  'null',
  'Null',
  'true',
  'nan',
  'Infinity',
  '__HIVE_DEFAULT_PARTITION__',
  '-',
  'default',
  'Default',
  'unknown',
  '\u00e9',
  'e\u0301',
  '日本',
  '\u{1f600}',
  '\u0000',
  '\ud800',
  '\ud801',
  'a\nb',
  'con',
  'a.',
  'a'.repeat(80),
  'a'.repeat(81),
  'a'.repeat(256),
  `${'a'.repeat(255)}b`,
  '\u{1f600}'.repeat(256),
  `v-a-b~${'0'.repeat(16)}`,
];

const anyValue = fc.oneof(
  fc.constantFrom(...AWKWARD),
  fc.string({ unit: 'binary', maxLength: 256 }),
  fc.string({ unit: fc.constantFrom('a', 'A', '0', '.', '-', '_', '~', '/', '%', 'é'), maxLength: 8 }),
  fc.string({ unit: fc.constantFrom('a', 'A'), minLength: 76, maxLength: 84 }),
);

describe('slugs', () => {
  it('are plain ASCII of 1 to 100 bytes, legal keys, and nothing that a reader could take for something else', () => {
    const check = fc.property(anyValue, (value) => {
      const slug = slugOf(value);
      assert.match(slug, /^[a-z][a-z0-9._~-]*$/);
      assert.ok(slug.length <= SLUG_BYTES_MAX);
      assert.equal(encodeURIComponent(slug), slug, 'nothing to escape');
      assert.doesNotMatch(slug, /^(null|nan|inf|infinity|true|false)$/);
      checkKey(`tenant=${slug}`);
    });
    fc.assert(check, runs(1000));
    for (const value of AWKWARD) assert.match(slugOf(value), /^[a-z][a-z0-9._~-]{0,99}$/, JSON.stringify(value));
  });

  it('never collide for different values, also where case does not count', () => {
    const all = new Map(AWKWARD.map((value) => [slugOf(value).toLowerCase(), value]));
    assert.equal(all.size, AWKWARD.length);
    const check = fc.property(anyValue, anyValue, (a, b) => {
      assert.equal(slugOf(a).toLowerCase() === slugOf(b).toLowerCase(), a === b);
      // A slug is a value too, and somebody may choose it.
      assert.notEqual(slugOf(slugOf(a)) === slugOf(a), slugOf(a) !== a);
    });
    fc.assert(check, runs(1000));
  });

  it('are the value itself where it is harmless, and readable where it is not', () => {
    for (const value of ['default', 'acme', 'claude-3-5-sonnet-20241022', 'gpt-4.1', 'a'.repeat(80)]) {
      assert.equal(slugOf(value), value);
    }
    assert.match(slugOf('Acme GmbH & Co'), /^v-acme-gmbh-co~[0-9a-f]{16}$/);
    assert.match(slugOf('007'), /^v-007~[0-9a-f]{16}$/);
    assert.match(slugOf('..'), /^v-~[0-9a-f]{16}$/);
  });

  it('are a stored format', () => {
    const folder = partitionFolder({ tenant: 'a/b', date: '2024-12-01', model_version: 'NULL' });
    assert.equal(folder, 'tenant=v-a-b~6df7cee24c7627c8/date=2024-12-01/model_version=v-null~581370e9c5586a35/');
  });
});
