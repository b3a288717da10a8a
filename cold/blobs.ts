/**
 * Blobs in an object store: bodies named by the SHA-256 of their plain bytes.
 *
 *   blobs/sha256/ab/cd/<hash>.zst     one zstd frame; bodies over 8 MiB several, one after the other
 *
 * A blob is valid if and only if its bytes, unpacked, have its name. The name is checked before anything is stored and
 * on every read. Putting a blob that is there does nothing; one that is there with another length than ours (another
 * version of zstd, or damage) is read before it is trusted. Nothing is overwritten: a damaged blob is an error, and a
 * person decides.
 *
 * Memory: two frames and their packed forms, whatever the size of a blob. Blobs of several frames are packed into a
 * scratch file first, because their length must be known before the first byte is sent.
 */
import { createHash, hash, randomBytes } from 'node:crypto';
import { open, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { VarveError } from '../schemas/errors.ts';
import { MIB } from '../schemas/limits.ts';
import { type Body, bytesOf, fileBody, refuseAborted } from './body.ts';
import { FILE_MODE, scratchError } from './files.ts';
import type { CallOptions, ObjectStore, PutOutcome } from './object-store.ts';
import { pack, packFrame, unpack } from './zstd.ts';
import { FRAME_BYTES_MAX, FrameError } from './zstd-frames.ts';

export const BLOB_FOLDER = 'blobs/sha256/';

const SHA256 = /^[0-9a-f]{64}$/;
/** Packed bodies above this are looked for before they are sent: a request is cheaper than their bytes. */
const LOOK_FIRST_OVER_BYTES = MIB;

export type PutBlobOptions = CallOptions & {
  /** Where bodies of over 8 MiB are packed; takes as much as the largest of them. @default the system's */
  readonly scratchDir?: string | undefined;
};

/** @throws VarveError INVALID_OPTION */
export function blobKey(sha256: string): string {
  if (!SHA256.test(sha256)) throw new VarveError('INVALID_OPTION', `not a SHA-256: ${sha256.slice(0, 80)}`);
  return `${BLOB_FOLDER}${sha256.slice(0, 2)}/${sha256.slice(2, 4)}/${sha256}.zst`;
}

/** The hash that a key names, undefined for what is no blob. */
export function blobOfKey(key: string): string | undefined {
  const sha256 = key.slice(-68, -4);
  return SHA256.test(sha256) && blobKey(sha256) === key ? sha256 : undefined;
}

/**
 * The blob is durable in the store when it resolves. A stream is read once and given back in every case.
 * @throws VarveError STORE_BODY_MISMATCH: these bytes have another name. STORE_CORRUPT: what is there is damaged
 */
export async function putBlob(
  store: ObjectStore,
  sha256: string,
  plain: Uint8Array | AsyncIterable<Uint8Array>,
  options: PutBlobOptions = {},
): Promise<PutOutcome> {
  const key = blobKey(sha256);
  refuseAborted(options.signal);
  await using packed = await packBlob(sha256, plain, options);
  const { body } = packed;
  const bytes = bytesOf(body);
  if (bytes > LOOK_FIRST_OVER_BYTES && (await isThere(store, sha256, bytes, options))) return 'exists';
  if (bytes > store.putIfAbsentBytesMax) {
    // Too long for the conditional request; whoever else writes this key writes the same plain bytes.
    await store.put(key, body, options);
    return 'created';
  }
  if ((await store.putIfAbsent(key, body, options)) === 'created') return 'created';
  if (await isThere(store, sha256, bytes, options)) return 'exists';
  throw new VarveError('STORE_CONFLICT', `blob ${sha256} was there and is not any more`, { sha256 });
}

/**
 * The plain bytes. It ends normally only if all of them came and have the name; until then the consumer has unproven
 * bytes.
 * @throws VarveError STORE_MISSING, at the first read. STORE_CORRUPT
 */
export async function* getBlob(
  store: ObjectStore,
  sha256: string,
  options: CallOptions = {},
): AsyncGenerator<Buffer, void, void> {
  const digest = createHash('sha256');
  try {
    for await (const plain of unpack(store.get(blobKey(sha256), options))) {
      digest.update(plain);
      yield plain;
    }
  } catch (error) {
    if (!(error instanceof FrameError)) throw error;
    throw new VarveError('STORE_CORRUPT', `blob ${sha256}: ${error.message}`, { sha256 }, error);
  }
  if (digest.digest('hex') === sha256) return;
  throw new VarveError('STORE_CORRUPT', `blob ${sha256}: its bytes have another hash`, { sha256 });
}

/** Is there an object under the blob's key? Its bytes are not read. */
export async function hasBlob(store: ObjectStore, sha256: string, options: CallOptions = {}): Promise<boolean> {
  return (await store.head(blobKey(sha256), options)) !== undefined;
}

/** Is it there, and as we would write it or proven by reading it? */
async function isThere(store: ObjectStore, sha256: string, bytes: number, options: CallOptions): Promise<boolean> {
  const head = await store.head(blobKey(sha256), options);
  if (head === undefined) return false;
  if (head.bytes !== bytes) for await (const _ of getBlob(store, sha256, options));
  return true;
}

type Packed = AsyncDisposable & { readonly body: Body };

/** The stored form of a blob, in memory for one frame, in a scratch file for several. */
async function packBlob(
  sha256: string,
  plain: Uint8Array | AsyncIterable<Uint8Array>,
  options: PutBlobOptions,
): Promise<Packed> {
  if (plain instanceof Uint8Array) {
    checkName(sha256, hash('sha256', plain, 'hex'));
    if (plain.byteLength <= FRAME_BYTES_MAX) return inMemory(await packFrame(plain));
  }
  const digest = createHash('sha256');
  const frames = pack(hashed(plain instanceof Uint8Array ? [plain] : plain, digest, options.signal));
  try {
    const first = await frames.next();
    const second = await frames.next();
    if (second.done === true) {
      checkName(sha256, digest.digest('hex'));
      return inMemory(first.value as Buffer);
    }
    const heads = [first.value as Buffer, second.value];
    return await spool(heads, frames, options.scratchDir ?? tmpdir(), () => checkName(sha256, digest.digest('hex')));
  } finally {
    await frames.return();
  }
}

async function spool(
  heads: readonly Buffer[],
  rest: AsyncIterable<Buffer>,
  folder: string,
  check: () => void,
): Promise<Packed> {
  const path = join(folder, `varve-blob-${randomBytes(8).toString('hex')}.zst`);
  const dispose = () => rm(path, { force: true });
  const digest = createHash('sha256');
  try {
    const handle = await open(path, 'wx', FILE_MODE);
    try {
      const write = async (frame: Buffer) => {
        digest.update(frame);
        await handle.writeFile(frame);
      };
      for (const frame of heads) await write(frame);
      for await (const frame of rest) await write(frame);
    } finally {
      await handle.close();
    }
    check();
    return { body: await fileBody(path, digest.digest('hex')), [Symbol.asyncDispose]: dispose };
  } catch (error) {
    await dispose();
    throw scratchError(error);
  }
}

function inMemory(body: Buffer): Packed {
  return { body, [Symbol.asyncDispose]: async () => {} };
}

async function* hashed(
  plain: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  digest: ReturnType<typeof createHash>,
  signal: AbortSignal | undefined,
): AsyncGenerator<Uint8Array, void, void> {
  for await (const chunk of plain) {
    refuseAborted(signal);
    digest.update(chunk);
    yield chunk;
  }
}

function checkName(sha256: string, found: string): void {
  if (sha256 === found) return;
  const text = `a body that should be blob ${sha256} is ${found}; nothing was stored`;
  throw new VarveError('STORE_BODY_MISMATCH', text, { sha256, found });
}
