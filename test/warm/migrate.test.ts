/** Migrations: once, in order, whole; what a newer or another program did to the database is noticed. */
import assert from 'node:assert/strict';
import { cpSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type ErrorCode, isVarveError, VarveError } from '../../schemas/errors.ts';
import { migrate, migrationPlan, readMigrations, requireMigrated, sqlFolder } from '../../warm/migrate.ts';
import { openPool, statement, transaction } from '../../warm/pool.ts';
import { eventually } from '../support/eventually.ts';
import { createDatabase, type TestDatabase } from '../support/postgres.ts';
import { TempDirectory } from '../support/temp.ts';

const ONE = '-- compatible: true\nCREATE TABLE one (i int);\nINSERT INTO one VALUES (1);\n';
const TWO = '-- compatible: true\nALTER TABLE one ADD COLUMN j int;\n';
const THREE = 'ALTER TABLE one DROP COLUMN j;\n';
const ROWS = statement<{ i: number }>('test.rows', 'SELECT i FROM one ORDER BY i');
const INSERT = statement('test.insert', 'INSERT INTO one (i) VALUES ($1)');
const TABLES = statement<{ n: number }>(
  'test.tables',
  `SELECT count(*) AS n FROM pg_tables WHERE schemaname = 'public'`,
);
const SLEEPERS = statement<{ pid: number }>(
  'test.sleepers',
  `SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'`,
);

function withCode(code: ErrorCode, text = /./): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof VarveError, String(error));
    assert.equal(error.code, code, error.message);
    assert.match(error.message, text);
    return true;
  };
}

