/** Options of a hot log: what they mean, their defaults and their limits. */
import { join, resolve } from 'node:path';
import { VarveError } from '../schemas/errors.ts';
import { KIB, MIB, OFFLOAD_OVER_BYTES, PAYLOAD_BYTES_MAX } from '../schemas/limits.ts';
import type { BudgetOptions } from './budget.ts';

export type HotLogOptions = {
  /** Make the log where there is none. @default true */
  readonly create?: boolean;
  /** Longest wait for another process that has the log open, in milliseconds; then HOT_LOCKED. @default 5000 */
  readonly lockTimeoutMs?: number;
  /** Group commit; see `CommitTuning`. */
  readonly commit?: CommitTuning;
  /** Strings with more UTF-8 bytes than this become blobs. @default 64 KiB */
  readonly offloadOverBytes?: number;
  /** RocksDB's memtable, in bytes; an open verifies at least four times as much. @default 16 MiB */
  readonly writeBufferBytes?: number;
  /** Serve the tail; without it no sidecar can follow. `socketPath` is for directories with long names. @default true */
  readonly tail?: boolean | { readonly socketPath: string };
  /** Disk budget. */
  readonly budget?: BudgetOptions;
  /** What lets go and when; see `Retention`. */
  readonly retention?: Retention;
};

export type CommitTuning = {
  /** false loses acknowledged events in a power cut: for measuring what the barrier costs, and for nothing else. @default true */
  readonly sync?: boolean;
  /** Longest an append may wait for company, in milliseconds. 0 batches by itself: a flush takes what arrived during the last one. @default 0 */
  readonly windowMs?: number;
  /** @default 4096 */
  readonly maxBatchEvents?: number;
  /** @default 8 MiB */
  readonly maxBatchBytes?: number;
  /** Bytes of records that may wait for a flush; beyond it appends wait at the door. @default 32 MiB */
  readonly maxQueuedBytes?: number;
};

export type Retention = {
  /** Trim takes what was acknowledged this long ago, in milliseconds: longer than a database failover can lose. @default 1 day */
  readonly trimAfterMs?: number;
  /** Blobs younger than this are never swept, in milliseconds. @default 1 hour */
  readonly blobGraceMs?: number;
};

const DAY_MS = 86_400_000;
const HOUR_MS = 3_600_000;
const WRITE_BUFFER_BYTES_MIN = 64 * KIB;

/** Options with every default filled in. */
export type Settings = {
  readonly commit: Required<CommitTuning>;
  readonly offloadOverBytes: number;
  readonly writeBufferBytes: number;
  readonly trimAfterMs: number;
  readonly blobGraceMs: number;
  readonly socketPath: string;
};

/** Fills defaults in. @throws VarveError INVALID_OPTION */
export function compileOptions(dir: string, options: HotLogOptions): Settings {
  const commit = {
    sync: true,
    windowMs: 0,
    maxBatchEvents: 4096,
    maxBatchBytes: 8 * MIB,
    maxQueuedBytes: 32 * MIB,
    ...options.commit,
  } satisfies Required<CommitTuning>;
  const settings = {
    commit,
    offloadOverBytes: options.offloadOverBytes ?? OFFLOAD_OVER_BYTES,
    writeBufferBytes: options.writeBufferBytes ?? 16 * MIB,
    trimAfterMs: options.retention?.trimAfterMs ?? DAY_MS,
    blobGraceMs: options.retention?.blobGraceMs ?? HOUR_MS,
    socketPath: typeof options.tail === 'object' ? resolve(options.tail.socketPath) : join(dir, 'tail.sock'),
  };
  inRange('lockTimeoutMs', options.lockTimeoutMs ?? 0, 0, DAY_MS);
  inRange('commit.windowMs', commit.windowMs, 0, 1000);
  inRange('commit.maxBatchEvents', commit.maxBatchEvents, 1, 65_536);
  inRange('commit.maxBatchBytes', commit.maxBatchBytes, 1, 64 * MIB);
  inRange('commit.maxQueuedBytes', commit.maxQueuedBytes, commit.maxBatchBytes, 1024 * MIB);
  inRange('offloadOverBytes', settings.offloadOverBytes, KIB, PAYLOAD_BYTES_MAX);
  inRange('writeBufferBytes', settings.writeBufferBytes, WRITE_BUFFER_BYTES_MIN, 1024 * MIB);
  inRange('retention.trimAfterMs', settings.trimAfterMs, 0, 365 * DAY_MS);
  inRange('retention.blobGraceMs', settings.blobGraceMs, 0, 365 * DAY_MS);
  return settings;
}

function inRange(name: string, value: number, least: number, most: number): void {
  if (typeof value === 'number' && value >= least && value <= most) return;
  throw new VarveError('INVALID_OPTION', `${name} is ${String(value)}; it goes from ${least} to ${most}`, { name });
}
