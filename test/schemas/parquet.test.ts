import assert from 'node:assert/strict';
import { hash } from 'node:crypto';
import * as fc from 'fast-check';
import { canonicalJson, type JsonObject } from '../../schemas/canonical.ts';
import { isVarveError } from '../../schemas/errors.ts';
import { newTrajectoryId, parseTrajectoryId } from '../../schemas/ids.ts';
import { COLUMNS, type ColdRow, dateOf, PARTITION_COLUMNS, rowOf } from '../../schemas/parquet.ts';
import { stubFor, stubsOf } from '../../schemas/stubs.ts';
import { anyTrajectory, chained } from '../support/events.ts';
import { runs } from '../support/property.ts';

const PLACE = { tenant: 'acme', model_version: 'm-1' };

function rowFor(event_type: string, payload: JsonObject): ColdRow {
  const [event] = chained([{ event_type, payload }]);
  assert.ok(event);
  return rowOf(event, PLACE);
}

/** What a row says besides its event, without what is null. */
function shredded(row: ColdRow): Record<string, unknown> {
  const names = COLUMNS.slice(
    COLUMNS.findIndex(({ name }) => name === 'tool_name'),
    -3,
  ).map(({ name }) => name);
  return Object.fromEntries(names.filter((name) => row[name] !== null).map((name) => [name, row[name]]));
}

describe('columns of the cold tier', () => {
  it('are distinct, documented, and end with those of the partition', () => {
    const names: string[] = COLUMNS.map(({ name }) => name);
    assert.equal(new Set(names).size, names.length);
    assert.deepEqual(names.slice(-3), PARTITION_COLUMNS);
    for (const { name, about } of COLUMNS) assert.ok(about.length > 10 && !about.endsWith('.'), name);
  });

  it('hold every event as it is: any row has all columns, in their types, and the payload gives the hash', () => {
    const check = fc.property(anyTrajectory, (events) => {
      for (const event of events) {
        const row = rowOf(event, PLACE);
        assert.deepEqual(Object.keys(row).toSorted(), COLUMNS.map(({ name }) => name).toSorted());
        const { payload, payload_sha256, blob_refs, offloaded, tenant, date, model_version } = row;
        assert.equal(payload, canonicalJson(event.payload));
        assert.equal(payload_sha256, hash('sha256', payload, 'hex'));
        assert.deepEqual(blob_refs, [...new Set(stubsOf(event.payload).map(({ sha256 }) => sha256))].toSorted());
        assert.equal(offloaded, null);
        assert.deepEqual({ tenant, date, model_version }, { ...PLACE, date: '2024-11-27' });
        for (const { name, type } of COLUMNS) {
          const value = row[name];
          if (value === null) continue;
          if (type === 'strings') assert.ok(Array.isArray(value), name);
          else if (type === 'long' || type === 'integer') assert.ok(Number.isSafeInteger(value), name);
          else if (type === 'double') assert.ok(Number.isFinite(value) && !Object.is(value, -0), name);
          else assert.equal(typeof value, 'string', name);
        }
      }
    });
    fc.assert(check, runs(100));
  });

  it('shred what is much asked', () => {
    const usage = { input_tokens: 2 ** 53 - 1, output_tokens: 0, reasoning_tokens: 3, cost_usd: 0.1 };
    const reply = { usage, stop_reason: 'end', model: 'm', served_model_version: 'm-1', duration_ms: 1.5 };
    assert.deepEqual(shredded(rowFor('ModelReplied', reply)), {
      ...usage,
      stop_reason: 'end',
      model: 'm',
      served_model_version: 'm-1',
      duration_ms: 1.5,
    });
    const result = { tool_call_id: 'c', tool_name: 'sh\u0000', status: 'ok', settled_by: 'probe', duration_ms: 0 };
    assert.deepEqual(shredded(rowFor('ToolResult', result)), result);
    const outcome = { reward: -0, verifier: 'tests' };
    const finished = shredded(rowFor('TaskFinished', { status: 'failed', outcome }));
    assert.deepEqual(finished, { status: 'failed', reward: 0, verifier: 'tests' });
    assert.deepEqual(shredded(rowFor('Authorized', { tool_call_id: 'c', decision: 'hold' })), {
      tool_call_id: 'c',
      decision: 'hold',
    });
    assert.deepEqual(shredded(rowFor('MessageAdded', { role: 'user', content: 'x' })), { role: 'user' });
  });

  it('say nothing of unknown kinds, of erased payloads and of values of another type', () => {
    const usage = { input_tokens: 1.5, output_tokens: '1', cost_usd: null };
    const wrong = { tool_call_id: 1, status: ['ok'], usage, outcome: 'good', duration_ms: '3' };
    for (const event_type of ['x.Custom', 'constructor', 'ToolResult', 'ModelReplied', 'TaskFinished']) {
      assert.deepEqual(shredded(rowFor(event_type, wrong)), {}, event_type);
      assert.deepEqual(shredded(rowFor(event_type, { $redacted: { run: '1' } })), {}, event_type);
    }
    assert.deepEqual(shredded(rowFor('x.Custom', { tool_call_id: 'c', status: 'ok' })), {});
  });

  it('keep the hash of the payload as it was appended, and say what was replaced in it', () => {
    const [event] = chained([{ event_type: 'Noted', payload: { note: 'long' } }]);
    assert.ok(event);
    const stub = stubFor(Buffer.from('long'));
    const payload_sha256 = hash('sha256', canonicalJson(event.payload), 'hex');
    const row = rowOf({ ...event, payload: { note: stub } }, PLACE, { payload_sha256, offloaded: ['/note'] });
    assert.deepEqual(row.offloaded, ['/note']);
    assert.deepEqual(row.blob_refs, [stub.$blob.sha256]);
    assert.equal(row.payload_sha256, payload_sha256);
    assert.notEqual(row.payload_sha256, hash('sha256', row.payload, 'hex'));
    assert.throws(
      () => rowOf({ ...event, payload: { note: { $blob: 1 } } }, PLACE),
      (error) => isVarveError(error, 'STUB_MALFORMED'),
    );
  });

  it("date a trajectory by its id, in UTC, whatever the events' times", () => {
    assert.equal(dateOf(newTrajectoryId(Date.UTC(2031, 1, 28, 23, 59, 59, 999))), '2031-02-28');
    assert.equal(dateOf(parseTrajectoryId('00000000-0000-7000-8000-000000000000')), '1970-01-01');
    assert.equal(dateOf(parseTrajectoryId('ffffffff-ffff-7fff-bfff-ffffffffffff')), '9999-12-31');
  });
});
