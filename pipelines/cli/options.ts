/** Options that many commands share, and how their texts become values. */
import { InvalidArgumentError } from 'commander';
import type { SnapshotAt } from '../../cold/table-log.ts';
import { parseSampleSize, type SampleSize } from '../../cold/verify-sample.ts';
import type { TrajectoryId } from '../../schemas/ids.ts';
import { parseTrajectoryId } from '../../schemas/ids.ts';

export type ConfigFlag = { readonly config?: string };
export type JsonFlag = { readonly json?: boolean };

export function fileOf({ config }: ConfigFlag): { file?: string } {
  return config === undefined ? {} : { file: config };
}

export function whole(text: string): number {
  return text === '0' ? 0 : positive(text);
}

export function positive(text: string): number {
  const value = Number(text);
  if (Number.isSafeInteger(value) && value > 0) return value;
  throw new InvalidArgumentError('a whole number from 1 is needed.');
}

export function trajectory(text: string): TrajectoryId {
  try {
    return parseTrajectoryId(text);
  } catch {
    throw new InvalidArgumentError('the id of a trajectory is needed, a lower-case UUIDv7.');
  }
}

/** The number of a row of quarantine, or a trajectory. */
export function rowOrTrajectory(text: string): number | TrajectoryId {
  return /^\d{1,15}$/.test(text) ? positive(text) : trajectory(text);
}

const REASONS = ['gap', 'fork', 'poison', 'fenced', 'waiting', 'unproven'] as const;

export function reason(text: string): (typeof REASONS)[number] {
  const found = REASONS.find((name) => name === text);
  if (found !== undefined) return found;
  throw new InvalidArgumentError(`one of ${REASONS.join(', ')} is needed.`);
}

export function instant(text: string): string {
  const ms = Date.parse(text);
  if (!Number.isNaN(ms)) return new Date(ms).toISOString();
  throw new InvalidArgumentError('a time such as 2025-11-30T12:00:00Z is needed.');
}

const UNITS_MS = { s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const;

/** In milliseconds: `7d`, `12h`, `30m`, `90s`; 0 needs no unit. */
export function duration(text: string): number {
  const [, value, unit] = /^(\d{1,6}(?:\.\d{1,3})?)([smhd])$/.exec(text) ?? [];
  if (text === '0') return 0;
  if (value === undefined) throw new InvalidArgumentError('an age with its unit is needed, such as 7d, 12h or 30m.');
  return Math.round(Number(value) * UNITS_MS[unit as keyof typeof UNITS_MS]);
}

/** A version of the cold tier's table, or the newest one of a time. */
export function versionOrTime(text: string): SnapshotAt {
  if (/^\d{1,15}$/.test(text)) return { version: Number(text) };
  return { timeMs: Date.parse(instant(text)) };
}

export function sampleSize(text: string): SampleSize {
  try {
    return parseSampleSize(text);
  } catch {
    throw new InvalidArgumentError('a share such as 1%, or a number of files is needed.');
  }
}
