/**
 * What a barrier costs on a directory's own disk: write, O_SYNC, O_DSYNC, fdatasync, fsync, preallocated space and group
 * commit, measured (tables 2 and 4 of the durable-execution chapter give the figures of other people's disks), and a
 * warning where the file system makes no sense under a log.
 *
 * Every call is a blocking one, so a figure is the system call alone, without the hop to a thread that Node's
 * asynchronous calls and RocksDB's binding add. The interfaces take turns, one operation each a round, so that a disk
 * that others load meanwhile is equally unkind to all. The loop gets its turn between two rounds. Everything is written
 * into a temporary folder of the directory, which is gone afterwards, whatever happens.
 */
import * as fs from 'node:fs';
import * as path from 'node:path';
import { VarveError } from '../schemas/errors.ts';
import { KIB, MIB } from '../schemas/limits.ts';
import { effectiveLatencyMs } from './group-commit-model.ts';

export type FileSystem = {
  /** `ext4`, `xfs`, `tmpfs`, `overlay` …, or `unknown (0x…)`. */
  readonly type: string;
  /** Why a log does not belong here. */
  readonly warning?: string;
};

export type DiskOptions = {
  /** How often each interface is measured. @default 200 */
  readonly rounds?: number;
  /** Bytes of one event, at most 128 KiB. @default 1 KiB */
  readonly bytes?: number;
  /** Ends the measuring after the round under way; the call then rejects with ABORTED. */
  readonly signal?: AbortSignal;
};

/** In microseconds. */
export type Latency = { readonly p50Us: number; readonly p99Us: number };

export type InterfaceName =
  | 'write'
  | 'write + O_SYNC'
  | 'write + O_DSYNC'
  | 'write + fdatasync'
  | 'write + fsync'
  | 'preallocated write + fdatasync';

export type GroupReport = {
  /** Events of one gathered write and one fdatasync. */
  readonly events: number;
  readonly writev: Latency;
  readonly sync: Latency;
  readonly total: Latency;
  /** Median of a whole group, divided by its events. */
  readonly perEventUs: number;
  /** Equation 3 with a window of 0, this group's gathered write, and the barrier of a group of one. */
  readonly predictedPerEventUs: number;
};

export type DiskReport = {
  readonly directory: string;
  readonly fileSystem: FileSystem;
  readonly bytes: number;
  readonly rounds: number;
  readonly interfaces: readonly { readonly name: InterfaceName; readonly latency: Latency }[];
  readonly groups: readonly GroupReport[];
};

const DEFAULTS = { rounds: 200, bytes: KIB } as const;
const ROUNDS_MAX = 100_000;
const GROUP_EVENTS = [1, 8, 64, 512] as const;
/** A file that grew past this is emptied between two rounds, outside the timing. */
const FILE_BYTES_MAX = 64 * MIB;
const PREALLOCATED_BYTES = 16 * MIB;
/** The largest group must fit into its file. */
const BYTES_MAX = FILE_BYTES_MAX / Math.max(...GROUP_EVENTS);

const NETWORK = 'a barrier is a network round trip, and locks and renames are only what the server makes of them';
const MEMORY = 'it lives in memory: fdatasync does nothing, and a reboot loses everything';

/** Magic numbers of statfs(2) on Linux. Elsewhere the numbers mean other things and come out as unknown. */
const FILE_SYSTEMS: ReadonlyMap<number, FileSystem> = new Map([
  // ext2 and ext3 share the number of ext4.
  [0xef53, { type: 'ext4' }],
  [0x5846_5342, { type: 'xfs' }],
  [0x9123_683e, { type: 'btrfs' }],
  [0x2fc1_2fc1, { type: 'zfs' }],
  [0xf2f5_2010, { type: 'f2fs' }],
  [0xca45_1a4e, { type: 'bcachefs' }],
  [0x0102_1994, { type: 'tmpfs', warning: MEMORY }],
  [0x8584_58f6, { type: 'ramfs', warning: MEMORY }],
  [
    0x794c_7630,
    {
      type: 'overlay',
      warning: 'it is the writable layer of a container and goes with it: mount a volume for the log',
    },
  ],
  [0x6969, { type: 'nfs', warning: NETWORK }],
  [0xff53_4d42, { type: 'cifs', warning: NETWORK }],
  [0xfe53_4d42, { type: 'smb2', warning: NETWORK }],
  [0x00c3_6400, { type: 'ceph', warning: NETWORK }],
  [0x0102_1997, { type: '9p', warning: NETWORK }],
  [
    0x6573_5546,
    {
      type: 'fuse',
      warning: 'a user-space program answers for it, and fdatasync promises only what that program does',
    },
  ],
  [0x4d44, { type: 'vfat', warning: 'it has no journal: a crash can lose whole files' }],
  [0x2011_bab0, { type: 'exfat', warning: 'it has no journal: a crash can lose whole files' }],
]);

