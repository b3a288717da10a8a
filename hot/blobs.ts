/**
 * Blobs: bodies too bulky for the log, named by the SHA-256 of their bytes.
 *
 *   blobs/sha256/ab/cd/<hash>
 *
 * A blob is valid if and only if its bytes have its name. It is written to a temporary file, synced, renamed, and its
 * folders are synced, all before an event that refers to it is queued: when `put` resolves, the blob survives a power
 * cut. Putting one that is there costs a check. A torn temporary file is never taken for a blob and is swept later.
 */
import { createHash, hash, randomBytes } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { mkdir, open, readdir, rename, rm, stat, utimes } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { Readable } from 'node:stream';
import { VarveError } from '../schemas/errors.ts';
import { failpoint } from '../schemas/failpoint.ts';
import { type BlobRef, TEXT_MEDIA_TYPE } from '../schemas/stubs.ts';
import { errnoOf, makeFolder, syncFolder } from './files.ts';

const SHA256 = /^[0-9a-f]{64}$/;
/** Hashes known to be durable, kept so that a body seen again costs no sync. */
const KNOWN_MAX = 65_536;

export class BlobStore {
  readonly #root: string;
  readonly #known = new Set<string>();
  readonly #folders = new Set<string>();
  /** Blobs that an append under way needs: trim leaves them alone. */
  readonly #pins = new Map<string, number>();
  /** Blobs that were used since the sweep under way began to look for references. */
  #touched: Set<string> | undefined;
  /** Temporary files of this process. */
  readonly #writing = new Set<string>();
  /** Removals under way: a put of the same blob waits for them. */
  readonly #removing = new Map<string, Promise<void>>();
  #bytes = 0;

  private constructor(root: string) {
    this.#root = root;
  }

