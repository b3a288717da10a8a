/** The embedded server: one per folder, whoever starts it, whatever was killed before. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { chmodSync, cpSync, existsSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { isVarveError } from '../../schemas/errors.ts';
import { attachEmbedded, type EmbeddedServer, startEmbedded, stopEmbedded } from '../../warm/embedded.ts';
import { openPool, statement } from '../../warm/pool.ts';
import { isAlive } from '../../warm/postmaster.ts';
import { findServer } from '../../warm/server.ts';
import { Child } from '../support/child.ts';
import type { EmbeddedChildError, EmbeddedChildServer } from '../support/embedded-child.ts';
import { eventually } from '../support/eventually.ts';
import { TEST_SERVER } from '../support/postgres.ts';
import { hasCommand, isRoot, skipAloud } from '../support/skip.ts';
import { TempDirectory } from '../support/temp.ts';

const CHILD = 'embedded-child.ts';
const SETTING = statement<{ value: string }>('test.setting', 'SELECT current_setting($1) AS value');
const SLEEPERS = statement<{ pid: number }>(
  'test.sleepers',
  `SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep'`,
);
const ROWS = statement<{ i: number }>('test.rows', 'SELECT i FROM kept ORDER BY i');

async function settingsOf(server: EmbeddedServer, names: readonly string[]): Promise<Record<string, string>> {
  await using pool = await openPool(server.url, { max: 1 });
  return await pool.lend(async (session) => {
    const found: Record<string, string> = {};
    for (const name of names) found[name] = (await session.query(SETTING, [name]))[0]?.value ?? '';
    return found;
  });
}

async function exec(server: EmbeddedServer, sql: string): Promise<void> {
  await using pool = await openPool(server.url, { max: 1 });
  await pool.lend((session) => session.exec(sql));
}

async function rowsOf(server: EmbeddedServer): Promise<number[]> {
  await using pool = await openPool(server.url, { max: 1 });
  return (await pool.lend((session) => session.query(ROWS))).map(({ i }) => i);
}

async function sleeperOf(server: EmbeddedServer): Promise<number> {
  await using pool = await openPool(server.url, { max: 1 });
  const { pid } = await eventually('a backend sleeps', async () => {
    return (await pool.lend((session) => session.query(SLEEPERS)))[0];
  });
  return pid;
}

/** Field 6 of /proc/pid/stat (proc(5)); the name before it may hold blanks. */
function terminalSessionOf(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
  return Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[3]);
}

/** What a starter in a process of its own found. */
async function serverOf(child: Child): Promise<EmbeddedChildServer> {
  const line = await Promise.race([child.line('server '), child.line('error ')]);
  assert.match(line, /^server /);
  return JSON.parse(line.slice('server '.length)) as EmbeddedChildServer;
}

async function gone(pid: number): Promise<void> {
  await eventually(`the end of process ${pid}`, () => !isAlive(pid) || undefined);
}

