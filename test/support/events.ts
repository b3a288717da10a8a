/**
 * Arbitrary JSON and arbitrary trajectories for property tests. Few names and few numbers, so that events of one
 * trajectory meet: the same calls, ranges that overlap, rollbacks that take something back.
 */
import * as fc from 'fast-check';
import { canonicalJson, type Json, type JsonObject } from '../../schemas/canonical.ts';
import { chainHash, formatEnvelope, GENESIS_HASH } from '../../schemas/chain.ts';
import { envelopeOf, type TrajectoryEvent } from '../../schemas/event.ts';
import { parseTrajectoryId, type SequenceNumber } from '../../schemas/ids.ts';
import { KINDS } from '../../schemas/kinds.ts';
import { stubFor } from '../../schemas/stubs.ts';

export const TRAJECTORY = parseTrajectoryId('01936f5a-5c00-7000-8000-000000000001');
export const PARENT = '01936f5a-5c00-7000-8000-00000000000f';

/** Well-formed Unicode with what usually breaks: controls, U+0000, astral text, quotes. */
export const anyText: fc.Arbitrary<string> = fc.oneof(
  fc.string({ unit: 'binary', maxLength: 40 }),
  fc.string({ unit: 'grapheme', maxLength: 80 }),
  fc.string({
    unit: fc.constantFrom('\u0000', '\u001f', '"', '\\', '\u{1f600}', '\u2028', 'a', 'é', '\uffff'),
    maxLength: 80,
  }),
);

const anyKey = fc.oneof(anyText, fc.constantFrom('__proto__', 'constructor', 'toString', '', '1', '10', '9', '$blobs'));

export const anyJson: fc.Arbitrary<Json> = fc.letrec<{ value: Json }>((tie) => ({
  value: fc.oneof(
    { maxDepth: 4, depthSize: 'small' },
    fc.oneof(
      anyText,
      fc.double({ noNaN: true, noDefaultInfinity: true }),
      fc.integer(),
      fc.constantFrom<Json>(-0, 5e-324, 2 ** 53 - 1, null, true, false),
    ),
    fc.array(tie('value'), { maxLength: 5 }),
    objectOf(tie('value')),
  ),
})).value;

function objectOf(value: fc.Arbitrary<Json>): fc.Arbitrary<JsonObject> {
  // fromEntries makes own properties of all keys, `__proto__` too.
  return fc.array(fc.tuple(anyKey, value), { maxLength: 5 }).map((entries) => Object.fromEntries(entries));
}

export const anyObject: fc.Arbitrary<JsonObject> = objectOf(anyJson);

const callId = fc.constantFrom('c1', 'c2', 'c3', '__proto__');
const place = fc.integer({ min: 1, max: 40 });
const tokens = fc.integer({ min: 0, max: 1000 });
const text = fc.oneof(
  anyText,
  anyText.map((body) => stubFor(Buffer.from(body))),
);
const hash64 = fc.constantFrom('0'.repeat(64), 'f'.repeat(64));

/** Some of the fields, and now and then one that the kind does not know. */
function some(
  required: Record<string, fc.Arbitrary<unknown>>,
  optional: Record<string, fc.Arbitrary<unknown>> = {},
): fc.Arbitrary<JsonObject> {
  const model = { ...required, ...optional, x_extra: anyJson };
  return fc.record(model, { requiredKeys: Object.keys(required) as never[] }) as fc.Arbitrary<JsonObject>;
}

const usage = some({}, { input_tokens: tokens, output_tokens: tokens, cache_read_tokens: tokens });
const range = fc.tuple(place, fc.nat(5)).map(([from, more]) => ({ from, to: from + more }));
const content = fc.oneof(
  text,
  fc.array(some({ type: fc.constantFrom('text', 'thinking', 'image') }, { text }), { maxLength: 3 }),
);
const calls = fc
  .uniqueArray(callId, { maxLength: 3 })
  .chain((ids) =>
    fc.tuple(
      ...ids.map((id) =>
        some({ tool_call_id: fc.constant(id) }, { tool_name: fc.constantFrom('bash', 'pay'), arguments: text }),
      ),
    ),
  );
const tools = fc.oneof(
  text,
  fc.array(some({ name: fc.constantFrom('bash', 'pay') }, { description: text, input_schema: anyJson }), {
    maxLength: 2,
  }),
);
const versions = fc.constantFrom('v1', 'v2');

