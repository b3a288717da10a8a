import assert from 'node:assert/strict';
import * as fc from 'fast-check';
import { type CallState, classifyCall } from '../../schemas/calls.ts';
import type { JsonObject } from '../../schemas/canonical.ts';
import type { TrajectoryEvent } from '../../schemas/event.ts';
import {
  apply,
  childRecord,
  entriesOf,
  fold,
  INITIAL_RECORD,
  openIntents,
  pendingApprovals,
  type TrajectoryRecord,
} from '../../schemas/fold.ts';
import { CONTEXT_BASE_EVERY, RECORD_JOURNAL_MAX } from '../../schemas/limits.ts';
import { anyTrajectory, chained, PARENT } from '../support/events.ts';
import { runs } from '../support/property.ts';

type Draft = readonly [event_type: string, payload?: JsonObject, turns?: number];

function events(...drafts: readonly Draft[]): TrajectoryEvent[] {
  return chained(drafts.map(([event_type, payload = {}, turns = 0]) => ({ event_type, payload, turns })));
}

function folded(...drafts: readonly Draft[]): TrajectoryRecord {
  return fold(INITIAL_RECORD, events(...drafts));
}

function states(record: TrajectoryRecord, wholeLog = true): Record<string, CallState> {
  return Object.fromEntries(record.calls.map((call) => [call.tool_call_id, classifyCall(call, wholeLog)]));
}

const call = (tool_call_id: string) => ({ tool_call_id });
const reply = (...ids: string[]): Draft => [
  'ModelReplied',
  { tool_calls: ids.map((id) => ({ tool_call_id: id, tool_name: 'pay' })) },
];
const user = (content: string): Draft => ['MessageAdded', { role: 'user', content }];

const MESSAGES = ['MessageAdded', 'ModelReplied', 'ToolResult', 'Compacted'];

/** The events that are shown, in order. Ranges may hold events of other kinds, which show nothing. */
function places(record: TrajectoryRecord, log: readonly TrajectoryEvent[]): number[] {
  return record.shown.ranges
    .flatMap(({ from, to }) => Array.from({ length: to - from + 1 }, (_, i) => from + i))
    .filter((at) => MESSAGES.includes(log[at - 1]?.event_type ?? ''));
}

/** What a rollback must give back as it was. */
function restorable(record: TrajectoryRecord, log: readonly TrajectoryEvent[]) {
  const { plan, versions, checkpoint, shown } = record;
  const { summaries, latest_user } = shown;
  return { plan, versions, checkpoint, summaries, latest_user, places: places(record, log) };
}

