/**
 * Looks for batches that RocksDB's write-ahead log still holds and its recovery has not shown.
 *
 * Recovery takes zeros or nonsense in the last block of a WAL for the end of it, whatever lies behind (measured: a
 * zeroed page with whole records after it opens without a word). A torn tail looks the same from before, and is no
 * damage: its batch was never acknowledged. What tells them apart is what follows. One flush is in flight at a time, so
 * a batch was written only after the one before it was durable: if a whole batch lies behind the next LSN, the one at
 * the next LSN was acknowledged and is gone.
 *
 *   WAL     blocks of 32 KiB; a record is u32 masked CRC-32C ‖ u16 length ‖ u8 type ‖ data, little-endian, cut where a
 *           block ends: FULL, or FIRST … MIDDLE … LAST; fewer than 7 bytes before a block's end are padding
 *   data    of FULL and FIRST: u64 sequence ‖ u32 count ‖ operations; a put is 0x01 ‖ varint length ‖ key ‖ …
 *
 * (RocksDB's `db/log_format.h`, `db/write_batch.cc`; the CRC is that of RFC 3720, masked as LevelDB does.)
 */
import { open, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { INDEX_KEY_BYTES, RECORD_KEY_BYTES, readU64 } from './record.ts';
import type { Damage } from './scan.ts';

const BLOCK_BYTES = 32 * 1024;
const HEADER_BYTES = 7;
const FULL = 1;
const FIRST = 2;
const LAST = 4;
/** Sequence and count, the tag of a put, the length of its key. */
const KEY_AT = 14;
const PUT = 1;
const E = 0x65;

/** @param tipLsn where the log ended for recovery */
export async function hiddenBatch(databaseDir: string, tipLsn: number): Promise<Damage | undefined> {
  const names = (await readdir(databaseDir)).filter((name) => /^\d+\.log$/.test(name));
  for (const name of names) {
    const lsn = await hiddenIn(join(databaseDir, name), tipLsn);
    if (lsn === undefined) continue;
    const reason = `the log seems to end at LSN ${tipLsn}, but ${name} holds a whole batch from LSN ${lsn} on`;
    return { lsn: tipLsn + 1, reason };
  }
  return undefined;
}

/** First LSN of a whole batch behind the next one; undefined where there is none. */
async function hiddenIn(path: string, tipLsn: number): Promise<number | undefined> {
  const handle = await open(path, 'r');
  try {
    const buffer = Buffer.alloc(BLOCK_BYTES);
    for (let position = 0; ; position += BLOCK_BYTES) {
      const { bytesRead } = await handle.read(buffer, 0, BLOCK_BYTES, position);
      if (bytesRead < HEADER_BYTES) return undefined;
      const found = hiddenInBlock(buffer.subarray(0, bytesRead), tipLsn);
      if (found !== undefined) return found;
    }
  } finally {
    await handle.close();
  }
}

function hiddenInBlock(block: Buffer, tipLsn: number): number | undefined {
  let at = 0;
  while (at + HEADER_BYTES <= block.length) {
    const length = block.readUInt16LE(at + 4);
    const type = block[at + 6] as number;
    const end = at + HEADER_BYTES + length;
    const isRecord = type >= FULL && type <= LAST && end <= block.length;
    const lsn = isRecord ? firstLsn(block, at, type, end) : undefined;
    if (lsn !== undefined && lsn > tipLsn + 1 && isWhole(block, at, end)) return lsn;
    // Past a break in the chain of lengths any byte may begin a record; its key and its CRC tell.
    at = isRecord && (lsn === undefined || lsn <= tipLsn + 1) && isPlausible(block, end) ? end : at + 1;
  }
  return undefined;
}

/** May a record begin here, or the block end? A wrong yes costs a search, since what is skipped was part of a record. */
function isPlausible(block: Buffer, at: number): boolean {
  if (at + HEADER_BYTES > block.length) return true;
  const type = block[at + 6] as number;
  return type >= FULL && type <= LAST && at + HEADER_BYTES + block.readUInt16LE(at + 4) <= block.length;
}

/** LSN of the batch's first record; undefined where this is not the beginning of a batch of records. */
function firstLsn(block: Buffer, at: number, type: number, end: number): number | undefined {
  if (type !== FULL && type !== FIRST) return undefined;
  const key = at + HEADER_BYTES + KEY_AT;
  if (key + RECORD_KEY_BYTES > end || block[key - 2] !== PUT || block[key] !== E) return undefined;
  const length = block[key - 1];
  return length === RECORD_KEY_BYTES || length === INDEX_KEY_BYTES ? readU64(block, key + 1) : undefined;
}

function isWhole(block: Buffer, at: number, end: number): boolean {
  const crc = crc32c(block, at + 6, end);
  const masked = (((crc >>> 15) | (crc << 17)) + 0xa282_ead8) >>> 0;
  return masked === block.readUInt32LE(at);
}

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  let crc = n;
  for (let bit = 0; bit < 8; bit++) crc = (crc & 1) === 1 ? (crc >>> 1) ^ 0x82f6_3b78 : crc >>> 1;
  return crc >>> 0;
});

/** CRC-32C (Castagnoli), RFC 3720, appendix B.4. */
function crc32c(bytes: Buffer, from: number, to: number): number {
  let crc = 0xffff_ffff;
  for (let i = from; i < to; i++) crc = (CRC_TABLE[(crc ^ (bytes[i] as number)) & 0xff] as number) ^ (crc >>> 8);
  return (crc ^ 0xffff_ffff) >>> 0;
}