export const anyPayload: Record<keyof typeof KINDS, fc.Arbitrary<JsonObject>> = {
  TaskStarted: some(
    {},
    {
      task: text,
      tenant: fc.constantFrom('t1', 't2'),
      model: fc.constantFrom('m', 'n'),
      model_version: versions,
      system_prompt: text,
      prompt_template: text,
      tools,
      tool_schema_versions: fc.constant({ bash: 'v1' }),
      plan: anyJson,
      budgets: fc.constant({ usd: 10 }),
      parent: fc.constant({ trajectory_id: PARENT, sequence_number: 3 }),
      source: fc.constant({ format: 'swe-agent', mapping_version: 1, id: 'x' }),
      takeover: fc.constantFrom('none', 'replicated'),
    },
  ),
  ContextBuilt: some(
    {},
    {
      messages: fc.array(
        fc.oneof(
          range,
          range.map((entry) => ({ ...entry, trajectory_id: PARENT })),
          fc.record({ at: place, cut: fc.nat(30), shown_sha256: hash64 }),
          fc.record({ text, role: fc.constantFrom('user', 'tool'), tool_call_id: callId }),
        ),
        { maxLength: 4 },
      ),
      context_hash: hash64,
    },
  ),
  ModelReplied: some(
    {},
    { content, tool_calls: calls, stop_reason: fc.constantFrom('stop'), usage, served_model_version: versions },
  ),
  Authorized: some(
    { tool_call_id: callId, decision: fc.constantFrom('allow', 'deny', 'hold') },
    { budget_remaining: fc.constant({ usd: 3 }) },
  ),
  ApprovalRequested: some({ tool_call_id: callId }, { expires_at: fc.constant('2030-01-01T00:00:00.000Z') }),
  ApprovalResolved: some({ tool_call_id: callId, decision: fc.constantFrom('approved', 'denied', 'expired') }),
  ToolIntent: some(
    { tool_call_id: callId },
    { tool_name: fc.constantFrom('bash', 'pay'), arguments: text, settle: fc.constantFrom('probe', 'person') },
  ),
  ToolResult: some(
    { tool_call_id: callId },
    { status: fc.constantFrom('ok', 'error', 'denied', 'interrupted'), output: content },
  ),
  Compacted: some({}, { summary: text, from_sequence_number: place, to_sequence_number: place, usage }),
  Checkpoint: some({}, { covers_sequence_number: place, record_snapshot_id: fc.constant('r') }),
  MessageAdded: some({ role: fc.constantFrom('system', 'developer', 'user'), content }),
  InputRead: some({ input: fc.constantFrom('clock', 'random') }, { value: anyJson }),
  DriftCrossed: some(
    { what: fc.constantFrom('model', 'prompt_template', 'tool_schema') },
    { name: fc.constantFrom('bash', 'm'), old_version: versions, new_version: versions, tools, system_prompt: text },
  ),
  RolledBack: some({ to_sequence_number: fc.nat(40) }),
  Halted: some({}, { reason: text, tool_call_id: callId }),
  Resumed: some({}, { author: fc.constant('ada') }),
  TaskFinished: some(
    { status: fc.constantFrom('completed', 'failed', 'canceled') },
    { outcome: some({}, { reward: fc.double({ noNaN: true, noDefaultInfinity: true }) }) },
  ),
  Noted: some({}, { note: text, plan: anyJson }),
};

/** Kind and payload of one event: known kinds, unknown ones, and what an erasure left. */
export const anyDraft: fc.Arbitrary<{ event_type: string; payload: JsonObject }> = fc.oneof(
  {
    weight: 12,
    arbitrary: fc
      .constantFrom(...(Object.keys(KINDS) as (keyof typeof KINDS)[]))
      .chain((event_type) => anyPayload[event_type].map((payload) => ({ event_type, payload }))),
  },
  {
    weight: 1,
    arbitrary: fc.record({ event_type: fc.constantFrom('x.Custom', 'constructor', 'toString'), payload: anyObject }),
  },
  {
    weight: 1,
    arbitrary: fc
      .constantFrom(...Object.keys(KINDS))
      .map((event_type) => ({ event_type, payload: { $redacted: { run: '1' } } })),
  },
);

/** A whole trajectory, chained. */
export const anyTrajectory: fc.Arbitrary<TrajectoryEvent[]> = fc
  .array(fc.tuple(anyDraft, fc.nat(1), fc.nat(500)), { maxLength: 40 })
  .map((drafts) => chained(drafts.map(([draft, turns, ms]) => ({ ...draft, turns, ms }))));

type Draft = {
  readonly event_type: string;
  readonly payload: JsonObject;
  readonly turns?: number;
  readonly ms?: number;
};

/** Numbers, times and hashes for a list of kinds and payloads. `turns`, `ms`: how far each moves on. */
export function chained(drafts: readonly Draft[], trajectory_id = TRAJECTORY): TrajectoryEvent[] {
  let hash: Uint8Array = GENESIS_HASH;
  let turn = 0;
  let ms = Date.UTC(2024, 10, 27);
  return drafts.map((draft, i) => {
    turn += draft.turns ?? 0;
    ms += draft.ms ?? 1;
    const { event_type, payload } = draft;
    const created_at = new Date(ms).toISOString();
    const fields = {
      trajectory_id,
      sequence_number: (i + 1) as SequenceNumber,
      event_type,
      turn,
      created_at,
      fencing_token: 0,
    };
    const unhashed = { ...fields, payload, cryptographic_hash: '' };
    const next = chainHash(hash, formatEnvelope(envelopeOf(unhashed, canonicalJson(payload))));
    hash = next;
    return { ...unhashed, cryptographic_hash: next.toString('hex') };
  });
}
