/** `varve sidecar`: runs a sidecar until a signal comes, until its logs are drained, or over a dead host's disk once. */
import { resolve } from 'node:path';
import { openStore } from '../cold/open-store.ts';
import { readPrefix } from '../hot/drain.ts';
import { readLogFile } from '../hot/meta.ts';
import type { Config } from '../schemas/config.ts';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { followLog, type HotSource } from './follow-log.ts';
import { Logger } from './logger.ts';
import { openWarm } from './open-warm.ts';
import { retry } from './retry.ts';
import { Sidecar, type SidecarParts } from './sidecar.ts';
import { SidecarHttp } from './sidecar-http.ts';

export type RunSidecarOptions = {
  /** Replicate until everything is out, then end. */
  readonly drain?: boolean;
  /** A log of a host that is gone: take over what is whole of it, then end. */
  readonly once?: string;
};

/** Returns the exit code: 0, or 4 where something is left to replicate. */
export async function runSidecar(config: Config, options: RunSidecarOptions, signal: AbortSignal): Promise<number> {
  const logger = new Logger(config.log.level);
  await using warm = await openWarm(config);
  await using store = await openStore(config.cold.store);
  const parts: SidecarParts = { config, pool: warm.pool, store, logger };
  if (options.once !== undefined) return takeOver(resolve(options.once), parts, signal);
  const sidecar = new Sidecar(parts);
  if (options.drain === true) {
    const done = await sidecar.drain(signal);
    for (const { directory, replicated_lsn, durable_lsn } of sidecar.statuses()) {
      process.stdout.write(`${directory}: ${replicated_lsn} of ${durable_lsn} records replicated\n`);
    }
    return done ? 0 : 4;
  }
  const http = await SidecarHttp.listen(config.sidecar.host, config.sidecar.port, {
    metrics: sidecar.metrics,
    statuses: () => sidecar.statuses(),
    unready: () => sidecar.unready(),
  });
  logger.info('sidecar.started', {
    logs: config.hot.logs,
    database: warm.pool.server,
    store: store.url,
    port: http.port,
  });
  try {
    await sidecar.run(signal);
  } finally {
    await http.close();
  }
  logger.info('sidecar.stopped', {});
  return 0;
}

async function takeOver(directory: string, parts: SidecarParts, signal: AbortSignal): Promise<number> {
  const file = await readLogFile(directory);
  if (file === undefined) throw new VarveError('HOT_NOT_A_LOG', `${directory} is not a varve log: it has no log.json`);
  const config: Config = { ...parts.config, hot: { logs: directory } };
  const sidecar = new Sidecar({ ...parts, config });
  try {
    const done = await sidecar.drain(signal);
    for (const { replicated_lsn, durable_lsn } of sidecar.statuses()) {
      process.stdout.write(`${directory}: ${replicated_lsn} of ${durable_lsn} records replicated\n`);
    }
    return done ? 0 : 4;
  } catch (error) {
    if (!isVarveError(error, 'HOT_DAMAGED')) throw error;
    const replicated = await takeOverPrefix(directory, file.log_id, parts, signal);
    process.stdout.write(`${directory}: damaged; what is whole before it is replicated, up to LSN ${replicated}\n`);
    throw error;
  }
}

/** What stands verified before the damage. Returns the last LSN of it. */
async function takeOverPrefix(
  directory: string,
  log_id: string,
  parts: SidecarParts,
  signal: AbortSignal,
): Promise<number> {
  const { config, pool, store } = parts;
  let last = 0;
  const open = (cursor: { readonly lsn: number }): Promise<HotSource> =>
    Promise.resolve({
      log_id,
      epoch: '00000000-0000-0000-0000-000000000000',
      durableLsn: 0,
      ack: () => Promise.resolve(),
      close: () => Promise.resolve(),
      async *[Symbol.asyncIterator]() {
        for await (const batch of readPrefix(directory, signal)) {
          const records = batch.records.filter((item) => item.kind !== 'trimmed' && Number(item.lsn) > cursor.lsn);
          if (records.length > 0) yield { records, cursor: batch.cursor };
        }
      },
    });
  await followLog(directory, log_id, pool, store, open, {
    batchEvents: config.sidecar.batchEvents,
    batchBytes: config.sidecar.batchBytes,
    signal,
    retry: (work) => retry(work, signal, { longestPauseMs: config.sidecar.retryMaxMs }),
    onProgress: ({ cursor }) => {
      last = cursor.lsn;
    },
  });
  return last;
}
