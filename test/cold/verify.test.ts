import assert from 'node:assert/strict';
import { hash } from 'node:crypto';
import { join } from 'node:path';
import { blobKey, putBlob } from '../../cold/blobs.ts';
import { DuckDb } from '../../cold/duckdb.ts';
import { FileStore } from '../../cold/file-store.ts';
import type { ColdProblem } from '../../cold/findings.ts';
import type { ObjectStore } from '../../cold/object-store.ts';
import type { Run } from '../../cold/row-check.ts';
import { parquetKey, segmentsKey } from '../../cold/table-keys.ts';
import type { LiveFile } from '../../cold/table-log-plan.ts';
import { parseSampleSize } from '../../cold/verify-sample.ts';
import { type TableVerdict, type VerifyTableOptions, verifyTable } from '../../cold/verify-table.ts';
import { canonicalJson, type JsonObject } from '../../schemas/canonical.ts';
import { MIB } from '../../schemas/limits.ts';
import { type ColdRow, rowOf } from '../../schemas/parquet.ts';
import { offload, stubFor } from '../../schemas/stubs.ts';
import { Child } from '../support/child.ts';
import { bend, bytesAt, commitByHand, flipAt, liveFiles, removal, rewrite } from '../support/cold-damage.ts';
import { chain, cut, GENESIS, idAt, notes, PLACE, runOf } from '../support/cold-rows.ts';
import { ColdTable } from '../support/cold-table.ts';
import { compile } from '../support/compiled.ts';
import { FaultStore } from '../support/fault-store.ts';
import { keysOf, rejects } from '../support/object-store-contract.ts';
import { openBucket } from '../support/s3-place.ts';
import { S3Server } from '../support/s3-server.ts';
import { modestOrSoak } from '../support/scale.ts';
import { TempDirectory } from '../support/temp.ts';
import type { VerifyPlan } from '../support/verify-child.ts';

const ODD = { tenant: 'a/b\u0000"\'\u{1f600}', model_version: 'NULL' };

