/** What the tests of the hot log share: small logs, their contents, refusals, acks, and a log as a crash leaves it. */
import assert from 'node:assert/strict';
import { cp, mkdir, readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { EventInput } from '../../../hot/door.ts';
import type { HotLog } from '../../../hot/log.ts';
import type { HotLogOptions } from '../../../hot/options.ts';
import type { TailItem } from '../../../hot/read-check.ts';
import type { StoredEvent } from '../../../hot/record.ts';
import { type Ack, type Cursor, type Held, START } from '../../../hot/tail-protocol.ts';
import type { JsonObject } from '../../../schemas/canonical.ts';
import { type ErrorCode, isVarveError, type VarveError } from '../../../schemas/errors.ts';
import { KIB } from '../../../schemas/limits.ts';

/** No socket, no ballast, small buffers, nothing that waits. */
export const SMALL = {
  tail: false,
  writeBufferBytes: 64 * KIB,
  lockTimeoutMs: 0,
  budget: { ballastBytes: 0, freeBytes: 1 },
  retention: { trimAfterMs: 0, blobGraceMs: 0 },
} as const satisfies HotLogOptions;

export function note(text = '', extra: JsonObject = {}): EventInput {
  return { event_type: 'Noted', turn: 0, payload: { note: text, ...extra } };
}

export function event(event_type: string, payload: JsonObject, turn = 0): EventInput {
  return { event_type, turn, payload };
}

export const FINISH: EventInput = event('TaskFinished', { status: 'completed' });

export function intent(tool_call_id: string): EventInput {
  return event('ToolIntent', { tool_call_id, tool_name: 'bash' });
}

export function result(tool_call_id: string): EventInput {
  return event('ToolResult', { tool_call_id, status: 'ok' });
}

export async function all<T>(source: AsyncIterable<T>): Promise<T[]> {
  const items: T[] = [];
  for await (const item of source) items.push(item);
  return items;
}

export async function sequences(source: AsyncIterable<StoredEvent>): Promise<number[]> {
  return (await all(source)).map((event) => event.sequence_number);
}

/** Everything an LSN of the log says, and that its LSNs are dense. */
export async function denseLog(log: HotLog): Promise<TailItem[]> {
  const items = await all(log.readLog());
  let last = 0n;
  for (const item of items) {
    const [from, to] = item.kind === 'trimmed' ? [BigInt(item.from_lsn), BigInt(item.to_lsn)] : [item.lsn, item.lsn];
    assert.equal(from, last + 1n, `LSN ${from} came after ${last}`);
    last = to;
  }
  assert.equal(last, log.durableLsn);
  return items;
}

export async function refused(promise: Promise<unknown>, code: ErrorCode): Promise<VarveError> {
  try {
    await promise;
  } catch (error) {
    assert.ok(isVarveError(error), `an error without a code: ${String(error)}`);
    assert.equal(error.code, code, error.message);
    return error;
  }
  assert.fail(`${code} was expected, and nothing was refused`);
}

export async function cursorAt(log: HotLog, lsn = Number(log.durableLsn)): Promise<Cursor> {
  if (lsn === 0) return START;
  const hash = await log.cursorSource.hashAt(lsn);
  assert.ok(hash !== undefined, `the log has no hash at LSN ${lsn}`);
  return { lsn, hash };
}

export async function ackOf(log: HotLog, lsn?: number, held: readonly Held[] = []): Promise<Ack> {
  return { log_id: log.logId, epoch: log.epoch, cursor: await cursorAt(log, lsn), held };
}

/** Acknowledges everything, or up to an LSN. */
export async function ackTo(log: HotLog, lsn?: number, held: readonly Held[] = []): Promise<void> {
  await log.acknowledge(await ackOf(log, lsn, held));
}

const NOT_LEFT = new Set(['LOCK', 'tail.sock', 'writer.json']);

/**
 * A copy of a log that is still open, as its process would leave it if it died now. No append may be under way.
 * RocksDB's LOCK is never touched. The copy is taken again while RocksDB was replacing files under it.
 */
export async function crashCopy(from: string, to: string): Promise<void> {
  for (;;) {
    await rm(to, { recursive: true, force: true });
    await mkdir(to);
    const before = (await readdir(join(from, 'db'))).toSorted();
    try {
      await cp(from, to, {
        recursive: true,
        force: true,
        filter: (path) => !NOT_LEFT.has(path.slice(path.lastIndexOf('/') + 1)),
      });
      assert.deepEqual((await readdir(join(from, 'db'))).toSorted(), before);
      return;
    } catch (error) {
      const isMoving = error instanceof assert.AssertionError || (error as NodeJS.ErrnoException).code === 'ENOENT';
      if (!isMoving) throw error;
    }
  }
}
