import assert from 'node:assert/strict';
import { formatEnvelope, parseEnvelope } from '../../schemas/chain.ts';
import type { SequenceNumber } from '../../schemas/ids.ts';
import { ENVELOPE_BYTES_MAX, EVENT_BYTES_MAX, PAYLOAD_BYTES_MAX, TURN_MAX } from '../../schemas/limits.ts';
import { TRAJECTORY } from '../support/events.ts';

describe('limits', () => {
  it('keep room for the longest legal envelope, of 410 bytes', () => {
    const longest = formatEnvelope({
      created_at: '9999-12-31T23:59:59.999Z',
      event_type: 'A'.repeat(128),
      fencing_token: Number.MAX_SAFE_INTEGER,
      payload_sha256: 'f'.repeat(64),
      sequence_number: Number.MAX_SAFE_INTEGER as SequenceNumber,
      trajectory_id: TRAJECTORY,
      turn: TURN_MAX,
    });
    assert.notEqual(parseEnvelope(longest), undefined);
    assert.equal(Buffer.byteLength(longest), 410);
    assert.ok(410 <= ENVELOPE_BYTES_MAX);
    assert.equal(PAYLOAD_BYTES_MAX + ENVELOPE_BYTES_MAX, EVENT_BYTES_MAX);
  });
});
