/**
 * The disk budget of a log: work that is new is refused while there is still room for work that is under way.
 *
 *   roomy     everything is taken
 *   tight     new trajectories and intents are refused; replies, results and the rest still pass
 *   critical  the same, and the ballast file was given up, so that results of intents that are out still fit
 *
 * Room is measured as bytes are written and at least once a second while somebody asks, never on the barrier. Being
 * off by what is written between two looks is what the reserve is for.
 */
import { open, readdir, rm, stat, statfs } from 'node:fs/promises';
import { join } from 'node:path';
import { VarveError } from '../schemas/errors.ts';
import { KIB, MIB } from '../schemas/limits.ts';
import { errnoOf } from './files.ts';
import { TOOL_INTENT } from './index-block.ts';

export type BudgetOptions = {
  /** Most bytes that the log's directory may take. @default no limit of its own */
  readonly directoryBytes?: number;
  /** Free bytes of the file system below which new work is refused. @default 64 MiB, at most a twentieth of the disk */
  readonly freeBytes?: number;
  /** Size of the ballast file; 0 for none. @default 4 MiB, at most a hundredth of the disk */
  readonly ballastBytes?: number;
};

export type BudgetState = 'roomy' | 'tight' | 'critical';

/** What a look at the disk found, in bytes. */
export type Room = {
  /** Available to this process. */
  readonly free: number;
  /** Of the whole file system. */
  readonly total: number;
  /** Taken by the log's directory; 0 where that is not limited, since it costs a walk. */
  readonly used: number;
};

const LOOK_EVERY_BYTES = 4 * MIB;
const LOOK_EVERY_MS = 1000;

type Thresholds = { readonly directoryBytes: number; readonly freeBytes: number };

/** Decides; touches nothing. */
export function judge(room: Room, thresholds: Thresholds, hasBallast: boolean): BudgetState {
  const isShort = room.free < thresholds.freeBytes || room.used > thresholds.directoryBytes;
  if (!isShort) return 'roomy';
  return !hasBallast || room.free < thresholds.freeBytes / 2 ? 'critical' : 'tight';
}

export class Budget {
  readonly #dir: string;
  readonly #thresholds: Thresholds;
  readonly #ballastBytes: number;
  #state: BudgetState = 'roomy';
  #room: Room;
  #hasBallast = false;
  #unseenBytes = 0;
  #lookedAt = 0;
  #looking: Promise<void> | undefined;
  #closed = false;

  private constructor(dir: string, options: BudgetOptions, room: Room) {
    this.#dir = dir;
    this.#room = room;
    this.#thresholds = {
      directoryBytes: options.directoryBytes ?? Number.POSITIVE_INFINITY,
      freeBytes: options.freeBytes ?? Math.min(64 * MIB, room.total / 20),
    };
    this.#ballastBytes = Math.floor(options.ballastBytes ?? Math.min(4 * MIB, room.total / 100));
  }

  static async open(dir: string, options: BudgetOptions): Promise<Budget> {
    const budget = new Budget(dir, options, await look(dir, options.directoryBytes !== undefined));
    budget.#state = judge(budget.#room, budget.#thresholds, true);
    budget.#lookSoon();
    return budget;
  }

  get state(): BudgetState {
    return this.#state;
  }

  get room(): Room {
    return this.#room;
  }

  /** Told of every batch. */
  note(bytes: number): void {
    this.#unseenBytes += bytes;
    if (this.#unseenBytes >= LOOK_EVERY_BYTES) this.#lookSoon();
  }

  /** @throws VarveError HOT_OVER_BUDGET for new work where there is no room for it */
  gate(code: number, isNew: boolean): void {
    if (!isNew && code !== TOOL_INTENT) return;
    if (performance.now() - this.#lookedAt > LOOK_EVERY_MS) this.#lookSoon();
    if (this.#state === 'roomy') return;
    const { free, used } = this.#room;
    const what = isNew ? 'a new trajectory' : 'a new intent';
    const message = `${what} is refused: ${this.#dir} has ${free} bytes free and takes ${used}. Trim it, free space or raise the budget; what is under way still passes`;
    throw new VarveError('HOT_OVER_BUDGET', message, { dir: this.#dir, free, used });
  }

  /** Looks now, and acts on it. */
  async refresh(): Promise<BudgetState> {
    this.#lookSoon();
    await this.#looking;
    return this.#state;
  }

  async close(): Promise<void> {
    this.#closed = true;
    await this.#looking;
  }

  #lookSoon(): void {
    if (this.#closed) return;
    this.#looking ??= this.#lookAndAct().finally(() => {
      this.#looking = undefined;
    });
  }

  async #lookAndAct(): Promise<void> {
    this.#unseenBytes = 0;
    try {
      this.#room = await look(this.#dir, Number.isFinite(this.#thresholds.directoryBytes));
      const ballast = join(this.#dir, 'ballast');
      this.#hasBallast = this.#ballastBytes > 0 && (await sizeOf(ballast)) >= this.#ballastBytes;
      const { free } = this.#room;
      this.#state = judge(this.#room, this.#thresholds, this.#hasBallast || this.#ballastBytes === 0);
      if (this.#state === 'critical') await rm(ballast, { force: true });
      const fits = free - this.#ballastBytes > 2 * this.#thresholds.freeBytes;
      if (this.#state === 'roomy' && !this.#hasBallast && this.#ballastBytes > 0 && fits)
        await this.#layBallast(ballast);
    } catch (error) {
      // A directory that changes while it is looked at is looked at again; a disk that fails fails the next append.
      if (errnoOf(error) === undefined) throw error;
    }
    this.#lookedAt = performance.now();
  }

  /** Real blocks, not a hole: a sparse file would give nothing back. */
  async #layBallast(path: string): Promise<void> {
    const zeros = Buffer.alloc(256 * KIB);
    const handle = await open(path, 'w', 0o600);
    try {
      for (let left = this.#ballastBytes; left > 0 && !this.#closed; left -= zeros.length) {
        await handle.write(zeros, 0, Math.min(left, zeros.length));
      }
    } finally {
      await handle.close();
    }
  }
}

async function look(dir: string, walk: boolean): Promise<Room> {
  const { bavail, blocks, bsize } = await statfs(dir);
  return { free: bavail * bsize, total: blocks * bsize, used: walk ? await usedBytes(dir) : 0 };
}

async function usedBytes(dir: string): Promise<number> {
  let bytes = 0;
  for (const entry of await readdir(dir, { withFileTypes: true, recursive: true })) {
    if (entry.isFile()) bytes += await sizeOf(join(entry.parentPath, entry.name));
  }
  return bytes;
}

/** 0 where there is no such file. */
async function sizeOf(path: string): Promise<number> {
  try {
    return (await stat(path)).size;
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return 0;
    throw error;
  }
}
