/**
 * Opens the warm tier that the configuration names: a PostgreSQL behind a URL, else our own on this machine.
 *
 * Our own is migrated on the way; one that others run is not touched, and must be migrated (`varve migrate`). Whoever
 * started our own stops it again when it is done, unless others have come meanwhile.
 */
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Config } from '../schemas/config.ts';
import { migrate, requireMigrated } from '../warm/migrate.ts';
import { openPool, statement, type WarmPool } from '../warm/pool.ts';
import { findServer, type WarmServer } from '../warm/server.ts';

export type OpenWarm = AsyncDisposable & {
  readonly pool: WarmPool;
  readonly server: WarmServer;
};

const NAME = `varve ${process.pid}`;

export async function openWarm(config: Config, options: { readonly migrated?: boolean } = {}): Promise<OpenWarm> {
  const { databaseUrl, directory, poolSize, statementTimeoutMs } = config.warm;
  const server = await findServer(databaseUrl, directory);
  const pool = await openPool(server.url, { max: poolSize, statementTimeoutMs, applicationName: NAME });
  try {
    if (options.migrated !== false) {
      if (server.embedded !== undefined) await migrate(pool);
      else await requireMigrated(pool);
    }
  } catch (error) {
    await pool.close();
    throw error;
  }
  return { pool, server, [Symbol.asyncDispose]: () => closeWarm(pool, server) };
}

const OTHERS = statement<{ others: number }>(
  'open_warm.others',
  `SELECT count(*) AS others FROM pg_stat_activity
   WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND application_name <> $1`,
);

async function closeWarm(pool: WarmPool, { embedded }: WarmServer): Promise<void> {
  const isOurs = embedded !== undefined && !embedded.attached;
  // Connections of this pool carry this process's own name.
  const [row] = isOurs ? await pool.lend((session) => session.query(OTHERS, [NAME])).catch(() => []) : [];
  await pool.close();
  if (row?.others === 0) await embedded?.stop('fast');
}

/** Is there a warm tier to be asked? Looking must not make a database where there is none. */
export async function isWarmThere({ warm }: Config): Promise<boolean> {
  if (warm.databaseUrl !== undefined) return true;
  return (await stat(join(warm.directory, 'data')).catch(() => undefined)) !== undefined;
}
