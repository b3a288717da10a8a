/**
 * Opens the warm tier that the configuration names: a PostgreSQL behind a URL, else our own on this machine.
 *
 * Our own is migrated on the way; one that others run is not touched, and must be migrated (`varve migrate`).
 */
import type { Config } from '../schemas/config.ts';
import { migrate, requireMigrated } from '../warm/migrate.ts';
import { openPool, type WarmPool } from '../warm/pool.ts';
import { findServer, type WarmServer } from '../warm/server.ts';

export type OpenWarm = AsyncDisposable & {
  readonly pool: WarmPool;
  readonly server: WarmServer;
};

export async function openWarm(config: Config, options: { readonly migrated?: boolean } = {}): Promise<OpenWarm> {
  const { databaseUrl, directory, poolSize, statementTimeoutMs } = config.warm;
  const server = await findServer(databaseUrl, directory);
  const pool = await openPool(server.url, { max: poolSize, statementTimeoutMs, applicationName: 'varve' });
  try {
    if (options.migrated !== false) {
      if (server.embedded !== undefined) await migrate(pool);
      else await requireMigrated(pool);
    }
  } catch (error) {
    await pool.close();
    throw error;
  }
  return { pool, server, [Symbol.asyncDispose]: () => pool.close() };
}
