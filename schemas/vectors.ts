/**
 * Test vectors of the canonical encoding and the hash chain, for implementations in other languages.
 *
 * Generated from the inputs below and nothing else, so that the published file is the same on every machine. Each input
 * payload is JSON *text*, often not canonical: parsing it is a part of what is tested.
 */
import { canonicalJson, type JsonObject } from './canonical.ts';
import { chainHash, formatEnvelope, GENESIS_HASH, payloadSha256 } from './chain.ts';
import { formatEventLine, type TrajectoryEvent } from './event.ts';
import { parseTrajectoryId, type SequenceNumber } from './ids.ts';

export type Vector = {
  readonly name: string;
  readonly trajectory_id: string;
  readonly sequence_number: number;
  readonly event_type: string;
  readonly turn: number;
  readonly created_at: string;
  readonly fencing_token: number;
  /** JSON text as an application may have it; its value is the payload. */
  readonly payload_json: string;
  readonly canonical_payload: string;
  readonly payload_sha256: string;
  readonly envelope: string;
  readonly envelope_hex: string;
  readonly previous_hash: string;
  readonly cryptographic_hash: string;
  /** Of event JSONL, without its newline. */
  readonly line: string;
};

type Input = {
  readonly name: string;
  readonly trajectory: 'first' | 'second' | 'edge';
  readonly event_type: string;
  readonly turn: number;
  readonly created_at: string;
  readonly fencing_token: number;
  readonly payload_json: string;
};

const TRAJECTORIES = {
  first: '01936f5a-5c00-7000-8000-000000000001',
  second: '01936f5a-5c01-7abc-9def-0123456789ab',
  /** The earliest start that a UUIDv7 can name. */
  edge: '00000000-0000-7000-8000-000000000000',
} as const;

function input(
  trajectory: Input['trajectory'],
  name: string,
  event_type: string,
  [turn, created_at, fencing_token]: readonly [number, string, number],
  payload_json: string,
): Input {
  return { name, trajectory, event_type, turn, created_at, fencing_token, payload_json };
}

const DAY = '2024-11-27T12:00';
const EMPTY_SHA256 = 'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855';

const INPUTS: readonly Input[] = [
  input(
    'first',
    'keys in any order, white space',
    'TaskStarted',
    [0, `${DAY}:00.000Z`, 0],
    '{ "task": "t", "agent":"a" }',
  ),
  input('first', 'empty payload', 'Noted', [0, `${DAY}:00.000Z`, 0], '{}'),
  input(
    'first',
    'astral text, not escaped',
    'MessageAdded',
    [1, `${DAY}:00.001Z`, 0],
    '{"role":"user","content":"\\ud83d\\ude00 \ud83d\ude00 \u{20000} é e\u0301"}',
  ),
  input(
    'first',
    'control characters',
    'Noted',
    [1, `${DAY}:00.002Z`, 0],
    '{"note":"\\u0000\\u0001\\b\\t\\n\\u000b\\f\\r\\u001f\\"\\\\\\/\\u007f\\u0080\\u2028\\u2029"}',
  ),
  input(
    'first',
    'verbatim text holds what JSON cannot',
    'ToolIntent',
    [1, `${DAY}:00.002Z`, 7],
    '{"tool_call_id":"call_1","tool_name":"pay","arguments":"{\\"amount\\": 1.10, \\"id\\": 9007199254740993, \\"id\\": 1}","idempotency_key":"k-1"}',
  ),
  input('first', 'minus zero', 'Noted', [2, `${DAY}:01.000Z`, 7], '{"a":-0,"b":-0.0,"c":0e5}'),
  input(
    'first',
    'subnormals and the ends of the range',
    'Noted',
    [2, `${DAY}:01.000Z`, 7],
    '{"a":5e-324,"b":2.2250738585072014e-308,"c":2.225073858507201e-308,"d":1.7976931348623157e308,"e":-1.7976931348623157E+308}',
  ),
  input(
    'first',
    'numbers and their one text',
    'Noted',
    [2, `${DAY}:01.000Z`, 7],
    '{"a":9007199254740991,"b":-9007199254740991,"c":1e21,"d":1e-7,"e":100000000000000000000,"f":0.1,"g":1.0,"h":333333333.33333329,"i":0.000001}',
  ),
  input(
    'first',
    'the keys __proto__, constructor and the empty one',
    'Noted',
    [2, `${DAY}:01.000Z`, 7],
    '{"constructor":1,"__proto__":{"a":[]},"":null}',
  ),
  input(
    'first',
    'keys in the order of UTF-16 code units',
    'Noted',
    [2, `${DAY}:01.000Z`, 7],
    '{"\\ufb33":1,"\\ud83d\\ude00":2,"\\u20ac":3,"1":4,"10":5,"9":6,"\\r":7,"a":8,"A":9,"\\u00f6":10}',
  ),
  input(
    'second',
    'a stub stands for a text',
    'ToolResult',
    [0, `${DAY}:02.000Z`, 0],
    `{"tool_call_id":"call_1","status":"ok","output":{"$blob":{"sha256":"${EMPTY_SHA256}","bytes":0,"media_type":"text/plain; charset=utf-8"}}}`,
  ),
  input(
    'second',
    'an unknown kind with every legal character',
    'x-Acme.v2:Tool/call_9',
    [3, `${DAY}:02.999Z`, 9007199254740991],
    '{"anything":[[],{},[{}],null,true,false,""]}',
  ),
  input(
    'second',
    'an unknown field of a known kind',
    'ToolIntent',
    [2147483647, '9999-12-31T23:59:59.999Z', 9007199254740991],
    '{"tool_call_id":"c","zeta":{"beta":2,"alpha":[1]}}',
  ),
  input('edge', 'the smallest envelope', 'N', [0, '1970-01-01T00:00:00.000Z', 0], '{"":""}'),
  input(
    'edge',
    'the longest event type',
    `A${'.'.repeat(127)}`,
    [0, '2000-02-29T00:00:00.000Z', 1],
    '{"deep":[[[[[[[[[[]]]]]]]]]]}',
  ),
];

/** All vectors; in each trajectory they are its events 1, 2, 3 … */
export function buildVectors(): Vector[] {
  const heads = new Map<string, { sequence_number: number; hash: Uint8Array }>();
  return INPUTS.map((given) => {
    const trajectory_id = parseTrajectoryId(TRAJECTORIES[given.trajectory]);
    const head = heads.get(trajectory_id) ?? { sequence_number: 0, hash: GENESIS_HASH };
    const sequence_number = (head.sequence_number + 1) as SequenceNumber;
    const { name, event_type, turn, created_at, fencing_token, payload_json } = given;
    const payload = JSON.parse(payload_json) as JsonObject;
    const canonical_payload = canonicalJson(payload);
    const payload_sha256 = payloadSha256(canonical_payload);
    const fields = { trajectory_id, sequence_number, event_type, turn, created_at, fencing_token };
    const envelope = formatEnvelope({ ...fields, payload_sha256 });
    const hash = chainHash(head.hash, envelope);
    heads.set(trajectory_id, { sequence_number, hash });
    const cryptographic_hash = hash.toString('hex');
    const event: TrajectoryEvent = { ...fields, payload, cryptographic_hash };
    return {
      name,
      ...fields,
      payload_json,
      canonical_payload,
      payload_sha256,
      envelope,
      envelope_hex: Buffer.from(envelope).toString('hex'),
      previous_hash: Buffer.from(head.hash).toString('hex'),
      cryptographic_hash,
      line: formatEventLine(event),
    };
  });
}