describe('fold', () => {
  it('is total, deterministic, leaves its input alone, and its record is plain JSON', () => {
    fc.assert(
      fc.property(anyTrajectory, (events) => {
        let record = INITIAL_RECORD;
        for (const event of events) {
          const before = JSON.stringify(record);
          const next = apply(record, event);
          assert.equal(JSON.stringify(record), before);
          record = next;
        }
        assert.deepEqual(fold(INITIAL_RECORD, events), record);
        assert.deepEqual(apply(record, events[0] ?? fold0()), apply(record, events[0] ?? fold0()));
      }),
      runs(200),
    );
  });

  it('goes on from a snapshot of the record as if it had never stopped', () => {
    fc.assert(
      fc.property(anyTrajectory, fc.nat(40), (events, at) => {
        const snapshot = JSON.parse(JSON.stringify(fold(INITIAL_RECORD, events.slice(0, at)))) as TrajectoryRecord;
        const resumed = fold(snapshot, events.slice(at));
        assert.equal(JSON.stringify(resumed), JSON.stringify(fold(INITIAL_RECORD, events)));
      }),
      runs(200),
    );
  });

  it('restores plan, versions, checkpoint and context at a rollback, and nothing that happened', () => {
    fc.assert(
      fc.property(anyTrajectory, fc.nat(40), (events, at) => {
        const target = Math.min(at, events.length);
        const before = fold(INITIAL_RECORD, events);
        const rollback = { event_type: 'RolledBack', payload: { to_sequence_number: target } };
        const after = apply(before, chained([...events, rollback]).at(-1) as TrajectoryEvent);
        const live = events.every((event) => event.event_type !== 'RolledBack');
        if (live)
          assert.deepEqual(
            restorable(after, events),
            restorable(fold(INITIAL_RECORD, events.slice(0, target)), events),
          );
        assert.deepEqual(after.tokens, before.tokens);
        assert.deepEqual(after.budgets, before.budgets);
        assert.deepEqual(
          openIntents(after).map((c) => c.tool_call_id),
          openIntents(before).map((c) => c.tool_call_id),
        );
        assert.equal(after.counts.rollbacks, before.counts.rollbacks + 1);
        assert.equal(after.approximate, false);
        assert.ok(after.shown.ranges.every((range) => range.to <= target));
      }),
      runs(200),
    );
  });

  it('shows a rolled-back turn nowhere, also after a second rollback into it', () => {
    const record = folded(
      user('a'),
      reply(),
      user('b'),
      ['RolledBack', { to_sequence_number: 2 }],
      user('c'),
      ['RolledBack', { to_sequence_number: 3 }],
      user('d'),
    );
    assert.deepEqual(record.shown.ranges, [
      { from: 1, to: 2 },
      { from: 7, to: 7 },
    ]);
  });

  it('keeps a bounded journal, and says when a rollback went past it', () => {
    const notes = Array.from({ length: RECORD_JOURNAL_MAX + 10 }, (_, i): Draft => ['Noted', { plan: i }]);
    const record = folded(...notes, ['RolledBack', { to_sequence_number: 500 }]);
    assert.equal(record.approximate, false);
    assert.equal(record.plan, 499);
    const past = folded(...notes, ['RolledBack', { to_sequence_number: 5 }]);
    assert.equal(past.approximate, true);
    assert.equal(past.plan, 9);
    assert.ok(folded(...notes).journal.length <= RECORD_JOURNAL_MAX);
  });
});

function fold0(): TrajectoryEvent {
  return events(['Noted'])[0] as TrajectoryEvent;
}

describe('status', () => {
  const cases: readonly [string, readonly Draft[]][] = [
    ['running', [reply('a')]],
    ['waiting_result', [reply('a'), ['ToolIntent', call('a')]]],
    ['waiting_approval', [reply('a'), ['ApprovalRequested', call('a')]]],
    [
      'running',
      [reply('a'), ['ApprovalRequested', call('a')], ['ApprovalResolved', { ...call('a'), decision: 'denied' }]],
    ],
    ['waiting_result', [reply('a'), ['ApprovalRequested', call('a')], ['ToolIntent', call('a')]]],
    ['running', [reply('a'), ['ToolIntent', call('a')], ['ToolResult', call('a')]]],
    [
      'halted',
      [
        ['Halted', call('a')],
        ['ToolIntent', call('a')],
      ],
    ],
    ['running', [['Halted'], ['Resumed']]],
    ['running', [['Halted'], ['RolledBack', { to_sequence_number: 0 }]]],
    [
      'canceled',
      [
        ['TaskFinished', { status: 'canceled' }],
        ['ToolIntent', call('a')],
        ['TaskFinished', { status: 'completed' }],
      ],
    ],
    ['running', [user('a'), ['TaskFinished', { status: 'failed' }], ['RolledBack', { to_sequence_number: 1 }]]],
  ];
  for (const [status, drafts] of cases) {
    it(`is ${status} after ${drafts.map(([type]) => type).join(', ')}`, () =>
      assert.equal(folded(...drafts).status, status));
  }
});

