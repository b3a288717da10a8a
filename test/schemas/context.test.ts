import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import canonicalize from 'canonicalize';
import * as fc from 'fast-check';
import type { Json, JsonObject } from '../../schemas/canonical.ts';
import {
  assembleContext,
  type ContextLookup,
  type ContextMessage,
  contextHash,
  contextReach,
  cutText,
  messageDigest,
  snapToWholeCalls,
} from '../../schemas/context.ts';
import type { TrajectoryEvent } from '../../schemas/event.ts';
import type { ContextEntry } from '../../schemas/fields.ts';
import { apply, entriesOf, INITIAL_RECORD } from '../../schemas/fold.ts';
import { checkPayload } from '../../schemas/kinds.ts';
import { stubFor } from '../../schemas/stubs.ts';
import { anyText, anyTrajectory, chained, PARENT } from '../support/events.ts';
import { runs } from '../support/property.ts';

type Draft = readonly [event_type: string, payload?: JsonObject];

function events(...drafts: readonly Draft[]): TrajectoryEvent[] {
  return chained(drafts.map(([event_type, payload = {}]) => ({ event_type, payload })));
}

function lookupIn(events: readonly TrajectoryEvent[], parent: readonly TrajectoryEvent[] = []): ContextLookup {
  return (at, trajectory_id) => (trajectory_id === undefined ? events : parent)[at - 1];
}

function shown(events: readonly TrajectoryEvent[], ...entries: ContextEntry[]): string[] {
  return assembleContext(entries, lookupIn(events)).messages.map(show);
}

function show({ role, type, tool_call_id, text, block }: ContextMessage): string {
  return [
    role,
    ...(type === 'text' ? [] : [type]),
    ...(tool_call_id === undefined ? [] : [tool_call_id]),
    typeof text === 'string' ? text : JSON.stringify(text ?? block),
  ].join(' ');
}

const user = (content: Json): Draft => ['MessageAdded', { role: 'user', content }];
const reply = (content: Json, ...ids: string[]): Draft => [
  'ModelReplied',
  { content, tool_calls: ids.map((id) => ({ tool_call_id: id, tool_name: 'run', arguments: `{"${id}":1.0}` })) },
];
const result = (tool_call_id: string, output: Json = 'out'): Draft => ['ToolResult', { tool_call_id, output }];
const sha = (text: string) => createHash('sha256').update(text).digest('hex');

/** The same with every text that is not a name as a stub, as compaction leaves it. */
function stubbed(value: Json, key = ''): Json {
  const names = [
    'tool_call_id',
    'tool_name',
    'type',
    'role',
    'status',
    'name',
    'trajectory_id',
    'shown_sha256',
    'sha256',
    'media_type',
    'version',
  ];
  if (typeof value === 'string') return names.includes(key) ? value : stubFor(Buffer.from(value));
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) return value.map((element) => stubbed(element, key));
  if (Object.hasOwn(value, '$blob')) return value;
  return Object.fromEntries(Object.entries(value as JsonObject).map(([key, member]) => [key, stubbed(member, key)]));
}

