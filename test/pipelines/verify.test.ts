/** `varve verify`: finds what was altered, names it, and holds nobody up. */
import assert from 'node:assert/strict';
import { existsSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { DuckDb } from '../../cold/duckdb.ts';
import { FileStore } from '../../cold/file-store.ts';
import { commitKey, segmentsKey } from '../../cold/table-keys.ts';
import type { LiveFile } from '../../cold/table-log-plan.ts';
import type { TableVerdict } from '../../cold/verify-table.ts';
import { HotLog } from '../../hot/log.ts';
import { canonicalJson } from '../../schemas/canonical.ts';
import { payloadSha256 } from '../../schemas/chain.ts';
import type { TrajectoryId } from '../../schemas/ids.ts';
import { event } from '../hot/support/hot.ts';
import { runVarve, varve } from '../support/cli.ts';
import { bend, commitByHand, flipAt, liveFiles, removal, rewrite } from '../support/cold-damage.ts';
import { idAt, notes } from '../support/cold-rows.ts';
import { ColdTable } from '../support/cold-table.ts';
import { Place, SERVED, writeAgent, writeLog } from './support.ts';

type Verdict = {
  readonly whole: boolean;
  readonly hot: readonly { readonly how: string; readonly events: number; readonly bad_blobs: readonly string[] }[];
  readonly warm?: {
    readonly events: number;
    readonly problems: readonly { readonly kind: string; readonly sequence_number: number; readonly what: string }[];
    readonly missing_blobs: readonly string[];
  };
  readonly cold?: Partial<TableVerdict> & { readonly store: string; readonly refused?: { readonly code: string } };
};

describe('varve verify', () => {
  let place: Place;
  beforeEach(async () => {
    place = await Place.make('verify');
  });
  afterEach(() => place[Symbol.asyncDispose]());

  async function verify(...flags: string[]): Promise<Verdict & { code: number }> {
    const { stdout, stderr, code } = await varve('verify', '--json', '--config', place.config, ...flags);
    assert.notEqual(stdout, '', stderr);
    return { ...(JSON.parse(stdout) as Verdict), code };
  }

  it('finds a log whole, whether it is closed or its writer is at work', async () => {
    await writeLog(place.hot, 3);
    const closed = await verify('--hot');
    assert.deepEqual([closed.code, closed.hot[0]?.how, closed.hot[0]?.events], [0, 'opened', 27]);
    await using log = await HotLog.open(place.hot, SERVED);
    await writeAgent(log);
    const open = await verify('--hot');
    assert.deepEqual([open.code, open.hot[0]?.how, open.hot[0]?.events], [0, 'followed', 36]);
  });

  it('lets a writer have the log that comes while it is read, and finishes through its tail', async () => {
    {
      await using log = await HotLog.open(place.hot, SERVED);
      for (let i = 0; i < 25; i++) await Promise.all(Array.from({ length: 20 }, () => writeAgent(log)));
    }
    const [verdict] = await Promise.all([verify('--hot'), writeSoon()]);
    assert.deepEqual([verdict.code, (verdict.hot[0]?.events ?? 0) >= 4500], [0, true]);

    async function writeSoon(): Promise<void> {
      while (!existsSync(join(place.hot, 'writer.json'))) await sleep(1);
      await using log = await HotLog.open(place.hot, { ...SERVED, lockTimeoutMs: 10_000 });
      await writeAgent(log);
      await sleep(500);
    }
  });

  it('verifies the other logs where one cannot be read, and says so', async () => {
    const [a, b] = [place.temp.join('logs', 'a'), place.temp.join('logs', 'b')];
    await writeLog(a);
    await writeLog(b);
    writeFileSync(join(a, 'log.json'), JSON.stringify({ format: 99 }));
    const { code, hot } = await verify('--hot', place.temp.join('logs', '*'));
    assert.deepEqual([code, hot.length, hot[1]?.events], [2, 2, 9]);
  });

  it('names a body that is gone or altered, through the tail and without it', async () => {
    let sha256: string;
    {
      await using log = await HotLog.open(place.hot, SERVED);
      const id = await writeAgent(log);
      ({ sha256 } = await log.blobs.put(Buffer.from('a body')));
      const stub = { $blob: { sha256, bytes: 6, media_type: 'text/plain; charset=utf-8' } };
      await log.append(id, event('ToolResult', { tool_call_id: 'c2', output: stub }, 2));
      writeFileSync(log.blobs.pathOf(sha256), 'A body');
      assert.deepEqual((await verify('--hot', place.hot)).code, 0);
      const deep = await verify('--hot', place.hot, '--deep');
      assert.deepEqual([deep.code, deep.hot[0]?.bad_blobs], [5, [sha256]]);
      rmSync(log.blobs.pathOf(sha256));
      assert.equal((await verify('--hot')).code, 5);
    }
    assert.deepEqual((await verify('--hot')).hot[0]?.bad_blobs, [sha256]);
  });

  async function sql(text: string): Promise<void> {
    await place.database.pool.lend((session) => session.exec(text));
  }

  it('finds warm whole as the sidecar left it, also deep', async () => {
    await writeLog(place.hot, 2);
    await place.drain();
    const { code, warm } = await verify('--warm', '--deep');
    assert.deepEqual([code, warm?.events, warm?.problems], [0, 18, []]);
  });

  const damages: readonly (readonly [string, (id: TrajectoryId) => string, RegExp, number])[] = [
    [
      'an altered payload',
      (id) =>
        `UPDATE trajectory_events SET payload = payload || '{"content":"No."}' WHERE trajectory_id = '${id}' AND sequence_number = 2`,
      /payload does not have the hash/,
      2,
    ],
    [
      'an altered time',
      (id) =>
        `UPDATE trajectory_events SET created_at = created_at + interval '1 ms' WHERE trajectory_id = '${id}' AND sequence_number = 9`,
      /does not cover/,
      9,
    ],
    [
      'a missing event',
      (id) => `DELETE FROM trajectory_events WHERE trajectory_id = '${id}' AND sequence_number = 4`,
      /event 4 is missing/,
      5,
    ],
    [
      'a missing beginning',
      (id) => `DELETE FROM trajectory_events WHERE trajectory_id = '${id}' AND sequence_number < 3`,
      /event 1 is missing/,
      3,
    ],
    [
      'a missing end',
      (id) => `DELETE FROM trajectory_events WHERE trajectory_id = '${id}' AND sequence_number = 9`,
      /row ends at event 9/,
      8,
    ],
    [
      'a row of another head',
      (id) => `UPDATE trajectories SET head_hash = sha256('x') WHERE trajectory_id = '${id}'`,
      /another hash/,
      9,
    ],
    ['a row that is gone', (id) => `DELETE FROM trajectories WHERE trajectory_id = '${id}'`, /has no row/, 9],
    [
      'events that are all gone',
      (id) => `DELETE FROM trajectory_events WHERE trajectory_id = '${id}'`,
      /none is there/,
      9,
    ],
    [
      'a summary that fell behind',
      (id) =>
        `UPDATE trajectories SET summary = jsonb_set(summary::jsonb, '{sequence_number}', '3') WHERE trajectory_id = '${id}'`,
      /come to event 3/,
      9,
    ],
  ];

  it('names the first bad event of every kind of damage in warm, and ends with 5', async () => {
    const ids = await writeLog(place.hot, damages.length);
    await place.drain();
    for (const [i, [, damage]] of damages.entries()) await sql(damage(ids[i] as TrajectoryId));
    const { code, warm } = await verify('--warm');
    assert.equal(code, 5);
    for (const [i, [name, , what, at]] of damages.entries()) {
      const found = warm?.problems.filter((problem) => 'trajectory_id' in problem && problem.trajectory_id === ids[i]);
      assert.ok(
        found?.some((problem) => what.test(problem.what) && problem.sequence_number === at),
        `${name}: ${JSON.stringify(found)}`,
      );
    }
  });

  it('a summary that is not what its events come to is found deep', async () => {
    const [id] = await writeLog(place.hot);
    await place.drain();
    await sql(
      `UPDATE trajectories SET summary = jsonb_set(summary::jsonb, '{reward}', '1') WHERE trajectory_id = '${id}'`,
    );
    assert.equal((await verify('--warm')).code, 0);
    const { code, warm } = await verify('--warm', '--deep');
    assert.deepEqual([code, warm?.problems.map(({ kind }) => kind)], [5, ['summary']]);
  });

  it('a partition that was dropped is no fault, nor events behind a segment that cold has', async () => {
    const [id] = await writeLog(place.hot);
    await place.drain();
    await sql(`INSERT INTO cold_segments SELECT trajectory_id, 1, 5, decode(repeat('00', 32), 'hex'), cryptographic_hash
      FROM trajectory_events WHERE trajectory_id = '${id}' AND sequence_number = 5;
      DELETE FROM trajectory_events WHERE trajectory_id = '${id}' AND sequence_number <= 5`);
    assert.deepEqual((await verify('--warm')).warm?.problems, []);
    await sql(`DO $$ DECLARE v text; BEGIN
      SELECT name INTO v FROM event_partitions WHERE lower_id <= '${id}' AND '${id}' < upper_id;
      EXECUTE 'DROP TABLE ' || v; END $$`);
    assert.equal((await verify('--warm')).code, 0);
  });

  it('a payload that jsonb cannot hold is checked too', async () => {
    await using log = await HotLog.open(place.hot, SERVED);
    const id = await writeAgent(log);
    await log.append(id, event('Noted', { note: 'a\u0000b' }, 2));
    await log.close();
    await place.drain();
    assert.equal((await verify('--warm', '--deep')).code, 0);
    const other = canonicalJson({ note: 'a\u0000c' });
    assert.notEqual(payloadSha256(other), payloadSha256(canonicalJson({ note: 'a\u0000b' })));
    const hex = Buffer.from(other).toString('hex');
    await sql(`UPDATE trajectory_events SET payload_exact = decode('${hex}', 'hex') WHERE payload_exact IS NOT NULL`);
    assert.equal((await verify('--warm')).warm?.problems[0]?.kind, 'payload');
  });

  it('tells a person what is wrong and a script by its exit code', async () => {
    const [id] = await writeLog(place.hot);
    await place.drain();
    await sql(`UPDATE trajectory_events SET turn = turn + 1 WHERE sequence_number = 9`);
    const { code, stdout } = await runVarve(['verify', '--warm', '--config', place.config], { cwd: place.temp.path });
    assert.equal(code, 5);
    assert.match(stdout, new RegExp(`BAD event 9 of ${id}`));
  });

  describe('of the cold tier', () => {
    /** Two files of one trajectory each, in the store of the configuration. */
    async function writeTable(): Promise<ColdTable> {
      const duck = await DuckDb.open({ tempDir: place.temp.join('duck') });
      const store = await FileStore.open(place.temp.join('cold'));
      const table = await ColdTable.create(store, duck, place.temp.path);
      await table.add(notes(1, 20, 50));
      await table.add(notes(2, 20, 50));
      return table;
    }

    it('is whole, by default and by name, and no table is made where there is none', async () => {
      await writeLog(place.hot);
      assert.equal((await verify('--hot')).cold, undefined);
      await place.drain();
      const before = await verify();
      assert.deepEqual(
        [before.code, before.cold, existsSync(place.temp.join('cold', 'events'))],
        [0, undefined, false],
      );
      const refused = await verify('--cold');
      assert.deepEqual([refused.code, refused.hot, refused.cold?.refused?.code], [2, [], 'COLD_NO_TABLE']);
      rmSync(place.temp.join('cold'), { recursive: true });
      assert.equal((await verify('--cold')).code, 2);
      assert.equal((await verify('--warm', '--deep')).code, 0);
      assert.equal(existsSync(place.temp.join('cold')), false);
      await writeTable();
      for (const flags of [[], ['--cold'], ['--cold', '--deep']]) {
        const { code, cold } = await verify(...flags);
        assert.deepEqual([code, cold?.events, cold?.trajectories, cold?.problems], [0, 40, 2, []]);
      }
      assert.equal((await verify('--no-cold')).cold, undefined);
      assert.equal((await verify('--hot')).cold, undefined);
    });

    it('names the first bad event and its object, verifies the rest, and ends with 5', async () => {
      const table = await writeTable();
      const [first, second] = (await liveFiles(table)) as [LiveFile, LiveFile];
      await rewrite(table, second, `SELECT * REPLACE ('{}' AS payload) FROM rows`);
      rmSync(place.temp.join('cold', segmentsKey(first.stem)));
      const { code, cold } = await verify('--cold');
      assert.deepEqual([code, cold?.events, cold?.counts], [5, 40, { segments: 1, event: 20 }]);
      const { stdout } = await runVarve(['verify', '--cold', '--config', place.config], { cwd: place.temp.path });
      assert.match(stdout, new RegExp(`FIRST BAD EVENT: \\? of ${idAt(1)} in events/.*\\.segments`));
      assert.match(stdout, new RegExp(`BAD event events/.*\\.parquet at event 7 of ${idAt(2)}: its payload`));
    });

    it('a table log that is damaged keeps nobody from the hot logs', async () => {
      await writeLog(place.hot);
      const table = await writeTable();
      await bend(table, commitKey(1), flipAt(40));
      const { code, hot, cold } = await verify('--hot', '--cold');
      assert.deepEqual([code, hot[0]?.events, cold?.refused?.code], [5, 9, 'COLD_LOG_INVALID']);
    });

    it('verifies a sample and an older version, and claims no more', async () => {
      const table = await writeTable();
      const [first] = (await liveFiles(table)) as [LiveFile];
      await commitByHand(table, [removal(first)]);
      const sampled = await verify('--cold', '--sample', '1%', '--seed', 's', '--at', '2');
      assert.deepEqual(
        [sampled.code, sampled.cold?.version, sampled.cold?.files, sampled.cold?.live_files],
        [0, 2, 1, 2],
      );
      assert.deepEqual([sampled.cold?.sample, sampled.cold?.trajectories], [{ seed: 's' }, undefined]);
      const { stdout } = await varve('verify', '--cold', '--sample', '1', '--config', place.config);
      assert.match(stdout, /a sample of 1 of 1 files \(seed 3-\d{4}-\d\d-\d\d\): 20 events .*were not looked at/);
      assert.equal((await verify('--cold', '--at', new Date(Date.now() + 3_600_000).toISOString())).cold?.version, 3);
      assert.equal((await verify('--cold', '--at', '2000-01-01')).cold?.refused?.code, 'COLD_NO_VERSION');
      assert.equal((await varve('verify', '--cold', '--sample', '0%', '--config', place.config)).code, 2);
    });
  });
});
