import assert from 'node:assert/strict';
import * as fc from 'fast-check';
import { canonicalJson, type JsonObject } from '../../schemas/canonical.ts';
import { isVarveError } from '../../schemas/errors.ts';
import {
  checkPayload,
  isKnownEventType,
  KIND_CODES,
  KINDS,
  type KnownEventType,
  kindCode,
  type PayloadOf,
} from '../../schemas/kinds.ts';
import { stubFor } from '../../schemas/stubs.ts';
import { anyObject, anyPayload } from '../support/events.ts';
import { runs } from '../support/property.ts';

const NAMES = Object.keys(KINDS) as KnownEventType[];

function refusal(event_type: string, payload: unknown): { code: string; pointer: unknown; message: string } {
  try {
    checkPayload(event_type, payload as JsonObject);
  } catch (error) {
    if (isVarveError(error)) return { code: error.code, pointer: error.details['pointer'], message: error.message };
    throw error;
  }
  return { code: 'accepted', pointer: undefined, message: '' };
}

describe('kinds', () => {
  for (const event_type of NAMES) {
    it(`${event_type} takes its fields, stubs for its texts, unknown fields, and changes nothing`, () => {
      fc.assert(
        fc.property(anyPayload[event_type], (payload) => {
          const before = canonicalJson(payload);
          checkPayload(event_type, payload);
          assert.equal(canonicalJson(payload), before);
        }),
        runs(40),
      );
    });
  }

  it('say nothing about kinds that they do not know, whatever the name', () => {
    fc.assert(
      fc.property(
        anyObject,
        fc.constantFrom('x.Custom', 'toolintent', 'constructor', '__proto__', 'hasOwnProperty'),
        (payload, type) => {
          assert.equal(isKnownEventType(type), false);
          assert.equal(kindCode(type), 0);
          checkPayload(type, payload);
        },
      ),
      runs(60),
    );
  });

  it('have codes that never change', () => {
    assert.deepEqual(KIND_CODES, {
      TaskStarted: 1,
      ContextBuilt: 2,
      ModelReplied: 3,
      Authorized: 4,
      ApprovalRequested: 5,
      ApprovalResolved: 6,
      ToolIntent: 7,
      ToolResult: 8,
      Compacted: 9,
      Checkpoint: 10,
      MessageAdded: 11,
      InputRead: 12,
      DriftCrossed: 13,
      RolledBack: 14,
      Halted: 15,
      Resumed: 16,
      TaskFinished: 17,
      Noted: 18,
    });
    assert.deepEqual(
      NAMES.map(kindCode),
      NAMES.map((name) => KIND_CODES[name]),
    );
  });

  it('require only that without which an event says nothing', () => {
    const required = new Map(
      NAMES.map((name) => [
        name,
        Object.entries(KINDS[name].shape)
          .filter(([, field]) => !field.safeParse(undefined).success)
          .map(([field]) => field),
      ]),
    );
    assert.deepEqual(Object.fromEntries([...required].filter(([, fields]) => fields.length > 0)), {
      Authorized: ['tool_call_id', 'decision'],
      ApprovalRequested: ['tool_call_id'],
      ApprovalResolved: ['tool_call_id', 'decision'],
      ToolIntent: ['tool_call_id'],
      ToolResult: ['tool_call_id'],
      MessageAdded: ['role', 'content'],
      InputRead: ['input'],
      DriftCrossed: ['what'],
      RolledBack: ['to_sequence_number'],
      TaskFinished: ['status'],
    });
  });

  it('count names in bytes and versions in code points', () => {
    const call = (tool_call_id: string) => refusal('ToolIntent', { tool_call_id }).code;
    assert.equal(call('x'.repeat(1024)), 'accepted');
    assert.equal(call('\u{1f600}'.repeat(256)), 'accepted');
    for (const name of ['', 'x'.repeat(1025), '\u{1f600}'.repeat(257), 'é'.repeat(513)])
      assert.equal(call(name), 'INVALID_PAYLOAD');
    const tenant = (tenant: string) => refusal('TaskStarted', { tenant }).code;
    for (const name of ['x', 'x'.repeat(256), '\u{1f600}'.repeat(256), '007', '../x y=%'])
      assert.equal(tenant(name), 'accepted');
    for (const name of ['', 'x'.repeat(257), '\u{1f600}'.repeat(257)]) assert.equal(tenant(name), 'INVALID_PAYLOAD');
  });

  const stub = stubFor(Buffer.from('x'));
  const refused: readonly [string, string, unknown, string][] = [
    ['a missing id', 'ToolIntent', { tool_name: 'pay' }, '/tool_call_id'],
    ['a stub for a name', 'ToolIntent', { tool_call_id: stub }, '/tool_call_id'],
    ['null for an absent field', 'ToolIntent', { tool_call_id: 'c', tool_name: null }, '/tool_name'],
    ['parsed arguments', 'ToolIntent', { tool_call_id: 'c', arguments: 5 }, '/arguments'],
    ['an unknown status', 'ToolResult', { tool_call_id: 'c', status: 'success' }, '/status'],
    ['a negative duration', 'ToolResult', { tool_call_id: 'c', duration_ms: -1 }, '/duration_ms'],
    [
      'a call without id, by its place',
      'ModelReplied',
      { tool_calls: [{ tool_call_id: 'a' }, {}] },
      '/tool_calls/1/tool_call_id',
    ],
    [
      'a block without type, by its place',
      'ModelReplied',
      { content: [{ type: 'text' }, { text: 'x' }] },
      '/content/1/type',
    ],
    ['half a token', 'ModelReplied', { usage: { input_tokens: 1.5 } }, '/usage/input_tokens'],
    [
      'a malformed stub',
      'MessageAdded',
      { role: 'user', content: { $blob: { ...stub.$blob, bytes: -1 } } },
      '/content/$blob/bytes',
    ],
    ['a role of somebody else', 'MessageAdded', { role: 'assistant', content: '' }, '/role'],
    ['a range that runs backwards', 'ContextBuilt', { messages: [{ from: 4, to: 3 }] }, '/messages/0/to'],
    [
      'an entry of two forms',
      'ContextBuilt',
      { messages: [{ at: 4, cut: 1, shown_sha256: '0'.repeat(64), from: 1, to: 2 }] },
      '/messages/0/at',
    ],
    ['a base that is not first', 'ContextBuilt', { messages: [{ from: 1, to: 2 }, { base: 3 }] }, '/messages'],
    [
      'a parent that is no id',
      'TaskStarted',
      { parent: { trajectory_id: 'x', sequence_number: 1 } },
      '/parent/trajectory_id',
    ],
    ['a key with characters of pointers', 'TaskStarted', { labels: { 'a/b~': 1 } }, '/labels/a~1b~0'],
    [
      'a date that is none',
      'ApprovalRequested',
      { tool_call_id: 'c', expires_at: '2024-02-30T00:00:00.000Z' },
      '/expires_at',
    ],
    ['a reward in letters', 'TaskFinished', { status: 'failed', outcome: { reward: 'I' } }, '/outcome/reward'],
    ['a list for a payload', 'Noted', [], ''],
    ['a list for a payload of an unknown kind', 'x.Custom', [], ''],
  ];
  for (const [what, event_type, payload, pointer] of refused) {
    it(`refuse ${what}`, () => {
      const { code, pointer: named, message } = refusal(event_type, payload);
      assert.deepEqual([code, named], ['INVALID_PAYLOAD', pointer], message);
    });
  }

  it('refuse an erasure and a stub for a whole payload, also of kinds that they do not know', () => {
    for (const event_type of ['Noted', 'x.Custom']) {
      assert.equal(refusal(event_type, { $redacted: null }).code, 'REDACTED_AT_DOOR');
      assert.equal(refusal(event_type, { a: 1, $redacted: {} }).code, 'REDACTED_AT_DOOR');
      assert.equal(refusal(event_type, stub).code, 'STUB_MALFORMED');
      assert.equal(refusal(event_type, { a: { $redacted: 1 }, b: stub }).code, 'accepted');
    }
  });

  it('do not put payloads into their errors', () => {
    const secret = 'sk-secret';
    for (const payload of [
      { tool_call_id: [secret] },
      { tool_call_id: 'c', settle: secret },
      { tool_call_id: secret.repeat(200) },
    ]) {
      assert.ok(!refusal('ToolIntent', payload).message.includes(secret));
    }
  });

  it('have types that fit what append takes', () => {
    const reply: PayloadOf<'ModelReplied'> = {
      content: [
        { type: 'thinking', text: 'hm', signature: 'abc' },
        { type: 'tool_call', tool_call_id: 'c' },
      ],
      tool_calls: [{ tool_call_id: 'c', tool_name: 'pay', arguments: '{"amount": 1.10}' }],
      usage: { input_tokens: 3, output_tokens: 4 },
      x_vendor: { a: [1] },
    };
    const payload: JsonObject = reply;
    checkPayload('ModelReplied', payload);
  });
});
