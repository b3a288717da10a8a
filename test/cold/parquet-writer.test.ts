import assert from 'node:assert/strict';
import { hash } from 'node:crypto';
import { copyFile, open, readdir, readFile, stat, truncate } from 'node:fs/promises';
import * as fc from 'fast-check';
import { asyncBufferFromFile, parquetMetadataAsync, parquetReadObjects } from 'hyparquet';
import { compressors } from 'hyparquet-compressors';
import { checkRows, putDataFile, readBack, readSegments } from '../../cold/data-file.ts';
import { DuckDb, safeNumber, sqlText } from '../../cold/duckdb.ts';
import { FileStore } from '../../cold/file-store.ts';
import type { ObjectStore } from '../../cold/object-store.ts';
import { type LocalFile, ParquetWriter, placeSegments } from '../../cold/parquet-writer.ts';
import type { OpenSegment, Run } from '../../cold/row-check.ts';
import { RowGroupSizer } from '../../cold/row-groups.ts';
import { formatSegments, parseSegments, type SegmentList } from '../../cold/segments.ts';
import { parquetKey, segmentsKey } from '../../cold/table-keys.ts';
import { isVarveError } from '../../schemas/errors.ts';
import { KIB, MIB } from '../../schemas/limits.ts';
import { COLUMNS, type ColdRow } from '../../schemas/parquet.ts';
import { Child } from '../support/child.ts';
import { chain, cut, GENESIS, idAt, notes, runOf } from '../support/cold-rows.ts';
import { anyDraft } from '../support/events.ts';
import { FaultStore } from '../support/fault-store.ts';
import { keysOf, read, rejects } from '../support/object-store-contract.ts';
import type { ParquetPlan } from '../support/parquet-child.ts';
import { runs } from '../support/property.ts';
import { TempDirectory } from '../support/temp.ts';

const AWKWARD_PLACE = { tenant: 'a/b\u0000"\u{1f600}', model_version: 'NULL' };
/** Doubles and integers at the ends of what is legal, text that breaks parsers. */
const AWKWARD = [
  {
    event_type: 'ModelReplied',
    payload: {
      usage: { input_tokens: 2 ** 53 - 1, output_tokens: 0, cost_usd: 5e-324 },
      model: 'a\u0000b\u001f"\\',
      stop_reason: '',
      duration_ms: 1.797e308,
    },
  },
  { event_type: 'TaskFinished', payload: { status: 'completed', outcome: { reward: -0.1, verifier: '\uffff' } } },
  { event_type: 'ToolResult', payload: { tool_call_id: 'NULL', tool_name: '\u2028', duration_ms: 1e21 } },
];

