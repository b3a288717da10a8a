/**
 * The head of every trajectory of a log, in memory: what its next event must follow.
 *
 * A head is derived from index entries alone, by the same function while appending and while recovering, so that a log
 * recovers to exactly the state it had. Heads run ahead of the disk by what is queued; `durable` is what was
 * acknowledged.
 */
import { hash } from 'node:crypto';
import type { Lsn, SequenceNumber, TrajectoryId } from '../schemas/ids.ts';
import { trajectoryIdFromBytes } from '../schemas/ids.ts';
import {
  ANCHOR,
  CHECKPOINT,
  CONTEXT_BUILT,
  type IndexEntry,
  TASK_FINISHED,
  TOOL_INTENT,
  TOOL_RESULT,
  TRIM,
} from './index-block.ts';
import { readU64, writeU64 } from './record.ts';

/** Receipt of a durable event. */
export class Appended {
  readonly trajectory_id: TrajectoryId;
  readonly sequence_number: SequenceNumber;
  readonly created_at: string;
  readonly #lsn: number;
  readonly #hash: string;

  constructor(trajectory_id: TrajectoryId, sequence: number, lsn: number, created_at: string, hashLatin1: string) {
    this.trajectory_id = trajectory_id;
    this.sequence_number = sequence as SequenceNumber;
    this.created_at = created_at;
    this.#lsn = lsn;
    this.#hash = hashLatin1;
  }