describe('context assembly', () => {
  it('shows messages, replies, results and summaries of a range, in order, and nothing else', () => {
    const log = events(
      ['TaskStarted', { task: 't' }],
      user('hi'),
      ['ContextBuilt'],
      reply('ok', 'a'),
      ['Authorized', { tool_call_id: 'a', decision: 'allow' }],
      ['ToolIntent', { tool_call_id: 'a' }],
      result('a'),
      ['Noted', { note: 'n' }],
      ['x.Custom', { content: 'c' }],
      ['Compacted', { summary: 's' }],
    );
    assert.deepEqual(shown(log, { from: 1, to: 10 }), [
      'user hi',
      'assistant ok',
      'assistant tool_call a {"a":1.0}',
      'tool tool_result a out',
      'user s',
    ]);
  });

  it('gives a reply block by block, calls in the place that a block keeps for them', () => {
    const blocks = [
      { type: 'thinking', text: 'hm', signature: 'x' },
      { type: 'tool_call', tool_call_id: 'b' },
      { type: 'text', text: 'and' },
    ];
    const log = events(reply(blocks, 'a', 'b'), result('a'), result('b'));
    assert.deepEqual(shown(log, { from: 1, to: 3 }), [
      'assistant thinking hm',
      'assistant tool_call b {"b":1.0}',
      'assistant and',
      'assistant tool_call a {"a":1.0}',
      'tool tool_result a out',
      'tool tool_result b out',
    ]);
    const thinking = assembleContext([{ from: 1, to: 3 }], lookupIn(log)).messages[0];
    assert.deepEqual(thinking?.block, blocks[0]);
  });

  it('knows texts that no event holds, the parent, and one message cut', () => {
    const log = events(user('x\u{1f600}\u{1f600}y'));
    const parent = events(user('before'));
    const entries: ContextEntry[] = [
      { trajectory_id: PARENT, from: 1, to: 1 },
      { at: 1, cut: 6, shown_sha256: sha('x\u{1f600}') },
      { text: 'note', role: 'developer' },
      { text: 'plain' },
    ];
    checkPayload('ContextBuilt', { messages: entries });
    const { messages } = assembleContext(entries, lookupIn(log, parent));
    assert.deepEqual(messages.map(show), ['user before', 'user x\u{1f600}', 'developer note', 'user plain']);
    assert.deepEqual(
      messages.map((message) => message.trajectory_id),
      [PARENT, undefined, undefined, undefined],
    );
  });

  it('follows bases to the whole context, and shows the same as the whole would', () => {
    const log: Draft[] = [user('one')];
    const whole: ContextEntry = { from: 1, to: 1 };
    for (let i = 0; i < 5; i++) {
      const at = log.length;
      log.push(
        ['ContextBuilt', { messages: i === 0 ? [whole] : [{ base: at - 1 }, { from: at, to: at }] }],
        user(`more ${i}`),
      );
    }
    const chainedLog = events(...log);
    const last = log.length - 1;
    assert.deepEqual(
      shown(chainedLog, { base: last }, { from: last + 1, to: last + 1 }),
      shown(chainedLog, { from: 1, to: last + 1 }),
    );
  });

  it('skips what a rollback among its entries took back, and nothing of the parent', () => {
    const log = events(user('a'), user('b'), user('c'), ['RolledBack', { to_sequence_number: 1 }], user('d'));
    const parent = events(user('p1'), user('p2'), user('p3'));
    assert.deepEqual(shown(log, { from: 1, to: 5 }), ['user a', 'user d']);
    const both: ContextEntry[] = [
      { trajectory_id: PARENT, from: 1, to: 3 },
      { from: 1, to: 5 },
    ];
    assert.equal(assembleContext(both, lookupIn(log, parent)).messages.length, 5);
  });

  it('names the event that is missing instead of showing less', () => {
    const log = events(user('a'), ['ContextBuilt', { $redacted: {} }]);
    for (const entry of [
      { from: 1, to: 9e15 },
      { at: 7, cut: 1, shown_sha256: sha('') },
      { base: 7 },
      { base: 2 },
    ] satisfies ContextEntry[]) {
      assert.throws(() => shown(log, entry), { code: 'CONTEXT_INCOMPLETE' });
    }
  });

  it('ends where a base refers to itself or ahead', () => {
    const log = events(['ContextBuilt', { messages: [{ base: 2 }] }], ['ContextBuilt', { messages: [{ base: 1 }] }]);
    assert.throws(() => shown(log, { base: 1 }), { code: 'CONTEXT_INCOMPLETE' });
  });
});