describe('warm/embedded', () => {
  let temp: TempDirectory;
  let folder: string;

  // One cluster for the tests that do not need a new one.
  before(() => {
    temp = new TempDirectory('pg');
    folder = temp.join('warm');
  });
  after(async () => {
    await stopEmbedded(folder, 'immediate');
    temp[Symbol.dispose]();
  });

  /** A folder with a copy of the stopped cluster: quicker than another initdb. */
  function clusterIn(name: string): string {
    mkdirSync(temp.join(name));
    cpSync(join(folder, 'data'), temp.join(name, 'data'), { recursive: true });
    return temp.join(name);
  }

  it('starts once on a folder, attaches from then on, and is gone after a stop', async () => {
    const { durable: _, ...durable } = TEST_SERVER;
    const first = await startEmbedded(folder, durable);
    assert.equal(first.attached, false);
    const second = await startEmbedded(folder, durable);
    assert.deepEqual([second.attached, second.pid, second.url], [true, first.pid, first.url]);
    const expected = {
      fsync: 'on',
      synchronous_commit: 'on',
      full_page_writes: 'on',
      data_checksums: 'on',
      server_encoding: 'UTF8',
      lc_collate: 'C',
      listen_addresses: '',
      unix_socket_permissions: '0700',
    };
    // PostgreSQL 16 took lc_collate away from the settings: it is a database's.
    const { lc_collate: collation, ...settings } = expected;
    assert.deepEqual(await settingsOf(first, Object.keys(settings)), settings);
    await exec(
      first,
      `DO $$ BEGIN ASSERT (SELECT datcollate FROM pg_database WHERE datname = 'postgres') = '${collation}'; END $$`,
    );
    await second.stop();
    assert.equal(isAlive(first.pid), false);
    assert.equal(await attachEmbedded(folder), undefined);
    await stopEmbedded(folder);
  });

  it('lets nobody in but through its folder', async () => {
    const server = await startEmbedded(folder, TEST_SERVER);
    assert.equal(statSync(join(folder, 's')).mode & 0o777, 0o700);
    assert.equal(statSync(join(folder, 'data')).mode & 0o777, 0o700);
    const hba = readFileSync(join(folder, 'data', 'pg_hba.conf'), 'utf8').split('\n');
    const rules = hba.filter((line) => line.startsWith('host'));
    assert.ok(rules.length > 0);
    for (const rule of rules) assert.match(rule, /reject$/);
    await server.stop('immediate');
  });

  it('keeps what was committed over a fast stop, an immediate stop and kill -9', async () => {
    let server = await startEmbedded(folder, TEST_SERVER);
    await exec(server, 'CREATE TABLE kept (i int)');
    for (const [i, end] of [() => server.stop('fast'), () => server.stop('immediate'), killed].entries()) {
      await exec(server, `INSERT INTO kept VALUES (${i})`);
      await end();
      server = await startEmbedded(folder, TEST_SERVER);
    }
    assert.deepEqual(await rowsOf(server), [0, 1, 2]);
    async function killed(): Promise<void> {
      process.kill(server.pid, 'SIGKILL');
      await gone(server.pid);
    }
  });

  it('outlives a starter that is killed with kill -9, and the end of its terminal', async () => {
    await stopEmbedded(folder, 'immediate');
    await using starter = Child.start(CHILD, { folder, options: TEST_SERVER });
    const { pid, attached } = await serverOf(starter);
    assert.equal(attached, false);
    starter.kill('SIGKILL');
    await starter.exited;
    const server = await startEmbedded(folder, TEST_SERVER);
    assert.deepEqual([server.attached, server.pid], [true, pid]);
    if (process.platform === 'linux') assert.equal(terminalSessionOf(pid), pid);
    await exec(server, 'SELECT 1');
  });

  it('is one server of one cluster when many start it at once, over what a killed initdb left', async () => {
    const fresh = temp.join('race');
    const dead = spawn('true');
    await gone(dead.pid as number);
    mkdirSync(join(fresh, `data.${dead.pid}.00000000.tmp`), { recursive: true });
    const starters = Array.from({ length: 2 }, () => Child.start(CHILD, { folder: fresh, options: TEST_SERVER }));
    try {
      const here = Array.from({ length: 2 }, () => startEmbedded(fresh, TEST_SERVER));
      const found = [...(await Promise.all(starters.map(serverOf))), ...(await Promise.all(here))];
      assert.equal(new Set(found.map(({ pid }) => pid)).size, 1);
      assert.equal(found.filter(({ attached }) => !attached).length, 1);
      const made = readdirSync(fresh).filter((name) => name !== 'lib');
      assert.deepEqual(made.toSorted(), ['data', 'postgres.log', 's']);
    } finally {
      for (const starter of starters) await starter[Symbol.asyncDispose]();
      await stopEmbedded(fresh, 'immediate');
    }
  });

  it('starts over the lock file of a killed server, also when its pid belongs to another process now', async () => {
    const server = await startEmbedded(folder, TEST_SERVER);
    process.kill(server.pid, 'SIGKILL');
    await gone(server.pid);
    const { uid, gid } = statSync(join(folder, 'data'));
    const other = spawn('sleep', ['60'], { stdio: 'ignore', uid, gid });
    try {
      for (const path of [join(folder, 'data', 'postmaster.pid'), join(folder, 's', '.s.PGSQL.5432.lock')]) {
        writeFileSync(path, readFileSync(path, 'utf8').replace(/^\d+/, String(other.pid)));
      }
      const next = await startEmbedded(folder, TEST_SERVER);
      assert.equal(next.attached, false);
      await next.stop('immediate');
      assert.equal(other.exitCode, null);
    } finally {
      other.kill();
    }
  });

  it('works in folders whose names are too long for a socket, or need quotes', async () => {
    await (await startEmbedded(folder, TEST_SERVER)).stop();
    const long = await startEmbedded(clusterIn(`long ${'x'.repeat(100)}`), TEST_SERVER);
    await exec(long, 'SELECT 1');
    const socketFolder = new URL(long.url).searchParams.get('host') as string;
    assert.match(socketFolder, /^\/tmp\/varve-/);
    assert.equal(statSync(socketFolder).mode & 0o777, 0o700);
    await long.stop('immediate');
    assert.equal(existsSync(socketFolder), false);

    const quoted = await startEmbedded(clusterIn(`it's "a", b`), TEST_SERVER);
    await exec(quoted, 'SELECT 1');
    await quoted.stop('immediate');
  });

  it('writes no values into its log', async () => {
    const server = await startEmbedded(folder, TEST_SERVER);
    await assert.rejects(exec(server, `SELECT 'hunter2'::int`), (error) => isVarveError(error, 'WARM_REFUSED_DATA'));
    await assert.rejects(exec(server, `DO $$ BEGIN RAISE EXCEPTION 'hunter2'; END $$`), isVarveError);
    // Of a process that crashes PostgreSQL would log what it was doing.
    const crashing = assert.rejects(exec(server, `SELECT pg_sleep(60), 'hunter2'`), (error) => {
      return isVarveError(error, 'WARM_UNAVAILABLE');
    });
    process.kill(await sleeperOf(server), 'SIGKILL');
    await crashing;
    await eventually('the server has recovered', () =>
      exec(server, 'SELECT 1').then(
        () => true,
        () => undefined,
      ),
    );
    await server.stop('immediate');
    assert.doesNotMatch(readFileSync(join(folder, 'postgres.log'), 'utf8'), /hunter2/);
  });

  it('says why it does not start', async () => {
    const path = join(folder, 'data', 'postgresql.auto.conf');
    const before = readFileSync(path);
    writeFileSync(path, `${before.toString()}work_mem = 'a lot'\n`);
    await assert.rejects(startEmbedded(folder, TEST_SERVER), (error) => {
      return isVarveError(error, 'WARM_START_FAILED') && /work_mem/.test(error.message);
    });
    writeFileSync(path, before);
  });

  it('says what was tried where there is no PostgreSQL', async () => {
    await assert.rejects(startEmbedded(temp.join('none'), { binFolder: temp.join('nowhere') }), (error) => {
      return isVarveError(error, 'WARM_NO_SERVER') && /nowhere does not run.*DATABASE_URL/s.test(error.message);
    });
  });

  it('does not touch the data of another major version', async () => {
    const other = temp.join('old');
    mkdirSync(join(other, 'data'), { recursive: true });
    writeFileSync(join(other, 'data', 'PG_VERSION'), '9\n');
    await assert.rejects(startEmbedded(other), (error) => {
      return isVarveError(error, 'WARM_NO_SERVER') && /PostgreSQL 9, which made the data/.test(error.message);
    });
    assert.deepEqual(readdirSync(join(other, 'data')), ['PG_VERSION']);
  });

  it('is not started where a URL is given', async () => {
    const unused = temp.join('unused');
    assert.deepEqual(await findServer('postgresql://db.example/x', unused), { url: 'postgresql://db.example/x' });
    assert.equal(existsSync(unused), false);
  });

  describe('as root', () => {
    before(function () {
      if (!isRoot()) skipAloud(this, 'needs root');
      if (!hasCommand('setpriv')) skipAloud(this, 'needs setpriv');
    });

    it('runs as itself under another name where no system user can reach the folder', async () => {
      const server = await startEmbedded(folder, TEST_SERVER);
      assert.equal(statSync(temp.path).mode & 0o777, 0o700);
      assert.equal(statSync(`/proc/${server.pid}`).uid, 0);
      await server.stop('immediate');
    });

    it('runs as a system user where one can, and keeps to the owner of the data when the folder is shut', async () => {
      using open = new TempDirectory('pgroot');
      chmodSync(open.path, 0o755);
      const server = await startEmbedded(open.join('warm'), TEST_SERVER);
      assert.notEqual(statSync(`/proc/${server.pid}`).uid, 0);
      await exec(server, 'SELECT 1');
      await server.stop('immediate');
      chmodSync(open.path, 0o700);
      await assert.rejects(startEmbedded(open.join('warm'), TEST_SERVER), (error) => {
        return isVarveError(error, 'WARM_START_FAILED') && /belongs to user/.test(error.message);
      });
    });

    // 54321 has no entry in /etc/passwd.
    for (const uid of [65534, 54321]) {
      it(`runs for the ordinary user ${uid}, over what was killed, and refuses another one's data`, async function () {
        using open = new TempDirectory('pguser');
        chmodSync(open.path, 0o777);
        const under = (id: number): string[] => ['setpriv', `--reuid=${id}`, `--regid=${id}`, '--clear-groups'];
        const mine = open.join('warm');
        {
          await using starter = Child.start(CHILD, { folder: mine, options: TEST_SERVER }, { under: under(uid) });
          const { pid, attached } = await serverOf(starter);
          assert.deepEqual([attached, statSync(`/proc/${pid}`).uid], [false, uid]);
        }
        {
          await using stranger = Child.start(CHILD, { folder: mine, options: TEST_SERVER }, { under: under(1) });
          const error = JSON.parse((await stranger.line('error ')).slice('error '.length)) as EmbeddedChildError;
          assert.equal(error.code, 'WARM_START_FAILED');
          assert.match(error.message, /belongs/);
        }
        const attached = await startEmbedded(mine, TEST_SERVER);
        assert.equal(attached.attached, true);
        process.kill(attached.pid, 'SIGKILL');
        await gone(attached.pid);
        {
          // The killed server's pid is now a process of another user, into which an ordinary one cannot look.
          const lock = join(mine, 'data', 'postmaster.pid');
          writeFileSync(lock, readFileSync(lock, 'utf8').replace(/^\d+/, String(process.pid)));
          await using starter = Child.start(CHILD, { folder: mine, options: TEST_SERVER }, { under: under(uid) });
          const { pid, attached } = await serverOf(starter);
          assert.deepEqual([attached, statSync(`/proc/${pid}`).uid], [false, uid]);
        }
        // Root stops it, and starts it as its owner.
        await stopEmbedded(mine, 'immediate');
        const again = await startEmbedded(mine, TEST_SERVER);
        assert.equal(statSync(`/proc/${again.pid}`).uid, uid);
        await again.stop('immediate');
      });
    }
  });
});
