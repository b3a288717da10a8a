import assert from 'node:assert/strict';
import { join } from 'node:path';
import { DuckDb, sqlText } from '../../cold/duckdb.ts';
import { FileStore } from '../../cold/file-store.ts';
import type { Run } from '../../cold/row-check.ts';
import { chain, idAt, PLACE, runOf } from '../support/cold-rows.ts';
import { ColdTable } from '../support/cold-table.ts';
import { TempDirectory } from '../support/temp.ts';

const SOURCE = { format: 'codex', mapping_version: 1, id: 'session 1' };

function runs(): [live: Run, imported: Run] {
  const live = chain(idAt(1), [
    { event_type: 'TaskStarted', payload: { agent: 'a', model: 'm' } },
    { event_type: 'ModelReplied', payload: { content: 'x', usage: { input_tokens: 7, output_tokens: 3 } } },
    { event_type: 'TaskFinished', payload: { status: 'completed', outcome: { reward: 0.5 } } },
  ]);
  const parent = { trajectory_id: idAt(1), sequence_number: 2 };
  const imported = chain(idAt(2), [{ event_type: 'TaskStarted', payload: { source: SOURCE, parent } }]);
  return [runOf(live), runOf(imported)];
}

describe('derived files', () => {
  let directory: TempDirectory;
  let duck: DuckDb;

  before(async () => {
    directory = new TempDirectory('derived');
    duck = await DuckDb.open({ tempDir: directory.join('duck') });
  });

  after(async () => {
    await duck.close();
    directory[Symbol.dispose]();
  });

  async function tableAt(name: string): Promise<{ table: ColdTable; root: string }> {
    const root = directory.join(name);
    return { table: await ColdTable.create(await FileStore.open(root), duck, directory.path), root };
  }

  it('say of each trajectory what its summary says, and of each import where it came from', async () => {
    const { table, root } = await tableAt('one');
    await table.add(...runs());
    const [file] = [...(await table.log.snapshot()).files.values()];
    assert.ok(file?.trajectories !== undefined && file.imports !== undefined);
    const read = (key: string) =>
      duck.rows(`SELECT * FROM read_parquet(${sqlText(join(root, key))}, hive_partitioning = false) ORDER BY 1`);
    const [first, second] = await read(file.trajectories);
    assert.deepEqual(
      [first?.['status'], first?.['finished_status'], first?.['reward'], first?.['input_tokens'], first?.['tenant']],
      ['completed', 'completed', 0.5, 7n, PLACE.tenant],
    );
    assert.deepEqual([first?.['last_sequence_number'], first?.['imported'], second?.['imported']], [3n, false, true]);
    const imports = await read(file.imports);
    assert.equal(imports.length, 1);
    assert.deepEqual(
      [imports[0]?.['format'], imports[0]?.['source_id'], imports[0]?.['parent_sequence_number']],
      ['codex', 'session 1', 2n],
    );
  });

  it('of the same rows have the same names', async () => {
    const names = [];
    for (const root of ['same-1', 'same-2']) {
      const { table } = await tableAt(root);
      await table.add(...runs());
      names.push(
        [...(await table.log.snapshot()).files.values()].map(({ trajectories, imports }) => [trajectories, imports]),
      );
    }
    assert.deepEqual(names[0], names[1]);
  });
});
