/** The way to PostgreSQL: what holds when a transaction resolves, what a lost connection costs, what an error may say. */
import assert from 'node:assert/strict';
import { createServer } from 'node:net';
import { type ErrorCode, isVarveError, VarveError } from '../../schemas/errors.ts';
import { openPool, type Statement, statement, transaction, type WarmPool } from '../../warm/pool.ts';
import { parseInt8, parseTimestamptz } from '../../warm/values.ts';
import { eventually } from '../support/eventually.ts';
import { createDatabase, type TestDatabase } from '../support/postgres.ts';

const SECRET = 'hunter2';
const INSERT = statement('test.insert', 'INSERT INTO item (id, note) VALUES ($1, $2)');
const IDS = statement<{ id: number }>('test.ids', 'SELECT id FROM item ORDER BY id');
const PID = statement<{ pid: number }>('test.pid', 'SELECT pg_backend_pid() AS pid');
const KILL = statement<{ ended: boolean }>('test.kill', 'SELECT pg_terminate_backend($1, 10000) AS ended');
const SETTING = statement<{ value: string }>('test.setting', 'SELECT current_setting($1) AS value');

function withCode(code: ErrorCode): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof VarveError, String(error));
    assert.equal(error.code, code, error.message);
    return true;
  };
}

/** Everything of an error that could end in a log. */
function textOf(error: unknown): string {
  const parts: string[] = [];
  for (let e: unknown = error; e instanceof Error; e = e.cause) {
    parts.push(e.stack ?? '', JSON.stringify(e), JSON.stringify(Object.getOwnPropertyDescriptors(e)));
  }
  return parts.join('\n');
}

