/**
 * Object store in a folder: `file:`.
 *
 *   <root>/<key>                                            an object, whole
 *   <folder of the key>/.varve-tmp.<name>.<16 hex digits>   one that is being written; never listed, never read
 *
 * An object is written to a temporary file beside its place, synced with fdatasync, and published by link(2), which
 * fails where something is (`putIfAbsent`), or rename(2) (`put`); then the folder is synced, and every folder above it
 * up to the root. So a power cut leaves the object whole or not there; a crash leaves at most a temporary file, which
 * `listUploads` finds. An object that somebody else just published is synced too before 'exists' is returned: its
 * writer may have died before it did that.
 *
 * Files are made with mode 0600, folders with 0700; those that exist keep theirs. Folders are never removed, since a
 * put under way may need them. A file system without link(2) is refused at `open`.
 *
 * Files in the root that were not put through a store are listed where their names are legal keys.
 */
import { randomBytes } from 'node:crypto';
import { type FileHandle, link, open, rename, rm, stat, unlink } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { VarveError } from '../schemas/errors.ts';
import { KIB } from '../schemas/limits.ts';
import { type Body, chunksOf, refuseAborted } from './body.ts';
import { walk } from './file-walk.ts';
import { errnoOf, FILE_MODE, fileError, makeFolder, syncFolder } from './files.ts';
import { checkKey, checkPrefix, TEMPORARY_PREFIX } from './keys.ts';
import {
  type CallOptions,
  checkRange,
  type GetOptions,
  type ListOptions,
  type ObjectEntry,
  type ObjectHead,
  type ObjectStore,
  type PutOutcome,
  type Upload,
} from './object-store.ts';
import { keepsCondition } from './probe.ts';

const READ_BYTES = 256 * KIB;
/** Folders known to be durable; past it all are forgotten and synced again. */
const FOLDERS_MAX = 65_536;
/** How file systems without link(2) refuse it. */
const NO_LINK: ReadonlySet<string> = new Set(['EPERM', 'ENOTSUP', 'EOPNOTSUPP', 'ENOSYS']);
const UPLOAD_ID = /^[0-9a-f]{16}$/;

export class FileStore implements ObjectStore {
  readonly url: string;
  readonly putIfAbsentBytesMax = Number.MAX_SAFE_INTEGER;
  readonly #root: string;
  readonly #durable = new Set<string>();

  private constructor(root: string) {
    this.#root = root;
    this.url = pathToFileURL(root).href;
  }

