/**
 * PostgreSQL for tests: one server per run, a database per test from a template that was migrated once.
 *
 * The server is our own, without syncs. `VARVE_TEST_PG_BIN` names the folder of other programs for it (Debian's 15), and
 * `VARVE_TEST_DATABASE_URL` a server to be used instead, whose user may create databases. It stops when the run ends; a
 * run that was killed leaves its server behind, and the next run finds it by the pid in its folder's name and stops it.
 */
import { randomBytes } from 'node:crypto';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type EmbeddedOptions, startEmbedded, stopEmbedded } from '../../warm/embedded.ts';
import { migrate } from '../../warm/migrate.ts';
import { openPool, statement, type WarmPool } from '../../warm/pool.ts';
import { isAlive } from '../../warm/postmaster.ts';

const binFolder = process.env['VARVE_TEST_PG_BIN'] ?? '';

const FOLDER_PREFIX = 'varve-pg-';

/** For tests that start a server of their own. */
export const TEST_SERVER: EmbeddedOptions = { durable: false, ...(binFolder === '' ? {} : { binFolder }) };

export class TestDatabase implements AsyncDisposable {
  readonly name: string;
  readonly url: string;
  readonly pool: WarmPool;

  /** Of `createDatabase`. */
  constructor(name: string, url: string, pool: WarmPool) {
    this.name = name;
    this.url = url;
    this.pool = pool;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.pool.close();
    const { admin } = await server();
    await admin.lend((session) => session.exec(`DROP DATABASE IF EXISTS ${this.name} WITH (FORCE)`));
  }
}

/**
 * A database of its own, migrated unless `empty`. Dropped when disposed of, with whoever is still connected; at the end
 * of the run in any case.
 */
export async function createDatabase(options: { readonly empty?: boolean } = {}): Promise<TestDatabase> {
  const { admin, url, run } = await server();
  const template = options.empty === true ? 'template0' : await migratedTemplate();
  const name = `${run}_${randomBytes(4).toString('hex')}`;
  await admin.lend((session) => session.exec(`CREATE DATABASE ${name} TEMPLATE ${template}`));
  const of = databaseUrl(url, name);
  return new TestDatabase(name, of, await openPool(of, { max: 4 }));
}

type TestServer = {
  readonly url: string;
  /** Prefix of this run's databases. */
  readonly run: string;
  readonly admin: WarmPool;
  readonly stop: () => Promise<void>;
};

let started: Promise<TestServer> | undefined;
let template: Promise<string> | undefined;

function server(): Promise<TestServer> {
  started ??= startServer();
  return started;
}

async function startServer(): Promise<TestServer> {
  const run = `varve_test_${process.pid}_${randomBytes(3).toString('hex')}`;
  const given = process.env['VARVE_TEST_DATABASE_URL'] ?? '';
  if (given !== '') {
    const admin = await openPool(given, { max: 1 });
    const stop = async (): Promise<void> => {
      await dropAll(admin, run);
      await admin.close();
    };
    return { url: given, run, admin, stop };
  }
  await stopAbandoned();
  const folder = mkdtempSync(join(tmpdir(), `${FOLDER_PREFIX}${process.pid}-`));
  const embedded = await startEmbedded(folder, TEST_SERVER);
  const admin = await openPool(embedded.url, { max: 1 });
  const stop = async (): Promise<void> => {
    await admin.close();
    await embedded.stop('immediate');
    rmSync(folder, { recursive: true, force: true });
  };
  return { url: embedded.url, run, admin, stop };
}

function migratedTemplate(): Promise<string> {
  template ??= makeTemplate();
  return template;
}

async function makeTemplate(): Promise<string> {
  const { admin, url, run } = await server();
  const name = `${run}_template`;
  await admin.lend((session) => session.exec(`CREATE DATABASE ${name} TEMPLATE template0`));
  await using pool = await openPool(databaseUrl(url, name), { max: 1 });
  await migrate(pool);
  return name;
}

function databaseUrl(server: string, name: string): string {
  const url = new URL(server);
  url.pathname = `/${name}`;
  return url.href;
}

const DATABASES = statement<{ name: string }>(
  'test.databases',
  'SELECT datname::text AS name FROM pg_database WHERE starts_with(datname, $1)',
);

async function dropAll(admin: WarmPool, run: string): Promise<void> {
  await admin.lend(async (session) => {
    const names = await session.query(DATABASES, [run]);
    for (const { name } of names) await session.exec(`DROP DATABASE IF EXISTS ${name} WITH (FORCE)`);
  });
}

async function stopAbandoned(): Promise<void> {
  for (const name of readdirSync(tmpdir())) {
    const pid = new RegExp(`^${FOLDER_PREFIX}(\\d+)-`).exec(name)?.[1];
    if (pid === undefined || isAlive(Number(pid))) continue;
    const folder = join(tmpdir(), name);
    try {
      await stopEmbedded(folder, 'immediate');
      rmSync(folder, { recursive: true, force: true });
    } catch {
      // Another user's: theirs to clean up.
    }
  }
}

// Test files are loaded inside Mocha's root suite, so this is a root hook; a child process has no Mocha.
if (typeof globalThis.after === 'function') {
  after('stop the PostgreSQL of the tests', async () => await (await started)?.stop());
}