describe('verify of the cold tier', () => {
  let directory: TempDirectory;
  let duck: DuckDb;
  let tables = 0;
  before(async () => {
    directory = new TempDirectory('verify');
    duck = await DuckDb.open({ tempDir: directory.join('duck') });
  });
  after(async () => {
    await duck.close();
    directory[Symbol.dispose]();
  });

  type Place = { readonly table: ColdTable; readonly root: string; readonly store: FaultStore };

  async function create(inner?: ObjectStore): Promise<Place> {
    tables += 1;
    const root = directory.join(`table-${tables}`);
    const store = new FaultStore(inner ?? (await FileStore.open(root)));
    return { table: await ColdTable.create(store, duck, directory.join(`scratch-${tables}`)), root, store };
  }

  async function verify(table: ColdTable, options: Partial<VerifyTableOptions> = {}): Promise<TableVerdict> {
    const scratchDir = directory.join('verify');
    return await verifyTable(table.store, await table.log.snapshot(), { scratchDir, parallel: 2, ...options });
  }

  /** Three files; the second trajectory goes on from one to the next. */
  async function threeFiles(): Promise<Place & { readonly files: readonly LiveFile[] }> {
    const place = await create();
    const [head, rest] = cut(notes(2, 30, 50), 10);
    const [middle, tail] = cut(rest, 10);
    await place.table.add(notes(1, 20, 50), head);
    await place.table.add(middle, notes(3, 20, 50));
    await place.table.add(tail, notes(4, 20, 50));
    return { ...place, files: await liveFiles(place.table) };
  }

  function only(verdict: TableVerdict): ColdProblem {
    assert.equal(verdict.problems.length, 1, JSON.stringify(verdict.problems, undefined, 1));
    assert.deepEqual(verdict.first, verdict.problems[0]?.trajectory_id === undefined ? undefined : verdict.problems[0]);
    return verdict.problems[0] as ColdProblem;
  }

  function event(n: number, sequence_number: number): Pick<ColdProblem, 'trajectory_id' | 'sequence_number'> {
    return { trajectory_id: idAt(n), sequence_number };
  }

  function isAbout(problem: ColdProblem | undefined, expected: Partial<ColdProblem>, what: RegExp): void {
    const { what: text, ...rest } = problem ?? { what: 'nothing' };
    assert.match(text, what);
    assert.deepEqual({ ...rest, ...expected }, rest, JSON.stringify(problem));
  }

  /** A row whose strings over 20 bytes are bodies in the store. */
  async function offloadedRun(store: ObjectStore, n: number, texts: readonly string[]): Promise<Run> {
    const events = chain(
      idAt(n),
      texts.map((note) => ({ event_type: 'Noted', payload: { note, 'a/~b': [note.toUpperCase()] } as JsonObject })),
    );
    const rows: ColdRow[] = [];
    for (const event of events) {
      const text = canonicalJson(event.payload);
      const { payload, bodies } = offload(event.payload, Buffer.byteLength(text), 1024, 1e9);
      for (const { ref, body } of bodies) await putBlob(store, ref.sha256, body);
      const original = {
        payload_sha256: hash('sha256', text, 'hex'),
        offloaded: bodies.length === 0 ? null : bodies.map(({ pointer }) => pointer),
      };
      rows.push(rowOf({ ...event, payload }, PLACE, original));
    }
    return { previous_hash: GENESIS, rows };
  }

  it('finds a table whole that has every oddity: partitions, U+0000, unknown kinds, chains over files', async () => {
    const { table, store } = await create();
    const odd = chain(idAt(1), [
      { event_type: 'TaskStarted', payload: { source: { format: 'x', id: 'a\u0000b' } } },
      { event_type: 'acme:unheard/of', payload: { __proto__x: 1, '': ['\u0000', '\u{1f600}', null, -0.5e-300] } },
      { event_type: 'Noted', payload: { '$redacted no': 1, note: '{"$redacted":' } },
    ]);
    await table.add(runOf(odd, GENESIS, ODD));
    const [head, rest] = cut(notes(2, 300, 30), 120);
    const [middle, tail] = cut(rest, 1);
    await table.addFiles([head], [tail, notes(3, 2, 5)]);
    await table.add(middle);
    const sha256 = stubFor(Buffer.from('a body')).$blob.sha256;
    await putBlob(store, sha256, Buffer.from('a body'));
    const erased = notes(6, 3, 5);
    const stub = { payload: '{"$redacted":{"reason":"asked"}}' };
    const rows = erased.rows.map((row, i) => (i === 1 ? { ...row, ...stub } : row));
    await table.add({ ...erased, rows });
    const withStub = chain(idAt(4), [{ event_type: 'Noted', payload: { note: stubFor(Buffer.from('a body')) } }]);
    await table.add(runOf(withStub), await offloadedRun(store, 5, ['x'.repeat(2000), 'x'.repeat(2000), 'short']));
    for (const deep of [false, true]) {
      const verdict = await verify(table, { deep });
      assert.deepEqual(verdict.problems, []);
      assert.deepEqual([verdict.files, verdict.live_files, verdict.events, verdict.segments], [6, 6, 312, 8]);
      assert.deepEqual([verdict.offloaded, verdict.redacted], [2, 1]);
      assert.deepEqual([verdict.trajectories, verdict.blobs, verdict.unverified], [6, deep ? 3 : undefined, []]);
    }
    assert.deepEqual(await keysOf(store, '.varve'), []);
  });

  it('an empty table is whole', async () => {
    const { table } = await create();
    const verdict = await verify(table, { deep: true });
    assert.deepEqual([verdict.files, verdict.events, verdict.problems, verdict.trajectories], [0, 0, [], 0]);
  });

  describe('of an object that was damaged', () => {
    /** A file with several row groups of large payloads, and a small one. */
    type Large = Place & { readonly file: LiveFile; readonly groups: readonly number[] };
    let large: Large;

    before(async () => {
      const place = await create();
      await place.table.add(...Array.from({ length: 16 }, (_, n) => notes(n, 5, 200_000)), notes(16, 3, 9));
      await place.table.add(notes(20, 7, 50));
      const [file] = (await liveFiles(place.table)) as [LiveFile];
      const path = join(place.root, parquetKey(file.stem));
      const groups = await duck.rows(
        `SELECT row_group_num_rows AS n FROM parquet_metadata('${path}') WHERE column_id = 0 ORDER BY row_group_id`,
      );
      large = { ...place, file, groups: groups.map(({ n }) => Number(n)) };
      assert.ok(groups.length >= 3);
    });

    /** Verifies while the large file has other bytes. */
    async function whileBent(change: (bytes: Buffer) => Buffer): Promise<TableVerdict> {
      const key = parquetKey(large.file.stem);
      const whole = await bytesAt(large.table, key);
      await large.table.store.put(key, change(Buffer.from(whole)));
      const verdict = await verify(large.table);
      await large.table.store.put(key, whole);
      return verdict;
    }

    /** Where a column's pages lie in a row group. */
    async function pagesOf(
      root: string,
      file: LiveFile,
      column: string,
      group: number,
    ): Promise<{ at: number; bytes: number }> {
      const path = join(root, parquetKey(file.stem));
      const [row] = await duck.rows(
        `SELECT coalesce(dictionary_page_offset, data_page_offset) AS at, total_compressed_size AS bytes FROM parquet_metadata('${path}')
         WHERE path_in_schema = '${column}' AND row_group_id = ${group}`,
      );
      return { at: Number(row?.['at']), bytes: Number(row?.['bytes']) };
    }

    it('a page with a flipped byte is named by its event, and the rest is verified', async () => {
      const { root, file, groups } = large;
      const { at, bytes } = await pagesOf(root, file, 'payload', 1);
      const verdict = await whileBent(flipAt(at + Math.floor(bytes / 2)));
      const { first } = verdict;
      assert.equal(verdict.counts.file, (verdict.counts.event ?? 0) > 0 ? 1 : 2, JSON.stringify(verdict.problems));
      const row = groups[0] as number;
      const at1 = 5 * Number.parseInt(first?.trajectory_id?.slice(-4) ?? '', 16) + Number(first?.sequence_number) - 1;
      assert.ok(at1 >= row && at1 < row + (groups[1] as number), JSON.stringify(first));
      assert.equal(first?.key, parquetKey(file.stem));
      assert.equal(verdict.counts.chain, undefined, 'its chain was read all the same');
      assert.ok(verdict.events >= 83 + 7 - (groups[1] as number), `${verdict.events} events`);
      assert.equal(verdict.trajectories, 18);
    });

    it('a torn page of payloads costs its own rows, and their chain is read all the same', async () => {
      const { root, file, groups } = large;
      const { at } = await pagesOf(root, file, 'payload', 1);
      const verdict = await whileBent((all) => all.fill(0, at, at + 4000));
      const row = groups[0] as number;
      isAbout(verdict.first, event(Math.floor(row / 5), (row % 5) + 1), /row group 1: payload of events/);
      assert.deepEqual([verdict.events, verdict.counts], [90 - (groups[1] as number), { file: 2 }]);
      assert.equal(verdict.trajectories, 18);
    });

    it('a page of zeros costs its own rows and no more, whichever column it is of', async () => {
      for (const column of ['cryptographic_hash', 'payload_sha256', 'sequence_number']) {
        const { root, file, groups } = large;
        const { at, bytes } = await pagesOf(root, file, column, 1);
        const verdict = await whileBent((all) => all.fill(0, at, at + bytes));
        const row = groups[0] as number;
        isAbout(
          verdict.first,
          { kind: 'file', ...event(Math.floor(row / 5), (row % 5) + 1) },
          new RegExp(`row group 1: ${column} of events`),
        );
        assert.deepEqual([verdict.events, verdict.counts], [90 - (groups[1] as number), { file: 2 }]);
      }
    });

    it('a column that no hash covers: the file is named, and that its events are whole', async () => {
      const { root, file } = large;
      const { at, bytes } = await pagesOf(root, file, 'role', 0);
      const verdict = await whileBent(flipAt(at + bytes - 1));
      isAbout(only(verdict), { kind: 'file', key: parquetKey(file.stem) }, /other bytes.*events in it are whole/);
      assert.equal(verdict.events, 90);
    });

    it('no flipped bit anywhere in any object passes', async () => {
      const { table, files } = await threeFiles();
      const [file] = files as readonly [LiveFile];
      for (const key of [parquetKey(file.stem), segmentsKey(file.stem), file.trajectories as string]) {
        const whole = await bytesAt(table, key);
        for (let i = 0; i < 12; i++) {
          const at = i === 0 ? 0 : i === 1 ? whole.byteLength - 1 : Math.floor((whole.byteLength * i) / 12);
          await bend(table, key, flipAt(at));
          const { problems, files } = await verify(table);
          assert.ok(
            problems.some((problem) => problem.key === key),
            `${key} at ${at}: ${JSON.stringify(problems)}`,
          );
          assert.ok(
            problems.every((problem) => problem.key === key),
            JSON.stringify(problems),
          );
          assert.equal(files, 3);
          await table.store.put(key, whole);
        }
      }
      assert.deepEqual((await verify(table)).problems, []);
    });

    it('a truncated file, a missing file, a file of nothing: named by their first event', async () => {
      for (const [change, what] of [
        [(bytes: Buffer) => bytes.subarray(0, bytes.byteLength >> 1), /cannot be read as Parquet/],
        [(bytes: Buffer) => bytes.subarray(0, 0), /cannot be read as Parquet/],
        [undefined, /the data file is missing/],
      ] as const) {
        const { table, files } = await threeFiles();
        const file = files[1] as LiveFile;
        if (change === undefined) await table.store.delete(parquetKey(file.stem));
        else await bend(table, parquetKey(file.stem), change);
        const verdict = await verify(table);
        isAbout(verdict.first, { kind: 'file', key: parquetKey(file.stem), ...event(2, 11) }, what);
        assert.equal(verdict.counts.file, change === undefined ? 1 : 2);
        assert.deepEqual(
          [verdict.events, verdict.counts.chain],
          [60, undefined],
          'its list of segments holds the chain together',
        );
      }
    });

    it('two files in the place of each other: both are named, with the event that should be first', async () => {
      const { table, files } = await threeFiles();
      const keys = [files[0], files[2]].map((file) => parquetKey((file as LiveFile).stem)) as [string, string];
      const [a, b] = [await bytesAt(table, keys[0]), await bytesAt(table, keys[1])];
      await table.store.put(keys[0], b);
      await table.store.put(keys[1], a);
      const { problems, counts } = await verify(table);
      const rows = problems.filter(({ kind }) => kind === 'rows');
      isAbout(
        rows[0]?.key === keys[0] ? rows[0] : rows[1],
        { key: keys[0], ...event(1, 1) },
        /row 0 is event 21 of .* should/,
      );
      isAbout(rows[0]?.key === keys[0] ? rows[1] : rows[0], { key: keys[1], ...event(2, 21) }, /row 0 is event 1 of /);
      assert.equal(counts.file, 2);
    });

    it('a list of segments that is missing, flipped or of another file: the rows are verified without it', async () => {
      const { table, files } = await threeFiles();
      const [first, second] = files as readonly [LiveFile, LiveFile];
      const key = segmentsKey(first.stem);
      const whole = await bytesAt(table, key);
      const other = await bytesAt(table, segmentsKey(second.stem));
      for (const [bytes, what] of [
        [undefined, /is missing/],
        [flipAt(100)(Buffer.from(whole)), /another SHA-256/],
        [other, /another SHA-256/],
      ] as const) {
        if (bytes === undefined) await table.store.delete(key);
        else await table.store.put(key, bytes);
        const verdict = await verify(table);
        isAbout(only(verdict), { kind: 'segments', key, trajectory_id: idAt(1) }, what);
        assert.deepEqual([verdict.events, verdict.trajectories], [90, 4], 'the rows say what its chains are');
      }
    });

    it('a file of derived rows that is missing, flipped or says something else', async () => {
      const { table, files } = await threeFiles();
      const [first, second] = files as readonly [LiveFile, LiveFile];
      const key = first.trajectories as string;
      const whole = await bytesAt(table, key);
      await table.store.delete(key);
      isAbout(only(await verify(table)), { kind: 'derived', key }, /file of trajectories is missing/);
      await table.store.put(key, flipAt(200)(Buffer.from(whole)));
      isAbout(only(await verify(table)), { kind: 'derived', key }, /other bytes/);
      await table.store.put(key, whole);
      const tags = { ...first.add.tags, trajectories: second.add.tags.trajectories as string };
      await commitByHand(table, [removal(first), { add: { ...first.add, tags } }]);
      const { problems, events } = await verify(table);
      assert.deepEqual([problems.map(({ kind }) => kind), events], [['derived', 'derived'], 90]);
      isAbout(problems[0], event(1, 20), /no row of this trajectory/);
      isAbout(problems[1], event(2, 10), /other sequence numbers/);
    });
  });

  describe('of what was written wrong, with every hash of files in order', () => {
    const changes: readonly (readonly [name: string, select: string, sequence: number, what: RegExp])[] = [
      [
        'a payload',
        `SELECT * REPLACE (CASE WHEN sequence_number = 7 THEN '{"note":""}' ELSE payload END AS payload) FROM rows`,
        7,
        /another SHA-256/,
      ],
      [
        'a payload hash',
        `SELECT * REPLACE (CASE WHEN sequence_number = 7 THEN sha256('') ELSE payload_sha256 END AS payload_sha256) FROM rows`,
        7,
        /another SHA-256.*does not cover/,
      ],
      [
        'a turn',
        'SELECT * REPLACE (CASE WHEN sequence_number = 7 THEN 0 ELSE turn END AS turn) FROM rows',
        7,
        /turn 0 is below 5.*does not cover/,
      ],
      [
        'a time',
        `SELECT * REPLACE (CASE WHEN sequence_number = 7 THEN created_at - INTERVAL 1 HOUR ELSE created_at END AS created_at) FROM rows`,
        7,
        /its time .* is before/,
      ],
      [
        'microseconds',
        `SELECT * REPLACE (CASE WHEN sequence_number = 7 THEN created_at + INTERVAL 1 MICROSECOND ELSE created_at END AS created_at) FROM rows`,
        7,
        /whole milliseconds/,
      ],
      [
        'a token',
        'SELECT * REPLACE (CASE WHEN sequence_number < 7 THEN 1 ELSE 0 END AS fencing_token) FROM rows',
        1,
        /does not cover/,
      ],
      [
        'a kind',
        `SELECT * REPLACE (CASE WHEN sequence_number = 1 THEN 'Halted' ELSE event_type END AS event_type) FROM rows`,
        1,
        /does not cover it and the hash that its segment names/,
      ],
      [
        'a hash',
        `SELECT * REPLACE (CASE WHEN sequence_number = 7 THEN 'no hex' ELSE cryptographic_hash END AS cryptographic_hash) FROM rows`,
        7,
        /does not cover/,
      ],
      [
        'both hashes gone',
        `SELECT * REPLACE (CASE WHEN sequence_number = 7 THEN NULL ELSE cryptographic_hash END AS cryptographic_hash, CASE WHEN sequence_number = 7 THEN NULL ELSE payload_sha256 END AS payload_sha256) FROM rows`,
        7,
        /null/,
      ],
      [
        'a number that no event has',
        'SELECT * REPLACE (CASE WHEN sequence_number = 12 THEN 9007199254740993 ELSE sequence_number END AS sequence_number) FROM rows',
        12,
        /none that an event can have/,
      ],
      [
        'a time without end',
        `SELECT * REPLACE (CASE WHEN sequence_number = 7 THEN CAST('infinity' AS TIMESTAMPTZ) ELSE created_at END AS created_at) FROM rows`,
        7,
        /./,
      ],
      [
        'a payload gone',
        'SELECT * REPLACE (CASE WHEN sequence_number = 7 THEN NULL ELSE payload END AS payload) FROM rows',
        7,
        /null/,
      ],
      [
        'an empty list of what was offloaded',
        `SELECT * REPLACE ('{}' AS payload, [] AS offloaded) FROM rows`,
        1,
        /another SHA-256/,
      ],
    ];

    it('names the row, whatever of it was changed, and verifies the rest', async () => {
      const { table } = await create();
      for (const n of changes.keys()) await table.add(notes(n, 12, 50));
      for (const file of await liveFiles(table)) {
        const n = Number(file.min_trajectory_id.slice(-12).replace(/^0+(?=.)/, ''));
        const [, select] = changes[Number.parseInt(file.min_trajectory_id.slice(-4), 16)] ?? [];
        assert.ok(select !== undefined, `${n}`);
        await rewrite(table, file, select);
      }
      const verdict = await verify(table);
      assert.deepEqual(
        [verdict.events, verdict.files, verdict.counts.file],
        [12 * changes.length, changes.length, undefined],
      );
      for (const [n, [name, , sequence_number, what]] of changes.entries()) {
        const [first] = verdict.problems
          .filter(({ kind, trajectory_id }) => kind === 'event' && trajectory_id === idAt(n))
          .toSorted((a, b) => (a.sequence_number ?? 0) - (b.sequence_number ?? 0));
        assert.equal(first?.sequence_number, sequence_number, `${name}: ${JSON.stringify(first)}`);
        assert.match(first?.what ?? '', what, name);
      }
      assert.equal(verdict.first?.trajectory_id, idAt(0));
    });

    it('a row left out, moved or doubled is named by where it should be', async () => {
      for (const [select, sequence_number, what] of [
        ['SELECT * FROM rows WHERE sequence_number <> 7', 8, /it follows event 6/],
        ['SELECT * FROM rows ORDER BY trajectory_id, sequence_number = 7, sequence_number', 7, /it follows event 12/],
        ['SELECT * FROM rows UNION ALL (SELECT * FROM rows LIMIT 1)', undefined, /13 rows/],
      ] as const) {
        const { table } = await create();
        await table.add(notes(1, 12, 50));
        const [file] = await liveFiles(table);
        await rewrite(table, file as LiveFile, select);
        const { problems } = await verify(table);
        assert.ok(
          problems.some(
            (problem) =>
              what.test(problem.what) && (sequence_number === undefined || problem.sequence_number === sequence_number),
          ),
          `${select}: ${JSON.stringify(problems)}`,
        );
      }
    });

    it('names at most a hundred of a kind, and counts all', async () => {
      const { table } = await create();
      await table.add(notes(1, 5000, 5), notes(2, 3, 5));
      const [file] = await liveFiles(table);
      await rewrite(table, file as LiveFile, `SELECT * REPLACE ('{}' AS payload) FROM rows`);
      const { problems, counts, first } = await verify(table);
      assert.deepEqual([problems.length, counts.event], [100, 5003]);
      isAbout(first, event(1, 1), /another SHA-256/);
    });

    it('segments that the rows do not bear out', async () => {
      const { table } = await create();
      await table.add(notes(1, 5, 5), notes(2, 5, 5));
      const [file] = await liveFiles(table);
      await rewrite(table, file as LiveFile, 'SELECT * FROM rows', (list) => ({
        ...list,
        segments: list.segments.map((segment, i) => (i === 0 ? segment : { ...segment, head_hash: 'f'.repeat(64) })),
      }));
      const { problems, first } = await verify(table);
      assert.deepEqual(
        problems.map(({ kind }) => kind),
        ['rows', 'derived'],
      );
      isAbout(first, event(2, 5), /has not the hash with which its segment ends/);
    });

    it('a wrong partition value in the table log, or a row of another partition', async () => {
      const { table } = await create();
      await table.add(notes(1, 5, 5));
      await table.add(notes(2, 5, 5));
      const [first, second] = (await liveFiles(table)) as [LiveFile, LiveFile];
      const partitionValues = { ...first.add.partitionValues, tenant: 'other' };
      await commitByHand(table, [removal(first), { add: { ...first.add, partitionValues } }]);
      await rewrite(
        table,
        second,
        `SELECT * REPLACE (CASE WHEN sequence_number = 3 THEN 'other' ELSE tenant END AS tenant) FROM rows`,
      );
      const { problems, events } = await verify(table);
      const partition = problems.filter(({ kind }) => kind === 'partition');
      assert.deepEqual([partition.length, events], [3, 10]);
      isAbout(
        partition.find(({ what }) => what.startsWith('5 rows')),
        event(1, 1),
        /another tenant/,
      );
      isAbout(
        partition.find(({ what }) => what.startsWith('1 rows')),
        event(2, 3),
        /another tenant/,
      );
      isAbout(
        partition.find(({ what }) => /folder/.test(what)),
        event(1, 1),
        /folder/,
      );
    });

    it('two live files with the same events, a gap, a beginning that is missing, another head: by the chain', async () => {
      const { table, files } = await threeFiles();
      const [first, second] = files as readonly [LiveFile, LiveFile, LiveFile];
      await commitByHand(table, [removal(second)]);
      isAbout(only(await verify(table)), { kind: 'chain', ...event(2, 11) }, /events 11 to 20 are in no live file/);
      await table.add(cut(notes(2, 30, 50), 12)[0]).catch(() => undefined);
      await commitByHand(table, [{ add: second.add }, removal(first)]);
      isAbout(only(await verify(table)), { kind: 'chain', ...event(2, 1) }, /events 1 to 10 are in no live file/);
      const other = await create();
      await other.table.add(cut(notes(2, 30, 50), 12)[0]);
      const [overlapping] = await liveFiles(other.table);
      for (const key of await keysOf(other.store)) {
        if (!key.includes('_delta_log')) await table.store.put(key, await bytesAt(other.table, key));
      }
      await commitByHand(table, [{ add: (overlapping as LiveFile).add }]);
      const verdict = await verify(table);
      isAbout(only(verdict), { kind: 'chain', ...event(2, 11) }, /events 11 to 12 are also in events\/tenant=default/);
      assert.equal(verdict.trajectories, 3);
    });

    it('a suffix that hangs on another head is a fork', async () => {
      const { table } = await create();
      const drafts = (note: string) =>
        Array.from({ length: 4 }, (_, i) => ({ event_type: 'Noted', payload: { note: `${note} ${i}` } }));
      const [mine, other] = [runOf(chain(idAt(1), drafts('a'))), runOf(chain(idAt(1), drafts('b')))];
      await table.add(cut(mine, 2)[0]);
      await table.add(cut(other, 2)[1]);
      isAbout(only(await verify(table)), { kind: 'chain', ...event(1, 3) }, /does not follow event 2 in/);
    });
  });

  describe('deep', () => {
    it('names a blob that is missing or damaged, with an event that refers to it, and the rest is verified', async () => {
      const { table, store } = await create();
      const texts = ['x', 'y', 'z'].map((letter) => letter.repeat(3000));
      await table.add(await offloadedRun(store, 1, texts), await offloadedRun(store, 2, ['z'.repeat(3000)]));
      const names = texts.map((text) => hash('sha256', text, 'hex'));
      await store.delete(blobKey(names[1] as string));
      await bend(table, blobKey(names[2] as string), (bytes) => bytes.subarray(0, -1));
      assert.deepEqual((await verify(table)).problems, []);
      const { problems, blobs, events } = await verify(table, { deep: true });
      assert.deepEqual([blobs, events, problems.map(({ kind }) => kind)], [6, 4, ['blob', 'blob']]);
      const of = (sha256: string | undefined) => problems.find(({ key }) => key === blobKey(sha256 as string));
      isAbout(of(names[1]), event(1, 2), /missing/);
      isAbout(of(names[2]), event(1, 3), /other bytes/);
    });

    it('reads each blob once, though many rows refer to it', async () => {
      const { table, store } = await create();
      await table.add(
        await offloadedRun(
          store,
          1,
          Array.from({ length: 9 }, () => 'w'.repeat(2000)),
        ),
      );
      store.calls.length = 0;
      assert.equal((await verify(table, { deep: true })).blobs, 2);
      assert.equal(store.calls.filter((call) => call.startsWith('get blobs/')).length, 2);
    });

    it('a body that is not the one that was taken out, a place without a stub, a list that lacks a blob', async () => {
      const { table, store } = await create();
      const drop = `SELECT * REPLACE ([] AS blob_refs) FROM rows`;
      const other = hash('sha256', 'other', 'hex');
      await putBlob(store, other, Buffer.from('other'));
      const text = 'v'.repeat(2000);
      const name = hash('sha256', text, 'hex');
      const swap = `SELECT * REPLACE (replace(payload, '${name}', '${other}') AS payload, list_sort(list_transform(blob_refs, lambda r: CASE WHEN r = '${name}' THEN '${other}' ELSE r END)) AS blob_refs) FROM rows`;
      const move = `SELECT * REPLACE (['/nowhere'] AS offloaded) FROM rows`;
      for (const n of [1, 2, 3]) await table.add(await offloadedRun(store, n, [text]));
      for (const file of await liveFiles(table)) {
        await rewrite(table, file, [drop, swap, move][Number(file.min_trajectory_id.slice(-1)) - 1] as string);
      }
      const { problems } = await verify(table, { deep: true });
      const of = (n: number) => problems.find(({ trajectory_id }) => trajectory_id === idAt(n));
      assert.equal(problems.length, 3, JSON.stringify(problems));
      isAbout(of(1), { kind: 'body', ...event(1, 1) }, /does not list/);
      isAbout(of(2), { kind: 'body', ...event(2, 1) }, /another hash than was appended/);
      isAbout(of(3), { kind: 'body', ...event(3, 1) }, /where there is no stub/);
    });
  });

  it('a store that fails is no damage: what could not be read is told, and no chain is judged', async () => {
    const { table, store, files } = await threeFiles();
    const key = parquetKey((files[1] as LiveFile).stem);
    store.inject({ method: 'get', key: new RegExp(key), kind: 'before', code: 'STORE_UNAVAILABLE' });
    const verdict = await verify(table);
    assert.deepEqual([verdict.problems, verdict.files, verdict.trajectories], [[], 2, undefined]);
    assert.deepEqual(
      verdict.unverified.map(({ key, code }) => [key, code]),
      [[key, 'STORE_UNAVAILABLE']],
    );
    store.inject({ method: 'get', key: new RegExp(key), kind: 'before', code: 'STORE_UNAVAILABLE' });
    const again = await verify(table, { attempt: async (work) => await work().catch(() => work()) });
    assert.deepEqual([again.problems, again.files, again.events, again.trajectories], [[], 3, 90, 4]);
  });

  it('a transfer that went wrong once is no damage', async () => {
    const { table, store } = await threeFiles();
    store.inject({ method: 'get', key: /parquet$/, kind: 'flipped', bit: 999 });
    assert.deepEqual((await verify(table)).problems, []);
    assert.equal(store.pending, 0);
  });

  it('takes a sample that its seed decides, and says nothing of the rest', async () => {
    const { table } = await create();
    for (let n = 0; n < 10; n++) await table.add(notes(n, 2, 5));
    const sampled = async (size: string, seed: string) => {
      const keys: string[] = [];
      const pathOf = (key: string) => (keys.push(key), undefined);
      const verdict = await verify(table, { sample: { size: parseSampleSize(size), seed }, pathOf });
      return { ...verdict, keys: keys.filter((key) => key.startsWith('events/')).toSorted() };
    };
    const [a, b, c] = [await sampled('30%', 'a'), await sampled('30%', 'a'), await sampled('3', 'b')];
    assert.deepEqual([a.files, a.live_files, a.events, a.trajectories, a.sample], [3, 10, 6, undefined, { seed: 'a' }]);
    assert.deepEqual(a.keys, b.keys);
    assert.notDeepEqual(a.keys, c.keys);
    assert.equal((await sampled('0.001%', 'x')).files, 1);
    assert.equal((await sampled('100%', 'x')).files, 10);
    for (const bad of ['0', '0%', '101%', '-1', '1.5', 'all', '']) assert.throws(() => parseSampleSize(bad), /sample/);
  });

  it('verifies an older version as it was', async () => {
    const { table, files } = await threeFiles();
    await commitByHand(table, [removal(files[1] as LiveFile)]);
    await table.log.snapshot();
    assert.equal((await verify(table)).counts.chain, 1);
    const then = await table.log.snapshotAt({ version: 3 });
    const verdict = await verifyTable(table.store, then, { scratchDir: directory.join('verify') });
    assert.deepEqual([verdict.version, verdict.files, verdict.problems], [3, 3, []]);
  });

  it('ends when it is told to, and leaves nothing', async () => {
    const { table } = await threeFiles();
    await rejects(verify(table, { signal: AbortSignal.abort() }), 'ABORTED');
  });

  it('stays below 300 MB with a trajectory far larger, in large events and small', async function () {
    this.timeout(modestOrSoak(60_000, 600_000));
    const bytes = modestOrSoak(80, 500) * MIB;
    using built = new TempDirectory('verify-built');
    const script = compile('verify-child.ts', built.path);
    for (const chars of [900_000, 4000]) {
      using place = new TempDirectory('verify-large');
      const plan = { directory: place.path, events: Math.ceil(bytes / chars), chars };
      await using writer = Child.start('verify-child.ts', { ...plan, do: 'write' } satisfies VerifyPlan);
      await writer.line('done ', 300_000);
      await using child = Child.start(script, { ...plan, do: 'deep' } satisfies VerifyPlan);
      const [, events, problems, peak] = (await child.line('done ', 300_000)).split(' ').map(Number);
      assert.deepEqual([events, problems], [plan.events, 0]);
      assert.ok(Number(peak) <= 300_000_000, `${peak} bytes at the peak`);
    }
  });

  it('works the same from a bucket', async () => {
    {
      await using server = await S3Server.start();
      await using bucket = await openBucket(server, 'root');
      const { table, store } = await create(bucket);
      await table.add(notes(1, 20, 50), await offloadedRun(store, 2, ['u'.repeat(2000)]));
      await table.add(notes(3, 20, 50));
      const whole = await verify(table, { deep: true });
      assert.deepEqual([whole.problems, whole.events, whole.blobs], [[], 41, 2]);
      const [first, second] = (await liveFiles(table)) as [LiveFile, LiveFile];
      await bend(table, parquetKey(first.stem), flipAt(1000));
      await store.delete(parquetKey(second.stem));
      const { problems } = await verify(table, { deep: true });
      assert.deepEqual(
        new Set(problems.map(({ key }) => key)),
        new Set([first, second].map(({ stem }) => parquetKey(stem))),
      );
    }
  });
});
