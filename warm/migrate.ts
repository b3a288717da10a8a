/**
 * The database's schema: the numbered files of `schemas/sql/`, each applied once, in order, in a transaction of its own.
 *
 *     NNNN-name.sql      first line `-- compatible: true` where programs that do not know it may go on
 *
 * Forward only. What was applied stays as it was: its SHA-256 is stored, and another file under its number is refused
 * (WARM_MIGRATION_CHANGED). In a rolling upgrade the first new program migrates while old ones work on: an old program
 * goes on, and may start, as long as everything that it does not know is compatible, that is, additive; else it is refused
 * (WARM_TOO_NEW). Any number of programs may migrate at once: a session lock lets one at a time, and the others find
 * nothing left to do. A kill between two migrations leaves the first applied, a kill inside one leaves nothing of it.
 */
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { type Session, statement, type Tx, type WarmPool } from './pool.ts';

export type Migration = {
  readonly number: number;
  readonly name: string;
  /** SHA-256 of the file, in hex. */
  readonly checksum: string;
  readonly compatible: boolean;
};

export type MigrationFile = Migration & { readonly sql: string };

export type MigrationPlan = {
  /** To be applied, in order. */
  readonly pending: readonly MigrationFile[];
  /** Applied by a newer program, all compatible: worth a warning. */
  readonly unknown: readonly Migration[];
};

/** Longest wait for another program that is migrating, in milliseconds. */
const LOCK_TIMEOUT_MS = 10 * 60_000;

/** Whoever waits for a table's lock makes all wait that come after it: better to give up (WARM_LOCKED) and come again. */
const DDL_LIMITS = "SET LOCAL lock_timeout = '10s'";

/** Any number that no other program on this database uses for its own lock: the ASCII of 'varve'. */
const LOCK_KEY = 0x7661727665;

const LOCK = statement('migrate.lock', 'SELECT pg_advisory_lock($1)');

const TABLE = `CREATE TABLE IF NOT EXISTS varve_migrations (
  number int PRIMARY KEY,
  name text NOT NULL,
  checksum text NOT NULL,
  compatible boolean NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)`;

const HAS_TABLE = statement<{ there: boolean }>(
  'migrate.has-table',
  `SELECT to_regclass('varve_migrations') IS NOT NULL AS there`,
);

const APPLIED = statement<Migration>(
  'migrate.applied',
  'SELECT number, name, checksum, compatible FROM varve_migrations ORDER BY number',
);

const RECORD = statement(
  'migrate.record',
  'INSERT INTO varve_migrations (number, name, checksum, compatible) VALUES ($1, $2, $3, $4)',
);

/**
 * When it resolves, every migration of the folder is applied; it says which were, and what the folder does not know.
 * @throws VarveError WARM_TOO_NEW, WARM_MIGRATION_CHANGED, WARM_MIGRATION_INVALID, and what PostgreSQL refuses
 */
export async function migrate(pool: WarmPool, folder = sqlFolder()): Promise<MigrationPlan> {
  const files = await readMigrations(folder);
  // A migration may run for as long as it must.
  return await pool.dedicate({ statementTimeoutMs: 0, lockTimeoutMs: LOCK_TIMEOUT_MS }, async (session) => {
    await session.query(LOCK, [LOCK_KEY]);
    // Even IF NOT EXISTS asks for the right to create, which who migrates nothing may lack.
    if (!(await hasTable(session))) await session.exec(TABLE, 'migrate.table');
    const plan = planMigrations(files, await session.query(APPLIED));
    for (const file of plan.pending) await apply(session, file);
    return plan;
  });
}

/** Touches nothing. For a program that may not migrate, and for a dry run. @throws as `migrate` */
export async function migrationPlan(pool: WarmPool, folder = sqlFolder()): Promise<MigrationPlan> {
  const files = await readMigrations(folder);
  return await pool.lend(async (session) => {
    return planMigrations(files, (await hasTable(session)) ? await session.query(APPLIED) : []);
  });
}

async function hasTable(session: Session): Promise<boolean> {
  return (await session.query(HAS_TABLE))[0]?.there === true;
}

