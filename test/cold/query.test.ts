import assert from 'node:assert/strict';
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { DuckDb, sqlText } from '../../cold/duckdb.ts';
import { jsonOf } from '../../cold/duckdb-cells.ts';
import { FileStore } from '../../cold/file-store.ts';
import type { ObjectStore } from '../../cold/object-store.ts';
import { ColdQuery, type ColdQueryOptions } from '../../cold/query.ts';
import { VIEW_NAMES, VIEWS } from '../../cold/query-sql.ts';
import { isVarveError } from '../../schemas/errors.ts';
import { AWKWARD, DAY_AFTER_MS, makeTable, noted, session } from '../support/cold-query.ts';
import { chain, cut, idAt, notes, PLACE, runOf } from '../support/cold-rows.ts';
import type { ColdTable } from '../support/cold-table.ts';
import { rejects } from '../support/object-store-contract.ts';
import { openBucket } from '../support/s3-place.ts';
import { S3Server } from '../support/s3-server.ts';
import { TempDirectory } from '../support/temp.ts';

const CACHE_BYTES = 1 << 30;

/** A place to keep tables, and how to get rid of an object behind the log's back. */
type Place = {
  readonly open: (name: string) => Promise<ObjectStore>;
  readonly dispose: () => Promise<void>;
};

const PLACES: Readonly<Record<string, (directory: TempDirectory) => Promise<Place>>> = {
  // Brackets and stars: DuckDB would take them for a pattern.
  'a folder': async (directory) => ({
    open: (name) => FileStore.open(directory.join(`it's [1] *`, name)),
    dispose: async () => {},
  }),
  S3: async () => {
    const server = await S3Server.start();
    const { endpoint, bucket, keys } = server;
    return {
      open: (name) => openBucket({ endpoint, bucket, keys }, name),
      dispose: async () => await server[Symbol.asyncDispose](),
    };
  },
};

