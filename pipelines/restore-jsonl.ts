/**
 * Restored trajectories as event JSONL, as `varve import` takes it: one file, a file for each in a directory, or standard
 * output. A file is written under a temporary name, synced, and gets its name when all of it is right; a trajectory that
 * broke off is taken out of it again. A file that is there is never replaced unless that was asked for.
 */
import { type FileHandle, link, open, rename, rm, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { BlobStore } from '../hot/blobs.ts';
import { errnoOf, makeFolder, syncFolder, temporaryName } from '../hot/files.ts';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { lineOfProven, type ProvenEvent } from '../schemas/event.ts';
import type { TrajectoryId } from '../schemas/ids.ts';
import { MIB } from '../schemas/limits.ts';
import { printFlowing } from './print.ts';
import type { BodySource } from './restore-bodies.ts';
import type { RestoreTarget } from './restore-target.ts';

const WRITE_BYTES = MIB;

/** Bodies that go with the events, and those that were not found. */
export type Bodies = {
  readonly source: BodySource;
  readonly target: BlobStore;
  readonly onMissing: (text: string) => void;
};

export class StdoutTarget implements RestoreTarget {
  readonly #bodies: Bodies | undefined;
  #events = 0;

  constructor(bodies: Bodies | undefined) {
    this.#bodies = bodies;
  }

  async begin(): Promise<void> {
    this.#events = 0;
  }

  async take(event: ProvenEvent): Promise<void> {
    await bringBodies(event, this.#bodies);
    await printFlowing(lineOfProven(event));
    this.#events += 1;
  }

  async end(): Promise<string> {
    return '-';
  }

  /** What was printed cannot be taken back. */
  async abandon(): Promise<number> {
    return this.#events;
  }

  async finish(): Promise<void> {}

  async [Symbol.asyncDispose](): Promise<void> {}
}

export type JsonlOptions = {
  /** Replace what is there. */
  readonly force: boolean;
  readonly bodies: Bodies | undefined;
};

/** One file of all trajectories, or one for each of them. */
export class JsonlTarget implements RestoreTarget {
  readonly #pathOf: (id: TrajectoryId) => string;
  readonly #isOneFile: boolean;
  readonly #options: JsonlOptions;
  #file: JsonlFile | undefined;
  /** Trajectories that are whole in the file under way. */
  #ended = 0;

  private constructor(pathOf: (id: TrajectoryId) => string, isOneFile: boolean, options: JsonlOptions) {
    this.#pathOf = pathOf;
    this.#isOneFile = isOneFile;
    this.#options = options;
  }

  /**
   * @param out a file; a directory where it ends with `/` or is one
   * @throws VarveError INVALID_OPTION: something is there that must not be replaced
   */
  static async open(out: string, ids: readonly TrajectoryId[], options: JsonlOptions): Promise<JsonlTarget> {
    const isFolder = out.endsWith('/') || ((await stat(out).catch(() => undefined))?.isDirectory() ?? false);
    const pathOf = isFolder ? (id: TrajectoryId) => join(out, `${id}.jsonl`) : () => out;
    if (!options.force) {
      for (const path of new Set(ids.map(pathOf))) {
        if ((await stat(path).catch(() => undefined)) !== undefined) throw taken(path);
      }
    }
    await inTermsOf(out, () => makeFolder(isFolder ? out : dirname(out)));
    return new JsonlTarget(pathOf, !isFolder, options);
  }

  async begin(id: TrajectoryId): Promise<void> {
    this.#file ??= await JsonlFile.create(this.#pathOf(id));
    this.#file.mark();
  }

  async take(event: ProvenEvent): Promise<void> {
    await bringBodies(event, this.#options.bodies);
    await this.#file?.write(lineOfProven(event));
  }

  async end(): Promise<string> {
    const path = this.#file?.path ?? '';
    this.#ended += 1;
    if (!this.#isOneFile) await this.#publish();
    return path;
  }

  async abandon(): Promise<number> {
    await this.#file?.back();
    if (!this.#isOneFile) await this.#discard();
    return 0;
  }

  async finish(): Promise<void> {
    if (this.#ended > 0) await this.#publish();
    else await this.#discard();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#discard();
  }

  async #publish(): Promise<void> {
    const file = this.#file;
    if (file === undefined) return;
    await file.publish(this.#options.force);
    this.#file = undefined;
  }

  async #discard(): Promise<void> {
    await this.#file?.discard();
    this.#file = undefined;
  }
}

class JsonlFile {
  readonly path: string;
  readonly #temporary: string;
  readonly #handle: FileHandle;
  #pending: Buffer[] = [];
  #pendingBytes = 0;
  #bytes = 0;
  #mark = 0;

  private constructor(path: string, temporary: string, handle: FileHandle) {
    this.path = path;
    this.#temporary = temporary;
    this.#handle = handle;
  }

  static async create(path: string): Promise<JsonlFile> {
    const temporary = temporaryName(path);
    return new JsonlFile(path, temporary, await inTermsOf(path, () => open(temporary, 'wx', 0o600)));
  }

  /** What is written from here on may be taken back. */
  mark(): void {
    this.#mark = this.#bytes;
  }

  async write(line: Buffer): Promise<void> {
    this.#pending.push(line);
    this.#pendingBytes += line.byteLength;
    this.#bytes += line.byteLength;
    if (this.#pendingBytes >= WRITE_BYTES) await this.#flush();
  }

  async back(): Promise<void> {
    await this.#flush();
    await inTermsOf(this.path, () => this.#handle.truncate(this.#mark));
    this.#bytes = this.#mark;
  }

  async publish(force: boolean): Promise<void> {
    await this.#flush();
    await inTermsOf(this.path, async () => {
      await this.#handle.datasync();
      await this.#handle.close();
      if (force) await rename(this.#temporary, this.path);
      else await link(this.#temporary, this.path);
      await rm(this.#temporary, { force: true });
      await syncFolder(dirname(this.path));
    });
  }

  async discard(): Promise<void> {
    await this.#handle.close().catch(() => undefined);
    await rm(this.#temporary, { force: true });
  }

  async #flush(): Promise<void> {
    const lines = this.#pending;
    const at = this.#bytes - this.#pendingBytes;
    this.#pending = [];
    this.#pendingBytes = 0;
    if (lines.length > 0) await inTermsOf(this.path, () => writeAll(this.#handle, lines, at));
  }
}

async function writeAll(handle: FileHandle, lines: readonly Buffer[], at: number): Promise<void> {
  const { bytesWritten } = await handle.writev(lines, at);
  const all = lines.reduce((sum, { byteLength }) => sum + byteLength, 0);
  if (bytesWritten === all) return;
  const rest = Buffer.concat(lines).subarray(bytesWritten);
  if (bytesWritten === 0) throw new Error('nothing was written');
  await writeAll(handle, [rest], at + bytesWritten);
}

async function bringBodies(event: ProvenEvent, bodies: Bodies | undefined): Promise<void> {
  if (bodies === undefined) return;
  try {
    await bodies.source.bring(event, bodies.target);
  } catch (error) {
    // The event is whole without it.
    if (!isVarveError(error, 'BLOB_MISSING') && !isVarveError(error, 'STORE_CORRUPT')) throw error;
    bodies.onMissing(`event ${event.sequence_number}: ${error.message}`);
  }
}

async function inTermsOf<T>(path: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    const errno = errnoOf(error);
    if (errno === 'EEXIST') throw taken(path);
    if (errno === undefined) throw error;
    throw new VarveError('OUTPUT_UNWRITABLE', `${path} cannot be written (${errno})`, { path, errno }, error);
  }
}

function taken(path: string): VarveError {
  return new VarveError('INVALID_OPTION', `${path} is there already; --force replaces it`, { path });
}
