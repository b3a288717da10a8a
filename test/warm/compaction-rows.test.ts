import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { seeTable } from '../../warm/compaction-rows.ts';
import { openPool, transaction } from '../../warm/pool.ts';
import { createDatabase } from '../support/postgres.ts';
import { exec } from '../support/sidecar-warm.ts';

const ROUNDS = 60;
const AT_ONCE = 8;

describe('warm/compaction-rows', () => {
  it('compactors that race to note the first table all learn the same one, and it only goes forward', async () => {
    await using database = await createDatabase();
    await using pool = await openPool(database.url, { max: AT_ONCE });
    for (let round = 0; round < ROUNDS; round++) {
      await exec(pool, 'DELETE FROM cold_tables');
      const table_id = randomUUID();
      const seen = await Promise.all(
        Array.from({ length: AT_ONCE }, (_, version) =>
          transaction(pool, (tx) => seeTable(tx, { table_id, url: 'file:///cold', version })),
        ),
      );
      for (const [version, table] of seen.entries()) assert.ok(table.table_id === table_id && table.version >= version);
      const other = await transaction(pool, (tx) => seeTable(tx, { table_id: randomUUID(), url: 'o', version: 99 }));
      assert.deepEqual(other, { table_id, url: 'file:///cold', version: AT_ONCE - 1 });
    }
  });
});