  /** Place in this hot log. */
  get lsn(): Lsn {
    return BigInt(this.#lsn) as Lsn;
  }

  /** 64 lower-case hex digits. */
  get cryptographic_hash(): string {
    return Buffer.from(this.#hash, 'latin1').toString('hex');
  }
}

/** When a worker may no longer write a trajectory: only results of open intents still pass. */
export type Guard = {
  /** Another worker holds a higher token. */
  readonly fenced: boolean;
  /** `performance.now()` from which the lease must not be relied on. */
  readonly deadlineMs: number;
};

export class Head {
  readonly id: TrajectoryId;
  /** 16 bytes as latin1. */
  readonly idBytes: string;
  sequence = 0;
  lsn = 0;
  /** 32 bytes as latin1; what the next event's hash covers. */
  hash = GENESIS;
  turn = 0;
  token = 0;
  createdMs = 0;
  finished = false;
  /** LSN of the newest ContextBuilt and Checkpoint, 0 if none: trim reads what they refer to. */
  contextLsn = 0;
  checkpointLsn = 0;
  /** LSN of the newest anchor, 0 if none. */
  anchorLsn = 0;
  /** Call tag → LSN of each intent without a result. */
  openIntents: Map<string, number> | undefined;
  /**
   * LSNs of the events from `listedFrom` to `sequence`. What came before is found by walking back-pointers; a finished
   * trajectory keeps no list.
   */
  lsns: number[] = [];
  listedFrom = 1;

  /** The last acknowledged event. */
  durable: Appended | undefined;
  guard: Guard | undefined;
  /** Up to here its records are trimmed. */
  trimmed: { readonly sequence: number; readonly lsn: number } | undefined;

  constructor(id: TrajectoryId, idBytes: string) {
    this.id = id;
    this.idBytes = idBytes;
  }
}

const GENESIS = '\0'.repeat(32);

/** Takes an entry over into the head of its trajectory. Trim marks change no head. */
export function advance(head: Head, entry: IndexEntry): void {
  if (entry.code === TRIM) return;
  if (entry.code === ANCHOR) {
    head.anchorLsn = entry.lsn;
    head.lsns = [];
    head.listedFrom = entry.sequence + 1;
    head.openIntents = undefined;
    head.contextLsn = 0;
    head.checkpointLsn = 0;
    head.finished = false;
  } else if (entry.code === TASK_FINISHED) {
    head.finished = true;
  } else {
    head.finished = false;
  }
  head.sequence = entry.sequence;
  head.lsn = entry.lsn;
  head.hash = entry.hash;
  head.turn = entry.turn;
  head.token = entry.token;
  head.createdMs = entry.createdMs;
  if (head.finished) {
    head.lsns = [];
    head.listedFrom = entry.sequence + 1;
  } else if (entry.code !== ANCHOR) {
    // Also behind a finish, a snapshot or what is trimmed: a list starts where it has its first event.
    if (head.lsns.length === 0) head.listedFrom = entry.sequence;
    head.lsns.push(entry.lsn);
  }
  switch (entry.code) {
    case TOOL_INTENT:
      head.openIntents ??= new Map();
      head.openIntents.set(entry.tag, entry.lsn);
      return;
    case TOOL_RESULT:
      if (head.openIntents?.delete(entry.tag) && head.openIntents.size === 0) head.openIntents = undefined;
      return;
    case CONTEXT_BUILT:
      head.contextLsn = entry.lsn;
      return;
    case CHECKPOINT:
      head.checkpointLsn = entry.lsn;
      return;
  }
}

/** Heads by trajectory. */
export class Heads {
  readonly #byId = new Map<TrajectoryId, Head>();

  get(id: TrajectoryId): Head | undefined {
    return this.#byId.get(id);
  }

  add(head: Head): void {
    this.#byId.set(head.id, head);
  }

  [Symbol.iterator](): IterableIterator<Head> {
    return this.#byId.values();
  }

  get size(): number {
    return this.#byId.size;
  }

  /** The head that an entry of the log belongs to, made where it is the first of its trajectory. */
  at(idBytes: string, id: TrajectoryId = trajectoryIdFromBytes(Buffer.from(idBytes, 'latin1'))): Head {
    let head = this.#byId.get(id);
    if (head === undefined) {
      head = new Head(id, idBytes);
      this.#byId.set(id, head);
    }
    return head;
  }

  /** Everything there is counts as acknowledged: after recovery. */
  settle(): void {
    for (const head of this.#byId.values()) {
      const created_at = new Date(head.createdMs).toISOString();
      head.durable = new Appended(head.id, head.sequence, head.lsn, created_at, head.hash);
    }
  }
}

const MAGIC = Buffer.from('varve heads 1\n');
const HEAD_BYTES = 16 + 8 + 8 + 32 + 4 + 8 + 8 + 1 + 8 + 8 + 8 + 4;

/** Where a snapshot stands in its log. */
export type SnapshotPlace = {
  readonly lsn: number;
  /** Hex hash of the record at that LSN. */
  readonly hash: string;
  /** Bytes of records up to it. */
  readonly bytes: number;
};

/** Snapshot of all heads; the last 32 bytes are the SHA-256 of the rest. LSN lists are not kept. */
export function encodeHeads(heads: Heads, place: SnapshotPlace): Buffer {
  let intents = 0;
  for (const head of heads) intents += head.openIntents?.size ?? 0;
  const buffer = Buffer.alloc(MAGIC.length + 52 + heads.size * HEAD_BYTES + intents * 16 + 32);
  let at = MAGIC.copy(buffer, 0);
  writeU64(buffer, place.lsn, at);
  buffer.write(place.hash, at + 8, 32, 'hex');
  writeU64(buffer, place.bytes, at + 40);
  at = buffer.writeUInt32BE(heads.size, at + 48);
  for (const head of heads) {
    buffer.write(head.idBytes, at, 16, 'latin1');
    writeU64(buffer, head.sequence, at + 16);
    writeU64(buffer, head.lsn, at + 24);
    buffer.write(head.hash, at + 32, 32, 'latin1');
    buffer.writeUInt32BE(head.turn, at + 64);
    writeU64(buffer, head.token, at + 68);
    writeU64(buffer, head.createdMs, at + 76);
    buffer[at + 84] = head.finished ? 1 : 0;
    writeU64(buffer, head.contextLsn, at + 85);
    writeU64(buffer, head.checkpointLsn, at + 93);
    writeU64(buffer, head.anchorLsn, at + 101);
    at = buffer.writeUInt32BE(head.openIntents?.size ?? 0, at + 109);
    for (const [tag, lsn] of head.openIntents ?? []) {
      buffer.write(tag, at, 8, 'latin1');
      writeU64(buffer, lsn, at + 8);
      at += 16;
    }
  }
  hash('sha256', buffer.subarray(0, at), 'buffer').copy(buffer, at);
  return buffer;
}

/** undefined: torn, or not a snapshot. */
export function decodeHeads(buffer: Buffer): { heads: Heads; place: SnapshotPlace } | undefined {
  const end = buffer.length - 32;
  if (end < MAGIC.length + 52 || !buffer.subarray(0, MAGIC.length).equals(MAGIC)) return undefined;
  if (!hash('sha256', buffer.subarray(0, end), 'buffer').equals(buffer.subarray(end))) return undefined;
  let at = MAGIC.length;
  const place = {
    lsn: readU64(buffer, at),
    hash: buffer.toString('hex', at + 8, at + 40),
    bytes: readU64(buffer, at + 40),
  };
  const count = buffer.readUInt32BE(at + 48);
  at += 52;
  const heads = new Heads();
  for (let i = 0; i < count; i++) {
    const head = heads.at(buffer.toString('latin1', at, at + 16));
    head.sequence = readU64(buffer, at + 16);
    head.lsn = readU64(buffer, at + 24);
    head.hash = buffer.toString('latin1', at + 32, at + 64);
    head.turn = buffer.readUInt32BE(at + 64);
    head.token = readU64(buffer, at + 68);
    head.createdMs = readU64(buffer, at + 76);
    head.finished = buffer[at + 84] === 1;
    head.contextLsn = readU64(buffer, at + 85);
    head.checkpointLsn = readU64(buffer, at + 93);
    head.anchorLsn = readU64(buffer, at + 101);
    head.listedFrom = head.sequence + 1;
    const intents = buffer.readUInt32BE(at + 109);
    at += HEAD_BYTES;
    for (let n = 0; n < intents; n++, at += 16) {
      head.openIntents ??= new Map();
      head.openIntents.set(buffer.toString('latin1', at, at + 8), readU64(buffer, at + 8));
    }
  }
  return { heads, place };
}