describe('calls and results in a context', () => {
  it('are never orphans, whatever the log and the entries', () => {
    fc.assert(
      fc.property(anyTrajectory, fc.nat(40), fc.nat(40), (log, a, b) => {
        const entries: ContextEntry[] = [{ from: Math.min(a, b) + 1, to: Math.max(a, b) + 1 }];
        fc.pre(Math.max(a, b) < log.length);
        const { messages } = assembleContext(entries, lookupIn(log));
        const open = new Set<string>();
        let last: string | undefined;
        for (const { type, tool_call_id: id, sequence_number } of messages) {
          if (id === undefined) continue;
          if (type === 'tool_call') {
            assert.ok(!open.has(id));
            open.add(id);
          } else {
            assert.ok(open.delete(id) || last === `${id} ${sequence_number}`);
            last = `${id} ${sequence_number}`;
          }
        }
        assert.deepEqual([...open], []);
      }),
      runs(200),
    );
  });

  it('are left out with a reason where the partner is missing', () => {
    const log = events(reply('x', 'a', 'b'), result('a'), result('a', 'second'), result('z'), reply('y', 'c'));
    const { messages, dropped } = assembleContext([{ from: 1, to: 5 }], lookupIn(log));
    assert.deepEqual(messages.map(show), [
      'assistant x',
      'assistant tool_call a {"a":1.0}',
      'tool tool_result a out',
      'assistant y',
    ]);
    assert.deepEqual(
      dropped
        .map(({ message, reason }) => [message.tool_call_id, reason])
        .toSorted((a, b) => String(a).localeCompare(String(b))),
      [
        ['a', 'no_call'],
        ['b', 'no_result'],
        ['c', 'no_result'],
        ['z', 'no_call'],
      ],
    );
  });

  it('may be answered by a text that no event holds, and by a result of several blocks', () => {
    const log = events(
      reply('x', 'a', 'b'),
      result('b', [
        { type: 'text', text: '1' },
        { type: 'image', data: 'AA' },
      ]),
    );
    const { messages } = assembleContext(
      [
        { from: 1, to: 2 },
        { text: 'still running', tool_call_id: 'a' },
      ],
      lookupIn(log),
    );
    assert.equal(messages.length, 6);
    assert.equal(show(messages.at(-1) as ContextMessage), 'tool tool_result a still running');
  });

  it('may use an id again once it is answered', () => {
    const log = events(reply('', 'call_0'), result('call_0'), reply('', 'call_0'), result('call_0'));
    assert.deepEqual(assembleContext([{ from: 1, to: 4 }], lookupIn(log)).dropped, []);
  });
});

describe('a compaction', () => {
  it('ends before every call that is not answered within it', () => {
    const log = events(
      user('t'),
      reply('', 'a'),
      result('a'),
      reply('', 'b', 'c'),
      result('b'),
      result('c'),
      reply('', 'd'),
    );
    const { messages, dropped } = assembleContext([{ from: 1, to: 7 }], lookupIn(log));
    const all = [...messages, ...dropped.map(({ message }) => message)];
    const ends = [0, 1, 2, 3, 4, 5, 6, 7, 8].map((to) => snapToWholeCalls(all, to));
    assert.deepEqual(ends, [0, 1, 1, 3, 3, 3, 6, 6, 6]);
  });

  it('steps back over calls that overlap', () => {
    const log = events(reply('', 'a'), reply('', 'b'), result('a'), result('b'));
    const { messages } = assembleContext([{ from: 1, to: 4 }], lookupIn(log));
    assert.deepEqual(
      [1, 2, 3, 4].map((to) => snapToWholeCalls(messages, to)),
      [0, 0, 0, 4],
    );
  });
});