  /**
   * Makes the folder where it is missing, unless it is only read: then nothing is made or tried.
   * @throws VarveError STORE_UNCONDITIONAL: no link(2) here
   */
  static async open(root: string, options: CallOptions & { readonly readOnly?: boolean | undefined } = {}) {
    const store = new FileStore(resolve(root));
    if (options.readOnly === true) return store;
    await inTermsOf(store.#root, () => makeFolder(store.#root));
    if (!(await keepsCondition(store, options.signal))) throw unconditional(store.#root);
    return store;
  }

  async putIfAbsent(key: string, body: Body, options: CallOptions = {}): Promise<PutOutcome> {
    const path = this.#pathOf(key);
    return await inTermsOf(key, async () => {
      refuseAborted(options.signal);
      // Spares writing the body where the answer is known; link(2) decides.
      if ((await this.#sizeOf(path)) !== undefined) {
        await this.#settle(dirname(path));
        return 'exists';
      }
      const temporary = await this.#write(path, body, options.signal);
      let outcome: PutOutcome = 'created';
      try {
        await link(temporary, path); // COMMIT POINT. A temporary file before, an object after.
      } catch (error) {
        if (NO_LINK.has(errnoOf(error) ?? '')) throw unconditional(this.#root, error);
        if (errnoOf(error) !== 'EEXIST') throw error;
        if ((await this.#sizeOf(path)) === undefined) throw folderInPlace(key);
        outcome = 'exists';
      } finally {
        await rm(temporary, { force: true });
      }
      await this.#settleOrDoubt(key, dirname(path));
      return outcome;
    });
  }

  async put(key: string, body: Body, options: CallOptions = {}): Promise<void> {
    const path = this.#pathOf(key);
    await inTermsOf(key, async () => {
      refuseAborted(options.signal);
      const temporary = await this.#write(path, body, options.signal);
      try {
        await rename(temporary, path); // COMMIT POINT. The old object before, the new one after.
      } catch (error) {
        await rm(temporary, { force: true });
        throw error;
      }
      await this.#settleOrDoubt(key, dirname(path));
    });
  }

  async *get(key: string, options: GetOptions = {}): AsyncGenerator<Uint8Array, void, void> {
    const path = this.#pathOf(key);
    const { range, signal } = options;
    checkRange(range);
    refuseAborted(signal);
    let handle: FileHandle | undefined;
    try {
      handle = await open(path, 'r');
      const status = await handle.stat();
      if (!status.isFile()) throw missing(key);
      const end = range?.end ?? status.size;
      if (end > status.size) throw corrupt(key, `has ${status.size} bytes and should have at least ${end}`);
      let at = range?.start ?? 0;
      while (at < end) {
        refuseAborted(signal);
        const chunk = Buffer.allocUnsafe(Math.min(READ_BYTES, end - at));
        const { bytesRead } = await handle.read(chunk, 0, chunk.byteLength, at);
        if (bytesRead === 0) throw corrupt(key, `became shorter while it was read, at byte ${at} of ${end}`);
        at += bytesRead;
        yield chunk.subarray(0, bytesRead);
      }
    } catch (error) {
      throw errnoOf(error) === 'ENOTDIR' ? missing(key) : fileError(error, key);
    } finally {
      await handle?.close();
    }
  }

  async head(key: string, options: CallOptions = {}): Promise<ObjectHead | undefined> {
    refuseAborted(options.signal);
    try {
      const status = await stat(this.#pathOf(key));
      return status.isFile() ? { bytes: status.size, modifiedMs: status.mtimeMs, etag: undefined } : undefined;
    } catch (error) {
      if (isAbsent(error)) return undefined;
      throw fileError(error, key);
    }
  }

  async *list(prefix: string, options: ListOptions = {}): AsyncGenerator<ObjectEntry, void, void> {
    checkPrefix(prefix);
    const { startAfter, signal } = options;
    for await (const found of walk(this.#root, prefix, startAfter, signal)) {
      if (found.uploadId === undefined) yield { key: found.key, bytes: found.bytes, modifiedMs: found.modifiedMs };
    }
  }

  async delete(key: string, options: CallOptions = {}): Promise<void> {
    const path = this.#pathOf(key);
    refuseAborted(options.signal);
    await inTermsOf(key, async () => {
      if (await this.#remove(path)) await syncFolder(dirname(path));
    });
  }

  async deleteMany(keys: readonly string[], options: CallOptions = {}): Promise<void> {
    for (const key of keys) checkKey(key);
    const folders = new Map<string, string>();
    const failed: { key: string; error: unknown }[] = [];
    for (const key of keys) {
      refuseAborted(options.signal);
      const path = this.#pathOf(key);
      try {
        if (await this.#remove(path)) folders.set(dirname(path), key);
      } catch (error) {
        failed.push({ key, error });
      }
    }
    for (const [folder, key] of folders) await inTermsOf(key, () => syncFolder(folder));
    const first = failed[0];
    if (first === undefined) return;
    const error = fileError(first.error, first.key);
    if (!(error instanceof VarveError)) throw error;
    throw new VarveError(
      error.code,
      `${failed.length} of ${keys.length} keys were not deleted, the first: ${error.message}`,
      { failed: failed.map(({ key }) => key) },
      error,
    );
  }

  async *listUploads(
    prefix: string,
    startedBeforeMs: number,
    options: CallOptions = {},
  ): AsyncGenerator<Upload, void, void> {
    checkPrefix(prefix);
    for await (const { key, uploadId, modifiedMs } of walk(this.#root, prefix, undefined, options.signal)) {
      // The last write counts, not the first: a long upload that is under way stays young.
      if (uploadId !== undefined && modifiedMs < startedBeforeMs) yield { key, id: uploadId, startedMs: modifiedMs };
    }
  }

  async abortUpload(upload: Upload, options: CallOptions = {}): Promise<void> {
    const path = this.#pathOf(upload.key);
    refuseAborted(options.signal);
    if (!UPLOAD_ID.test(upload.id)) throw new VarveError('INVALID_OPTION', 'not the id of an upload of this store');
    await inTermsOf(upload.key, async () => {
      await this.#remove(temporaryName(path, upload.id));
    });
  }

  async close(): Promise<void> {}

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #pathOf(key: string): string {
    checkKey(key);
    return join(this.#root, key);
  }

  /** undefined where there is no object. */
  async #sizeOf(path: string): Promise<number | undefined> {
    try {
      const status = await stat(path);
      return status.isFile() ? status.size : undefined;
    } catch (error) {
      if (errnoOf(error) === 'ENOENT') return undefined;
      throw error;
    }
  }

  /** The body in a temporary file, durable in itself. Leaves none behind when it throws. */
  async #write(path: string, body: Body, signal: AbortSignal | undefined): Promise<string> {
    await makeFolder(dirname(path));
    const temporary = temporaryName(path, randomBytes(8).toString('hex'));
    try {
      const handle = await open(temporary, 'wx', FILE_MODE);
      try {
        for await (const chunk of chunksOf(body, signal)) await handle.writeFile(chunk);
        await handle.datasync();
      } finally {
        await handle.close();
      }
    } catch (error) {
      await rm(temporary, { force: true });
      throw error;
    }
    return temporary;
  }

  async #remove(path: string): Promise<boolean> {
    try {
      await unlink(path);
      return true;
    } catch (error) {
      if (isAbsent(error)) return false;
      // unlink(2) of a folder: no object is there.
      if (errnoOf(error) === 'EISDIR') return false;
      throw error;
    }
  }

  /** Syncs the folder, and once per process those above it: another process may have made them and not synced yet. */
  async #settle(folder: string): Promise<void> {
    await syncFolder(folder);
    for (let above = folder; above !== this.#root && !this.#durable.has(above); above = dirname(above)) {
      await syncFolder(dirname(above));
      if (this.#durable.size >= FOLDERS_MAX) this.#durable.clear();
      this.#durable.add(above);
    }
  }

  async #settleOrDoubt(key: string, folder: string): Promise<void> {
    try {
      await this.#settle(folder);
    } catch (error) {
      const text = `${key} is in its place, but its folder could not be synced: a power cut may undo it`;
      throw new VarveError('STORE_AMBIGUOUS', text, { key, errno: errnoOf(error) }, error);
    }
  }
}

function temporaryName(path: string, id: string): string {
  return join(dirname(path), `${TEMPORARY_PREFIX}${basename(path)}.${id}`);
}

function isAbsent(error: unknown): boolean {
  return errnoOf(error) === 'ENOENT' || errnoOf(error) === 'ENOTDIR';
}

async function inTermsOf<T>(key: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    throw fileError(error, key);
  }
}

function missing(key: string): VarveError {
  return new VarveError('STORE_MISSING', `no object ${key}`, { key });
}

function corrupt(key: string, text: string): VarveError {
  return new VarveError('STORE_CORRUPT', `${key} ${text}`, { key });
}

function folderInPlace(key: string): VarveError {
  return new VarveError('STORE_KEY_INVALID', `${key} is a folder of other objects`, { key });
}

function unconditional(root: string, cause?: unknown): VarveError {
  const text = `${root}: this file system has no working link(2), so two writers could overwrite each other; choose another`;
  return new VarveError('STORE_UNCONDITIONAL', text, { root }, cause);
}
