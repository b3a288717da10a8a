import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import canonicalize from 'canonicalize';
import { canonicalJson, type JsonObject } from '../../schemas/canonical.ts';
import { chainHash, formatEnvelope, parseEnvelope, payloadSha256 } from '../../schemas/chain.ts';
import { formatEventLine, parseEventLine, type TrajectoryEvent, verifyEvent } from '../../schemas/event.ts';
import { KINDS } from '../../schemas/kinds.ts';
import { publishedFiles } from '../../schemas/published.ts';
import type { Vector } from '../../schemas/vectors.ts';

const folder = new URL('../../schemas/published/', import.meta.url);
const read = (name: string) => readFileSync(new URL(name, folder), 'utf8');

describe('published schemas', () => {
  it('are those that the code has now (else: npm run publish:schemas)', () => {
    const files = publishedFiles();
    assert.deepEqual(readdirSync(folder).toSorted(), [...files.keys()].toSorted());
    for (const [name, content] of files) assert.equal(read(name), content, name);
  });

  it('let unknown fields of every payload pass, and no unknown field of the event', () => {
    for (const name of Object.keys(KINDS)) assert.deepEqual(JSON.parse(read(`${name}.json`)).additionalProperties, {});
    assert.equal(JSON.parse(read('event.json')).additionalProperties, false);
  });
});

describe('published test vectors', () => {
  const { vectors } = JSON.parse(read('vectors.json')) as { vectors: Vector[] };

  it('hold what usually breaks', () => {
    const all = vectors.map(({ payload_json }) => payload_json).join('\n');
    for (const part of ['\\u0000', '\u{1f600}', '-0', '5e-324', '__proto__', '9007199254740991', '$blob']) {
      assert.ok(all.includes(part), part);
    }
    assert.ok(vectors.length >= 12);
    assert.ok(new Set(vectors.map(({ trajectory_id }) => trajectory_id)).size > 1);
  });

  for (const vector of vectors) {
    it(`are what varve computes: ${vector.name}`, () => {
      const { trajectory_id, sequence_number, event_type, turn, created_at, fencing_token } = vector;
      const payload = JSON.parse(vector.payload_json) as JsonObject;
      const text = canonicalJson(payload);
      assert.equal(text, vector.canonical_payload);
      assert.equal(payloadSha256(text), vector.payload_sha256);
      const envelope = parseEnvelope(vector.envelope);
      const fields = { trajectory_id, sequence_number, event_type, turn, created_at, fencing_token };
      assert.deepEqual(envelope, { ...fields, payload_sha256: vector.payload_sha256 });
      assert.equal(envelope && formatEnvelope(envelope), vector.envelope);
      const hash = chainHash(Buffer.from(vector.previous_hash, 'hex'), vector.envelope).toString('hex');
      assert.equal(hash, vector.cryptographic_hash);
      assert.equal(formatEventLine(parseEventLine(vector.line)), vector.line);
      assert.equal(canonicalJson(parseEventLine(vector.line).payload), text);
    });

    it(`are what other code computes: ${vector.name}`, () => {
      const { trajectory_id, sequence_number, event_type, turn, created_at, fencing_token, cryptographic_hash } =
        vector;
      const fields = { trajectory_id, sequence_number, event_type, turn, created_at, fencing_token };
      const payload: unknown = JSON.parse(vector.payload_json);
      const text = canonicalize(payload) as string;
      const payload_sha256 = createHash('sha256').update(Buffer.from(text, 'utf8')).digest('hex');
      const envelope = Buffer.from(canonicalize({ ...fields, payload_sha256 }) as string, 'utf8');
      const before = Buffer.from(vector.previous_hash, 'hex');
      assert.equal(text, vector.canonical_payload);
      assert.equal(payload_sha256, vector.payload_sha256);
      assert.equal(envelope.toString('hex'), vector.envelope_hex);
      assert.equal(
        createHash('sha256')
          .update(Buffer.concat([before, envelope]))
          .digest('hex'),
        cryptographic_hash,
      );
      assert.equal(canonicalize({ ...fields, payload, cryptographic_hash }), vector.line);
    });
  }

  it('form whole trajectories', () => {
    const last = new Map<string, TrajectoryEvent>();
    for (const { line } of vectors) {
      const event = parseEventLine(line);
      verifyEvent(last.get(event.trajectory_id), event);
      last.set(event.trajectory_id, event);
    }
  });
});
