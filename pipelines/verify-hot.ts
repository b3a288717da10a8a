/**
 * Verifies one hot log, whoever has it.
 *
 * Where nobody writes, the log is opened (which verifies its end before anything is written) and read whole. A writer
 * that comes meanwhile gets the log at once: it is held as a drain would hold it. Where a writer is alive, its tail is
 * read from the start up to where the log ended when the reading began; the reader checks that LSNs are dense and that
 * every hash covers payload, envelope and the event before.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { BlobStore } from '../hot/blobs.ts';
import { HotLog } from '../hot/log.ts';
import { TailReader } from '../hot/tail-reader.ts';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { mayHoldStub, stubsOf } from '../schemas/stubs.ts';

export type HotVerdict = {
  readonly directory: string;
  /** `opened`: nobody wrote; `followed`: read through the writer's tail. */
  readonly how: 'opened' | 'followed';
  readonly events: number;
  readonly trajectories: number;
  /** Last LSN that was verified. */
  readonly lsn: number;
  readonly blobs: number;
  readonly bad_blobs: readonly string[];
  /** The first record that cannot be trusted. */
  readonly damage: { readonly lsn: number; readonly reason: string } | undefined;
};

export type VerifyHotOptions = {
  /** Hash every blob again. */
  readonly deep: boolean;
  readonly signal: AbortSignal;
  readonly onProgress: (lsn: number, durable: number) => void;
};

const TRIES = 40;
const RETRY_MS = 250;

/** @throws VarveError HOT_NOT_A_LOG, HOT_LOCKED where a process has the log and serves no tail, ABORTED */
export async function verifyHot(directory: string, options: VerifyHotOptions): Promise<HotVerdict> {
  for (let tries = 1; ; tries++) {
    try {
      return await follow(directory, options);
    } catch (error) {
      const isGone = isVarveError(error, 'TAIL_NO_WRITER') || isVarveError(error, 'TAIL_LOST');
      if (isDamage(error)) return damaged(directory, 'followed', error);
      if (!isGone) throw error;
    }
    try {
      return await open(directory, options);
    } catch (error) {
      if (isDamage(error)) return damaged(directory, 'opened', error);
      // It has a writer by now, or one was quicker.
      if (!isVarveError(error, 'HOT_LOCKED') || tries >= TRIES) throw error;
    }
    if (options.signal.aborted) throw new VarveError('ABORTED', 'verifying was aborted');
    await sleep(RETRY_MS);
  }
}

async function open(directory: string, { deep, signal }: VerifyHotOptions): Promise<HotVerdict> {
  const yields = new AbortController();
  const entrance = { role: 'drain', onYield: () => yields.abort() } as const;
  await using log = await HotLog.open(directory, { create: false, lockTimeoutMs: 0 }, entrance);
  const both = AbortSignal.any([signal, yields.signal]);
  const { tip, ...report } = await log.verify({ deep, signal: both }).catch((error: unknown) => {
    if (signal.aborted) throw new VarveError('ABORTED', 'verifying was aborted');
    if (yields.signal.aborted) throw new VarveError('HOT_LOCKED', `a writer asked for ${directory}`, { directory });
    throw error;
  });
  return { directory, how: 'opened', ...report, lsn: tip.lsn };
}

async function follow(directory: string, options: VerifyHotOptions): Promise<HotVerdict> {
  const { deep, signal, onProgress } = options;
  const reader = await TailReader.connect(directory);
  const end = reader.durableLsn;
  const blobs = BlobStore.of(directory);
  const seen = new Set<string>();
  const bad: string[] = [];
  const trajectories = new Set<string>();
  let events = 0;
  try {
    for await (const { records, cursor } of end === 0 ? [] : reader) {
      if (signal.aborted) throw new VarveError('ABORTED', 'verifying was aborted');
      for (const record of records) {
        if (record.kind !== 'event') continue;
        events += 1;
        trajectories.add(record.event.trajectory_id);
        if (!mayHoldStub(record.event.payload_text)) continue;
        for (const { sha256, bytes } of stubsOf(record.event.payload)) {
          if (seen.has(sha256)) continue;
          seen.add(sha256);
          const isWhole = (await blobs.size(sha256)) === bytes && (!deep || (await blobs.verify(sha256)));
          if (!isWhole) bad.push(sha256);
        }
      }
      onProgress(cursor.lsn, end);
      if (cursor.lsn >= end) break;
    }
    const { lsn } = reader.cursor;
    const counts = { events, trajectories: trajectories.size, lsn, blobs: seen.size, bad_blobs: bad };
    return { directory, how: 'followed', ...counts, damage: undefined };
  } finally {
    await reader.close();
  }
}

function isDamage(error: unknown): error is VarveError {
  return isVarveError(error, 'HOT_DAMAGED') || isVarveError(error, 'TAIL_GAP');
}

function damaged(directory: string, how: HotVerdict['how'], error: VarveError): HotVerdict {
  const lsn = Number(error.details['lsn'] ?? error.details['expected'] ?? 0);
  const nothing = { events: 0, trajectories: 0, blobs: 0, bad_blobs: [] };
  return { directory, how, ...nothing, lsn: Math.max(0, lsn - 1), damage: { lsn, reason: error.message } };
}