/** What statfs(2) calls the file system, by its magic number. */
export function fileSystemNamed(magic: number): FileSystem {
  return FILE_SYSTEMS.get(magic) ?? { type: `unknown (0x${magic.toString(16)})` };
}

/** @throws VarveError HOT_UNWRITABLE where the directory cannot be looked at. */
export async function fileSystemOf(dir: string): Promise<FileSystem> {
  try {
    return fileSystemNamed((await fs.promises.statfs(dir)).type);
  } catch (cause) {
    throw new VarveError('HOT_UNWRITABLE', `cannot tell the file system of ${dir}`, { dir }, cause);
  }
}

/**
 * Measures the disk under `dir`, which must exist. With the defaults it takes one to a few seconds on a local disk and
 * at most 150 MiB of it.
 *
 * @throws VarveError INVALID_OPTION; HOT_UNWRITABLE where the directory cannot be written; ABORTED
 */
export async function measureDisk(dir: string, options: DiskOptions = {}): Promise<DiskReport> {
  const { rounds, bytes } = { ...DEFAULTS, ...options };
  checkCount('rounds', rounds, ROUNDS_MAX);
  checkCount('bytes', bytes, BYTES_MAX);
  const fileSystem = await fileSystemOf(dir);
  let folder: string | undefined;
  try {
    folder = await fs.promises.mkdtemp(path.join(dir, '.varve-disk-'));
    const measured = await measureIn(folder, rounds, bytes, options.signal);
    return { directory: dir, fileSystem, bytes, rounds, ...measured };
  } catch (cause) {
    if (cause instanceof VarveError) throw cause;
    throw new VarveError('HOT_UNWRITABLE', `cannot measure the disk of ${dir}`, { dir }, cause);
  } finally {
    if (folder !== undefined) await fs.promises.rm(folder, { recursive: true, force: true });
  }
}

async function measureIn(folder: string, rounds: number, bytes: number, signal: AbortSignal | undefined) {
  const event = Buffer.alloc(bytes, 'varve');
  const probes: InterfaceProbe[] = [];
  const groups: GroupProbe[] = [];
  try {
    for (const name of Object.keys(INTERFACES) as InterfaceName[]) probes.push(new InterfaceProbe(folder, name, event));
    for (const events of GROUP_EVENTS) groups.push(new GroupProbe(folder, events, event));
    // The first round meets empty files and cold caches: it does not count.
    for (let round = -1; round < rounds; round++) {
      if (signal?.aborted) throw new VarveError('ABORTED', 'measuring the disk was aborted', {}, signal.reason);
      for (const probe of [...probes, ...groups]) probe.measure(round >= 0);
      await new Promise((resolve) => setImmediate(resolve));
    }
    const syncUs = latencyOf((groups[0] as GroupProbe).syncUs).p50Us;
    return {
      interfaces: probes.map(({ name, us }) => ({ name, latency: latencyOf(us) })),
      groups: groups.map((group) => group.report(syncUs)),
    };
  } finally {
    for (const probe of [...probes, ...groups]) probe.close();
  }
}

type Interface = {
  readonly flags: number;
  readonly sync?: (fd: number) => void;
  readonly preallocated?: true;
};

/** The rows of table 2, and two more that a log could choose: O_DSYNC, and space that is there already. */
const INTERFACES: Readonly<Record<InterfaceName, Interface>> = {
  write: { flags: 0 },
  'write + O_SYNC': { flags: fs.constants.O_SYNC },
  'write + O_DSYNC': { flags: fs.constants.O_DSYNC },
  'write + fdatasync': { flags: 0, sync: fs.fdatasyncSync },
  'write + fsync': { flags: 0, sync: fs.fsyncSync },
  'preallocated write + fdatasync': { flags: 0, sync: fs.fdatasyncSync, preallocated: true },
};

