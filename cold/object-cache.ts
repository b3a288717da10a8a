/**
 * Objects of a store as local files, for engines that read files: fetched once, kept within a bound, shared by all
 * processes that name the same folder.
 *
 *   objects/<sha256>.parquet           what was fetched and proven to have that SHA-256; never changed
 *   users/<id>/<sha256>.parquet        the same file (a hard link): it is in use
 *   users/<id>/<sha256>.part           one that is being fetched, with the room that it will take
 *   users/<id>/spill/                  for what its user spills
 *
 * A file under `objects/` may be evicted, least recently used first, while it has one link; the kernel counts them, so
 * no process evicts what another one reads, and one that is evicted while it is being linked stays whole under its
 * link. Both kinds and what is under way count against the bound; what is spilled does not.
 *
 * A user's folder is touched every minute and removed by `close`; what a crash left is removed by the next user when it
 * is older than ten minutes. Everything in here can be deleted when nobody uses it.
 */
import { createHash, randomUUID } from 'node:crypto';
import { link, mkdir, open, readdir, rename, rm, stat, unlink, utimes } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { errnoOf, FILE_MODE, fileError, makeFolder } from './files.ts';
import type { CallOptions, ObjectStore } from './object-store.ts';

export type CachedObject = {
  readonly key: string;
  /** In hex. */
  readonly sha256: string;
  /** Where it is known. */
  readonly bytes?: number | undefined;
};

const TOUCH_MS = 60_000;
const STALE_MS = 10 * TOUCH_MS;
/** Objects that are fetched at once. */
const FETCHES = 4;

type SizedObject = CachedObject & { readonly bytes: number };
type Entry = { readonly path: string; readonly bytes: number; readonly links: number; readonly usedMs: number };

export class CacheUser implements AsyncDisposable {
  /** For objects that are in use. */
  readonly folder: string;
  /** Empty, and gone afterwards. */
  readonly spillDir: string;
  readonly #root: string;
  readonly #bytesMax: number;
  readonly #timer: NodeJS.Timeout;

  private constructor(root: string, folder: string, bytesMax: number) {
    this.#root = root;
    this.#bytesMax = bytesMax;
    this.folder = folder;
    this.spillDir = join(folder, 'spill');
    // A touch that fails is one of many; if all do, the query finds its files gone and says so.
    this.#timer = setInterval(() => void utimes(folder, new Date(), new Date()).catch(() => {}), TOUCH_MS).unref();
  }

  /** @param bytesMax what the folder may hold, in bytes */
  static async open(root: string, bytesMax: number): Promise<CacheUser> {
    return await inTermsOf(root, async () => {
      await makeFolder(join(root, 'objects'));
      await removeStale(join(root, 'users'));
      const folder = join(root, 'users', randomUUID());
      await makeFolder(folder);
      const user = new CacheUser(root, folder, bytesMax);
      await mkdir(user.spillDir, { mode: 0o700 });
      return user;
    });
  }

  /** Where `take` puts it. */
  pathOf({ sha256 }: Pick<CachedObject, 'sha256'>): string {
    return join(this.folder, `${sha256}.parquet`);
  }