describe('tool calls after a crash', () => {
  it('are not sent, settled or in doubt by what the log holds of them', () => {
    const record = folded(
      reply('proposed', 'allowed', 'denied', 'held', 'answered', 'out', 'done'),
      ['Authorized', { ...call('allowed'), decision: 'allow' }],
      ['Authorized', { ...call('denied'), decision: 'deny' }],
      ['ApprovalRequested', call('held')],
      ['ApprovalRequested', call('answered')],
      ['ApprovalResolved', { ...call('answered'), decision: 'approved' }],
      ['ToolIntent', { ...call('out'), idempotency_key: 'k', settle: 'probe' }],
      ['ToolIntent', call('done')],
      ['ToolResult', { ...call('done'), status: 'ok' }],
    );
    const notSent = {
      proposed: 'not_sent',
      allowed: 'not_sent',
      denied: 'not_sent',
      held: 'not_sent',
      answered: 'not_sent',
    };
    assert.deepEqual(states(record), { ...notSent, out: 'in_doubt', done: 'settled' });
    assert.equal(openIntents(record)[0]?.intent?.idempotency_key, 'k');
    assert.deepEqual(
      pendingApprovals(record).map((c) => c.tool_call_id),
      ['held'],
    );
  });

  it('are all in doubt without a result, where the tail of the log may be lost', () => {
    const record = folded(reply('a', 'b'), ['ToolIntent', call('b')], ['ToolResult', call('b')]);
    assert.deepEqual(states(record, false), { a: 'in_doubt', b: 'settled' });
  });

  it('take one result: a second one is counted and changes nothing', () => {
    const before = folded(reply('a'), ['ToolIntent', call('a')], ['ToolResult', { ...call('a'), status: 'ok' }]);
    const after = folded(
      reply('a'),
      ['ToolIntent', call('a')],
      ['ToolResult', { ...call('a'), status: 'ok' }],
      ['ToolResult', { ...call('a'), status: 'error' }],
    );
    assert.deepEqual(after.calls, before.calls);
    assert.equal(after.unmatched_results, 1);
    assert.equal(after.counts.tool_results, 2);
  });

  it('open again with a new intent, and stay open across the same call being named again', () => {
    const retried = folded(reply('a'), ['ToolIntent', call('a')], ['ToolResult', call('a')], ['ToolIntent', call('a')]);
    assert.deepEqual(states(retried), { a: 'in_doubt' });
    assert.deepEqual(states(folded(reply('a'), ['ToolIntent', call('a')], reply('a', 'b'))), {
      a: 'in_doubt',
      b: 'not_sent',
    });
  });

  it('may carry an id that an earlier reply used', () => {
    const record = folded(
      reply('call_0'),
      ['ToolIntent', call('call_0')],
      ['ToolResult', call('call_0')],
      reply('call_0'),
    );
    assert.deepEqual(states(record), { call_0: 'not_sent' });
  });

  it('stay in doubt across a rollback; proposals and requests do not', () => {
    const record = folded(
      user('a'),
      reply('x', 'y'),
      ['ToolIntent', call('x')],
      ['ApprovalRequested', call('y')],
      ['RolledBack', { to_sequence_number: 1 }],
    );
    assert.deepEqual(states(record), { x: 'in_doubt' });
    assert.equal(record.status, 'waiting_result');
  });

  it('may be named like members of objects', () => {
    assert.deepEqual(
      folded(reply('__proto__', 'constructor'), ['ToolIntent', call('__proto__')]).calls.map((c) => c.tool_call_id),
      ['__proto__', 'constructor'],
    );
  });
});