/** A file that is written from its start on, and over again once it is full. */
class ProbeFile {
  readonly fd: number;
  readonly #bytesMax: number;
  readonly #preallocated: boolean;
  #position = 0;

  constructor(file: string, flags: number, preallocated: boolean) {
    this.fd = fs.openSync(file, fs.constants.O_RDWR | fs.constants.O_CREAT | flags, 0o600);
    this.#preallocated = preallocated;
    this.#bytesMax = preallocated ? PREALLOCATED_BYTES : FILE_BYTES_MAX;
    if (!preallocated) return;
    // Written zeros, not fallocate: unwritten extents would still cost a journal entry at the first write.
    fs.writeSync(this.fd, Buffer.alloc(PREALLOCATED_BYTES));
    fs.fsyncSync(this.fd);
  }

  /** Where the next `bytes` go. */
  take(bytes: number): number {
    if (this.#position + bytes > this.#bytesMax) {
      this.#position = 0;
      if (!this.#preallocated) {
        fs.ftruncateSync(this.fd, 0);
        fs.fsyncSync(this.fd);
      }
    }
    const position = this.#position;
    this.#position += bytes;
    return position;
  }

  close(): void {
    fs.closeSync(this.fd);
  }
}

class InterfaceProbe {
  readonly name: InterfaceName;
  readonly us: number[] = [];
  readonly #event: Buffer;
  readonly #file: ProbeFile;

  constructor(folder: string, name: InterfaceName, event: Buffer) {
    const { flags, preallocated } = INTERFACES[name];
    this.name = name;
    this.#event = event;
    this.#file = new ProbeFile(path.join(folder, name.replaceAll(/\W+/g, '-')), flags, preallocated === true);
  }

  measure(counts: boolean): void {
    const { sync } = INTERFACES[this.name];
    const position = this.#file.take(this.#event.length);
    const start = performance.now();
    fs.writeSync(this.#file.fd, this.#event, 0, this.#event.length, position);
    sync?.(this.#file.fd);
    const us = (performance.now() - start) * 1000;
    if (counts) this.us.push(us);
  }

  close(): void {
    this.#file.close();
  }
}

class GroupProbe {
  readonly syncUs: number[] = [];
  readonly #writevUs: number[] = [];
  readonly #totalUs: number[] = [];
  readonly #events: Buffer[];
  readonly #bytes: number;
  readonly #file: ProbeFile;

  constructor(folder: string, events: number, event: Buffer) {
    this.#events = Array.from({ length: events }, () => event);
    this.#bytes = events * event.length;
    this.#file = new ProbeFile(path.join(folder, `group-${events}`), 0, false);
  }

  measure(counts: boolean): void {
    const position = this.#file.take(this.#bytes);
    const start = performance.now();
    fs.writevSync(this.#file.fd, this.#events, position);
    const written = performance.now();
    fs.fdatasyncSync(this.#file.fd);
    const synced = performance.now();
    if (!counts) return;
    this.#writevUs.push((written - start) * 1000);
    this.syncUs.push((synced - written) * 1000);
    this.#totalUs.push((synced - start) * 1000);
  }

  /** @param singleSyncUs the barrier of a group of one: the model takes t_sync for a constant */
  report(singleSyncUs: number): GroupReport {
    const events = this.#events.length;
    const writev = latencyOf(this.#writevUs);
    const total = latencyOf(this.#totalUs);
    return {
      events,
      writev,
      sync: latencyOf(this.syncUs),
      total,
      perEventUs: total.p50Us / events,
      predictedPerEventUs: effectiveLatencyMs(0, writev.p50Us / 1000, singleSyncUs / 1000, events) * 1000,
    };
  }

  close(): void {
    this.#file.close();
  }
}

function latencyOf(us: readonly number[]): Latency {
  const sorted = us.toSorted((a, b) => a - b);
  const at = (share: number) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] as number;
  return { p50Us: at(0.5), p99Us: at(0.99) };
}

function checkCount(name: string, value: number, max: number): void {
  if (Number.isInteger(value) && value >= 1 && value <= max) return;
  throw new VarveError('INVALID_OPTION', `${name} must be an integer from 1 to ${max}, not ${value}`, {
    [name]: value,
  });
}
