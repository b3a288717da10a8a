/**
 * An object as a file on this machine, with the hash of its bytes: where it lies already, or a copy in a scratch folder,
 * gone when it is disposed of. What a store can give of a damaged object is kept, since most of it may be whole.
 */
import { createHash } from 'node:crypto';
import { mkdtemp, open, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { isVarveError } from '../schemas/errors.ts';
import { MIB } from '../schemas/limits.ts';
import { refuseAborted } from './body.ts';
import { FILE_MODE, fileError, scratchError } from './files.ts';
import type { CallOptions, ObjectStore } from './object-store.ts';
import { SCRATCH_PREFIX } from './parquet-writer.ts';

const READ_BYTES = MIB;

export type LocalCopy = AsyncDisposable & {
  readonly path: string;
  readonly bytes: number;
  readonly sha256: string;
  /** The last eight bytes, or all where there are fewer. */
  readonly tail: Buffer;
};

export type LocalCopyOptions = CallOptions & {
  /** Made by the caller. */
  readonly scratchDir: string;
  /** Where the store keeps an object on this machine; undefined: it must be copied. @default it must */
  readonly pathOf?: ((key: string) => string | undefined) | undefined;
  /** Told of bytes as they come. */
  readonly onBytes?: ((bytes: number) => void) | undefined;
};

/** undefined where the store has no such object. @throws VarveError STORE_*: it could not be asked */
export async function localCopy(
  store: ObjectStore,
  key: string,
  options: LocalCopyOptions,
): Promise<LocalCopy | undefined> {
  try {
    const there = options.pathOf?.(key);
    if (there !== undefined) {
      const read = await readThrough(there, key, options);
      return { path: there, ...read, [Symbol.asyncDispose]: async () => {} };
    }
    const folder = await scratchFolder(options.scratchDir);
    const remove = () => rm(folder, { recursive: true, force: true });
    const path = join(folder, 'object');
    const read = await copyTo(path, store, key, options).catch(async (error: unknown) => {
      await remove();
      throw scratchError(error);
    });
    return { path, ...read, [Symbol.asyncDispose]: remove };
  } catch (error) {
    if (isVarveError(error, 'STORE_MISSING')) return undefined;
    throw error;
  }
}

async function scratchFolder(scratchDir: string): Promise<string> {
  try {
    return await mkdtemp(join(scratchDir, SCRATCH_PREFIX));
  } catch (error) {
    throw scratchError(error);
  }
}

type Read = Pick<LocalCopy, 'bytes' | 'sha256' | 'tail'>;

/** What comes from the store, written to a file. */
async function copyTo(path: string, store: ObjectStore, key: string, options: LocalCopyOptions): Promise<Read> {
  const reading = new Reading(options);
  const handle = await open(path, 'wx', FILE_MODE);
  try {
    for await (const chunk of store.get(key, { signal: options.signal })) {
      reading.take(chunk);
      await handle.writeFile(chunk);
    }
  } catch (error) {
    // Its hash will tell; what came may be all that there is.
    if (!isVarveError(error, 'STORE_CORRUPT')) throw error;
  } finally {
    await handle.close();
  }
  return reading.end();
}

/** Through one buffer: those that a store hands out wait for the garbage collector. */
async function readThrough(path: string, key: string, options: LocalCopyOptions): Promise<Read> {
  const reading = new Reading(options);
  const buffer = Buffer.allocUnsafe(READ_BYTES);
  try {
    await using handle = await open(path, 'r');
    for (;;) {
      refuseAborted(options.signal);
      const { bytesRead } = await handle.read(buffer, 0, buffer.byteLength, null);
      if (bytesRead === 0) return reading.end();
      reading.take(buffer.subarray(0, bytesRead));
    }
  } catch (error) {
    throw fileError(error, key);
  }
}

class Reading {
  readonly #digest = createHash('sha256');
  readonly #onBytes: LocalCopyOptions['onBytes'];
  #bytes = 0;
  #tail: Buffer = Buffer.alloc(0);

  constructor({ onBytes }: LocalCopyOptions) {
    this.#onBytes = onBytes;
  }

  take(chunk: Uint8Array): void {
    this.#digest.update(chunk);
    this.#bytes += chunk.byteLength;
    this.#tail = Buffer.concat([this.#tail, chunk.subarray(-8)]).subarray(-8);
    this.#onBytes?.(chunk.byteLength);
  }

  end(): Read {
    return { bytes: this.#bytes, sha256: this.#digest.digest('hex'), tail: this.#tail };
  }
}
