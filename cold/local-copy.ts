/**
 * An object as a file on this machine, with the hash of its bytes: where it lies already, or a copy in a scratch folder,
 * gone when it is disposed of. What a store can give of a damaged object is kept, since most of it may be whole.
 */
import { createHash } from 'node:crypto';
import { mkdtemp, open, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { isVarveError } from '../schemas/errors.ts';
import { FILE_MODE, fileError } from './files.ts';
import type { CallOptions, ObjectStore } from './object-store.ts';
import { SCRATCH_PREFIX } from './parquet-writer.ts';

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
  const there = options.pathOf?.(key);
  const folder = there === undefined ? await scratchFolder(options.scratchDir) : undefined;
  const remove = async () => {
    if (folder !== undefined) await rm(folder, { recursive: true, force: true });
  };
  try {
    const path = there ?? join(folder as string, 'object');
    const read = await readThrough(store, key, folder === undefined ? undefined : path, options);
    return { path, ...read, [Symbol.asyncDispose]: remove };
  } catch (error) {
    await remove();
    if (isVarveError(error, 'STORE_MISSING')) return undefined;
    throw fileError(error, 'scratch folder');
  }
}

async function scratchFolder(scratchDir: string): Promise<string> {
  try {
    return await mkdtemp(join(scratchDir, SCRATCH_PREFIX));
  } catch (error) {
    throw fileError(error, 'scratch folder');
  }
}

async function readThrough(store: ObjectStore, key: string, to: string | undefined, options: LocalCopyOptions) {
  const { signal, onBytes } = options;
  const digest = createHash('sha256');
  let bytes = 0;
  let tail: Buffer = Buffer.alloc(0);
  const handle = to === undefined ? undefined : await open(to, 'wx', FILE_MODE);
  try {
    for await (const chunk of store.get(key, { signal })) {
      digest.update(chunk);
      bytes += chunk.byteLength;
      tail = Buffer.concat([tail, chunk.subarray(-8)]).subarray(-8);
      await handle?.writeFile(chunk);
      onBytes?.(chunk.byteLength);
    }
  } catch (error) {
    // Its hash will tell; what came may be all that there is.
    if (!isVarveError(error, 'STORE_CORRUPT')) throw error;
  } finally {
    await handle?.close();
  }
  return { bytes, sha256: digest.digest('hex'), tail };
}
