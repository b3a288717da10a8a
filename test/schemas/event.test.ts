import assert from 'node:assert/strict';
import * as fc from 'fast-check';
import { canonicalJson, type Json, type JsonObject } from '../../schemas/canonical.ts';
import { formatEventLine, parseEventLine, type TrajectoryEvent, verifyEvent } from '../../schemas/event.ts';
import type { SequenceNumber } from '../../schemas/ids.ts';
import { anyObject, anyTrajectory, chained } from '../support/events.ts';
import { runs } from '../support/property.ts';

function one(payload: JsonObject): TrajectoryEvent {
  return chained([{ event_type: 'x.Any', payload }])[0] as TrajectoryEvent;
}

function verifyAll(events: readonly TrajectoryEvent[]): void {
  for (const [i, event] of events.entries()) verifyEvent(events[i - 1], event);
}

describe('event JSONL', () => {
  it('reads back byte-exactly, whatever the payload holds, and a line is canonical JSON without a line break', () => {
    fc.assert(
      fc.property(anyObject, (payload) => {
        const line = formatEventLine(one(payload));
        assert.equal(line, canonicalJson(JSON.parse(line)));
        assert.equal(formatEventLine(parseEventLine(line)), line);
        assert.ok(!line.includes('\n'));
        verifyEvent(undefined, parseEventLine(line));
      }),
      runs(300),
    );
  });

  it('holds a payload of the full nesting', () => {
    let deep: Json = [];
    for (let i = 2; i < 256; i++) deep = [deep];
    const line = formatEventLine(one({ deep }));
    assert.equal(formatEventLine(parseEventLine(line)), line);
    assert.throws(() => formatEventLine({ ...one({ deep }), payload: { deep: [deep] } }), { code: 'NESTING_TOO_DEEP' });
  });

  const good = formatEventLine(one({ a: 1, b: 'x' }));
  const refused: readonly [string, string, string][] = [
    ['a torn line', good.slice(0, -3), 'INVALID_JSONL'],
    ['two events in one line', good + good, 'INVALID_JSONL'],
    ['a line break', `${good}\r`, 'INVALID_JSONL'],
    ['white space', good.replace('{"a"', '{ "a"'), 'INVALID_JSONL'],
    ['other key order', good.replace('{"a":1,"b":"x"}', '{"b":"x","a":1}'), 'INVALID_JSONL'],
    ['a key twice', good.replace('{"a":1', '{"a":1,"a":1'), 'INVALID_JSONL'],
    ['a number in another form', good.replace('"a":1', '"a":1.0'), 'INVALID_JSONL'],
    ['a string in another form', good.replace('"x"', '"\\u0078"'), 'INVALID_JSONL'],
    ['an infinite number', good.replace('"a":1', '"a":1e400'), 'NUMBER_NOT_FINITE'],
    ['half of a surrogate pair', good.replace('"x"', '"\\ud800"'), 'STRING_NOT_WELL_FORMED'],
    ['an unknown field of the envelope', good.replace('{"created_at"', '{"a":1,"created_at"'), 'INVALID_JSONL'],
    ['a missing field', good.replace(',"turn":0', ''), 'INVALID_JSONL'],
    ['a payload that is no object', good.replace('{"a":1,"b":"x"}', '[]'), 'INVALID_JSONL'],
    ['minus zero', good.replace('"turn":0', '"turn":-0'), 'INVALID_JSONL'],
    ['a sequence number of 0', good.replace('"sequence_number":1', '"sequence_number":0'), 'INVALID_JSONL'],
    [
      'an upper-case hash',
      good.replace(/"cryptographic_hash":"[^"]*"/, (text) =>
        text.toUpperCase().replace('CRYPTOGRAPHIC_HASH', 'cryptographic_hash'),
      ),
      'INVALID_JSONL',
    ],
    ['an upper-case id', good.replace('01936f5a', '01936F5A'), 'INVALID_ID'],
    ['a turn that is a string', good.replace('"turn":0', '"turn":"0"'), 'INVALID_TURN'],
    ['a number for a line', '42', 'INVALID_JSONL'],
    ['null', 'null', 'INVALID_JSONL'],
    ['an empty line', '', 'INVALID_JSONL'],
  ];
  for (const [what, line, code] of refused) {
    it(`refuses ${what}`, () => assert.throws(() => parseEventLine(line), { code }));
  }
});

describe('verifyEvent', () => {
  it('accepts every whole trajectory from its first event on', () => {
    fc.assert(fc.property(anyTrajectory, verifyAll), runs(60));
  });

  it('finds every changed field, every missing and every swapped event', () => {
    fc.assert(
      fc.property(anyTrajectory, fc.nat(), fc.nat(5), (events, seed, field) => {
        fc.pre(events.length > 1);
        const at = seed % events.length;
        const event = events[at] as TrajectoryEvent;
        const changes: Partial<TrajectoryEvent>[] = [
          { turn: event.turn + 1 },
          { event_type: `${event.event_type}x` },
          { payload: { ...event.payload, x_more: 1 } },
          { fencing_token: 1 },
          { created_at: event.created_at.replace(/^2024/, '2025') },
          { sequence_number: (event.sequence_number + 1) as SequenceNumber },
        ];
        assert.throws(() => verifyAll(events.with(at, { ...event, ...changes[field] })));
        if (at < events.length - 1) assert.throws(() => verifyAll(events.toSpliced(at, 1)), { code: 'CHAIN_BROKEN' });
      }),
      runs(100),
    );
  });

  it('names what went back', () => {
    const [first, second] = chained([
      { event_type: 'A', payload: {}, turns: 1, ms: 10 },
      { event_type: 'B', payload: {} },
    ]) as [TrajectoryEvent, TrajectoryEvent];
    assert.throws(() => verifyEvent(first, { ...second, turn: 0 }), { code: 'TURN_WENT_BACK' });
    const before = { ...second, created_at: '2024-01-01T00:00:00.000Z' };
    assert.throws(() => verifyEvent(first, before), { code: 'CREATED_AT_WENT_BACK' });
    assert.throws(() => verifyEvent({ ...first, fencing_token: 1 }, second), { code: 'FENCING_TOKEN_WENT_BACK' });
  });

  it('covers every byte of the payload', () => {
    const event = one({ a: 'x' });
    assert.throws(() => verifyEvent(undefined, { ...event, payload: { a: 'y' } }), { code: 'CHAIN_BROKEN' });
  });
});