describe('versions, plan, budgets and tokens', () => {
  it('come from the start, and move with drift, replies and authorizations', () => {
    const record = folded(
      [
        'TaskStarted',
        {
          model: 'm',
          model_version: '1',
          prompt_template: 'hi',
          tools: [{ name: 'pay' }, { name: 'run', version: '7' }],
          budgets: { usd: 10, calls: 5 },
          plan: ['a'],
          takeover: 'replicated',
        },
      ],
      ['ModelReplied', { served_model_version: '1-b', usage: { input_tokens: 5, output_tokens: 2 } }],
      ['Authorized', { ...call('a'), decision: 'allow', budget_remaining: { usd: 9.5 } }],
      ['DriftCrossed', { what: 'model', new_version: '2' }],
      ['DriftCrossed', { what: 'tool_schema', name: 'run', new_version: '8', tools: [] }],
      ['Compacted', { usage: { input_tokens: 100 } }],
      ['Noted', { plan: ['b'] }],
    );
    assert.deepEqual(record.budgets, [
      { name: 'usd', remaining: 9.5 },
      { name: 'calls', remaining: 5 },
    ]);
    assert.deepEqual(record.tokens, {
      input_tokens: 105,
      output_tokens: 2,
      cache_read_tokens: 0,
      cache_write_tokens: 0,
    });
    assert.equal(record.versions.model_version, '2');
    assert.equal(record.versions.served_model_version, '1-b');
    assert.match(record.versions.prompt_template_version ?? '', /^[0-9a-f]{64}$/);
    assert.deepEqual(
      record.versions.tool_schema_versions.map(({ name }) => name),
      ['pay', 'run'],
    );
    assert.equal(record.versions.tool_schema_versions[1]?.version, '8');
    assert.deepEqual(record.versions.tools, { sequence_number: 5 });
    assert.deepEqual(record.plan, ['b']);
    assert.equal(record.takeover, 'replicated');
  });
});

describe('what the context shows', () => {
  it('is shown once, was not rolled back, and holds the latest user message', () => {
    fc.assert(
      fc.property(anyTrajectory, (log) => {
        const shown = places(fold(INITIAL_RECORD, log), log);
        assert.equal(new Set(shown).size, shown.length);
        const back = new Set<number>();
        for (const { event_type, sequence_number, payload } of log) {
          const target = event_type === 'RolledBack' ? payload['to_sequence_number'] : undefined;
          for (let at = Number(target ?? sequence_number) + 1; at < sequence_number; at++) back.add(at);
        }
        for (const at of shown) assert.ok(!back.has(at), `event ${at} was rolled back`);
        const users = log.filter(
          ({ event_type, payload, sequence_number }) =>
            event_type === 'MessageAdded' && payload['role'] === 'user' && !back.has(sequence_number),
        );
        const latest = users.at(-1)?.sequence_number;
        if (latest !== undefined) assert.ok(shown.includes(latest), `user message ${latest} is lost`);
      }),
      runs(300),
    );
  });

  it('is one range while nothing is taken out of it', () => {
    assert.deepEqual(
      folded(
        ['TaskStarted'],
        user('a'),
        ['ContextBuilt'],
        reply('c'),
        ['ToolIntent', call('c')],
        ['ToolResult', call('c')],
      ).shown.ranges,
      [{ from: 2, to: 6 }],
    );
  });

  it('has the summary in the place of what it covers, the latest user message, and the rest', () => {
    const record = folded(
      user('old'),
      reply(),
      user('task'),
      reply(),
      reply(),
      ['Compacted', { summary: 's', to_sequence_number: 4 }],
      reply(),
    );
    assert.deepEqual(record.shown.ranges, [
      { from: 6, to: 6 },
      { from: 3, to: 3 },
      { from: 5, to: 5 },
      { from: 7, to: 7 },
    ]);
  });

  it('has only the newest summary after a second compaction, also one that the kept part holds', () => {
    const record = folded(
      user('task'),
      reply(),
      reply(),
      ['Compacted', { summary: 's1', to_sequence_number: 2 }],
      reply(),
      ['Compacted', { summary: 's2', to_sequence_number: 3 }],
    );
    assert.deepEqual(record.shown.ranges, [
      { from: 1, to: 1 },
      { from: 6, to: 6 },
      { from: 5, to: 5 },
    ]);
    assert.deepEqual(
      record.shown.summaries.map((s) => s.sequence_number),
      [6],
    );
  });

  it('keeps two summaries of different parts', () => {
    const record = folded(
      reply(),
      reply(),
      reply(),
      ['Compacted', { summary: 's1', to_sequence_number: 1 }],
      ['Compacted', { summary: 's2', from_sequence_number: 2, to_sequence_number: 2 }],
    );
    assert.deepEqual(record.shown.ranges, [
      { from: 4, to: 4 },
      { from: 5, to: 5 },
      { from: 3, to: 3 },
    ]);
  });

  it('never loses a call that is still open: a compaction reaches only up to its reply', () => {
    for (const open of [
      ['ToolIntent', call('c')],
      ['ApprovalRequested', call('c')],
    ] as const) {
      const record = folded(
        user('task'),
        reply(),
        reply('c'),
        open,
        ['Compacted', { summary: 's' }],
        ['ToolResult', call('c')],
      );
      assert.deepEqual(record.shown.ranges, [
        { from: 1, to: 1 },
        { from: 5, to: 5 },
        { from: 3, to: 3 },
        { from: 6, to: 6 },
      ]);
    }
  });

  it('comes back whole when a compaction is rolled back', () => {
    const record = folded(
      user('task'),
      reply(),
      ['Compacted', { summary: 's' }],
      reply(),
      ['RolledBack', { to_sequence_number: 2 }],
      reply(),
    );
    assert.deepEqual(record.shown.ranges, [
      { from: 1, to: 2 },
      { from: 6, to: 6 },
    ]);
  });

  it('goes into entries that build upon the last context, whole after a compaction or a rollback and now and then', () => {
    const drafts: Draft[] = [user('task')];
    let wholes = 0;
    for (let i = 0; i < 2 * CONTEXT_BASE_EVERY; i++) {
      const messages = entriesOf(folded(...drafts));
      if (messages[0]?.base === undefined) wholes++;
      else assert.deepEqual(messages, [{ base: drafts.length - 1 }, { from: drafts.length, to: drafts.length }]);
      drafts.push(['ContextBuilt', { messages }], reply());
    }
    assert.equal(wholes, 2);
    const compacted: Draft = ['Compacted', { summary: 's' }];
    assert.deepEqual(entriesOf(folded(...drafts, compacted)), [
      { from: 1, to: 1 },
      { from: drafts.length + 1, to: drafts.length + 1 },
    ]);
    assert.deepEqual(entriesOf(folded(...drafts, ['RolledBack', { to_sequence_number: 3 }])), [{ from: 1, to: 3 }]);
  });
});

