/**
 * A warm tier to be measured: the embedded server on the disk that is measured, with all its syncs, and sidecars as
 * users run them: compiled, in processes of their own.
 */
import { randomBytes } from 'node:crypto';
import * as path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { type EmbeddedServer, startEmbedded } from '../../../warm/embedded.ts';
import { migrate } from '../../../warm/migrate.ts';
import { openPool, statement, type WarmPool } from '../../../warm/pool.ts';
import { compile } from '../../support/compiled.ts';
import { SidecarProcess } from '../../support/sidecar-process.ts';

const POLL_MS = 5;

export class WarmPlace implements AsyncDisposable {
  readonly server: EmbeddedServer;
  readonly #dir: string;
  readonly #script: string;

  private constructor(dir: string, server: EmbeddedServer, script: string) {
    this.#dir = dir;
    this.server = server;
    this.#script = script;
  }

  static async start(dir: string): Promise<WarmPlace> {
    const script = compile('sidecar-cli.ts', path.join(dir, 'compiled'));
    return new WarmPlace(dir, await startEmbedded(path.join(dir, 'warm')), script);
  }

  /** A database of its own, migrated unless `empty`. */
  async database(options: { readonly empty?: boolean } = {}): Promise<WarmPool & { readonly url: string }> {
    const name = `bench_${randomBytes(4).toString('hex')}`;
    await using admin = await openPool(this.server.url, { max: 1 });
    await admin.lend((session) => session.exec(`CREATE DATABASE ${name}`));
    const url = new URL(this.server.url);
    url.pathname = `/${name}`;
    const pool = await openPool(url.href, { max: 2, statementTimeoutMs: 0 });
    if (options.empty !== true) await migrate(pool);
    return Object.assign(pool, { url: url.href });
  }

  /** A sidecar of one log, once it listens. */
  async sidecar(log: string, url: string): Promise<SidecarProcess> {
    const store = path.join(this.#dir, 'store');
    const sidecar = SidecarProcess.start({ logs: log, url, store, script: this.#script });
    await sidecar.port();
    return sidecar;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.server.stop('immediate');
  }
}

const CURSOR = statement<{ lsn: number }>('bench.cursor', `SELECT coalesce(max(lsn), 0) AS lsn FROM cursors`);

/** How far the one log of a database has been taken over. */
export async function replicatedLsn(pool: WarmPool): Promise<number> {
  return (await pool.lend((session) => session.query(CURSOR)))[0]?.lsn ?? 0;
}

/** Waits until warm has everything up to an LSN. */
export async function untilReplicated(pool: WarmPool, lsn: number): Promise<void> {
  while ((await replicatedLsn(pool)) < lsn) await sleep(POLL_MS);
}
