/** Answers of an S3 server, checked before they are believed. */
import { createHash } from 'node:crypto';
import { VarveError } from '../schemas/errors.ts';
import { refuseAborted } from './body.ts';
import type { ByteRange } from './object-store.ts';

export type GetAnswer = {
  /** Content-Length. */
  readonly bytes: number | undefined;
  /** Content-Range. */
  readonly place: string | undefined;
  /** SHA-256 of the whole object, in hex, as it was put. */
  readonly sha256: string | undefined;
};

/**
 * The bytes as they come, counted, and hashed where they are the whole object.
 * @throws VarveError STORE_CORRUPT: not what was put. STORE_UNAVAILABLE: less came than was announced
 */
export async function* checkedBytes(
  key: string,
  range: ByteRange | undefined,
  answer: GetAnswer,
  body: AsyncIterable<Buffer>,
  signal: AbortSignal | undefined,
): AsyncGenerator<Buffer, void, void> {
  const expected = expectedBytes(key, range, answer);
  const digest = range === undefined && answer.sha256 !== undefined ? createHash('sha256') : undefined;
  let bytes = 0;
  for await (const chunk of body) {
    refuseAborted(signal);
    bytes += chunk.byteLength;
    digest?.update(chunk);
    yield chunk;
  }
  if (bytes !== expected) {
    throw new VarveError('STORE_UNAVAILABLE', `${key}: ${bytes} of ${expected} bytes came`, { key, bytes, expected });
  }
  if (digest !== undefined && digest.digest('hex') !== answer.sha256) {
    throw corrupt(key, 'its bytes have not the SHA-256 that they were put with');
  }
}

/** How many bytes must come; checks that they are those that were asked for. */
function expectedBytes(key: string, range: ByteRange | undefined, { bytes, place }: GetAnswer): number {
  if (bytes === undefined) throw corrupt(key, 'the server does not say how long it is');
  if (range === undefined) return bytes;
  const [, first, last] = /^bytes (\d+)-(\d+)\//.exec(place ?? '') ?? [];
  const isExact = Number(first) === range.start && Number(last) === range.end - 1 && bytes === range.end - range.start;
  if (isExact) return bytes;
  throw corrupt(key, `the bytes ${range.start} up to ${range.end} are not there: ${place ?? 'no range'}`);
}

/**
 * A listed key, relative to the root. Lists encode keys as forms do, `+` for a space.
 * @throws VarveError STORE_REFUSED: not below the root
 */
export function relativeKey(root: string, key: string | undefined, encoding: string | undefined): string {
  const full = encoding === 'url' ? decodeURIComponent((key ?? '').replaceAll('+', '%20')) : (key ?? '');
  if (full.startsWith(root) && full.length > root.length) return full.slice(root.length);
  throw new VarveError('STORE_REFUSED', `a list of ${root} holds what was not asked for: ${full}`, { key: full });
}

export function corrupt(key: string, text: string): VarveError {
  return new VarveError('STORE_CORRUPT', `${key}: ${text}`, { key });
}
