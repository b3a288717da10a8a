/** `varve query`: what a researcher types, and what comes out. */
import assert from 'node:assert/strict';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DuckDb, sqlText } from '../../cold/duckdb.ts';
import { FileStore } from '../../cold/file-store.ts';
import { runVarve, varve } from '../support/cli.ts';
import { AWKWARD, DAY_AFTER_MS, makeTable, noted, session } from '../support/cold-query.ts';
import { chain, idAt, PLACE, runOf } from '../support/cold-rows.ts';
import { TempDirectory } from '../support/temp.ts';

type ParquetLite = {
  readonly ParquetReader: {
    openFile(path: string): Promise<{
      getCursor(): { next(): Promise<Record<string, unknown> | null> };
      close(): Promise<void>;
    }>;
  };
};

const TEXT = 'a\u0000"\n,é🦆 \u001b[31m';

describe('varve query', () => {
  let directory: TempDirectory;
  let config: string;
  let root: string;

  before(async () => {
    directory = new TempDirectory('query-cli');
    root = directory.join('cold');
    const store = await FileStore.open(root);
    await using table = await makeTable(store, directory.path);
    await table.addFiles([session(1, 0.25)], [session(2, 2, PLACE, DAY_AFTER_MS)]);
    const drafts = [
      { event_type: 'Noted', payload: { text: TEXT, empty: '' } },
      { event_type: 'ModelReplied', payload: { content: 'x', usage: { input_tokens: Number.MAX_SAFE_INTEGER } } },
    ];
    await table.add(runOf(chain(idAt(3), drafts), undefined, { tenant: 'a/b', model_version: '4.10' }));
    config = configOf('varve.json', root);
  });

  after(() => directory[Symbol.dispose]());

  function configOf(name: string, store: string): string {
    const path = directory.join(name);
    const cold = { store: `file:${store}`, cacheDirectory: directory.join('cache'), queryThreads: 1 };
    writeFileSync(path, JSON.stringify({ cold }));
    return path;
  }

  async function ask(...args: string[]): Promise<string> {
    const { stdout, stderr, code } = await varve('query', ...args, '--config', config);
    assert.equal(code, 0, stderr);
    return stdout;
  }

  const OF_THREE = `FROM events WHERE tenant = 'a/b' ORDER BY sequence_number`;

  it('shows a table, with every row, or says how many are left out', async () => {
    const rewards = 'SELECT tenant, reward FROM trajectories ORDER BY reward';
    assert.equal(
      await ask(rewards),
      'tenant   reward\n───────  ──────\ndefault    0.25\ndefault       2\na/b        NULL\n(3 rows)\n',
    );
    assert.match(await ask(rewards, '--limit', '1'), /default {4}0\.25\n… 1 of 3 rows; --limit 0 shows all\n$/);
    const many = await ask('SELECT range AS n FROM range(5230)');
    assert.ok(many.endsWith('999\n… 1,000 of 5,230 rows; --limit 0 shows all\n'));
    assert.ok((await ask('SELECT range AS n FROM range(5230)', '--limit', '0')).endsWith('5229\n(5,230 rows)\n'));
    assert.match(
      await ask('SELECT range FROM range(3000000)', '--limit', '10'),
      /… 10 of over 1,000,010 rows; --limit 0 shows all\n$/,
    );
    assert.equal(await ask('SELECT 1 AS n WHERE false'), 'n\n─\n(0 rows)\n');
  });

  it('in a table wraps what is wide, cuts nothing, and lets no payload steer the terminal', async () => {
    const wide = await ask(`SELECT 1 AS n, repeat('0123456789', 50) AS t`);
    assert.equal(wide.replaceAll(/[^0-9]/g, '').length, 1 + 500 + 1);
    assert.ok(wide.split('\n').every((line) => line.length <= 120));
    const shown = await ask(`SELECT payload->>'$.text' AS t, payload->>'$.empty' AS e, tool_name ${OF_THREE} LIMIT 1`);
    assert.ok(!shown.includes('\u001b') && !shown.includes('\u0000'));
    assert.ok(shown.includes('a\\u0000"') && shown.includes('\\u001b[31m'));
    assert.match(shown, /""\s+NULL/);
    // All columns of an event are too many for a line: each has one of its own.
    const records = await ask(`SELECT * ${OF_THREE}`);
    assert.match(records, /── 1 ──\ntrajectory_id/);
    assert.match(records, /── 2 ──\n/);
    assert.ok(records.split('\n').every((line) => line.length <= 120));
  });

  it('gives JSON with all digits and every character, NULL as null', async () => {
    const columns = `payload->>'$.text' AS text, payload->>'$.empty' AS empty, 9007199254740993 AS big, input_tokens, created_at`;
    const json = await ask(`SELECT ${columns} ${OF_THREE}`, '--json');
    const [first, second] = JSON.parse(json) as Record<string, unknown>[];
    assert.deepEqual([first?.['text'], first?.['empty'], first?.['input_tokens']], [TEXT, '', null]);
    assert.deepEqual([second?.['text'], second?.['empty']], [null, null]);
    assert.match(
      json,
      /"big":9007199254740993,"input_tokens":9007199254740991,"created_at":"2024-12-01T00:00:02.000Z"/,
    );
    const lines = (await ask(`SELECT ${columns} ${OF_THREE}`, '--format', 'jsonl')).trimEnd().split('\n');
    assert.deepEqual(
      lines.map((line) => JSON.parse(line) as unknown),
      [first, second],
    );
    assert.equal(await ask('SELECT 1 AS n WHERE false', '--json'), '[\n]\n');
  });

  it('gives CSV that DuckDB reads back as it was', async () => {
    const sql = `SELECT sequence_number + 9007199254740993 AS big, payload->>'$.text' AS t, payload->>'$.empty' AS "e,""x", tool_name AS none ${OF_THREE}`;
    const path = directory.join('rows.csv');
    await ask(sql, '--out', path);
    await using duck = await DuckDb.open({ tempDir: directory.join('duck') });
    const types = "{'big': 'BIGINT', 't': 'VARCHAR', 'e,\"x': 'VARCHAR', 'none': 'VARCHAR'}";
    const rows = await duck.rows(
      `FROM read_csv(${sqlText(path)}, header = true, auto_detect = false, delim = ',', quote = '"', escape = '"', new_line = '\\n', allow_quoted_nulls = false, columns = ${types})`,
    );
    assert.deepEqual(
      rows.map((row) => Object.values(row)),
      [
        [9007199254740994n, TEXT, '', null],
        [9007199254740995n, null, null, null],
      ],
    );
    assert.match(readFileSync(path, 'utf8'), /^big,t,"e,""x",none\n/);
  });

  it('exports Parquet that parquetjs-lite reads, in snappy and gzip', async () => {
    const { ParquetReader } = createRequire(import.meta.url)('parquetjs-lite') as ParquetLite;
    for (const compression of ['snappy', 'gzip']) {
      const path = directory.join(`${compression}.parquet`);
      await ask(
        `SELECT trajectory_id, sequence_number, tenant, reward, payload, created_at, tool_name FROM events ORDER BY 1, 2`,
        '--out',
        path,
        '--compression',
        compression,
      );
      const reader = await ParquetReader.openFile(path);
      const cursor = reader.getCursor();
      const rows: Record<string, unknown>[] = [];
      for (let row = await cursor.next(); row !== null; row = await cursor.next()) rows.push(row);
      await reader.close();
      assert.equal(rows.length, 8);
      const rewards = rows.map((row) => row['reward']).filter((reward) => reward !== undefined && reward !== null);
      assert.deepEqual(rewards, [0.25, 2]);
      const awkward = rows.find((row) => row['tenant'] === 'a/b');
      assert.equal((JSON.parse(String(awkward?.['payload'])) as { text: string }).text, TEXT);
      assert.equal(Number(awkward?.['sequence_number']), 1);
    }
  });

  it('writes over nothing, unless told so, and leaves no half of a file', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'varve-out-'));
    try {
      const path = join(folder, 'x.jsonl');
      await ask('SELECT 1 AS n', '--out', path);
      const taken = await varve('query', 'SELECT 2 AS n', '--out', path, '--config', config);
      assert.equal(taken.code, 2);
      assert.match(taken.stderr, /--force/);
      assert.equal(readFileSync(path, 'utf8'), '{"n":1}\n');
      const failed = await varve('query', "SELECT error('no')", '--out', path, '--force', '--config', config);
      assert.equal(failed.code, 2);
      assert.equal(readFileSync(path, 'utf8'), '{"n":1}\n');
      await ask('SELECT 2 AS n', '--out', path, '--force');
      assert.equal(readFileSync(path, 'utf8'), '{"n":2}\n');
      const parquet = await varve(
        'query',
        "SELECT error('no')",
        '--out',
        join(folder, 'y.parquet'),
        '--config',
        config,
      );
      assert.equal(parquet.code, 2);
      assert.deepEqual(readdirSync(folder), ['x.jsonl']);
      assert.equal(
        (await varve('query', 'SELECT 1', '--out', join(folder, 'no', 'x.csv'), '--config', config)).code,
        2,
      );
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  it('takes SQL from a file and from standard input, as a process', async () => {
    const file = directory.join('q.sql');
    writeFileSync(file, '-- how many\nSELECT count(*) AS n FROM events;\n');
    assert.equal(await ask('--file', file, '--format', 'csv'), 'n\n8\n');
    const run = (args: string[], input?: string) =>
      runVarve(['query', ...args, '--config', config], {
        cwd: directory.path,
        ...(input === undefined ? {} : { input }),
      });
    assert.deepEqual(await run(['-', '--format', 'csv'], 'SELECT max(reward) AS r FROM trajectories'), {
      code: 0,
      stdout: 'r\n2\n',
      stderr: '',
    });
    const wrong = await run(['SELECT nothing FROM events']);
    assert.equal(wrong.code, 2);
    assert.match(wrong.stderr, /Binder Error: Referenced column "nothing" not found[\s\S]*LINE 1: SELECT nothing/);
    assert.equal(wrong.stdout, '');
  });

  it('lists the exact files, and filters them by tenant and day', async () => {
    type Listed = { view: string; location: string; bytes: number | null; rows: number | null; tenant: string };
    const list = async (...flags: string[]) =>
      JSON.parse(await ask('--files', '--json', ...flags)) as { version: number; files: Listed[] };
    const { version, files } = await list();
    assert.equal(version, 2);
    const events = files.filter(({ view }) => view === 'events');
    assert.deepEqual([events.length, files.length], [3, 6]);
    assert.ok(files.every(({ location }) => location.startsWith(root) && existsSync(location)));
    assert.equal(
      events.reduce((sum, { rows }) => sum + (rows ?? 0), 0),
      8,
    );
    assert.deepEqual((await list('--at', '1')).files.length, 4);
    assert.deepEqual(
      (await list('--tenant', 'a/b')).files.map(({ tenant }) => tenant),
      ['a/b', 'a/b'],
    );
    assert.equal((await list('--from', '2024-12-02', '--to', '2024-12-02')).files.length, 2);
    const text = await ask('--files');
    assert.deepEqual(
      text
        .trimEnd()
        .split('\n')
        .map((line) => line.split('\t')[1]),
      files.map(({ location }) => location),
    );
    assert.equal(await ask('SELECT count(*) AS n FROM events', '--tenant', 'a/b', '--format', 'csv'), 'n\n2\n');
  });

  it('emits a script that a plain DuckDB runs', async () => {
    const path = directory.join('views.sql');
    await ask('--emit-sql', path, '--at', '1');
    assert.equal((await varve('query', '--emit-sql', path, '--config', config)).code, 2);
    await using duck = await DuckDb.open({ tempDir: directory.join('duck') });
    await duck.run(readFileSync(path, 'utf8'));
    assert.deepEqual(await duck.rows('SELECT count(*) AS n FROM events'), [{ n: 6n }]);
    await duck.run(await ask('--emit-sql', '-'));
    assert.deepEqual(await duck.rows('SELECT count(*) AS n FROM events'), [{ n: 8n }]);
  });

  it('says what the columns hold, without a store', async () => {
    const shown = await varve('query', '--schema');
    assert.match(shown.stdout, /^events +type +meaning$/m);
    assert.match(shown.stdout, /^reward +double +TaskFinished/m);
    const views = JSON.parse((await varve('query', '--schema', '--json')).stdout) as Record<string, unknown[]>;
    assert.deepEqual(Object.keys(views), ['events', 'trajectories', 'imports', 'annotations']);
  });

  it('without a table says what to do', async () => {
    const nowhere = configOf('nowhere.json', directory.join('nowhere'));
    const { code, stderr } = await varve('query', 'SELECT 1', '--config', nowhere);
    assert.equal(code, 2);
    assert.match(stderr, /no table .*cold\.store.*\[COLD_NO_TABLE\]/);
    assert.ok(!existsSync(directory.join('nowhere')));
  });

  it('refuses options that do not go together', async () => {
    for (const args of [
      [],
      ['SELECT 1', '--files'],
      ['SELECT 1', '--format', 'parquet'],
      ['SELECT 1', '--format', 'xml'],
      ['SELECT 1', '--json', '--format', 'csv'],
      ['SELECT 1', '--compression', 'gzip'],
      ['SELECT 1', '--out', 'x.parquet', '--limit', '3'],
      ['SELECT 1', '--at', 'yesterday'],
      ['SELECT 1', '--from', '2024-02-30'],
      ['--file', directory.join('none.sql')],
    ]) {
      assert.equal((await varve('query', ...args, '--config', config)).code, 2, args.join(' '));
    }
  });

  it('keeps the awkward names of partitions apart', async () => {
    const store = await FileStore.open(directory.join('awkward'));
    await using table = await makeTable(store, directory.path);
    await table.addFiles(...AWKWARD.map((tenant, i) => [noted(i + 1, {}, { tenant, model_version: tenant })]));
    const there = configOf('awkward.json', directory.join('awkward'));
    for (const tenant of AWKWARD) {
      const sql = 'SELECT tenant FROM events';
      const { stdout } = await varve('query', sql, '--json', '--tenant', tenant, '--config', there);
      assert.deepEqual(JSON.parse(stdout), [{ tenant }]);
    }
  });
});
