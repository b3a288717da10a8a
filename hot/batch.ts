/**
 * The records that one barrier will cover, laid out once.
 *
 * Every record is written into one arena as `u32 length ‖ key ‖ value`. The same bytes are RocksDB's keys and values
 * and the frames of the tail, so an event is encoded and copied once. An arena is reused when no reader holds it.
 */
import { hash } from 'node:crypto';
import { formatEnvelope } from '../schemas/chain.ts';
import type { SequenceNumber } from '../schemas/ids.ts';
import type { Prepared } from './door.ts';
import { Appended, type Head } from './heads.ts';
import {
  ENTRY_BYTES,
  entryBytes,
  INDEX_HEADER_BYTES,
  type IndexEntry,
  writeIndexEntry,
  writeIndexHeader,
} from './index-block.ts';
import {
  type AnchorHead,
  CONTROL_BIT,
  encodeControl,
  HASH_AT,
  HEAD_AT,
  HEAD_LENGTH_AT,
  indexKey,
  RECORD_KEY_BYTES,
  type TrimHead,
  writeU64,
} from './record.ts';
import type { WriteBatch } from './rocks.ts';

const LENGTH_BYTES = 4;
const VALUE_AT = LENGTH_BYTES + RECORD_KEY_BYTES;
const ARENA_BYTES = 256 * 1024;
/** Larger arenas are given back to the allocator. */
const ARENA_KEPT_BYTES = 16 * 1024 * 1024;
const E = 0x65;

type Waiter = { resolve: (receipt: Appended) => void; reject: (error: unknown) => void };

export class Batch {
  #arena: Buffer = Buffer.allocUnsafeSlow(ARENA_BYTES);
  #end = 0;
  #index: Buffer = Buffer.allocUnsafeSlow(INDEX_HEADER_BYTES + 64 * ENTRY_BYTES);
  #indexEnd = INDEX_HEADER_BYTES;
  /** Start and end of each record in the arena. */
  readonly #bounds: number[] = [];
  /** Keys outside the log order: marks and anchors, rare. */
  readonly #extra: (readonly [key: Buffer, value: Buffer])[] = [];
  readonly receipts: (Appended | undefined)[] = [];
  readonly heads: (Head | undefined)[] = [];
  readonly waiters: (Waiter | undefined)[] = [];
  /** Blobs that must not be trimmed before this batch is durable. */
  readonly blobs: string[] = [];
  firstLsn = 0;
  lastLsn = 0;
  /** Hash of the last record, latin1. */
  lastHash = '';
  /** Bytes of the log's records up to the end of this batch; set when it is sealed. */
  logBytes = 0;
  /** Sockets that still send from the arena. */
  pins = 0;
  queuedAt = 0;

  get count(): number {
    return this.receipts.length;
  }

  /** Bytes of records. */
  get bytes(): number {
    return this.#end;
  }

  /** All records as frames, `u32 length ‖ key ‖ value`. Valid until the batch is recycled. */
  get frames(): Buffer {
    return this.#arena.subarray(0, this.#end);
  }

  /** Lays an event out behind its head and advances nothing: the caller does that with the entry. */
  addEvent(head: Head, lsn: number, event: Prepared, createdMs: number, created_at: string, token: number): IndexEntry {
    const sequence = head.sequence + 1;
    const envelope = formatEnvelope({
      created_at,
      event_type: event.event_type,
      fencing_token: token,
      payload_sha256: event.payload_sha256,
      sequence_number: sequence as SequenceNumber,
      trajectory_id: head.id,
      turn: event.turn,
    });
    const start = this.#end;
    this.#reserve(VALUE_AT + HEAD_AT + envelope.length + event.payloadBytes);
    const arena = this.#arena;
    const value = start + VALUE_AT;
    arena.writeUInt32BE(envelope.length, value + HEAD_LENGTH_AT);
    arena.write(head.hash, value + HASH_AT, 32, 'latin1');
    arena.write(envelope, value + HEAD_AT, envelope.length, 'latin1');
    const headEnd = value + HEAD_AT + envelope.length;
    // The previous hash stands where this event's hash will: SHA-256(previous ‖ envelope) is taken in place.
    const digest = hash('sha256', arena.subarray(value + HASH_AT, headEnd), 'binary');
    arena.write(event.text, headEnd, event.payloadBytes, 'utf8');
    this.#finish(start, headEnd + event.payloadBytes, lsn, head.lsn, digest);
    const entry: IndexEntry = {
      code: event.code,
      id: head.idBytes,
      lsn,
      sequence,
      previousLsn: head.lsn,
      hash: digest,
      turn: event.turn,
      token,
      createdMs,
      tag: event.tag,
      blobs: event.blobs,
    };
    this.#indexEntry(entry);
    for (const sha256 of event.blobs) this.blobs.push(sha256);
    this.receipts.push(new Appended(head.id, sequence, lsn, created_at, digest));
    this.heads.push(head);
    return entry;
  }