describe('a child trajectory', () => {
  it('inherits plan, versions, budgets and context of its parent, and none of its calls and costs', () => {
    const parent = folded(
      ['TaskStarted', { model: 'm', tools: [], plan: 'p', budgets: { usd: 1 } }],
      user('task'),
      ['ModelReplied', { usage: { input_tokens: 5 }, tool_calls: [call('c')] }],
      ['ToolIntent', call('c')],
    );
    const child = fold(childRecord(parent, PARENT), events(user('instead')));
    assert.deepEqual(child.shown.ranges, [
      { trajectory_id: PARENT, from: 2, to: 3 },
      { from: 1, to: 1 },
    ]);
    assert.deepEqual(child.versions.tools, { trajectory_id: PARENT, sequence_number: 1 });
    assert.deepEqual([child.plan, child.budgets, child.versions.model], ['p', parent.budgets, 'm']);
    assert.deepEqual(
      [child.calls, child.tokens.input_tokens, child.counts.events, child.status],
      [[], 0, 1, 'running'],
    );
  });

  it('has nothing inherited left where a compaction covers all from the start', () => {
    const child = fold(
      childRecord(folded(user('task')), PARENT),
      events(user('instead'), reply(), ['Compacted', { summary: 's' }]),
    );
    assert.deepEqual(child.shown.ranges, [
      { from: 3, to: 3 },
      { from: 1, to: 1 },
    ]);
  });
});
