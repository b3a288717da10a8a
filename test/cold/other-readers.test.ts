/** The table in the eyes of others: Delta's log as its protocol says, Parquet as other implementations read it. */
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { tableFromIPC } from 'apache-arrow';
import { readParquet } from 'parquet-wasm/node';
import { FileStore } from '../../cold/file-store.ts';
import { COLUMNS } from '../../schemas/parquet.ts';
import { AWKWARD, makeTable, noted, session } from '../support/cold-query.ts';
import { idAt } from '../support/cold-rows.ts';
import { TempDirectory } from '../support/temp.ts';

/** Live files, from the log's lines and nothing of ours. */
function liveFiles(table: string): string[] {
  const live = new Set<string>();
  for (const name of readdirSync(join(table, '_delta_log')).toSorted()) {
    if (!name.endsWith('.json')) continue;
    for (const line of readFileSync(join(table, '_delta_log', name), 'utf8')
      .trimEnd()
      .split('\n')) {
      const { add, remove } = JSON.parse(line) as { add?: { path: string }; remove?: { path: string } };
      if (remove !== undefined) live.delete(decodeURIComponent(remove.path));
      if (add !== undefined) live.add(decodeURIComponent(add.path));
    }
  }
  return [...live];
}

describe('the events table', () => {
  it('is read by another implementation of Parquet, with nothing but its log', async () => {
    using directory = new TempDirectory('others');
    const store = await FileStore.open(directory.join('store'));
    await using table = await makeTable(store, directory.path);
    const runs = AWKWARD.map((text, i) => noted(i + 1, { text }, { tenant: text, model_version: 'm' }));
    await table.addFiles(...runs.map((run) => [run]));
    await table.add(session(20, 0.5), session(21, 1));
    await table.add(session(30, 3));
    const removed = liveFiles(directory.join('store', 'events')).at(-1) as string;
    await table.log.commit({ run: { id: 'x', step: 1 }, operation: 'EXPIRE', adds: [], removes: [removed] });

    const root = join(fileURLToPath(store.url), 'events');
    const rows: Record<string, unknown>[] = [];
    for (const path of liveFiles(root)) {
      assert.ok(existsSync(join(root, path)));
      const arrow = tableFromIPC(readParquet(readFileSync(join(root, path))).intoIPCStream());
      assert.deepEqual(
        arrow.schema.fields.map(({ name }) => name),
        COLUMNS.map(({ name }) => name),
      );
      for (const row of arrow.toArray() as { toJSON(): Record<string, unknown> }[]) rows.push(row.toJSON());
    }
    assert.equal(rows.length, AWKWARD.length + 6);
    const noteds = rows.filter((row) => row['event_type'] === 'Noted');
    assert.deepEqual(new Set(noteds.map((row) => row['tenant'])), new Set<unknown>(AWKWARD));
    for (const row of noteds) {
      assert.deepEqual(JSON.parse(row['payload'] as string), { text: row['tenant'] });
      assert.equal(row['reward'], null);
    }
    const finished = rows.find((row) => row['trajectory_id'] === idAt(21) && row['event_type'] === 'TaskFinished');
    assert.deepEqual([finished?.['reward'], finished?.['status'], finished?.['sequence_number']], [1, 'completed', 3n]);
    assert.deepEqual(rows.filter((row) => row['trajectory_id'] === idAt(30)).length, 0);
  });
});
