/** A hot log held against a database: every event, every hash, every payload, every blob. */
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { HotLog } from '../../hot/log.ts';
import type { StoredEvent } from '../../hot/record.ts';
import { stubsOf } from '../../schemas/stubs.ts';
import type { WarmPool } from '../../warm/pool.ts';
import { assertWhole, payloadText, selectOne, warmRows } from './sidecar-warm.ts';

/** All events of logs that nobody has open. */
export async function eventsOf(...directories: readonly string[]): Promise<StoredEvent[]> {
  const events: StoredEvent[] = [];
  for (const directory of directories) {
    await using log = await HotLog.open(directory, { create: false });
    for await (const item of log.readLog()) {
      assert.notEqual(item.kind, 'trimmed');
      if (item.kind === 'event') events.push(item.event);
    }
  }
  return events;
}

/**
 * Warm has exactly the events of these logs, and each blob is in the store.
 *
 * @returns how many events that are
 */
export async function assertEqual(pool: WarmPool, store: string, ...directories: readonly string[]): Promise<number> {
  const events = await eventsOf(...directories);
  const byKey = new Map(events.map((event) => [`${event.trajectory_id} ${event.sequence_number}`, event]));
  const rows = await warmRows(pool);
  for (const row of rows) {
    const name = `${row.trajectory_id} ${row.sequence_number}`;
    const event = byKey.get(name);
    assert.ok(event !== undefined, `${name} is in warm and in no log`);
    assert.equal(row.cryptographic_hash, event.cryptographic_hash, name);
    assert.equal(payloadText(row), event.payload_text, name);
    byKey.delete(name);
  }
  assert.equal(byKey.size, 0, `${byKey.size} events are not in warm, first ${[...byKey.keys()][0]}`);
  await assertWhole(pool);
  const { held } = await selectOne<{ held: number }>(pool, `SELECT count(*) AS held FROM quarantine`);
  assert.equal(held, 0, 'something is in quarantine');
  const blobs = new Set(events.flatMap((event) => stubsOf(event.payload).map(({ sha256 }) => sha256)));
  for (const sha256 of blobs) {
    const path = join(store, 'blobs', 'sha256', sha256.slice(0, 2), sha256.slice(2, 4), `${sha256}.zst`);
    assert.ok(existsSync(path), `blob ${sha256} is not in the store`);
  }
  return events.length;
}