describe('warm/migrate', () => {
  let temp: TempDirectory;
  let database: TestDatabase;

  beforeEach(async () => {
    temp = new TempDirectory('sql');
    database = await createDatabase({ empty: true });
  });
  afterEach(async () => {
    await database[Symbol.asyncDispose]();
    temp[Symbol.dispose]();
  });

  /** A program's folder of migrations. */
  function program(...texts: string[]): string {
    const folder = temp.join(`program-${readdirSync(temp.path).length}`);
    mkdirSync(folder);
    for (const [i, text] of texts.entries()) writeFileSync(join(folder, `000${i + 1}-step.sql`), text);
    writeFileSync(join(folder, 'envelope.sql'), 'no migration');
    return folder;
  }

  async function numbers(plan: Promise<{ pending: readonly { number: number }[] }>): Promise<number[]> {
    return (await plan).pending.map(({ number }) => number);
  }

  async function tables(): Promise<number | undefined> {
    return (await database.pool.lend((session) => session.query(TABLES)))[0]?.n;
  }

  it('applies each migration once, in order, and then finds nothing to do', async () => {
    const folder = program(ONE, TWO);
    assert.deepEqual(await numbers(migrate(database.pool, folder)), [1, 2]);
    assert.deepEqual(await numbers(migrate(database.pool, folder)), []);
    assert.deepEqual(await numbers(requireMigrated(database.pool, folder)), []);
    assert.deepEqual(await numbers(migrate(database.pool, program(ONE, TWO, THREE))), [3]);
    assert.deepEqual(await database.pool.lend((session) => session.query(ROWS)), [{ i: 1 }]);
  });

  it('plans without touching the database, and a program that may not migrate is told what to do', async () => {
    const folder = program(ONE, TWO);
    assert.deepEqual(await numbers(migrationPlan(database.pool, folder)), [1, 2]);
    await assert.rejects(requireMigrated(database.pool, folder), withCode('WARM_NOT_MIGRATED', /varve migrate/));
    assert.equal(await tables(), 0);
  });

  it('applies each once when many programs start at the same time', async () => {
    const folder = program(ONE, TWO, THREE);
    const applied = await Promise.all(Array.from({ length: 6 }, () => numbers(migrate(database.pool, folder))));
    assert.deepEqual(applied.flat(), [1, 2, 3]);
    assert.deepEqual(await database.pool.lend((session) => session.query(ROWS)), [{ i: 1 }]);
  });

  it('refuses a database whose migrations had another text, and changes nothing there', async () => {
    await migrate(database.pool, program(ONE));
    const changed = program(`${ONE}-- a comment is a change`, TWO);
    for (const look of [migrate, migrationPlan, requireMigrated]) {
      await assert.rejects(look(database.pool, changed), withCode('WARM_MIGRATION_CHANGED', /0001-step/));
    }
    assert.deepEqual(await numbers(migrationPlan(database.pool, program(ONE, TWO))), [2]);
  });

  it('lets an old program start on a newer database if all that is new is compatible, and says what it is', async () => {
    await migrate(database.pool, program(ONE, TWO));
    const { pending, unknown } = await migrate(database.pool, program(ONE));
    assert.deepEqual([pending.length, unknown.map(({ number, name }) => [number, name])], [0, [[2, '0002-step']]]);
  });

  it('refuses an old program on a database with anything new that is not', async () => {
    await migrate(database.pool, program(ONE, TWO, THREE));
    for (const look of [migrate, migrationPlan, requireMigrated]) {
      await assert.rejects(look(database.pool, program(ONE)), withCode('WARM_TOO_NEW', /migration 3/));
      await assert.rejects(look(database.pool, program(ONE, TWO)), withCode('WARM_TOO_NEW'));
    }
    assert.deepEqual(await numbers(migrate(database.pool, program(ONE, TWO, THREE))), []);
  });

  it('lets old programs work on while a new one migrates', async () => {
    await migrate(database.pool, program(ONE));
    const migrated = new AbortController();
    const many = Array.from({ length: 8 }, (_, i) => `-- compatible: true\nALTER TABLE one ADD COLUMN c${i} int`);
    const [written] = await Promise.all([
      writeUntil(migrated.signal),
      migrate(database.pool, program(ONE, ...many)).finally(() => migrated.abort()),
    ]);
    assert.equal((await database.pool.lend((session) => session.query(ROWS))).length, written + 1);
  });

  async function writeUntil(signal: AbortSignal): Promise<number> {
    let written = 0;
    for (; !signal.aborted; written++) await transaction(database.pool, (tx) => tx.execute(INSERT, [written + 2]));
    return written;
  }

  it('leaves nothing of a migration that fails, all of those before it, and names it', async () => {
    const broken = 'CREATE TABLE two (i int);\nINSERT INTO nowhere VALUES (1);\n';
    await assert.rejects(migrate(database.pool, program(ONE, broken)), withCode('WARM_SQL', /migration 0002-step/));
    assert.equal(await tables(), 2);
    const unrecorded = 'CREATE TABLE two (i int);\nALTER TABLE varve_migrations ADD CHECK (number < 2);\n';
    await assert.rejects(migrate(database.pool, program(ONE, unrecorded)), withCode('WARM_CONSTRAINT'));
    assert.equal(await tables(), 2);
    assert.deepEqual(await numbers(migrate(database.pool, program(ONE, TWO))), [2]);
  });

  it('can be killed inside a migration and run again', async () => {
    const slow = `${TWO}SELECT pg_sleep(60);\n`;
    const migrating = migrate(database.pool, program(ONE, slow));
    const killing = eventually('the migration sleeps', async () => {
      return (await database.pool.lend((session) => session.query(SLEEPERS)))[0];
    }).then(({ pid }) => database.pool.lend((session) => session.exec(`SELECT pg_terminate_backend(${pid})`)));
    await assert.rejects(migrating, (error) => isVarveError(error) && error.retry);
    await killing;
    assert.deepEqual(await numbers(migrate(database.pool, program(ONE, TWO))), [2]);
  });

  it('asks for no right to create where there is nothing to do', async () => {
    const folder = program(ONE);
    await migrate(database.pool, folder);
    const role = `${database.name}_role`;
    await database.pool.lend((session) =>
      session.exec(`CREATE ROLE ${role} LOGIN PASSWORD 'x'; GRANT SELECT ON varve_migrations TO ${role}`),
    );
    const url = new URL(database.url);
    [url.username, url.password] = [role, 'x'];
    {
      await using limited = await openPool(url.href, { max: 1 });
      assert.deepEqual(await numbers(migrate(limited, folder)), []);
      await assert.rejects(migrate(limited, program(ONE, TWO)), withCode('WARM_FORBIDDEN', /0002-step/));
    }
    await database.pool.lend((session) => session.exec(`DROP OWNED BY ${role}; DROP ROLE ${role}`));
  });

  it('refuses a folder with a gap, a number twice, or a name that is none', async () => {
    for (const name of ['0003-later.sql', '0001-again.sql', '2-short.sql', '0002_under.sql', '0002.sql']) {
      const folder = program(ONE);
      writeFileSync(join(folder, name), TWO);
      await assert.rejects(readMigrations(folder), withCode('WARM_MIGRATION_INVALID'));
    }
  });

  it('refuses to go back and apply what was passed over', async () => {
    await migrate(database.pool, program(ONE, TWO));
    await database.pool.lend((session) => session.exec('DELETE FROM varve_migrations WHERE number = 1'));
    await assert.rejects(migrate(database.pool, program(ONE, TWO)), withCode('WARM_MIGRATION_INVALID'));
  });

  it('brings the package’s own schema to an empty database, and to one that had every earlier version of it', async () => {
    const files = readdirSync(sqlFolder())
      .filter((name) => /^\d/.test(name))
      .toSorted();
    assert.ok(files.length > 0);
    const earlier = temp.join('earlier');
    mkdirSync(earlier);
    for (const [i, name] of files.entries()) {
      cpSync(join(sqlFolder(), name), join(earlier, name));
      assert.deepEqual(await numbers(migrate(database.pool, earlier)), [i + 1]);
    }
    assert.deepEqual(await numbers(migrate(database.pool)), []);
  });
});