  /**
   * All of them are local files, proven and in use by this user until it closes, when it resolves. After an error those
   * that were fetched are kept, so the same call goes on; but for COLD_CACHE_BUSY, when none of these are in use any more.
   *
   * @throws VarveError COLD_CACHE_TOO_SMALL: together with what this user has, larger than the cache may be.
   * COLD_CACHE_BUSY: no room while other users hold what they hold. STORE_MISSING, STORE_CORRUPT: an object is not there,
   * or has another SHA-256
   */
  async take(store: ObjectStore, objects: readonly CachedObject[], options: CallOptions = {}): Promise<void> {
    await inTermsOf(this.#root, async () => {
      const missing: SizedObject[] = [];
      for (const object of new Map(objects.map((object) => [object.sha256, object])).values()) {
        if (await this.#link(object)) continue;
        missing.push({ ...object, bytes: object.bytes ?? (await sizeOf(store, object.key, options)) });
      }
      try {
        await this.#makeRoom(missing);
        await inParallel(missing, (object) => this.#fetch(store, object, options));
      } catch (error) {
        // Two who wait for each other's room while they hold some would wait for ever.
        if (isVarveError(error, 'COLD_CACHE_BUSY')) {
          for (const object of objects) await rm(this.pathOf(object), { force: true });
        }
        throw error;
      } finally {
        for (const object of missing) await rm(this.#partOf(object), { force: true });
      }
    });
  }

  /** Idempotent. What was taken may be evicted from now on. */
  async close(): Promise<void> {
    clearInterval(this.#timer);
    await rm(this.folder, { recursive: true, force: true });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #partOf({ sha256 }: CachedObject): string {
    return join(this.folder, `${sha256}.part`);
  }

  #objectOf({ sha256 }: CachedObject): string {
    return join(this.#root, 'objects', `${sha256}.parquet`);
  }

  /** Is it there? Then it is in use, and the most recently used. */
  async #link(object: CachedObject): Promise<boolean> {
    const path = this.pathOf(object);
    try {
      await link(this.#objectOf(object), path);
    } catch (error) {
      if (errnoOf(error) === 'EEXIST') return true;
      if (errnoOf(error) === 'ENOENT') return false;
      throw error;
    }
    const { size } = await stat(path);
    if (object.bytes !== undefined && size !== object.bytes) {
      // Somebody changed it: as good as not there.
      await rm(path);
      await rm(this.#objectOf(object), { force: true });
      return false;
    }
    await utimes(path, new Date(), new Date());
    return true;
  }

  /** Reserves the room, so that processes that fetch at the same time see each other, and evicts what must go for it. */
  async #makeRoom(missing: readonly SizedObject[]): Promise<void> {
    const own = (await entriesOf(this.folder)).reduce((sum, { bytes }) => sum + bytes, 0);
    const needed = missing.reduce((sum, { bytes }) => sum + bytes, own);
    if (needed > this.#bytesMax) throw tooSmall(needed, this.#bytesMax);
    for (const object of missing) {
      const handle = await open(this.#partOf(object), 'wx', FILE_MODE);
      try {
        await handle.truncate(object.bytes);
      } finally {
        await handle.close();
      }
    }
    const { used, free } = await this.#contents();
    let excess = used - this.#bytesMax;
    for (const { path, bytes } of free.toSorted((a, b) => a.usedMs - b.usedMs)) {
      if (excess <= 0) return;
      // Somebody may have begun to use it meanwhile: then the bytes stay, under the other link, until that user closes.
      await unlink(path).catch(ignoreAbsent);
      excess -= bytes;
    }
    if (excess > 0) throw busy(excess, this.#bytesMax);
  }

  /** Bytes of all files, each counted once, and the files that nobody uses. */
  async #contents(): Promise<{ used: number; free: Entry[] }> {
    const objects = await entriesOf(join(this.#root, 'objects'));
    let used = objects.reduce((sum, { bytes }) => sum + bytes, 0);
    const names = new Set(objects.map(({ path }) => path));
    for (const user of await namesOf(join(this.#root, 'users'))) {
      for (const { path, bytes, links } of await entriesOf(join(this.#root, 'users', user))) {
        const isCounted = links > 1 && names.has(join(this.#root, 'objects', basename(path)));
        if (!isCounted) used += bytes;
      }
    }
    return { used, free: objects.filter(({ links }) => links === 1) };
  }

  async #fetch(store: ObjectStore, object: SizedObject, options: CallOptions): Promise<void> {
    const { key, sha256 } = object;
    const digest = createHash('sha256');
    const handle = await open(this.#partOf(object), 'r+');
    try {
      let bytes = 0;
      for await (const chunk of store.get(key, options)) {
        digest.update(chunk);
        bytes += chunk.byteLength;
        // No more than the room that was reserved.
        if (bytes > object.bytes) throw differs(key);
        await handle.write(chunk, 0, chunk.byteLength, bytes - chunk.byteLength);
      }
      await handle.datasync();
    } finally {
      await handle.close();
    }
    if (digest.digest('hex') !== sha256) throw differs(key);
    await rename(this.#partOf(object), this.pathOf(object)); // COMMIT POINT. Whole and proven from here on.
    await link(this.pathOf(object), this.#objectOf(object)).catch((error: unknown) => {
      // Somebody else has fetched it meanwhile; this user keeps its own.
      if (errnoOf(error) !== 'EEXIST') throw error;
    });
  }
}

async function sizeOf(store: ObjectStore, key: string, options: CallOptions): Promise<number> {
  const head = await store.head(key, options);
  if (head === undefined) throw new VarveError('STORE_MISSING', `no object ${key}`, { key });
  return head.bytes;
}

/** Folders of users that are gone. */
async function removeStale(users: string): Promise<void> {
  for (const name of await namesOf(users)) {
    const folder = join(users, name);
    const status = await stat(folder).catch(ignoreAbsent);
    if (status !== undefined && status.mtimeMs < Date.now() - STALE_MS) {
      await rm(folder, { recursive: true, force: true });
    }
  }
}

async function namesOf(folder: string): Promise<string[]> {
  return (await readdir(folder).catch(ignoreAbsent)) ?? [];
}

/** The files of a folder; those that go meanwhile are not there. */
async function entriesOf(folder: string): Promise<Entry[]> {
  const entries: Entry[] = [];
  for (const name of await namesOf(folder)) {
    const path = join(folder, name);
    const status = await stat(path).catch(ignoreAbsent);
    if (status?.isFile() !== true) continue;
    entries.push({ path, bytes: status.size, links: status.nlink, usedMs: status.mtimeMs });
  }
  return entries;
}

async function inParallel<T>(items: readonly T[], work: (item: T) => Promise<void>): Promise<void> {
  const queue = [...items];
  const failures: unknown[] = [];
  const worker = async () => {
    for (let item = queue.shift(); item !== undefined && failures.length === 0; item = queue.shift()) {
      await work(item).catch((error: unknown) => failures.push(error));
    }
  };
  // All have ended when it does: nobody writes to a folder that is being removed.
  await Promise.all(Array.from({ length: FETCHES }, worker));
  if (failures.length > 0) throw failures[0];
}

function ignoreAbsent(error: unknown): undefined {
  if (errnoOf(error) !== 'ENOENT' && errnoOf(error) !== 'ENOTDIR') throw error;
}

async function inTermsOf<T>(root: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    throw fileError(error, root);
  }
}

function differs(key: string): VarveError {
  return new VarveError('STORE_CORRUPT', `${key} holds other bytes than its name says`, { key });
}

function tooSmall(needed: number, bytesMax: number): VarveError {
  const text = `the files of this query have ${needed} bytes and the cache may have ${bytesMax}: ask for fewer tenants or days, or raise cold.cacheBytes`;
  return new VarveError('COLD_CACHE_TOO_SMALL', text, { needed, bytesMax });
}

function busy(excess: number, bytesMax: number): VarveError {
  const text = `${excess} bytes more than the cache's ${bytesMax} are needed while other queries use theirs: wait for them, or raise cold.cacheBytes`;
  return new VarveError('COLD_CACHE_BUSY', text, { excess, bytesMax });
}
