/**
 * Rows of a query as a stream, through COPY … TO STDOUT in PostgreSQL's binary format: the cheapest way out of the
 * database, and at the consumer's pace.
 *
 *   'PGCOPY\n' ff 0d 0a 00 ‖ i32 flags ‖ i32 extension bytes ‖ extension ‖ tuples ‖ i16 −1
 *   a tuple: i16 fields, then of each i32 bytes (−1: null) and the value as the type's send function writes it
 *
 * (PostgreSQL's manual, COPY, "Binary Format".) A stream that ends without the trailer is an error, never a short answer.
 */
import { VarveError } from '../schemas/errors.ts';

const SIGNATURE = Buffer.from('PGCOPY\n\xff\r\n\0', 'latin1');
const HEADER_BYTES = SIGNATURE.length + 8;
const TRAILER = -1;
/** PostgreSQL counts time from 2000-01-01, in microseconds. */
const EPOCH_MS = 946_684_800_000;
const JSONB_VERSION = 1;

/** The values of a row; they are slices of what was received, and null where the database says so. */
export type CopiedRow = readonly (Buffer | null)[];

/** Tuples, in blocks of as many as have arrived. @throws VarveError WARM_UNREADABLE_VALUE */
export async function* copiedRows(chunks: AsyncIterable<Buffer>): AsyncGenerator<CopiedRow[], void, void> {
  let rest: Buffer = Buffer.alloc(0);
  let isBegun = false;
  for await (const chunk of chunks) {
    rest = rest.length === 0 ? chunk : Buffer.concat([rest, chunk]);
    if (!isBegun) {
      if (rest.length < HEADER_BYTES) continue;
      rest = rest.subarray(headerBytes(rest));
      isBegun = true;
    }
    const rows: CopiedRow[] = [];
    let at = 0;
    for (;;) {
      const tuple = readTuple(rest, at);
      if (tuple === undefined) break;
      if (tuple === 'end') {
        if (rows.length > 0) yield rows;
        // What follows is the protocol's own.
        for await (const _ of chunks);
        return;
      }
      rows.push(tuple.row);
      at = tuple.end;
    }
    rest = rest.subarray(at);
    if (rows.length > 0) yield rows;
  }
  throw new VarveError('WARM_UNREADABLE_VALUE', 'a copy ended before its trailer: rows may be missing');
}

function headerBytes(bytes: Buffer): number {
  const extension = bytes.readInt32BE(SIGNATURE.length + 4);
  if (bytes.subarray(0, SIGNATURE.length).equals(SIGNATURE) && extension === 0) return HEADER_BYTES;
  throw new VarveError('WARM_UNREADABLE_VALUE', "a copy does not begin as PostgreSQL's binary format does");
}

/** undefined: not all of it is there. */
function readTuple(bytes: Buffer, start: number): { row: CopiedRow; end: number } | 'end' | undefined {
  if (start + 2 > bytes.length) return undefined;
  const fields = bytes.readInt16BE(start);
  if (fields === TRAILER) return 'end';
  const row: (Buffer | null)[] = [];
  let at = start + 2;
  for (let i = 0; i < fields; i++) {
    if (at + 4 > bytes.length) return undefined;
    const length = bytes.readInt32BE(at);
    at += 4;
    if (length < 0) {
      row.push(null);
      continue;
    }
    if (at + length > bytes.length) return undefined;
    row.push(bytes.subarray(at, at + length));
    at += length;
  }
  return { row, end: at };
}

/** @throws VarveError WARM_UNREADABLE_VALUE past 2^53 − 1 */
export function int8Of(value: Buffer): number {
  // Two halves: a BigInt for each number of each row would cost more than the rest of it.
  const number = value.readInt32BE(0) * 0x1_0000_0000 + value.readUInt32BE(4);
  if (Number.isSafeInteger(number)) return number;
  throw new VarveError('WARM_UNREADABLE_VALUE', 'a bigint of the database is beyond what a number holds exactly');
}

export function uuidOf(value: Buffer): string {
  const hex = value.toString('hex');
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20)}`;
}

/** `YYYY-MM-DDTHH:mm:ss.sssZ`. */
export function timestampOf(value: Buffer): string {
  return new Date(EPOCH_MS + Number(value.readBigInt64BE(0) / 1000n)).toISOString();
}

/** The text of a jsonb. */
export function jsonbTextOf(value: Buffer): string {
  if (value[0] === JSONB_VERSION) return value.toString('utf8', 1);
  throw new VarveError('WARM_UNREADABLE_VALUE', 'a jsonb of the database has another version than 1');
}