  /** `folder` is the log's directory. */
  static async open(folder: string): Promise<BlobStore> {
    const store = new BlobStore(join(folder, 'blobs'));
    await makeFolder(join(store.#root, 'tmp'));
    await makeFolder(join(store.#root, 'sha256'));
    return store;
  }

  /** The blobs of a log that another process writes, for reading. Touches nothing. */
  static of(folder: string): BlobStore {
    return new BlobStore(join(folder, 'blobs'));
  }

  pathOf(sha256: string): string {
    if (!SHA256.test(sha256)) throw new VarveError('INVALID_OPTION', `not a SHA-256: ${sha256.slice(0, 80)}`, {});
    return join(this.#root, 'sha256', sha256.slice(0, 2), sha256.slice(2, 4), sha256);
  }

  /** Bytes put by this process since it was opened. */
  get bytesPut(): number {
    return this.#bytes;
  }

  /** Durable when it resolves. A stream is hashed as it is written and never held whole. */
  async put(body: Uint8Array | Readable, media_type: string = TEXT_MEDIA_TYPE): Promise<BlobRef> {
    if (body instanceof Uint8Array) {
      const sha256 = hash('sha256', body, 'hex');
      if (!(await this.#isDurable(sha256, body.byteLength))) {
        await this.#write([body], () => sha256);
      }
      return { sha256, bytes: body.byteLength, media_type };
    }
    const digest = createHash('sha256');
    let bytes = 0;
    const counted = async function* () {
      for await (const chunk of body as AsyncIterable<Buffer | string>) {
        const part = typeof chunk === 'string' ? Buffer.from(chunk) : chunk;
        digest.update(part);
        bytes += part.byteLength;
        yield part;
      }
    };
    const sha256 = await this.#write(counted(), () => digest.digest('hex'));
    return { sha256, bytes, media_type };
  }

  /** @throws VarveError BLOB_MISSING, at the first read */
  async *get(sha256: string): AsyncGenerator<Buffer> {
    try {
      yield* createReadStream(this.pathOf(sha256)) as AsyncIterable<Buffer>;
    } catch (error) {
      if (errnoOf(error) !== 'ENOENT') throw error;
      throw new VarveError('BLOB_MISSING', `blob ${sha256} is not in this log`, { sha256 }, error);
    }
  }

  /** Length in bytes, undefined where there is no such blob. */
  async size(sha256: string): Promise<number | undefined> {
    await this.#removing.get(sha256);
    try {
      return (await stat(this.pathOf(sha256))).size;
    } catch (error) {
      if (errnoOf(error) === 'ENOENT') return undefined;
      throw error;
    }
  }

  /** Hashes the blob again. false: its bytes do not have its name. */
  async verify(sha256: string): Promise<boolean> {
    const digest = createHash('sha256');
    for await (const chunk of this.get(sha256)) digest.update(chunk);
    return digest.digest('hex') === sha256;
  }

  pin(sha256: string): void {
    this.#touched?.add(sha256);
    this.#pins.set(sha256, (this.#pins.get(sha256) ?? 0) + 1);
  }

  unpin(sha256: string): void {
    const left = (this.#pins.get(sha256) ?? 1) - 1;
    if (left === 0) this.#pins.delete(sha256);
    else this.#pins.set(sha256, left);
  }

  /** Every blob of the log. */
  async *list(): AsyncGenerator<string> {
    const root = join(this.#root, 'sha256');
    for (const ab of await readdir(root)) {
      for (const cd of await readdir(join(root, ab))) {
        for (const name of await readdir(join(root, ab, cd))) if (SHA256.test(name)) yield name;
      }
    }
  }

  /**
   * Removes blobs that are not referenced, not in use and older than `graceMs`, and temporary files of dead writers.
   * What is used while `referenced` looks stays, since it may have looked too early to see it.
   */
  async sweep(
    referenced: () => Promise<ReadonlySet<string>>,
    graceMs: number,
    nowMs: number,
  ): Promise<{ blobs: number; bytes: number }> {
    let blobs = 0;
    let bytes = 0;
    this.#touched = new Set(this.#pins.keys());
    try {
      const needed = await referenced();
      for await (const sha256 of this.list()) {
        if (needed.has(sha256)) continue;
        const path = this.pathOf(sha256);
        const { size, mtimeMs } = await stat(path);
        if (nowMs - mtimeMs < graceMs || this.#touched.has(sha256)) continue;
        // Nothing is awaited between the look at #touched and this mark, which holds up later puts.
        this.#known.delete(sha256);
        const removal = rm(path, { force: true });
        this.#removing.set(sha256, removal);
        await removal.finally(() => this.#removing.delete(sha256));
        blobs += 1;
        bytes += size;
      }
    } finally {
      this.#touched = undefined;
    }
    for (const name of await readdir(join(this.#root, 'tmp'))) {
      const path = join(this.#root, 'tmp', name);
      if (this.#writing.has(path)) continue;
      const { mtimeMs } = await stat(path);
      if (nowMs - mtimeMs >= graceMs) await rm(path, { force: true });
    }
    return { blobs, bytes };
  }

  async #isDurable(sha256: string, bytes: number): Promise<boolean> {
    this.#touched?.add(sha256);
    await this.#removing.get(sha256);
    const path = this.pathOf(sha256);
    const now = new Date();
    if (this.#known.has(sha256)) {
      // Its grace time begins anew.
      await utimes(path, now, now);
      return true;
    }
    if ((await this.size(sha256)) !== bytes) return false;
    // Renamed, but perhaps by a process that died before its syncs returned.
    const handle = await open(path, 'r+');
    try {
      await handle.utimes(now, now);
      await handle.sync();
    } finally {
      await handle.close();
    }
    await this.#syncUp(dirname(path));
    this.#remember(sha256);
    return true;
  }

  async #write(chunks: Iterable<Uint8Array> | AsyncIterable<Uint8Array>, name: () => string): Promise<string> {
    const temporary = join(this.#root, 'tmp', `${process.pid}.${randomBytes(8).toString('hex')}`);
    this.#writing.add(temporary);
    try {
      const handle = await open(temporary, 'wx', 0o600);
      try {
        for await (const chunk of chunks) {
          await handle.writeFile(chunk);
          this.#bytes += chunk.byteLength;
        }
        failpoint('hot.blob.before-sync');
        await handle.datasync();
      } finally {
        await handle.close();
      }
      const sha256 = name();
      const path = this.pathOf(sha256);
      const folder = dirname(path);
      await mkdir(folder, { recursive: true, mode: 0o700 });
      // A sweep that is about to remove an older file of this name must not take this one.
      this.#touched?.add(sha256);
      await this.#removing.get(sha256);
      failpoint('hot.blob.before-rename');
      await rename(temporary, path);
      failpoint('hot.blob.after-rename');
      await this.#syncUp(folder);
      this.#remember(sha256);
      return sha256;
    } catch (error) {
      await rm(temporary, { force: true });
      throw error;
    } finally {
      this.#writing.delete(temporary);
    }
  }

  /** Syncs the folder of a blob, and once per process those above it. */
  async #syncUp(folder: string): Promise<void> {
    await syncFolder(folder);
    if (this.#folders.has(folder)) return;
    await syncFolder(dirname(folder));
    await syncFolder(dirname(dirname(folder)));
    this.#folders.add(folder);
  }

  #remember(sha256: string): void {
    if (this.#known.size >= KNOWN_MAX) this.#known.clear();
    this.#known.add(sha256);
  }
}