describe('context hash', () => {
  const tools = [{ name: 'run', description: 'd', input_schema: { type: 'object' } }];

  it('is the documented one, computed by other code', () => {
    const log = events(user('hi'), reply('ok', 'a'), result('a'));
    const { messages } = assembleContext([{ from: 1, to: 3 }], lookupIn(log));
    const covered = {
      system_prompt: sha('be good'),
      tools: [{ name: sha('run'), description: sha('d'), input_schema: { type: sha('object') } }],
      messages: [
        { role: 'user', sha256: sha('hi') },
        { role: 'assistant', sha256: sha('ok') },
        { role: 'assistant', tool_call_id: 'a', sha256: sha('{"a":1.0}') },
        { role: 'tool', tool_call_id: 'a', sha256: sha('out') },
      ],
    };
    assert.equal(contextHash('be good', tools, messages), sha(canonicalize(covered) as string));
    assert.equal(contextHash('be good', tools, messages.map(messageDigest)), contextHash('be good', tools, messages));
  });

  it('agrees between texts and their stubs, wherever they stand', () => {
    fc.assert(
      fc.property(anyTrajectory, anyText, (log, prompt) => {
        fc.pre(log.length > 0);
        const cold = log.map((event) => ({ ...event, payload: stubbed(event.payload) as JsonObject }));
        const entries: ContextEntry[] = [{ from: 1, to: log.length }];
        const hash = (log: readonly TrajectoryEvent[], prompt: Json, tools: Json) =>
          contextHash(prompt, tools, assembleContext(entries, lookupIn(log)).messages);
        const stub = (text: string) => stubFor(Buffer.from(text));
        assert.equal(hash(cold, stub(prompt), [{ name: stub('run') }]), hash(log, prompt, [{ name: 'run' }]));
      }),
      runs(100),
    );
    const cut: ContextEntry = { at: 1, cut: 2, shown_sha256: sha('ab') };
    const log = events(user('abc'));
    const cold = log.map((event) => ({ ...event, payload: stubbed(event.payload) as JsonObject }));
    const hash = (log: readonly TrajectoryEvent[]) =>
      contextHash(undefined, undefined, assembleContext([cut], lookupIn(log)).messages);
    assert.equal(hash(cold), hash(log));
  });

  it('changes with every text, role, call, tool and order', () => {
    const of = (...drafts: Draft[]) =>
      contextHash('p', tools, assembleContext([{ from: 1, to: drafts.length }], lookupIn(events(...drafts))).messages);
    const hashes = [
      of(user('a'), user('b')),
      of(user('b'), user('a')),
      of(user('a'), user('b ')),
      of(user('a'), ['MessageAdded', { role: 'developer', content: 'b' }]),
      of(user('ab')),
      contextHash('q', tools, []),
      contextHash('p', [], []),
      contextHash('p', undefined, []),
      contextHash(undefined, tools, []),
    ];
    assert.equal(new Set(hashes).size, hashes.length);
  });

  it('is the same before a crash and after it: entries that build upon others show what whole ones would', () => {
    fc.assert(
      fc.property(anyTrajectory, (drafts) => {
        let record = INITIAL_RECORD;
        const log: TrajectoryEvent[] = [];
        for (const draft of drafts) {
          const messages = entriesOf(record);
          checkPayload('ContextBuilt', { messages });
          const event = draft.event_type === 'ContextBuilt' ? { ...draft, payload: { messages } } : draft;
          log.push(event);
          record = apply(record, event);
        }
        const hash = (entries: readonly ContextEntry[]) =>
          contextHash('p', [], assembleContext(entries, lookupIn(log)).messages);
        assert.equal(hash(JSON.parse(JSON.stringify(entriesOf(record))) as ContextEntry[]), hash(record.shown.ranges));
      }),
      runs(200),
    );
  });
});

describe('cutText', () => {
  it('gives the longest beginning that fits and never half a code point', () => {
    fc.assert(
      fc.property(anyText, fc.nat(120), (text, bytes) => {
        const cut = cutText(text, bytes);
        assert.ok(text.startsWith(cut) && cut.isWellFormed() && Buffer.byteLength(cut) <= bytes);
        const next = text.codePointAt(cut.length);
        if (next !== undefined) assert.ok(Buffer.byteLength(cut + String.fromCodePoint(next)) > bytes);
      }),
      runs(400),
    );
    assert.equal(cutText('ab\u{1f600}', 5), 'ab');
    assert.equal(cutText('abc', Number.MAX_SAFE_INTEGER), 'abc');
    assert.equal(cutText('', 0), '');
  });
});

describe('contextReach', () => {
  it('names the oldest event of this trajectory and the base', () => {
    const entry = (entries: Json): JsonObject => ({ messages: entries });
    assert.deepEqual(contextReach(entry([{ base: 9 }, { from: 10, to: 12 }, { at: 4, cut: 1 }])), {
      oldest: 4,
      base: 9,
    });
    assert.deepEqual(contextReach(entry([{ base: 3 }, { from: 10, to: 12 }])), { oldest: 3, base: 3 });
    assert.deepEqual(contextReach(entry([{ trajectory_id: PARENT, from: 1, to: 2 }, { text: 'x' }])), {});
    assert.deepEqual(contextReach({}), {});
    assert.deepEqual(contextReach({ $redacted: {} }), {});
  });
});
