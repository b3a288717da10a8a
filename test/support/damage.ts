/**
 * What tests of damage share: copies of a log, what every file of it was, and the two ways in which opening may end.
 * LOCK is never opened nor copied.
 */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { cpSync, lstatSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { HotLog } from '../../hot/log.ts';
import type { HotLogOptions } from '../../hot/options.ts';
import { isVarveError } from '../../schemas/errors.ts';
import { checkGoesOn, checkLog } from './check-log.ts';
import type { FaultLog } from './fault-log.ts';
import type { Random } from './seed.ts';

/** Opens with everything acknowledged but `lost`, none of which is there; goes on; opens again with all of that. */
export async function opensWithout(
  log: FaultLog,
  copy: string,
  lost: readonly { readonly lsn: bigint }[],
  what: string,
  tail = false,
): Promise<void> {
  const gone = new Set(lost.map((one) => one.lsn));
  const kept = log.acknowledged.filter((one) => !gone.has(one.lsn));
  try {
    const first = await HotLog.open(copy, { lockTimeoutMs: 5000, tail });
    const { lastLsn } = await checkLog(first, log.ids, kept);
    for (const { lsn } of lost) assert.ok(lastLsn < lsn, `LSN ${lsn} of the torn record is there`);
    const appended = await checkGoesOn(first, log.ids);
    await first.close();
    const second = await HotLog.open(copy, { lockTimeoutMs: 5000, tail });
    await checkLog(second, log.ids, [...kept, ...appended]);
    await second.close();
  } catch (cause) {
    throw new Error(`${what}: ${cause instanceof Error ? cause.message : String(cause)}`, { cause });
  }
}

/** The log or the error. Neither within 10 s is a failure: whoever opens a damaged log must be told. */
export async function tryToOpen(directory: string, options: HotLogOptions, what: string): Promise<unknown> {
  const opening = HotLog.open(directory, options).catch((error: unknown) => error);
  const result = await Promise.race([opening, sleep(10_000, 'neither', { ref: false })]);
  assert.notEqual(result, 'neither', `${what}: opening it neither succeeds nor fails`);
  return result;
}

/** Refused as damaged, twice, and every file is as it was. */
export async function isDamaged(copy: string, what: string): Promise<void> {
  const before = fingerprint(copy);
  for (const attempt of ['first', 'second']) {
    const result = await tryToOpen(copy, { lockTimeoutMs: 1000 }, what);
    if (result instanceof HotLog) {
      const { durableLsn } = result;
      await result.close();
      assert.fail(`${what}: the log opened and ends at LSN ${durableLsn}`);
    }
    assert.ok(isVarveError(result, 'HOT_DAMAGED'), `${what}: ${String(result)}`);
    assert.deepEqual(fingerprint(copy), before, `${what}: the ${attempt} refusal changed a file`);
  }
}

/** Everything about every file but the bytes of LOCK, which is never opened. */
export function fingerprint(directory: string): Record<string, string> {
  const all: Record<string, string> = {};
  for (const entry of readdirSync(directory, { recursive: true, withFileTypes: true })) {
    const path = join(entry.parentPath, entry.name);
    if (entry.name === 'LOCK') continue;
    all[path] = entry.isFile() ? createHash('sha256').update(readFileSync(path)).digest('hex') : 'no file';
  }
  return all;
}

/** A copy of a log that nobody has open. Sockets stay behind; LOCK is not opened. */
export function copyLog(from: string, to: string): void {
  cpSync(from, to, {
    recursive: true,
    filter: (path) => basename(path) !== 'LOCK' && !lstatSync(path).isSocket(),
  });
}

/** Flips one bit of the byte at an offset. */
export function flip(path: string, at: number, random: Random): void {
  const bytes = readFileSync(path);
  bytes[at] = (bytes[at] as number) ^ (1 << random.between(0, 7));
  writeFileSync(path, bytes);
}