describe('warm/pool', () => {
  let database: TestDatabase;
  let pool: WarmPool;

  before(async () => {
    database = await createDatabase({ empty: true });
    pool = database.pool;
    await exec(`
      CREATE TABLE item (id bigint PRIMARY KEY, note text CHECK (note <> 'forbidden'));
      CREATE TABLE ranged (id int NOT NULL) PARTITION BY RANGE (id);
      CREATE TABLE ranged_1 PARTITION OF ranged FOR VALUES FROM (0) TO (10)`);
  });
  after(async () => await database[Symbol.asyncDispose]());
  beforeEach(async () => await exec('TRUNCATE item'));

  async function exec(sql: string): Promise<void> {
    await pool.lend((session) => session.exec(sql));
  }

  async function ids(): Promise<number[]> {
    return (await pool.lend((session) => session.query(IDS))).map(({ id }) => id);
  }

  async function select<Row>(name: string, text: string, values: readonly (string | Buffer)[] = []): Promise<Row> {
    const what: Statement<Row> = statement<Row>(name, text);
    return (await pool.lend((session) => session.query(what, values)))[0] as Row;
  }

  describe('a transaction', () => {
    it('is committed when it resolves, with all of its statements', async () => {
      const touched = await transaction(pool, async (tx) => {
        return (await tx.execute(INSERT, [1, null])) + (await tx.execute(INSERT, [2, 'b']));
      });
      assert.equal(touched, 2);
      assert.deepEqual(await ids(), [1, 2]);
    });

    it('leaves nothing when it rejects, and hands over the error', async () => {
      const ours = new Error('ours');
      const failing = transaction(pool, async (tx) => {
        await tx.execute(INSERT, [1, null]);
        throw ours;
      });
      await assert.rejects(failing, (error) => error === ours);
      await assert.rejects(insertTwice(), withCode('WARM_CONSTRAINT'));
      assert.deepEqual(await ids(), []);
    });

    async function insertTwice(): Promise<void> {
      await transaction(pool, async (tx) => {
        await tx.execute(INSERT, [1, null]);
        await tx.execute(INSERT, [1, null]);
      });
    }

    it('cannot be committed over an error that somebody swallowed', async () => {
      const swallowing = transaction(pool, async (tx) => {
        await tx.execute(INSERT, [1, null]);
        await tx.execute(INSERT, [1, null]).catch(() => undefined);
      });
      await assert.rejects(swallowing, /swallowed/);
      assert.deepEqual(await ids(), []);
    });

    it('is not started after an abort, and is finished if the abort comes later', async () => {
      const abort = new AbortController();
      const { signal } = abort;
      await transaction(
        pool,
        async (tx) => {
          await tx.execute(INSERT, [1, null]);
          abort.abort();
          await tx.execute(INSERT, [2, null]);
        },
        { signal },
      );
      const late = transaction(pool, () => assert.fail('it was started'), { signal });
      await assert.rejects(late, withCode('ABORTED'));
      assert.deepEqual(await ids(), [1, 2]);
    });

    it('says that the outcome is unknown where the connection is lost during the commit', async () => {
      await exec(`
        CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS
          $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER die AFTER INSERT ON item DEFERRABLE INITIALLY DEFERRED
          FOR EACH ROW EXECUTE FUNCTION die()`);
      const dying = transaction(pool, (tx) => tx.execute(INSERT, [1, null]));
      await assert.rejects(dying, withCode('WARM_OUTCOME_UNKNOWN'));
      await exec('DROP TRIGGER die ON item; DROP FUNCTION die');
      assert.deepEqual(await ids(), []);
    });
  });

  describe('a lost connection', () => {
    it('costs an idle pool nothing but the connection', async () => {
      await using other = await openPool(database.url, { max: 1 });
      const [row] = await other.lend((session) => session.query(PID));
      await exec(`SELECT pg_terminate_backend(${row?.pid})`);
      await eventually('the connection is lost', () => other.counts.lost || undefined);
      assert.deepEqual(other.counts, { open: 0, idle: 0, waiting: 0, lost: 1 });
      assert.notEqual((await other.lend((session) => session.query(PID)))[0]?.pid, row?.pid);
    });

    it('inside a transaction is told to its statement, and the next transaction has another one', async () => {
      await using other = await openPool(database.url, { max: 1 });
      const cut = transaction(other, async (tx) => {
        await tx.execute(INSERT, [1, null]);
        const [row] = await tx.query(PID);
        await pool.lend((session) => session.query(KILL, [row?.pid ?? 0]));
        await tx.execute(INSERT, [2, null]);
      });
      await assert.rejects(cut, withCode('WARM_UNAVAILABLE'));
      await transaction(other, (tx) => tx.execute(INSERT, [3, null]));
      assert.deepEqual(await ids(), [3]);
    });
  });

  describe('opening', () => {
    it('names a server that is not there, a login that is refused and a URL that is none, never a password', async () => {
      const missing = new URL(database.url);
      missing.pathname = '/nowhere';
      missing.password = SECRET;
      const cases: [string, ErrorCode][] = [
        [`postgresql://me:${SECRET}@127.0.0.1:1/x`, 'WARM_UNAVAILABLE'],
        [`postgresql://me:${SECRET}@localhost/x?host=%2Fnowhere`, 'WARM_UNAVAILABLE'],
        [missing.href, 'WARM_REFUSED_LOGIN'],
        [`postgresql://me:${SECRET}@[x/`, 'INVALID_OPTION'],
      ];
      for (const [url, code] of cases) {
        await assert.rejects(openPool(url), (error) => {
          assert.doesNotMatch(textOf(error), new RegExp(SECRET));
          return withCode(code)(error);
        });
      }
    });

    it('refuses options that are no limits', async () => {
      for (const options of [
        { max: 0 },
        { statementTimeoutMs: -1 },
        { lockTimeoutMs: 0.5 },
        { connectTimeoutMs: NaN },
      ]) {
        await assert.rejects(openPool(database.url, options), withCode('INVALID_OPTION'));
      }
    });

    it('gives up on a server that says nothing', async () => {
      const silent = createServer(() => undefined);
      await new Promise<void>((resolve) => silent.listen(0, '127.0.0.1', resolve));
      const { port } = silent.address() as { port: number };
      const opening = openPool(`postgresql://me@127.0.0.1:${port}/x`, { connectTimeoutMs: 50 });
      await assert.rejects(opening, withCode('WARM_UNAVAILABLE'));
      silent.close();
    });

    it('is over when the pool is closed', async () => {
      const other = await openPool(database.url);
      await other.close();
      await other.close();
      await assert.rejects(
        transaction(other, () => assert.fail()),
        withCode('WARM_CLOSED'),
      );
      await assert.rejects(
        other.dedicate({}, () => assert.fail()),
        withCode('WARM_CLOSED'),
      );
    });

    it('gives every session what values and durability rely on, whatever the database was set to', async () => {
      const { name } = database;
      await exec(`
        ALTER DATABASE ${name} SET timezone = 'Asia/Kolkata'; ALTER DATABASE ${name} SET datestyle = 'German';
        ALTER DATABASE ${name} SET synchronous_commit = off`);
      await using other = await openPool(database.url);
      for (const [setting, value] of [
        ['timezone', 'UTC'],
        ['datestyle', 'ISO, YMD'],
        ['synchronous_commit', 'on'],
        ['application_name', 'varve'],
      ] as const) {
        assert.equal((await other.lend((session) => session.query(SETTING, [setting])))[0]?.value, value);
      }
      await exec(`ALTER DATABASE ${name} SET synchronous_commit = local`);
      await using local = await openPool(database.url);
      const [row] = await local.lend((session) => session.query(SETTING, ['synchronous_commit']));
      assert.equal(row?.value, 'local');
      await exec(`ALTER DATABASE ${name} RESET ALL`);
    });

    it('waits no longer for a free connection than it may', async () => {
      await using other = await openPool(database.url, { max: 1, connectTimeoutMs: 50 });
      await other.lend(async () => {
        const starved = other.lend(() => assert.fail('there was another connection'));
        await assert.rejects(starved, withCode('WARM_UNAVAILABLE'));
      });
    });

    it('keeps the locks and settings of a dedicated session out of the pool', async () => {
      await pool.dedicate({ statementTimeoutMs: 0 }, async (session) => {
        await session.exec('SELECT pg_advisory_lock(7); SET work_mem = 12345');
        assert.equal((await session.query(SETTING, ['statement_timeout']))[0]?.value, '0');
      });
      const locks = await select<{ n: number }>(
        'test.locks',
        "SELECT count(*) AS n FROM pg_locks WHERE locktype = 'advisory' AND granted AND objid = 7",
      );
      assert.equal(locks.n, 0);
    });
  });

  describe('values', () => {
    it('come as the types that the tiers speak', async () => {
      const row = await select<Record<string, unknown>>(
        'test.values',
        `SELECT 9007199254740991::bigint AS int8, ARRAY[1, NULL, -2]::bigint[] AS int8s, '{}'::bigint[] AS none,
           '2024-02-29 23:59:59.9996+02'::timestamptz AS at, '1970-01-01T00:00:00Z'::timestamptz AS epoch,
           ARRAY['0001-01-01T00:00:00Z', NULL]::timestamptz[] AS ats, '2024-02-29'::date AS day,
           $1::bytea AS bytes, $2::jsonb AS json, 0.10::numeric AS exact, count(*) AS count`,
        [Buffer.from([0, 255, 92]), '{"b": [1, null], "a": "é"}'],
      );
      assert.deepEqual(row, {
        int8: 9007199254740991,
        int8s: [1, null, -2],
        none: [],
        at: '2024-02-29T21:59:59.999Z',
        epoch: '1970-01-01T00:00:00.000Z',
        ats: ['0001-01-01T00:00:00.000Z', null],
        day: '2024-02-29',
        bytes: Buffer.from([0, 255, 92]),
        json: { b: [1, null], a: 'é' },
        exact: '0.10',
        count: 1,
      });
    });

    it('that a number or a time cannot hold are refused, and the connection goes on', async () => {
      await using other = await openPool(database.url, { max: 1 });
      for (const text of ['9007199254740992::bigint', 'ARRAY[[1]]::bigint[]', `'infinity'::timestamptz`]) {
        const what = statement<unknown>(`test.${text}`, `SELECT ${text}`);
        const [before] = await other.lend((session) => session.query(PID));
        await assert.rejects(
          other.lend((session) => session.query(what)),
          withCode('WARM_UNREADABLE_VALUE'),
        );
        assert.deepEqual(await other.lend((session) => session.query(PID)), [before]);
      }
      assert.throws(() => parseInt8('-9007199254740992'), withCode('WARM_UNREADABLE_VALUE'));
      assert.throws(() => parseTimestamptz('0044-03-15 12:00:00+00 BC'), withCode('WARM_UNREADABLE_VALUE'));
      assert.throws(() => parseTimestamptz('2024-01-01 00:00:00+05:30'), withCode('WARM_UNREADABLE_VALUE'));
    });
  });

  describe('an error of the server', () => {
    const refused: [title: string, code: ErrorCode, sql: string][] = [
      ['text that is no uuid', 'WARM_REFUSED_DATA', `SELECT '${SECRET}'::uuid`],
      ['a zero in jsonb', 'WARM_REFUSED_DATA', `SELECT '{"a":"${SECRET}\\u0000"}'::jsonb`],
      ['a lone surrogate in jsonb', 'WARM_REFUSED_DATA', `SELECT '{"a":"${SECRET}\\ud800"}'::jsonb`],
      ['nesting past the stack', 'WARM_REFUSED_DATA', `SELECT repeat('[', 100000)::jsonb`],
      ['a key taken', 'WARM_CONSTRAINT', `INSERT INTO item VALUES (1, '${SECRET}'), (1, '${SECRET}')`],
      ['a check that fails', 'WARM_CONSTRAINT', `INSERT INTO item VALUES (1, 'forbidden')`],
      ['a row without partition', 'WARM_NO_PARTITION', 'INSERT INTO ranged VALUES (77777)'],
      ['an exception of a function', 'WARM_SQL', `DO $$ BEGIN RAISE EXCEPTION '${SECRET}'; END $$`],
      ['a statement that is wrong', 'WARM_SQL', 'SELECT nothing FROM item'],
    ];
    for (const [title, code, sql] of refused) {
      it(`for ${title} is ${code}, holds nothing of a row, and leaves the connection usable`, async () => {
        await using other = await openPool(database.url, { max: 1 });
        const [before] = await other.lend((session) => session.query(PID));
        const failing = other.lend((session) => session.exec(sql));
        await assert.rejects(failing, (error) => {
          assert.doesNotMatch(textOf(error), new RegExp(`${SECRET}|77777`));
          return withCode(code)(error);
        });
        assert.deepEqual(await other.lend((session) => session.query(PID)), [before]);
      });
    }

    it('has the code of its SQLSTATE, and says whether the same call may succeed later', async () => {
      const table: Record<string, [ErrorCode, retry: boolean]> = {
        '40001': ['WARM_CONFLICT', true],
        '40P01': ['WARM_CONFLICT', true],
        '57P01': ['WARM_UNAVAILABLE', true],
        '57P02': ['WARM_UNAVAILABLE', true],
        '57P03': ['WARM_UNAVAILABLE', true],
        '08006': ['WARM_UNAVAILABLE', true],
        '53300': ['WARM_OVERLOADED', true],
        '55P03': ['WARM_LOCKED', true],
        '53100': ['WARM_DISK_FULL', true],
        '57014': ['WARM_TIMEOUT', true],
        '25006': ['WARM_READ_ONLY', true],
        '22003': ['WARM_REFUSED_DATA', false],
        '54000': ['WARM_REFUSED_DATA', false],
        '28P01': ['WARM_REFUSED_LOGIN', false],
        '42501': ['WARM_FORBIDDEN', false],
        '0A000': ['WARM_UNSUPPORTED', false],
        '58030': ['WARM_SERVER_FAILED', false],
        XX001: ['WARM_DAMAGED', false],
        ZZ999: ['WARM_SQL', false],
      };
      for (const [state, [code, retry]] of Object.entries(table)) {
        const raising = exec(`DO $$ BEGIN RAISE EXCEPTION SQLSTATE '${state}'; END $$`);
        await assert.rejects(raising, (error) => isVarveError(error) && error.retry === retry && withCode(code)(error));
      }
    });

    it('is WARM_LOCKED or WARM_TIMEOUT where a statement waits or runs for too long', async () => {
      await using other = await openPool(database.url, { lockTimeoutMs: 20 });
      await transaction(pool, async (tx) => {
        await tx.exec('LOCK TABLE item');
        await assert.rejects(
          transaction(other, (waiting) => waiting.query(IDS)),
          withCode('WARM_LOCKED'),
        );
      });
      await using short = await openPool(database.url, { statementTimeoutMs: 20 });
      await assert.rejects(
        short.lend((session) => session.exec('SELECT pg_sleep(60)')),
        withCode('WARM_TIMEOUT'),
      );
    });
  });
});