for (const [name, makePlace] of Object.entries(PLACES)) {
  describe(`a query over ${name}`, () => {
    let directory: TempDirectory;
    let place: Place;
    let store: ObjectStore;
    let table: ColdTable & AsyncDisposable;
    let tables = 0;

    before(async () => {
      directory = new TempDirectory('query');
      place = await makePlace(directory);
    });

    beforeEach(async () => {
      store = await place.open(`table-${++tables}`);
      table = await makeTable(store, directory.path);
    });

    afterEach(async () => {
      await table[Symbol.asyncDispose]();
      await store.close();
    });

    after(async () => {
      await place.dispose();
      directory[Symbol.dispose]();
    });

    function open(options: Partial<ColdQueryOptions> = {}): Promise<ColdQuery> {
      return ColdQuery.open(store, { cacheDirectory: directory.join('cache'), cacheBytes: CACHE_BYTES, ...options });
    }

    /** Rows as lists of JSON texts. */
    async function ask(sql: string, options: Partial<ColdQueryOptions> = {}): Promise<string[]> {
      await using query = await open(options);
      return await rowsOf(query, sql);
    }

    it('sees every event with the values that were written, whatever the partitions are called', async () => {
      const files = AWKWARD.map((text, i) => [
        noted(i + 1, { text }, { tenant: text, model_version: AWKWARD[AWKWARD.length - 1 - i] as string }),
      ]);
      await table.addFiles(...files);
      const rows = await ask(
        `SELECT payload->>'$.text' AS text, tenant, model_version FROM events ORDER BY trajectory_id`,
      );
      assert.deepEqual(
        rows.map((row) => JSON.parse(row) as unknown),
        AWKWARD.map((text, i) => [text, text, AWKWARD[AWKWARD.length - 1 - i]]),
      );
      assert.deepEqual(await ask('SELECT DISTINCT typeof(tenant), typeof(model_version), typeof(date) FROM events'), [
        '["VARCHAR","VARCHAR","DATE"]',
      ]);
    });

    it('has columns of the same types, also where the first file has nothing in them', async () => {
      await table.add(noted(1, {}));
      await table.add(session(2, 0.5));
      assert.deepEqual(await ask('SELECT sum(reward), max(tool_name), sum(input_tokens) FROM events'), [
        '[0.5,null,7]',
      ]);
      await using query = await open();
      for (const view of VIEW_NAMES) assert.deepEqual(await shapeOf(query, view), emptyShapeOf(view), view);
    });

    it('over a table without files has empty views of the right types', async () => {
      await using query = await open();
      for (const view of VIEW_NAMES) {
        assert.deepEqual(await shapeOf(query, view), emptyShapeOf(view), view);
        assert.deepEqual(await rowsOf(query, `SELECT * FROM ${view}`), []);
      }
      assert.deepEqual(await rowsOf(query, 'SELECT count(*) FROM events'), ['[0]']);
    });

    it('reads what the table log names: no orphans, no removed files', async () => {
      await table.add(session(1, 1));
      await table.add(session(2, 2));
      const [first, second] = [...(await table.log.snapshot()).files.values()];
      assert.ok(first !== undefined && second !== undefined);
      const orphan = `${dirname(`events/${first.add.path}`)}/${'0'.repeat(64)}.parquet`;
      await store.put(orphan, await bytesOf(store, `events/${first.add.path}`));
      const run = { id: 'expire', step: 1 };
      await table.log.commit({ run, operation: 'EXPIRE', adds: [], removes: [second.add.path] });
      assert.deepEqual(await ask('SELECT trajectory_id, count(*) FROM events GROUP BY 1'), [`["${idAt(1)}",3]`]);
      assert.deepEqual(await ask('SELECT trajectory_id FROM trajectories'), [`["${idAt(1)}"]`]);
    });

    it('sees the table as it was at a version and at a time', async () => {
      await table.add(session(1, 1));
      const { timestampMs } = await table.log.snapshot();
      await table.add(session(2, 2));
      const count = 'SELECT count(*) FROM trajectories';
      for (const at of [{ version: 1 }, { timeMs: timestampMs }]) assert.deepEqual(await ask(count, { at }), ['[1]']);
      assert.deepEqual(await ask(count, { at: { version: 0 } }), ['[0]']);
      assert.deepEqual(await ask(count), ['[2]']);
      for (const at of [{ version: 9 }, { timeMs: 1 }]) await rejects(open({ at }), 'COLD_NO_VERSION');
    });

    it('of a version whose file is gone fails and names the file', async () => {
      await table.add(session(1, 1));
      await table.add(session(2, 2));
      const [gone] = [...(await table.log.snapshot()).files.values()];
      const key = `events/${gone?.add.path}`;
      await store.delete(key);
      const cacheDirectory = directory.join('an [empty] cache');
      await assert.rejects(ask('SELECT count(*) FROM events', { cacheDirectory }), (error) => {
        assert.ok(isVarveError(error, 'STORE_MISSING') && error.message.includes(key), String(error));
        return true;
      });
      assert.deepEqual(await ask('SELECT count(*) FROM trajectories', { cacheDirectory }), ['[2]']);
    });

    it('counts of a trajectory in several segments the last one', async () => {
      const whole = runOf(
        chain(idAt(1), [
          { event_type: 'TaskStarted', payload: { agent: 'a' } },
          { event_type: 'ModelReplied', payload: { content: 'x', usage: { output_tokens: 5 } } },
          { event_type: 'TaskFinished', payload: { status: 'failed' } },
        ]),
      );
      const [early, late] = cut(whole, 2);
      await table.add(early, session(2, 1));
      await table.add(late);
      assert.deepEqual(
        await ask('SELECT status, last_sequence_number, output_tokens FROM trajectories ORDER BY trajectory_id'),
        ['["failed",3,5]', '["completed",3,3]'],
      );
      assert.deepEqual(await ask(`SELECT status FROM trajectories WHERE status = 'running'`), []);
    });

    it('with a filter reads the files that it lets through, and no others', async () => {
      const other = { tenant: 'a/b', model_version: 'm-1' };
      await table.addFiles([session(1, 1)], [session(2, 2, other)], [session(3, 3, PLACE, DAY_AFTER_MS)]);
      const rewards = 'SELECT reward FROM trajectories ORDER BY 1';
      const cases: [ColdQueryOptions['filter'], string[], number][] = [
        [{}, ['[1]', '[2]', '[3]'], 3],
        [{ tenant: 'a/b' }, ['[2]'], 1],
        [{ tenant: 'a' }, [], 0],
        [{ from: '2024-12-02' }, ['[3]'], 1],
        [{ to: '2024-12-01' }, ['[1]', '[2]'], 2],
        [{ from: '2024-12-01', to: '2024-12-01', tenant: 'default' }, ['[1]'], 1],
      ];
      for (const [filter, rows, files] of cases) {
        await using query = await open({ filter });
        assert.deepEqual(await rowsOf(query, rewards), rows, JSON.stringify(filter));
        assert.equal(query.files.events.length, files);
      }
    });

    it('emits a script with which a plain DuckDB has the same rows', async () => {
      await table.addFiles([session(1, 1)], [session(2, 2, { tenant: 'ü[*]', model_version: '007' })]);
      await table.add(noted(3, { text: "it's" }));
      await using query = await open();
      const script = await localScript(query.script());
      await using plain = await DuckDb.open({ tempDir: directory.join('plain') });
      await plain.run(script);
      for (const view of VIEW_NAMES) {
        const sql = `SELECT * FROM ${view} ORDER BY ALL`;
        assert.deepEqual(await plainRows(plain, sql), await rowsOf(query, sql), view);
      }
    });

    /** The same script over copies, where its locations are no local files. */
    async function localScript(script: string): Promise<string> {
      if (!script.includes(store.url)) return script;
      for (const prefix of ['events/tenant=', 'trajectories/', 'imports/']) {
        for await (const { key } of store.list(prefix)) {
          const path = directory.join('copies', key);
          mkdirSync(dirname(path), { recursive: true });
          writeFileSync(path, await bytesOf(store, key));
        }
      }
      return script.replaceAll(store.url, `${directory.join('copies')}/`);
    }

    it('may read its views and nothing else, and write nothing', async () => {
      await table.add(session(1, 1));
      const secret = directory.join('secret.csv');
      writeFileSync(secret, 'a\n1\n');
      await using query = await open({ outputs: [directory.join('out.parquet')] });
      await rowsOf(query, 'SELECT * FROM events');
      const [file] = query.locations().events;
      const target = sqlText(file?.startsWith('/') === true ? file : join(directory.path, 'out.parquet'));
      for (const sql of [
        `SELECT * FROM ${sqlText(secret)}`,
        `SELECT * FROM read_text(${sqlText(secret)})`,
        `SELECT * FROM glob('/*')`,
        `COPY (SELECT 1) TO ${target}`,
        `COPY (SELECT 1) TO ${target} (FORMAT parquet, USE_TMP_FILE false)`,
        `EXPLAIN ANALYZE COPY (SELECT 1) TO ${target} (FORMAT parquet, USE_TMP_FILE false)`,
        `explain  analyze /* x */ COPY (SELECT 1) TO ${target} (FORMAT parquet, USE_TMP_FILE false)`,
        `ATTACH ${sqlText(directory.join('db'))}`,
        'INSTALL httpfs',
        'SET enable_external_access = true',
        'CREATE TABLE x (a INTEGER)',
        'CREATE OR REPLACE VIEW events AS SELECT 1',
        'DROP VIEW events',
        'SELECT 1; SELECT 2',
        'SELECT 1; DROP VIEW events',
        '',
        '-- nothing',
      ]) {
        await rejects(rowsOf(query, sql), 'COLD_QUERY_REFUSED');
      }
      assert.deepEqual(await rowsOf(query, 'SELECT count(*) FROM events'), ['[3]']);
    });

    it('takes every kind of statement that reads', async () => {
      await table.add(session(1, 1));
      await using query = await open();
      for (const sql of [
        'FROM events',
        'WITH e AS (SELECT * FROM events) SELECT count(*) FROM e;',
        'TABLE trajectories',
        'DESCRIBE events',
        'SUMMARIZE trajectories',
        'SHOW TABLES',
        'VALUES (1)',
        'EXPLAIN SELECT * FROM events',
        'EXPLAIN ANALYZE SELECT count(*) FROM "EVENTS"; -- how',
        "PIVOT events ON event_type IN ('TaskStarted') USING count(*) GROUP BY tenant",
      ]) {
        assert.ok((await rowsOf(query, sql)).length > 0, sql);
      }
    });

    it("says what DuckDB says against a user's SQL, and goes on with the next one", async () => {
      await table.add(noted(1, { text: 'no number' }));
      await using query = await open();
      for (const [sql, words] of [
        ['SELEC 1', /syntax error at or near "SELEC"/],
        ['SELECT nothing FROM events', /"nothing" not found/],
        ["SELECT CAST(payload->>'$.text' AS INTEGER) FROM events", /Could not convert string 'no number'/],
      ] as const) {
        await assert.rejects(rowsOf(query, sql), (error) => {
          assert.ok(isVarveError(error, 'COLD_QUERY_REFUSED') && words.test(error.message), String(error));
          return true;
        });
      }
      assert.deepEqual(await rowsOf(query, 'SELECT 1'), ['[1]']);
    });

    it('ends when it is aborted', async () => {
      await table.add(session(1, 1));
      await using query = await open();
      const slow = 'SELECT sum(hash(a.range + b.range)) FROM events, range(100000) a, range(1000000) b';
      await rejects(rowsOf(query, slow, AbortSignal.timeout(200)), 'ABORTED');
      assert.deepEqual(await rowsOf(query, 'SELECT count(*) FROM events'), ['[3]']);
    });

    it('spills what does not fit into memory, and leaves nothing behind', async () => {
      await table.add(session(1, 1));
      const cacheDirectory = directory.join('spills');
      const query = await open({ cacheDirectory, memoryLimitBytes: 64 << 20 });
      const sql = `SELECT max(t) FROM (SELECT t, row_number() OVER (ORDER BY hash(t)) FROM
        (SELECT trajectory_id || repeat('x', 200) || range AS t FROM trajectories, range(500000)))`;
      assert.equal((await rowsOf(query, sql)).length, 1);
      await query.close();
      assert.deepEqual(readdirSync(join(cacheDirectory, 'users')), []);
    });

    it('exports Parquet in the order of the query', async () => {
      await table.addFiles([session(1, 1)], [session(2, 2, { tenant: 't', model_version: 'm' })]);
      const path = directory.join('export.parquet');
      await using query = await open({ outputs: [path] });
      const sql = "SELECT *, ';' AS t FROM events ORDER BY trajectory_id DESC, sequence_number; -- all";
      assert.equal(await query.copy(sql, path, 'zstd'), 6);
      await using plain = await DuckDb.open({ tempDir: directory.join('plain') });
      assert.deepEqual(await plainRows(plain, `FROM ${sqlText(path)}`), await rowsOf(query, sql));
      rmSync(path);
    });
  });
}

