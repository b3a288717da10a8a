import assert from 'node:assert/strict';
import * as fc from 'fast-check';
import type { TrajectoryEvent } from '../../schemas/event.ts';
import { fold, INITIAL_RECORD, openIntents, pendingApprovals } from '../../schemas/fold.ts';
import { SUMMARY_OPEN_CALLS_MAX } from '../../schemas/limits.ts';
import { INITIAL_SUMMARY, type Summary, step } from '../../schemas/summary.ts';
import { anyTrajectory, chained, PARENT } from '../support/events.ts';
import { runs } from '../support/property.ts';

function steps(events: readonly TrajectoryEvent[]): Summary {
  return step(INITIAL_SUMMARY, events);
}

function intents(n: number, event_type = 'ToolIntent'): { event_type: string; payload: { tool_call_id: string } }[] {
  return Array.from({ length: n }, (_, i) => ({ event_type, payload: { tool_call_id: `c${i}` } }));
}

describe('summary', () => {
  it('is the same whether events come at once or in any pieces, and through storage', () => {
    fc.assert(
      fc.property(anyTrajectory, fc.array(fc.nat(40), { maxLength: 5 }), (events, cuts) => {
        let summary = INITIAL_SUMMARY;
        let from = 0;
        for (const cut of [...cuts.toSorted((a, b) => a - b), events.length]) {
          summary = step(JSON.parse(JSON.stringify(summary)) as Summary, events.slice(from, Math.max(from, cut)));
          from = Math.max(from, Math.min(cut, events.length));
        }
        assert.deepEqual(summary, steps(events));
      }),
      runs(200),
    );
  });

  it('agrees with the fold on status, turn, counts, tokens and open calls', () => {
    fc.assert(
      fc.property(anyTrajectory, (events) => {
        for (let n = 0; n <= events.length; n++) {
          const summary = steps(events.slice(0, n));
          const record = fold(INITIAL_RECORD, events.slice(0, n));
          const ids = (calls: readonly { tool_call_id: string }[]) => calls.map((call) => call.tool_call_id).toSorted();
          assert.equal(summary.status, record.status);
          assert.equal(summary.turn, record.turn);
          assert.deepEqual(summary.counts, record.counts);
          assert.deepEqual(summary.tokens, record.tokens);
          assert.deepEqual(ids(summary.open_calls.filter((call) => call.intent_at !== null)), ids(openIntents(record)));
          const asked = summary.open_calls.filter((call) => call.approval_requested_at !== null);
          assert.deepEqual(ids(asked), ids(pendingApprovals(record)));
        }
      }),
      runs(80),
    );
  });

  it('names at most as many open calls as its limit, then counts, and comes back to nothing', () => {
    const n = SUMMARY_OPEN_CALLS_MAX + 30;
    for (const [open, close, more] of [
      ['ToolIntent', 'ToolResult', 'more_intents'],
      ['ApprovalRequested', 'ApprovalResolved', 'more_approvals'],
    ] as const) {
      const full = steps(chained(intents(n, open)));
      assert.equal(full.open_calls.length, SUMMARY_OPEN_CALLS_MAX);
      assert.equal(full[more], 30);
      const done = steps(chained([...intents(n, open), ...intents(n, close).toReversed()]));
      assert.deepEqual([done.open_calls, done[more], done.status], [[], 0, 'running']);
    }
  });

  it('has a size that does not grow with the trajectory', () => {
    const drafts = Array.from({ length: 3000 }, (_, i) => [
      {
        event_type: 'ModelReplied',
        payload: { content: 'x'.repeat(50), tool_calls: [{ tool_call_id: `c${i}` }], usage: { input_tokens: 9 } },
      },
      { event_type: 'ToolIntent', payload: { tool_call_id: `c${i}`, tool_name: 'bash' } },
      { event_type: 'Noted', payload: { plan: 'y'.repeat(50) } },
    ]).flat();
    const size = (n: number) => JSON.stringify(steps(chained(drafts.slice(0, n)))).length;
    assert.ok(size(9000) - size(600) < 100, 'only digits are added');
  });

  it('takes tenant, model version and parent as the cold tier partitions by them', () => {
    const started = {
      event_type: 'TaskStarted',
      payload: {
        tenant: 't',
        agent: 'a',
        model_version: 'named',
        parent: { trajectory_id: PARENT, sequence_number: 4 },
      },
    };
    const again = { event_type: 'TaskStarted', payload: { tenant: 'other', model_version: 'other' } };
    const silent = { event_type: 'ModelReplied', payload: {} };
    const served = (version: string) => ({ event_type: 'ModelReplied', payload: { served_model_version: version } });
    const first = steps(chained([started, served('1'), served('2'), again]));
    assert.deepEqual(
      [first.tenant, first.agent, first.model_version, first.parent?.sequence_number],
      ['t', 'a', '1', 4],
    );
    assert.equal(steps(chained([started, silent, served('2')])).model_version, 'named');
    assert.deepEqual([steps([]).tenant, steps([]).model_version], ['default', null]);
    assert.equal(steps(chained([{ event_type: 'TaskStarted', payload: { source: { format: 'x' } } }])).imported, true);
  });

  it('has the reward of the finish that counts', () => {
    const finish = (reward: number) => ({
      event_type: 'TaskFinished',
      payload: { status: 'completed', outcome: { reward } },
    });
    assert.equal(steps(chained([finish(0.5), finish(1)])).reward, 0.5);
    const back = { event_type: 'RolledBack', payload: { to_sequence_number: 0 } };
    assert.equal(steps(chained([finish(0.5), back])).reward, null);
    assert.equal(steps(chained([finish(0.5), back, finish(1)])).reward, 1);
  });
});
