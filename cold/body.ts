/**
 * Bodies of objects: bytes in memory, or a source of known length that can be read again.
 *
 * A source is opened once for its hash where that is not known, once to be sent, and again by every retry: it must give
 * the same bytes each time. What it gives is counted, and hashed where a hash was announced; a body that differs from
 * its announcement is never stored.
 */
import { createHash, hash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { stat } from 'node:fs/promises';
import { VarveError } from '../schemas/errors.ts';
import { MIB } from '../schemas/limits.ts';

export type Body = Uint8Array | BodySource;

export type BodySource = {
  /** Exact length in bytes. */
  readonly bytes: number;
  /** SHA-256 in hex. @default read the source once more to learn it */
  readonly sha256?: string | undefined;
  /** The bytes from the first on. */
  open(): AsyncIterable<Uint8Array>;
};

const READ_BYTES = MIB;

/** A file as it is now: it must not change until the put has resolved. */
export async function fileBody(path: string, sha256?: string): Promise<BodySource> {
  const { size } = await stat(path);
  return { bytes: size, sha256, open: () => createReadStream(path, { highWaterMark: READ_BYTES }) };
}

export function bytesOf(body: Body): number {
  return body instanceof Uint8Array ? body.byteLength : body.bytes;
}

/** Its SHA-256 in hex; reads a source whose hash is not known. @throws VarveError STORE_BODY_MISMATCH, ABORTED */
export async function sha256Of(body: Body, signal?: AbortSignal): Promise<string> {
  if (body instanceof Uint8Array) return hash('sha256', body, 'hex');
  if (body.sha256 !== undefined) return body.sha256;
  const digest = createHash('sha256');
  for await (const chunk of chunksOf(body, signal)) digest.update(chunk);
  return digest.digest('hex');
}

/**
 * Its bytes, once. Throws instead of ending where there are fewer or more than announced, or their hash is another.
 * @throws VarveError STORE_BODY_MISMATCH, ABORTED
 */
export async function* chunksOf(body: Body, signal?: AbortSignal): AsyncGenerator<Uint8Array, void, void> {
  refuseAborted(signal);
  if (body instanceof Uint8Array) {
    yield body;
    return;
  }
  const digest = body.sha256 === undefined ? undefined : createHash('sha256');
  let bytes = 0;
  // Whoever has all bytes may publish them: the last chunk is handed over when nothing can be wrong any more.
  let last: Uint8Array | undefined;
  for await (const chunk of body.open()) {
    refuseAborted(signal);
    bytes += chunk.byteLength;
    if (bytes > body.bytes) throw mismatch(`has over the ${body.bytes} bytes that it was announced with`);
    if (chunk.byteLength === 0) continue;
    digest?.update(chunk);
    if (last !== undefined) yield last;
    last = chunk;
  }
  if (bytes !== body.bytes) throw mismatch(`has ${bytes} bytes and was announced with ${body.bytes}`);
  if (digest !== undefined && digest.digest('hex') !== body.sha256)
    throw mismatch('has another SHA-256 than announced');
  if (last !== undefined) yield last;
}

/** The bytes in pieces of exactly `pieceBytes`, the last one shorter. Holds one piece. */
export async function* piecesOf(
  chunks: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  pieceBytes: number,
): AsyncGenerator<Buffer, void, void> {
  let parts: Uint8Array[] = [];
  let held = 0;
  for await (const chunk of chunks) {
    let rest = chunk;
    while (held + rest.byteLength >= pieceBytes) {
      const taken = rest.subarray(0, pieceBytes - held);
      yield Buffer.concat([...parts, taken], pieceBytes);
      rest = rest.subarray(taken.byteLength);
      parts = [];
      held = 0;
    }
    if (rest.byteLength > 0) {
      parts.push(rest);
      held += rest.byteLength;
    }
  }
  if (held > 0) yield Buffer.concat(parts, held);
}

/** All bytes of a stream that has at most `bytesMax`. @throws VarveError STORE_TOO_LARGE */
export async function collect(chunks: AsyncIterable<Uint8Array>, bytesMax: number): Promise<Buffer> {
  const parts: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of chunks) {
    bytes += chunk.byteLength;
    if (bytes > bytesMax) throw new VarveError('STORE_TOO_LARGE', `over ${bytesMax} bytes`, { bytesMax });
    parts.push(chunk);
  }
  return Buffer.concat(parts, bytes);
}

/** @throws VarveError ABORTED */
export function refuseAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw new VarveError('ABORTED', 'aborted by the caller');
}

function mismatch(text: string): VarveError {
  return new VarveError('STORE_BODY_MISMATCH', `the body ${text}; nothing was stored`);
}