describe('a query', () => {
  it('without a table says so, and makes nothing', async () => {
    using directory = new TempDirectory('query-none');
    const store = await FileStore.open(directory.join('none'), { readOnly: true });
    const options = { cacheDirectory: directory.join('cache'), cacheBytes: CACHE_BYTES };
    await rejects(ColdQuery.open(store, options), 'COLD_NO_TABLE');
    assert.deepEqual(readdirSync(directory.path), ['cache']);
  });

  it('shows every value whole: digits, U+0000, times, nested ones', async () => {
    using directory = new TempDirectory('query-values');
    const store = await FileStore.open(directory.join('store'));
    await using table = await makeTable(store, directory.path);
    await table.add(noted(1, { text: 'a\u0000"\n,é🦆' }));
    await using query = await ColdQuery.open(store, { cacheDirectory: directory.join('c'), cacheBytes: CACHE_BYTES });
    const cases: [sql: string, json: string][] = [
      ["payload->>'$.text'", JSON.stringify('a\u0000"\n,é🦆')],
      ['9007199254740993', '9007199254740993'],
      ['sum(9007199254740993) OVER ()', '9007199254740993'],
      ['170141183460469231731687303715884105727::HUGEINT', '170141183460469231731687303715884105727'],
      ['1.10::DECIMAL(5,2)', '1.10'],
      ['0.1 + 0.2::DOUBLE', '0.30000000000000004'],
      ["'-0.0'::DOUBLE", '-0.0'],
      ["'NaN'::DOUBLE", '"NaN"'],
      ["'-inf'::DOUBLE", '"-Infinity"'],
      ['created_at', '"2024-12-01T00:00:01.000Z"'],
      ["'2024-01-31 23:59:59.123456+02'::TIMESTAMPTZ", '"2024-01-31T21:59:59.123456Z"'],
      ["'1969-12-31 23:59:59.999999'::TIMESTAMP", '"1969-12-31T23:59:59.999999"'],
      ["'2024-01-31 01:02:03.123456789'::TIMESTAMP_NS", '"2024-01-31T01:02:03.123456789"'],
      ["'infinity'::TIMESTAMPTZ", '"infinity"'],
      ['date', '"2024-12-01"'],
      ['true', 'true'],
      ["''", '""'],
      ["'NULL'", '"NULL"'],
      ['NULL', 'null'],
      ['[1, NULL, 9007199254740993]', '[1,null,9007199254740993]'],
      ["{'a': 'x', 'b': {'c': [1.5]}}", '{"a":"x","b":{"c":[1.5]}}'],
      ["MAP {'k': 1}", '[{"key":"k","value":1}]'],
      ["'a\\x00'::BLOB", JSON.stringify('a\\x00')],
    ];
    for (const [sql, json] of cases)
      assert.deepEqual(await rowsOf(query, `SELECT ${sql} FROM events`), [`[${json}]`], sql);
  });

  it('keeps columns of the same name apart', async () => {
    using directory = new TempDirectory('query-names');
    const store = await FileStore.open(directory.join('store'));
    await using table = await makeTable(store, directory.path);
    await table.add(noted(1, {}));
    await using query = await ColdQuery.open(store, { cacheDirectory: directory.join('c'), cacheBytes: CACHE_BYTES });
    for await (const { columns } of query.run('SELECT 1 AS a, 2 AS a')) {
      assert.equal(new Set(columns.map(({ name }) => name)).size, 2);
    }
  });

  it('names a file that goes between two queries, and does not go on without it', async () => {
    using directory = new TempDirectory('query-gone');
    const store = await FileStore.open(directory.join('store'));
    await using table = await makeTable(store, directory.path);
    await table.add(session(1, 1));
    await table.add(session(2, 2));
    await using query = await ColdQuery.open(store, { cacheDirectory: directory.join('c'), cacheBytes: CACHE_BYTES });
    assert.deepEqual(await rowsOf(query, 'SELECT count(*) FROM events'), ['[6]']);
    rmSync(query.locations().events[1] as string);
    await rejects(rowsOf(query, 'SELECT count(*) FROM events'), 'STORE_MISSING');
    await rejects(rowsOf(query, 'SELECT count(DISTINCT payload) FROM events'), 'STORE_MISSING');
  });

  it('of a file that became shorter says so', async () => {
    using directory = new TempDirectory('query-short');
    const store = await FileStore.open(directory.join('store'));
    await using table = await makeTable(store, directory.path);
    await table.add(session(1, 1));
    await using query = await ColdQuery.open(store, { cacheDirectory: directory.join('c'), cacheBytes: CACHE_BYTES });
    writeFileSync(query.locations().events[0] as string, 'short');
    await rejects(rowsOf(query, 'SELECT count(*) FROM events'), 'COLD_FILE_DIFFERS');
  });

  it('fetches from S3 the files of the views that it names, once', async () => {
    using directory = new TempDirectory('query-s3');
    await using server = await S3Server.start();
    await using store = await openBucket(server, 'x');
    await using table = await makeTable(store, directory.path);
    await table.add(session(1, 1));
    const options = { cacheDirectory: directory.join('c'), cacheBytes: CACHE_BYTES };
    const gets = () => server.log.filter((line) => /^GET x\/.*\/tenant=.*parquet/.test(line)).length;
    const before = gets();
    for (let i = 0; i < 2; i++) {
      await using query = await ColdQuery.open(store, options);
      assert.deepEqual(await rowsOf(query, 'SELECT reward FROM trajectories'), ['[1]']);
    }
    assert.equal(gets() - before, 1);
    await using query = await ColdQuery.open(store, options);
    // A name that is put together while the query runs is not seen: that is an error, and not an empty view.
    await rejects(rowsOf(query, "SELECT * FROM query_table('eve' || 'nts')"), 'COLD_QUERY_REFUSED');
    await rowsOf(query, 'SELECT * FROM Events, trajectories');
    assert.equal(gets() - before, 2);
    await rejects(
      ColdQuery.open(store, { ...options, cacheBytes: 10 }).then(async (small) => {
        await using query = small;
        return await rowsOf(query, 'SELECT * FROM events');
      }),
      'COLD_CACHE_TOO_SMALL',
    );
  });

  it('exports payloads that are larger together than its memory', async () => {
    using directory = new TempDirectory('query-large');
    const store = await FileStore.open(directory.join('store'));
    await using table = await makeTable(store, directory.path);
    await table.add(...Array.from({ length: 5 }, (_, i) => notes(i + 1, 40, 900 * 1024)));
    const path = directory.join('large.parquet');
    const memory = { memoryLimitBytes: 128 << 20, threads: 1 };
    const options = { cacheDirectory: directory.join('c'), cacheBytes: CACHE_BYTES, outputs: [path], ...memory };
    await using query = await ColdQuery.open(store, options);
    assert.equal(await query.copy('FROM events', path, 'zstd'), 200);
  });

  it('leaves the files of the store as they are', async () => {
    using directory = new TempDirectory('query-files');
    const store = await FileStore.open(directory.join('store'));
    await using table = await makeTable(store, directory.path);
    await table.add(session(1, 1));
    const root = fileURLToPath(store.url);
    const before = treeOf(root);
    await using query = await ColdQuery.open(store, { cacheDirectory: directory.join('c'), cacheBytes: CACHE_BYTES });
    await rowsOf(query, 'SELECT * FROM events JOIN trajectories USING (trajectory_id)');
    assert.deepEqual(treeOf(root), before);
  });
});

