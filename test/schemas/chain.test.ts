import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import canonicalize from 'canonicalize';
import * as fc from 'fast-check';
import {
  chainHash,
  checkEventType,
  checkFencingToken,
  checkTurn,
  type Envelope,
  formatEnvelope,
  GENESIS_HASH,
  parseCreatedAt,
  parseEnvelope,
  payloadSha256,
} from '../../schemas/chain.ts';
import type { SequenceNumber, TrajectoryId } from '../../schemas/ids.ts';
import { CREATED_AT_MS_MAX, TURN_MAX } from '../../schemas/limits.ts';
import { runs } from '../support/property.ts';

const anyEnvelope: fc.Arbitrary<Envelope> = fc.record(
  {
    created_at: fc
      .date({ min: new Date(0), max: new Date(CREATED_AT_MS_MAX), noInvalidDate: true })
      .map((at) => at.toISOString()),
    event_type: fc.stringMatching(/^[A-Za-z][A-Za-z0-9._:/-]{0,127}$/),
    fencing_token: fc.maxSafeNat(),
    payload_sha256: fc.stringMatching(/^[0-9a-f]{64}$/),
    sequence_number: fc.maxSafeNat().map((n) => Math.max(1, n) as SequenceNumber),
    trajectory_id: fc.uuid({ version: 7 }).map((id) => id as TrajectoryId),
    turn: fc.nat(TURN_MAX),
  },
  { noNullPrototype: true },
);

describe('hash chain', () => {
  it('has envelopes that are canonical JSON, by an independent implementation, and ASCII', () => {
    fc.assert(
      fc.property(anyEnvelope, (envelope) => {
        assert.equal(formatEnvelope(envelope), canonicalize(envelope));
        assert.match(formatEnvelope(envelope), /^[\x20-\x7e]*$/);
      }),
      runs(300),
    );
  });

  it('reads back what it wrote', () => {
    fc.assert(
      fc.property(anyEnvelope, (envelope) => assert.deepEqual(parseEnvelope(formatEnvelope(envelope)), envelope)),
      runs(300),
    );
  });

  it('takes no other text for an envelope', () => {
    fc.assert(
      fc.property(anyEnvelope, fc.nat(), fc.integer({ min: 32, max: 126 }), (envelope, seed, code) => {
        const text = formatEnvelope(envelope);
        const at = seed % text.length;
        const changed = text.slice(0, at) + String.fromCharCode(code) + text.slice(at + 1);
        const parsed = parseEnvelope(changed);
        if (parsed !== undefined) assert.equal(formatEnvelope(parsed), changed);
        for (const other of [`${text}\n`, ` ${text}`, text.slice(0, -1), text.slice(0, at)]) {
          assert.equal(parseEnvelope(other), undefined);
        }
      }),
      runs(300),
    );
    const good =
      '{"created_at":"2024-11-27T12:00:00.000Z","event_type":"A","fencing_token":0,"payload_sha256":"' +
      `${'0'.repeat(64)}","sequence_number":1,"trajectory_id":"01936f5a-5c00-7000-8000-000000000001","turn":0}`;
    assert.notEqual(parseEnvelope(good), undefined);
    for (const [from, to] of [
      ['"sequence_number":1', '"sequence_number":0'],
      ['"sequence_number":1', '"sequence_number":9007199254740992'],
      ['"turn":0', '"turn":2147483648'],
      ['"turn":0', '"turn":-0'],
      ['"turn":0', '"turn":00'],
      ['"fencing_token":0', '"fencing_token":0.0'],
    ] as const) {
      assert.equal(parseEnvelope(good.replace(from, to)), undefined, to);
    }
  });

  it('covers the event before and the whole envelope', () => {
    fc.assert(
      fc.property(anyEnvelope, fc.uint8Array({ minLength: 32, maxLength: 32 }), (envelope, previous) => {
        const text = formatEnvelope(envelope);
        const expected = createHash('sha256').update(previous).update(text, 'utf8').digest('hex');
        assert.equal(chainHash(previous, text).toString('hex'), expected);
      }),
      runs(100),
    );
    assert.deepEqual(GENESIS_HASH, new Uint8Array(32));
    assert.equal(payloadSha256('{"a":"é"}'), createHash('sha256').update('{"a":"é"}', 'utf8').digest('hex'));
  });

  it('takes exactly the legal event types, turns and tokens', () => {
    for (const type of ['A', 'z9', 'x-Acme.v2:Tool/call_9', 'a'.repeat(128)]) checkEventType(type);
    for (const type of ['', '9a', '_a', 'a'.repeat(129), 'a b', 'a\n', 'é', 'a"']) {
      assert.throws(() => checkEventType(type), { code: 'INVALID_EVENT_TYPE' });
    }
    for (const turn of [0, TURN_MAX]) checkTurn(turn);
    for (const turn of [-1, 0.5, TURN_MAX + 1, Number.NaN])
      assert.throws(() => checkTurn(turn), { code: 'INVALID_TURN' });
    for (const token of [0, Number.MAX_SAFE_INTEGER]) checkFencingToken(token);
    for (const token of [-1, 0.5, 2 ** 53, Number.POSITIVE_INFINITY]) {
      assert.throws(() => checkFencingToken(token), { code: 'INVALID_FENCING_TOKEN' });
    }
  });

  it('takes exactly one form of time', () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: CREATED_AT_MS_MAX }), (ms) => {
        assert.equal(parseCreatedAt(new Date(ms).toISOString()), ms);
      }),
      runs(200),
    );
    const bad = [
      '2024-11-27T12:00:00Z',
      '2024-02-30T12:00:00.000Z',
      '2023-02-29T00:00:00.000Z',
      '2024-11-27T24:00:00.000Z',
    ];
    bad.push(
      '1969-12-31T23:59:59.999Z',
      '+010000-01-01T00:00:00.000Z',
      '2024-11-27 12:00:00.000Z',
      '2024-11-27T12:00:00.000z',
      '',
    );
    bad.push('2024-11-27T12:00:60.000Z', '2024-11-27T12:00:00.0000', '<redacted>');
    for (const text of bad) assert.throws(() => parseCreatedAt(text), { code: 'INVALID_CREATED_AT' }, text);
  });
});
