/**
 * Events as varve stores them, for stores that are not varve: numbered, chained and hashed by the product's own
 * functions, with the same keys, values and index block per batch. So a peer does the same work and stores the same
 * bytes, in its most favourable layout: keys that only ascend.
 */
import { canonicalJson } from '../../../schemas/canonical.ts';
import { chainHash, formatEnvelope, GENESIS_HASH, payloadSha256 } from '../../../schemas/chain.ts';
import { type SequenceNumber, type TrajectoryId, trajectoryIdBytes } from '../../../schemas/ids.ts';
import type { Sample } from './samples.ts';

export type EncodedEvent = {
  readonly lsn: number;
  /** `e` and the LSN. */
  readonly key: Buffer;
  /** Previous LSN, hash, length of the envelope, envelope, payload. */
  readonly value: Buffer;
  readonly idBytes: string;
  readonly sequence: number;
  readonly hash: Uint8Array;
};

type PeerHead = { readonly idBytes: string; sequence: number; lsn: number; hash: Uint8Array };

const KEY_BYTES = 9;
const INDEX_ENTRY_BYTES = 16 + 8 + 8 + 32;
const E = 0x65;
const I = 0x69;

export class PeerEncoder {
  readonly #heads = new Map<TrajectoryId, PeerHead>();
  #lsn = 0;
  #nowMs = 0;
  #nowText = '';

  encode(trajectory_id: TrajectoryId, { event }: Sample): EncodedEvent {
    const head = this.#headOf(trajectory_id);
    const text = canonicalJson(event.payload);
    const sequence = head.sequence + 1;
    const envelope = formatEnvelope({
      created_at: this.#createdAt(),
      event_type: event.event_type,
      fencing_token: 0,
      payload_sha256: payloadSha256(text),
      sequence_number: sequence as SequenceNumber,
      trajectory_id,
      turn: event.turn,
    });
    const hash = chainHash(head.hash, envelope);
    const lsn = ++this.#lsn;
    const value = Buffer.allocUnsafe(44 + envelope.length + Buffer.byteLength(text));
    writeU64(value, head.lsn, 0);
    value.set(hash, 8);
    value.writeUInt32BE(envelope.length, 40);
    value.write(envelope, 44, 'latin1');
    value.write(text, 44 + envelope.length, 'utf8');
    head.sequence = sequence;
    head.lsn = lsn;
    head.hash = hash;
    return { lsn, key: eventKey(lsn), value, idBytes: head.idBytes, sequence, hash };
  }

  #headOf(id: TrajectoryId): PeerHead {
    let head = this.#heads.get(id);
    if (head === undefined) {
      head = { idBytes: trajectoryIdBytes(id), sequence: 0, lsn: 0, hash: GENESIS_HASH };
      this.#heads.set(id, head);
    }
    return head;
  }

  /** Formatting a date costs more than hashing 1 KiB does; a millisecond has one text. */
  #createdAt(): string {
    const nowMs = Date.now();
    if (nowMs !== this.#nowMs) {
      this.#nowMs = nowMs;
      this.#nowText = new Date(nowMs).toISOString();
    }
    return this.#nowText;
  }
}

/** The index block of a batch, under a key right behind its last event. */
export function indexBlock(events: readonly EncodedEvent[]): { readonly key: Buffer; readonly value: Buffer } {
  const last = events[events.length - 1] as EncodedEvent;
  const key = Buffer.allocUnsafe(KEY_BYTES + 1);
  key.set(last.key, 0);
  key[KEY_BYTES] = I;
  const value = Buffer.allocUnsafe(events.length * INDEX_ENTRY_BYTES);
  let at = 0;
  for (const event of events) {
    value.write(event.idBytes, at, 16, 'latin1');
    writeU64(value, event.sequence, at + 16);
    writeU64(value, event.lsn, at + 24);
    value.set(event.hash, at + 32);
    at += INDEX_ENTRY_BYTES;
  }
  return { key, value };
}

export function eventKey(lsn: number): Buffer {
  const key = Buffer.allocUnsafe(KEY_BYTES);
  key[0] = E;
  writeU64(key, lsn, 1);
  return key;
}

function writeU64(buffer: Buffer, value: number, offset: number): void {
  buffer.writeUInt32BE(Math.floor(value / 0x1_0000_0000), offset);
  buffer.writeUInt32BE(value >>> 0, offset + 4);
}
