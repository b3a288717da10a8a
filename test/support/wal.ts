/**
 * RocksDB's write-ahead log as bytes, so that tests can cut it where it hurts and know what a sync covered.
 *
 * A file is a row of 32 KiB blocks. A block holds fragments of 4 bytes checksum, u16 length (little-endian), u8 type
 * (1 whole record, 2 first, 3 middle, 4 last) and their bytes; fewer than 7 bytes left in a block are zeros. A record is
 * one write batch. (RocksDB, `db/log_format.h`; the recyclable format, types 5 to 8, is off.)
 */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

export const BLOCK_BYTES = 32 * 1024;
const HEADER_BYTES = 7;

export type WalRecord = {
  /** Offsets in the file: of the first byte of its first fragment and of the first byte after its last. */
  readonly start: number;
  readonly end: number;
  readonly bytes: Buffer;
};

/** All whole records; ends at the first place that is no fragment (zeros, a torn end). Checksums are not looked at. */
export function walRecords(file: Buffer): WalRecord[] {
  const records: WalRecord[] = [];
  let fragments: Buffer[] = [];
  let start = 0;
  for (let offset = 0; offset + HEADER_BYTES <= file.length; ) {
    const leftInBlock = BLOCK_BYTES - (offset % BLOCK_BYTES);
    if (leftInBlock < HEADER_BYTES) {
      offset += leftInBlock;
      continue;
    }
    const end = offset + HEADER_BYTES + file.readUInt16LE(offset + 4);
    const type = file[offset + 6] as number;
    if (type < 1 || type > 4 || end > file.length) break;
    if (type <= 2) {
      fragments = [];
      start = offset;
    }
    fragments.push(file.subarray(offset + HEADER_BYTES, end));
    if (type === 1 || type === 4) records.push({ start, end, bytes: Buffer.concat(fragments) });
    offset = end;
  }
  return records;
}

/** Paths of a database's WALs, oldest first. */
export function walFiles(database: string): string[] {
  const names = readdirSync(database).filter((name) => /^\d+\.log$/.test(name));
  return names.toSorted((a, b) => Number.parseInt(a, 10) - Number.parseInt(b, 10)).map((name) => join(database, name));
}

export function readWal(path: string): WalRecord[] {
  return walRecords(readFileSync(path));
}