/** For a program that starts on a database which others migrate. @throws VarveError WARM_NOT_MIGRATED, or as `migrate` */
export async function requireMigrated(pool: WarmPool, folder = sqlFolder()): Promise<MigrationPlan> {
  const plan = await migrationPlan(pool, folder);
  const [first] = plan.pending;
  if (first === undefined) return plan;
  const message = `${pool.server} lacks migration ${first.number} (${first.name}): run varve migrate`;
  throw new VarveError('WARM_NOT_MIGRATED', message, { lacks: plan.pending.map(({ number }) => number) });
}

/** Decides; touches nothing. @throws VarveError WARM_TOO_NEW, WARM_MIGRATION_CHANGED, WARM_MIGRATION_INVALID */
export function planMigrations(files: readonly MigrationFile[], applied: readonly Migration[]): MigrationPlan {
  const known = new Map(files.map((file) => [file.number, file]));
  const last = files.at(-1)?.number ?? 0;
  const unknown = applied.filter(({ number }) => number > last);
  const incompatible = unknown.filter(({ compatible }) => !compatible).map(({ number }) => number);
  if (incompatible.length > 0) {
    const message = `the database has migration ${incompatible[0]}, with which this program cannot work: upgrade varve`;
    throw new VarveError('WARM_TOO_NEW', message, { incompatible, last });
  }
  for (const { number, name, checksum } of applied) {
    if (number > last || known.get(number)?.checksum === checksum) continue;
    const message = `migration ${number} (${name}) was applied with another text than it has now`;
    throw new VarveError('WARM_MIGRATION_CHANGED', message, { number, name, checksum });
  }
  const done = new Set(applied.map(({ number }) => number));
  const pending = files.filter(({ number }) => !done.has(number));
  const [first] = pending;
  if (first !== undefined && applied.some(({ number }) => number > first.number)) {
    const message = `migration ${first.number} was not applied, but later ones were`;
    throw new VarveError('WARM_MIGRATION_INVALID', message, { number: first.number });
  }
  return { pending, unknown };
}

/** The migrations of a folder, 1, 2, 3 …; files without a number are not migrations. @throws VarveError WARM_MIGRATION_INVALID */
export async function readMigrations(folder: string): Promise<MigrationFile[]> {
  const files: MigrationFile[] = [];
  for (const name of (await readdir(folder)).toSorted()) {
    if (!/^\d.*\.sql$/.test(name)) continue;
    const sql = await readFile(join(folder, name), 'utf8');
    const number = files.length + 1;
    if (!/^\d{4}-[a-z0-9-]+\.sql$/.test(name) || Number(name.slice(0, 4)) !== number) {
      const message = `${name} in ${folder} is no migration ${String(number).padStart(4, '0')}-name.sql`;
      throw new VarveError('WARM_MIGRATION_INVALID', message, { folder, name });
    }
    const checksum = createHash('sha256').update(sql).digest('hex');
    files.push({ number, name: name.slice(0, -4), checksum, compatible: isCompatible(sql), sql });
  }
  return files;
}

/** Without that line a migration stops older programs: the safe side. */
function isCompatible(sql: string): boolean {
  return /^-- compatible: true\s*$/.test(sql.split('\n', 1)[0] ?? '');
}

async function apply(session: Session, file: MigrationFile): Promise<void> {
  try {
    await session.transaction((tx) => applyIn(tx, file));
  } catch (error) {
    if (!isVarveError(error)) throw error;
    throw new VarveError(error.code, `migration ${file.name}: ${error.message}`, error.details, error.cause);
  }
}

async function applyIn(tx: Tx, file: MigrationFile): Promise<void> {
  await tx.exec(DDL_LIMITS, 'migrate.limits');
  await tx.exec(file.sql, file.name);
  // COMMIT POINT, with the migration itself.
  await tx.execute(RECORD, [file.number, file.name, file.checksum, file.compatible]);
}

/** `schemas/sql` of this package, also from `dist/`, which does not hold it. */
export function sqlFolder(): string {
  for (let folder = dirname(fileURLToPath(import.meta.url)); ; folder = dirname(folder)) {
    if (existsSync(join(folder, 'package.json'))) return join(folder, 'schemas', 'sql');
  }
}
