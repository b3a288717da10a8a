/** The files that compaction makes: where they are cut, and what each says of trajectories. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { DuckDb } from '../../cold/duckdb.ts';
import { FileStore } from '../../cold/file-store.ts';
import type { Add } from '../../cold/table-actions.ts';
import { TableLog } from '../../cold/table-log.ts';
import { BlobPutter } from '../../pipelines/blob-putter.ts';
import { type ClaimedMember, makeFiles } from '../../pipelines/compact-files.ts';
import { examine, groupByPartition } from '../../pipelines/compact-plan.ts';
import type { Summary } from '../../schemas/summary.ts';
import { readCandidates } from '../../warm/compaction-rows.ts';
import { idAt } from '../support/cold-rows.ts';
import { CompactPlace } from '../support/compact-place.ts';
import { select } from '../support/sidecar-warm.ts';

const DAY = Date.UTC(2024, 10, 20);
const RULE = { olderThanMs: 0, importIdleMs: 0, abandonAfterMs: 0 };
const signal = new AbortController().signal;

describe('pipelines/compact-files', () => {
  let place: CompactPlace;

  before(async () => {
    place = await CompactPlace.create('compact-files');
    await place.finished(idAt(0, DAY));
    // Longer than what is written at once, so that a file may end within it.
    await place.finished(idAt(1, DAY), { turns: 150 });
    await place.finished(idAt(2, DAY));
    await place.finished(idAt(3, DAY), { model_version: 'm-2' });
  });
  after(async () => await place[Symbol.asyncDispose]());

  /** Everything that is in warm, as a table of its own. */
  async function move(fileBytes: number, name = 'cold', change = (add: Add): Add => add): Promise<number> {
    const folder = place.temp.join(`${name}-${fileBytes}`);
    place.settings = { VARVE_COLD_STORE: `file:${folder}` };
    const { pool } = place.database;
    const scratchDir = place.temp.join('scratch');
    const store = await FileStore.open(folder);
    await using duck = await DuckDb.open({ tempDir: place.temp.join('duck') });
    const blobs = new BlobPutter(store, scratchDir, signal, {});
    const parts = { pool, store, duck, scratchDir, offloadOverBytes: 16_384, blobs, signal, policy: {}, fileBytes };
    const made = await makeFiles({ ...parts, onEvents: () => {} }, await members());
    const log = await TableLog.open(store, { duck, scratchDir, create: true });
    const adds = made.files.map((file) => ({ ...file, add: change(file.add) }));
    const intent = { run: { id: randomUUID(), step: 1 }, operation: 'COMPACT', adds, removes: [] };
    assert.equal((await log.commit(intent)).kind, 'committed');
    return made.files.length;
  }

  async function members(): Promise<ClaimedMember[]> {
    const { pool } = place.database;
    const ripe = await pool.lend((session) => readCandidates(session, RULE, undefined, undefined, 100));
    const rows = await select<{ trajectory_id: string; summary: Summary }>(
      pool,
      'SELECT trajectory_id, summary FROM trajectories',
    );
    const summaries = new Map(rows.map((row) => [row.trajectory_id, row.summary]));
    const heads = new Map(ripe.map(({ trajectory_id, head_hash }) => [trajectory_id, head_hash]));
    const verdicts = ripe.map((candidate) => examine(candidate, []));
    const groups = groupByPartition(verdicts.flatMap((verdict) => (verdict.kind === 'move' ? [verdict.member] : [])));
    return groups
      .flatMap((group) => group.members)
      .map((member) => ({
        ...member,
        head_hash: heads.get(member.trajectory_id) as string,
        summary: summaries.get(member.trajectory_id) as Summary,
      }));
  }

  for (const [fileBytes, files] of [
    [1, 6],
    [50_000, 4],
    [2 ** 30, 2],
  ] as const) {
    it(`every trajectory has its row, where it ends, in files of ${fileBytes} bytes`, async () => {
      assert.equal(await move(fileBytes), files);
      const sql = `SELECT trajectory_id, model_version, last_sequence_number AS last, head_hash FROM trajectories ORDER BY 1`;
      const { out, err } = await place.run('query', sql, '--json');
      const expected = [...place.chains.values()].map((chain, i) => ({
        trajectory_id: chain.id,
        model_version: i === 3 ? 'm-2' : 'm-1',
        last: chain.length,
        head_hash: chain.at(chain.length).cryptographic_hash,
      }));
      assert.deepEqual(JSON.parse(out), expected, err);
      const verified = await place.run('verify', '--cold');
      assert.equal(verified.code, 0, verified.out);
    });
  }

  it('a row that is not there is found out, unless the table log says that its trajectory was cut', async () => {
    let cuts = 0;
    await move(1, 'uncut', (add) => {
      const { cut, ...tags } = add.tags;
      cuts += cut === undefined ? 0 : 1;
      return { ...add, tags };
    });
    assert.ok(cuts > 0, 'some trajectory was cut');
    const { code, out } = await place.run('verify', '--cold', '--json');
    assert.equal(code, 5, out);
    const { cold } = JSON.parse(out) as { cold: { counts: { derived?: number } } };
    assert.equal(cold.counts.derived, cuts, out.slice(0, 400));
  });
});