describe('parquet writer', () => {
  let directory: TempDirectory;
  let scratch: string;
  let duck: DuckDb;
  let store: FaultStore;
  before(async () => {
    directory = new TempDirectory('parquet');
    // DuckDB would take some of it for a pattern.
    scratch = directory.join("it's [s] *?");
    duck = await DuckDb.open({ tempDir: directory.join('spill') });
    store = new FaultStore(await FileStore.open(directory.join('store')));
  });
  after(async () => {
    await duck.close();
    directory[Symbol.dispose]();
  });

  async function write<T>(runs: readonly Run[], use: (file: LocalFile) => Promise<T>): Promise<T> {
    await using writer = await ParquetWriter.open(duck, scratch);
    for (const run of runs) await writer.append(run);
    return await use(await writer.finish());
  }

  it('gives back every row to another reader as it was written, in its order', async () => {
    const runs = [
      runOf(chain(idAt(1), AWKWARD), GENESIS, AWKWARD_PLACE),
      runOf(chain(idAt(2), AWKWARD.toReversed()), GENESIS, AWKWARD_PLACE),
    ];
    await write(runs, async (file) => {
      const rows = await parquetReadObjects({ file: await asyncBufferFromFile(file.path), compressors });
      assert.deepEqual(
        Object.keys(rows[0] ?? {}),
        COLUMNS.map(({ name }) => name),
      );
      assert.deepEqual(
        rows.map(plain),
        runs.flatMap((run) => run.rows),
      );
    });
  });

  it('is proven column by column: what is read back is what was meant, for any events', async () => {
    const anyRuns = fc
      .array(fc.array(anyDraft, { minLength: 1, maxLength: 6 }), { minLength: 1, maxLength: 4 })
      .map((all) => all.map((drafts, n) => runOf(chain(idAt(n), drafts), GENESIS, AWKWARD_PLACE)));
    const check = fc.asyncProperty(anyRuns, (runs) =>
      write(runs, async (file) => {
        await checkRows(duck, file.path, file.expected, 'file');
        assert.deepEqual(parseSegments(formatSegments(file.list), 'list'), file.list);
      }),
    );
    await fc.assert(check, runs(25));
  });

  it('gives the same bytes for the same rows, however they are handed over', async () => {
    const trajectories = Array.from({ length: 30 }, (_, n) => notes(n, 1 + ((n * 97) % 200), 40));
    const cuts = [
      trajectories,
      trajectories,
      trajectories.flatMap((run) => cut(run, 1 + (run.rows.length % 7))),
      trajectories.flatMap((run) => run.rows.flatMap((_, i) => cut(cut(run, i)[1], 1)[0])),
    ];
    const names = new Set<string>();
    for (const runs of cuts) {
      await write(runs, async ({ sha256, path, list }) => {
        assert.equal(hash('sha256', await readFile(path), 'hex'), sha256);
        names.add(`${sha256} ${hash('sha256', formatSegments(list), 'hex')}`);
      });
    }
    assert.equal(names.size, 1);
  });

  it('says in which row groups each segment lies', async () => {
    const runs = Array.from({ length: 12 }, (_, n) => notes(n, 5, 700_000));
    await write(runs, async (file) => {
      const { list } = file;
      assert.ok(list.row_groups.length > 1, 'several groups');
      const metadata = await parquetMetadataAsync(await asyncBufferFromFile(file.path));
      assert.deepEqual(
        metadata.row_groups.map(({ num_rows }) => Number(num_rows)),
        list.row_groups,
      );
      assert.equal(list.footer_start + metadata.metadata_length + 8, list.bytes);
      for (const { trajectory_id, row_groups } of list.segments) {
        const found = await duck.rows(
          `SELECT row_group_id AS id FROM parquet_metadata(${sqlText(file.path)}) WHERE column_id = 0
           AND stats_min_value <= '${trajectory_id}' AND stats_max_value >= '${trajectory_id}' ORDER BY 1`,
        );
        assert.deepEqual([found[0]?.['id'], found.at(-1)?.['id']].map(safeNumber), row_groups);
      }
    });
  });

  it('refuses rows that do not follow each other or are not what their hashes say, and leaves nothing', async () => {
    const [a, b] = [notes(1, 3, 10), notes(2, 3, 10)];
    const [head, tail] = cut(a, 1);
    const second = a.rows[1] as ColdRow;
    const bent = (change: Partial<ColdRow>): Run[] => [
      { ...a, rows: [a.rows[0] as ColdRow, { ...second, ...change }, a.rows[2] as ColdRow] },
    ];
    const cases: Record<string, Run[]> = {
      'a trajectory behind a later one': [b, a],
      'a trajectory twice': [head, b, tail],
      'a gap': [head, cut(tail, 1)[1]],
      'a row twice': [head, head],
      'a start in the middle': [{ previous_hash: GENESIS, rows: tail.rows }],
      'another previous hash': [head, { ...tail, previous_hash: 'f'.repeat(64) }],
      'another payload': bent({ payload: '{"note":"other"}' }),
      'another hash': bent({ cryptographic_hash: 'f'.repeat(64) }),
      'another turn': bent({ turn: 77 }),
      'another partition': bent({ tenant: 'other' }),
    };
    for (const [name, runs] of Object.entries(cases)) {
      await assert.rejects(
        write(runs, async () => {}),
        (error) => isVarveError(error, 'COLD_ROWS_BROKEN'),
        name,
      );
    }
    assert.deepEqual(await readdir(scratch), []);
  });

  it('takes a chain from its middle, stubs with the original hash, and the longest payloads', async () => {
    const events = chain(
      idAt(1),
      [1, 2, 3, 4].map((n) => ({ event_type: 'Noted', payload: { note: `${n}` } })),
    );
    const previous = events[1]?.cryptographic_hash as string;
    const suffix = runOf(events.slice(2), previous);
    const stubbed = suffix.rows.map((row): ColdRow => ({ ...row, payload: '{"note":"stub"}', offloaded: ['/note'] }));
    const long = runOf(chain(idAt(2), [{ event_type: 'Noted', payload: { note: '\\"'.repeat(MIB / 4 - 64 * KIB) } }]));
    await write([{ previous_hash: previous, rows: stubbed }, long], async (file) => {
      await checkRows(duck, file.path, file.expected, 'file');
      const [first] = file.list.segments;
      assert.deepEqual([first?.first_sequence_number, first?.previous_hash], [3, previous]);
    });
  });

  it('keeps a row group within 8 MiB of payloads, however large and small ones are mixed', () => {
    const sizeFor = (payloads: readonly number[]) => {
      const sizer = new RowGroupSizer();
      for (const bytes of payloads) sizer.add(bytes);
      return sizer.size;
    };
    const same = (bytes: number) => sizeFor(Array.from({ length: 20_000 }, () => bytes));
    assert.deepEqual([0, 1, 800, 1600, 4096, MIB, 2 * MIB].map(same), [10_240, 10_240, 10_240, 4096, 2048, 8, 8]);
    assert.equal(sizeFor([]), 10_240);
    // One large payload in a thousand small ones leaves large groups; many in a row do not.
    assert.equal(sizeFor(Array.from({ length: 20_000 }, (_, i) => (i % 1000 === 0 ? MIB : 500))), 4096);
    assert.equal(sizeFor(Array.from({ length: 20_000 }, (_, i) => (i >= 9000 && i < 9016 ? MIB : 500))), 8);
  });

  it('finds the row groups of each segment', () => {
    const segments = [
      [0, 1, 5],
      [5, 6, 10],
      [10, 1, 1],
      [11, 1, 9],
    ].map(([first_row, first_sequence_number, last_sequence_number]) => ({
      first_row,
      first_sequence_number,
      last_sequence_number,
    })) as OpenSegment[];
    assert.deepEqual(
      placeSegments(segments, [6, 4, 10]).map(({ row_groups }) => row_groups),
      [
        [0, 0],
        [0, 1],
        [2, 2],
        [2, 2],
      ],
    );
  });

  it('stays below 512 MiB with 200 MB of rows, small and large', async function () {
    this.timeout(60_000);
    using directory = new TempDirectory('large');
    const small = { trajectories: 120, events: 200, chars: 4000 };
    const large = { trajectories: 12, events: 10, chars: 900_000 };
    const plan: ParquetPlan = { directory: directory.path, shapes: [small, large] };
    await using child = Child.start('parquet-child.ts', plan);
    const [, rows, , , peak] = (await child.line('done ')).split(' ').map(Number);
    assert.equal(rows, 24_120);
    assert.ok(Number(peak) <= 512 * MIB, `${peak} bytes at the peak`);
  });

  describe('read back', () => {
    const rows = [notes(1, 50, 100), notes(2, 50, 100)];

    it('resolves for what was put, and a second put changes nothing', async () => {
      await write(rows, async (file) => {
        await putDataFile(store, file);
        await putDataFile(store, file);
        await readBack(store, duck, file, scratch);
        const keys = await keysOf(store);
        assert.deepEqual(keys, [parquetKey(file.stem), segmentsKey(file.stem)]);
        const sha256 = hash('sha256', await read(store, segmentsKey(file.stem)), 'hex');
        const list = await readSegments(store, file.stem, { sha256, count: 2 });
        assert.deepEqual(list, file.list);
        await rejects(readSegments(store, file.stem, { sha256, count: 3 }), 'COLD_SEGMENTS_INVALID');
        await rejects(readSegments(store, file.stem, { sha256: '0', count: 2 }), 'COLD_SEGMENTS_INVALID');
      });
      assert.deepEqual(await readdir(scratch), [], 'and nothing is left');
    });

    it('refuses a flipped bit and a truncated object, wherever', async () => {
      await write(rows, async (file) => {
        await putDataFile(store, file);
        const { bytes } = file.list;
        for (const at of [0, 4, bytes >> 1, file.list.footer_start + 3, bytes - 6, bytes - 1]) {
          store.inject({ method: 'get', key: /parquet$/, kind: 'flipped', bit: 8 * at + 1 });
          await rejects(readBack(store, duck, file, scratch), 'COLD_FILE_DIFFERS');
          store.inject({ method: 'get', key: /parquet$/, kind: 'cut', afterBytes: at });
          await rejects(readBack(store, duck, file, scratch), 'COLD_FILE_DIFFERS');
        }
        store.inject({ method: 'get', key: /segments$/, kind: 'flipped', bit: 77 });
        await rejects(readBack(store, duck, file, scratch), 'COLD_FILE_DIFFERS');
        assert.equal(store.pending, 0);
      });
      assert.deepEqual(await readdir(scratch), []);
    });

    it('refuses a file that took the name before, with other bytes', async () => {
      const empty: ObjectStore = await FileStore.open(directory.join('other'));
      await write(rows, async (file) => {
        await empty.put(parquetKey(file.stem), Buffer.from('not this'));
        await putDataFile(empty, file);
        await rejects(readBack(empty, duck, file, scratch), 'COLD_FILE_DIFFERS');
      });
    });

    it('does not trust the hash alone: other rows, another order, another value and damage are found', async () => {
      await write(rows, async (file) => {
        const other = directory.join('other.parquet');
        const source = `read_parquet(${sqlText(file.path)})`;
        for (const select of [
          `SELECT * FROM ${source} LIMIT 99`,
          `SELECT * FROM ${source} ORDER BY sequence_number`,
          `SELECT * REPLACE (payload || ' ' AS payload) FROM ${source}`,
          `SELECT * REPLACE (CASE WHEN sequence_number = 7 THEN '' END AS verifier) FROM ${source}`,
          `SELECT * REPLACE (created_at + INTERVAL 1 MILLISECOND AS created_at) FROM ${source}`,
          `SELECT * REPLACE (CAST(NULL AS VARCHAR[]) AS blob_refs) FROM ${source}`,
          `SELECT * EXCLUDE reward FROM ${source}`,
        ]) {
          await duck.run(`COPY (${select}) TO ${sqlText(other)} (FORMAT parquet, COMPRESSION zstd)`);
          await rejects(checkRows(duck, other, file.expected, 'other'), 'COLD_FILE_DIFFERS', select);
        }
        await copyFile(file.path, other);
        await checkRows(duck, other, file.expected, 'other');
        await truncate(other, (await stat(other)).size - 1);
        await assert.rejects(checkRows(duck, other, file.expected, 'other'), isVarveError);
        await using handle = await open(other, 'r+');
        await handle.truncate(3);
        await assert.rejects(checkRows(duck, other, file.expected, 'other'), isVarveError);
      });
    });
  });

  it('reads a list of segments only in its one form', async () => {
    await write([notes(1, 2, 5), notes(2, 2, 5)], async ({ list }) => {
      const bytes = formatSegments(list);
      const text = bytes.toString();
      const swapped: SegmentList = { ...list, segments: list.segments.toReversed() };
      for (const broken of [
        Buffer.from(''),
        bytes.subarray(0, -1),
        Buffer.from(text.slice(0, text.lastIndexOf('\n', text.length - 2) + 1)),
        Buffer.from(text.replace('"format":1', '"format":2')),
        Buffer.from(text.replace('"rows":4', '"rows":5')),
        Buffer.from(text.replace('"row_groups":[4]', '"row_groups":[5]')),
        Buffer.from(`${text}\n`),
        formatSegments(swapped),
      ]) {
        assert.throws(
          () => parseSegments(broken, 'list'),
          (error) => isVarveError(error, 'COLD_SEGMENTS_INVALID'),
          broken.toString(),
        );
      }
    });
  });

  it('runs DuckDB without extensions, within its memory, and names its errors', async () => {
    await using small = await DuckDb.open({ tempDir: directory.join('none'), memoryLimitBytes: 48 * MIB });
    const [settings] = await small.rows(
      `SELECT current_setting('threads') AS threads, current_setting('TimeZone') AS zone,
       current_setting('autoload_known_extensions') AS autoload, 9007199254740993 AS big, [1.5, NULL] AS list`,
    );
    assert.deepEqual(settings, {
      threads: 1n,
      zone: 'UTC',
      autoload: false,
      big: 9007199254740993n,
      list: [1.5, null],
    });
    assert.throws(
      () => safeNumber(9007199254740993n),
      (error) => isVarveError(error, 'COLD_FILE_DIFFERS'),
    );
    await rejects(small.run('SELECT 1 +'), 'COLD_SQL');
    await rejects(small.run("SET memory_limit = '1GB'"), 'COLD_SQL');
    await rejects(small.run("SELECT * FROM read_parquet('/nowhere.parquet')"), 'COLD_FILE_UNREADABLE');
    await rejects(small.run("SELECT * FROM read_parquet('https://example.invalid/x.parquet')"), 'COLD_SQL');
    await rejects(
      small.run('SELECT list(repeat(CAST(i AS VARCHAR), 1000)) FROM range(1000000) t(i)'),
      'COLD_OUT_OF_MEMORY',
    );
    const aborted = AbortSignal.timeout(20);
    const endless = 'SELECT count(*) FROM range(1000000000000) a';
    await rejects(small.run(endless, { signal: aborted }), 'ABORTED');
    let seen = 0;
    for await (const block of small.blocks('SELECT * FROM range(5000)')) seen += block.length;
    assert.equal(seen, 5000);
    await small.close();
    await small.close();
    await rejects(small.run('SELECT 1'), 'COLD_CLOSED');
  });

  /** A row as hyparquet gives it, in our terms. */
  function plain(row: Record<string, unknown>): unknown {
    const entries = Object.entries(row).map(([name, value]) => {
      if (typeof value === 'bigint') return [name, Number(value)];
      if (value instanceof Date)
        return [name, name === 'date' ? value.toISOString().slice(0, 10) : value.toISOString()];
      return [name, value ?? null];
    });
    return Object.fromEntries(entries);
  }
});