async function rowsOf(query: ColdQuery, sql: string, signal?: AbortSignal): Promise<string[]> {
  const rows: string[] = [];
  for await (const block of query.run(sql, { signal })) {
    for (const cells of block.cells()) rows.push(`[${cells.map(jsonOf).join(',')}]`);
  }
  return rows;
}

async function plainRows(duck: DuckDb, sql: string): Promise<string[]> {
  const rows: string[] = [];
  for await (const block of duck.cellBlocks(sql)) {
    for (const cells of block.cells()) rows.push(`[${cells.map(jsonOf).join(',')}]`);
  }
  return rows;
}

/** Names and types. */
async function shapeOf(query: ColdQuery, view: string): Promise<unknown> {
  for await (const { columns } of query.run(`SELECT * FROM ${view}`)) return columns;
  return undefined;
}

function emptyShapeOf(view: keyof typeof VIEWS): unknown {
  const types = {
    string: 'VARCHAR',
    long: 'BIGINT',
    integer: 'INTEGER',
    double: 'DOUBLE',
    boolean: 'BOOLEAN',
    timestamp: 'TIMESTAMP WITH TIME ZONE',
    date: 'DATE',
    strings: 'VARCHAR[]',
  } as const;
  return VIEWS[view].map(({ name, type }) => ({ name, type: types[type] }));
}

async function bytesOf(store: ObjectStore, key: string): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of store.get(key)) chunks.push(chunk);
  return Buffer.concat(chunks);
}

function treeOf(root: string): string[] {
  return readdirSync(root, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name))
    .toSorted()
    .map((path) => `${path} ${readFileSync(path).toString('base64')}`);
}
