/**
 * The index block of a batch: one entry for each of its records, in LSN order, under `e‖last LSN‖'i'`.
 *
 *   u8 format (1) ‖ u64 first LSN ‖ u32 number of entries ‖ u64 bytes of records in the log so far ‖ entries
 *   entry: u8 code ‖ u16 number of blobs ‖ 16-byte trajectory ‖ u64 sequence number ‖ u64 previous LSN ‖ 32-byte hash
 *          ‖ u32 turn ‖ u64 fencing token ‖ u64 created_at in ms ‖ [8-byte call tag] ‖ 32 bytes for each blob
 *
 * It says of every record what the heads need, so that they can be rebuilt without payloads, and it outlives trimmed
 * records, so that a hole can be explained. The code is `kindCode` of the event's type, ANCHOR or TRIM. Intents and
 * results carry a call tag: the first 8 bytes of the SHA-256 of their tool-call id.
 */
import { hash } from 'node:crypto';
import { kindCode } from '../schemas/kinds.ts';
import { readU64, writeU64 } from './record.ts';

export const INDEX_FORMAT = 1;
export const INDEX_HEADER_BYTES = 21;
export const ENTRY_BYTES = 87;
export const TAG_BYTES = 8;

export const ANCHOR = 254;
export const TRIM = 255;
export const CONTEXT_BUILT = kindCode('ContextBuilt');
export const TOOL_INTENT = kindCode('ToolIntent');
export const TOOL_RESULT = kindCode('ToolResult');
export const CHECKPOINT = kindCode('Checkpoint');
export const TASK_STARTED = kindCode('TaskStarted');
export const TASK_FINISHED = kindCode('TaskFinished');

export type IndexEntry = {
  readonly code: number;
  /** 16 bytes as latin1. */
  readonly id: string;
  readonly lsn: number;
  readonly sequence: number;
  readonly previousLsn: number;
  /** 32 bytes as latin1. */
  readonly hash: string;
  readonly turn: number;
  readonly token: number;
  readonly createdMs: number;
  /** 8 bytes as latin1; '' where the code has none. */
  readonly tag: string;
  /** Hex SHA-256 of each. */
  readonly blobs: readonly string[];
};

export type IndexBlock = {
  readonly firstLsn: number;
  readonly lastLsn: number;
  /** Bytes of all records of the log up to and with this batch. */
  readonly bytes: number;
  readonly entries: readonly IndexEntry[];
};

export function callTag(tool_call_id: string): string {
  return hash('sha256', tool_call_id, 'binary').slice(0, TAG_BYTES);
}

export function hasTag(code: number): boolean {
  return code === TOOL_INTENT || code === TOOL_RESULT;
}

export function writeIndexHeader(buffer: Buffer, firstLsn: number, count: number, bytes: number): void {
  buffer[0] = INDEX_FORMAT;
  writeU64(buffer, firstLsn, 1);
  buffer.writeUInt32BE(count, 9);
  writeU64(buffer, bytes, 13);
}

/** Bytes that `writeIndexEntry` needs. */
export function entryBytes(code: number, blobs: number): number {
  return ENTRY_BYTES + (hasTag(code) ? TAG_BYTES : 0) + 32 * blobs;
}

/** Returns the offset behind the entry. */
export function writeIndexEntry(buffer: Buffer, at: number, entry: IndexEntry): number {
  buffer[at] = entry.code;
  buffer.writeUInt16BE(entry.blobs.length, at + 1);
  buffer.write(entry.id, at + 3, 16, 'latin1');
  writeU64(buffer, entry.sequence, at + 19);
  writeU64(buffer, entry.previousLsn, at + 27);
  buffer.write(entry.hash, at + 35, 32, 'latin1');
  buffer.writeUInt32BE(entry.turn, at + 67);
  writeU64(buffer, entry.token, at + 71);
  writeU64(buffer, entry.createdMs, at + 79);
  let end = at + ENTRY_BYTES;
  if (hasTag(entry.code)) end += buffer.write(entry.tag, end, TAG_BYTES, 'latin1');
  for (const sha256 of entry.blobs) end += buffer.write(sha256, end, 32, 'hex');
  return end;
}

/** undefined: not a valid block for this key. */
export function decodeIndexBlock(lastLsn: number, value: Buffer): IndexBlock | undefined {
  if (value.length < INDEX_HEADER_BYTES || value[0] !== INDEX_FORMAT) return undefined;
  const firstLsn = readU64(value, 1);
  const count = value.readUInt32BE(9);
  if (firstLsn + count - 1 !== lastLsn) return undefined;
  const entries: IndexEntry[] = [];
  let at = INDEX_HEADER_BYTES;
  for (let i = 0; i < count; i++) {
    if (at + ENTRY_BYTES > value.length) return undefined;
    const code = value[at] as number;
    const blobCount = value.readUInt16BE(at + 1);
    const end = at + entryBytes(code, blobCount);
    if (end > value.length) return undefined;
    const tagAt = at + ENTRY_BYTES;
    const blobsAt = tagAt + (hasTag(code) ? TAG_BYTES : 0);
    entries.push({
      code,
      id: value.toString('latin1', at + 3, at + 19),
      lsn: firstLsn + i,
      sequence: readU64(value, at + 19),
      previousLsn: readU64(value, at + 27),
      hash: value.toString('latin1', at + 35, at + 67),
      turn: value.readUInt32BE(at + 67),
      token: readU64(value, at + 71),
      createdMs: readU64(value, at + 79),
      tag: value.toString('latin1', tagAt, blobsAt),
      blobs: Array.from({ length: blobCount }, (_, n) =>
        value.toString('hex', blobsAt + 32 * n, blobsAt + 32 * n + 32),
      ),
    });
    at = end;
  }
  return at === value.length ? { firstLsn, lastLsn, bytes: readU64(value, 13), entries } : undefined;
}
