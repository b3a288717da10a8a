/** How S3 takes bodies: its limits, and what varve makes of them. */
import { VarveError } from '../schemas/errors.ts';
import { MIB } from '../schemas/limits.ts';

/** S3's limit of one PutObject. */
export const PUT_BYTES_MAX = 5 * 1024 * MIB;
/** Bodies above this are put in parts: past it, sending all of it again costs more than some requests. */
export const PARTS_OVER_BYTES = 32 * MIB;
/** S3's limit of one upload. */
const PARTS_MAX = 10_000;
/** One part is held in memory, so the largest size makes the largest object: 625 GiB. */
const PART_BYTES = 16 * MIB;
const PART_BYTES_MAX = 64 * MIB;
/** Bodies above this are looked for before a conditional put sends them. */
export const LOOK_FIRST_OVER_BYTES = MIB;
/** S3's limit of one DeleteObjects. */
export const DELETE_KEYS_MAX = 1000;

/** Size of the parts of a body, in bytes: as small as their number allows. @throws VarveError STORE_TOO_LARGE */
export function partBytesOf(key: string, bytes: number): number {
  const partBytes = Math.max(PART_BYTES, Math.ceil(bytes / PARTS_MAX / MIB) * MIB);
  if (partBytes > PART_BYTES_MAX) throw tooLarge(key, bytes, PART_BYTES_MAX * PARTS_MAX);
  return partBytes;
}

export function tooLarge(key: string, bytes: number, bytesMax: number): VarveError {
  return new VarveError('STORE_TOO_LARGE', `${key} has ${bytes} bytes, more than ${bytesMax}`, {
    key,
    bytes,
    bytesMax,
  });
}
