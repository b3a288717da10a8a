/**
 * A file that a command writes for a person: under a temporary name beside its place until it is whole and durable. What
 * was there stays, unless `force` says otherwise.
 */
import { randomBytes } from 'node:crypto';
import { type FileHandle, link, lstat, open, rename, rm } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';
import { VarveError } from '../schemas/errors.ts';

export class OutFile implements AsyncDisposable {
  readonly path: string;
  /** Absolute; for whoever writes the file itself. */
  readonly temporary: string;
  readonly #force: boolean;
  #handle: FileHandle | undefined;

  private constructor(path: string, force: boolean) {
    this.path = path;
    this.temporary = join(dirname(path), `.${basename(path)}.${randomBytes(6).toString('hex')}.tmp`);
    this.#force = force;
  }

  /** @throws VarveError INVALID_OPTION: something is there, or the folder is not */
  static async open(path: string, force: boolean): Promise<OutFile> {
    const file = new OutFile(resolve(path), force);
    await inTermsOf(path, async () => {
      if (!force && (await isThere(file.path))) throw taken(path);
      file.#handle = await open(file.temporary, 'wx');
    });
    return file;
  }

  async write(text: string): Promise<void> {
    await inTermsOf(this.path, async () => await this.#handle?.writeFile(text));
  }

  /** Whole, durable and in its place when it resolves. */
  async publish(): Promise<void> {
    await inTermsOf(this.path, async () => {
      await this.#closeHandle();
      // By its name: whoever wrote it may have made another file under it.
      await sync(this.temporary);
      if (this.#force) {
        await rename(this.temporary, this.path); // COMMIT POINT. What was there before, the new file after.
      } else {
        await link(this.temporary, this.path); // COMMIT POINT. Fails where somebody has put something there meanwhile.
        await rm(this.temporary, { force: true });
      }
      await sync(dirname(this.path));
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#closeHandle();
    await rm(this.temporary, { force: true });
  }

  async #closeHandle(): Promise<void> {
    await this.#handle?.close();
    this.#handle = undefined;
  }
}

async function sync(path: string): Promise<void> {
  const handle = await open(path, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

async function isThere(path: string): Promise<boolean> {
  return (await lstat(path).catch(() => undefined)) !== undefined;
}

async function inTermsOf<T>(path: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    const errno = error instanceof Error ? (error as NodeJS.ErrnoException).code : undefined;
    if (error instanceof VarveError || errno === undefined) throw error;
    if (errno === 'EEXIST') throw taken(path);
    throw new VarveError('INVALID_OPTION', `${path} cannot be written: ${errno}`, { path, errno }, error);
  }
}

function taken(path: string): VarveError {
  return new VarveError('INVALID_OPTION', `${path} is there already; --force writes over it`, { path });
}