  /**
   * Lays an anchor or a mark out, with the key outside the log order that must be as durable as it. An anchor names the
   * head that stands at it from then on.
   */
  addControl(
    entry: IndexEntry,
    control: AnchorHead | TrimHead,
    extra: readonly (readonly [Buffer, Buffer])[],
    adopted?: Head,
  ): void {
    const start = this.#end;
    const { bytes, headBytes } = encodeControl(control);
    this.#reserve(VALUE_AT + HEAD_AT + bytes.length);
    const value = start + VALUE_AT;
    this.#arena.writeUInt32BE((CONTROL_BIT | headBytes) >>> 0, value + HEAD_LENGTH_AT);
    bytes.copy(this.#arena, value + HEAD_AT);
    this.#finish(start, value + HEAD_AT + bytes.length, entry.lsn, entry.previousLsn, entry.hash);
    this.#indexEntry(entry);
    this.#extra.push(...extra);
    const { trajectory_id, sequence_number, created_at } = control;
    this.receipts.push(adopted && new Appended(trajectory_id, sequence_number, entry.lsn, created_at, entry.hash));
    this.heads.push(adopted);
  }

  /** Writes the index header. Nothing may be added afterwards. */
  seal(logBytesBefore: number): void {
    this.logBytes = logBytesBefore + this.#end;
    writeIndexHeader(this.#index, this.firstLsn, this.count, this.logBytes);
  }

  fill(batch: WriteBatch): void {
    const arena = this.#arena;
    const bounds = this.#bounds;
    for (let i = 0; i < bounds.length; i += 2) {
      const start = bounds[i] as number;
      const value = start + VALUE_AT;
      batch.put(arena.subarray(start + LENGTH_BYTES, value), arena.subarray(value, bounds[i + 1]));
    }
    batch.put(indexKey(this.lastLsn), this.#index.subarray(0, this.#indexEnd));
    for (const [key, value] of this.#extra) batch.put(key, value);
  }

  reset(): void {
    if (this.#arena.length > ARENA_KEPT_BYTES) this.#arena = Buffer.allocUnsafeSlow(ARENA_BYTES);
    this.#end = 0;
    this.#indexEnd = INDEX_HEADER_BYTES;
    this.#bounds.length = 0;
    this.#extra.length = 0;
    this.receipts.length = 0;
    this.heads.length = 0;
    this.waiters.length = 0;
    this.blobs.length = 0;
    this.queuedAt = 0;
    this.pins = 0;
  }

  #finish(start: number, end: number, lsn: number, previousLsn: number, digest: string): void {
    const arena = this.#arena;
    arena.writeUInt32BE(end - start - LENGTH_BYTES, start);
    arena[start + LENGTH_BYTES] = E;
    writeU64(arena, lsn, start + LENGTH_BYTES + 1);
    writeU64(arena, previousLsn, start + VALUE_AT);
    arena.write(digest, start + VALUE_AT + HASH_AT, 32, 'latin1');
    this.#bounds.push(start, end);
    this.#end = end;
    if (this.receipts.length === 0) this.firstLsn = lsn;
    this.lastLsn = lsn;
    this.lastHash = digest;
  }

  #indexEntry(entry: IndexEntry): void {
    const need = entryBytes(entry.code, entry.blobs.length);
    if (this.#indexEnd + need > this.#index.length) this.#index = grown(this.#index, this.#indexEnd, need);
    this.#indexEnd = writeIndexEntry(this.#index, this.#indexEnd, entry);
  }

  #reserve(need: number): void {
    if (this.#end + need > this.#arena.length) this.#arena = grown(this.#arena, this.#end, need);
  }
}

function grown(buffer: Buffer, used: number, need: number): Buffer {
  let size = buffer.length;
  while (size < used + need) size *= 2;
  const larger = Buffer.allocUnsafeSlow(size);
  buffer.copy(larger, 0, 0, used);
  return larger;
}
