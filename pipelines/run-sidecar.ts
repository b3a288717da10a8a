/** `varve sidecar`: runs a sidecar until a signal comes, until its logs are drained, or over a dead host's disk once. */
import { resolve } from 'node:path';
import { readPrefix } from '../hot/drain.ts';
import { readLogFile } from '../hot/meta.ts';
import type { TailBatch, TailItem } from '../hot/read-check.ts';
import { type Cursor, START } from '../hot/tail-protocol.ts';
import type { Config } from '../schemas/config.ts';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { followLog, type HotSource } from './follow-log.ts';
import type { SidecarParts } from './log-loop.ts';
import { Logger } from './logger.ts';
import { openColdStore } from './open-cold.ts';
import { openWarm } from './open-warm.ts';
import { retry } from './retry.ts';
import { Sidecar } from './sidecar.ts';
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
  await using store = await openColdStore(config);
  const parts: SidecarParts = { config, pool: warm.pool, store, logger };
  if (options.once !== undefined) return await takeOver(resolve(options.once), parts, signal);
  const sidecar = new Sidecar(parts);
  if (options.drain === true) {
    const limit = AbortSignal.timeout(config.sidecar.drainTimeoutMs);
    return await drain(sidecar, AbortSignal.any([signal, limit]));
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

/** Returns the exit code. */
async function drain(sidecar: Sidecar, signal: AbortSignal): Promise<number> {
  try {
    return (await sidecar.drain(signal)) ? 0 : 4;
  } finally {
    for (const { directory, state, replicated_lsn, durable_lsn, error } of sidecar.statuses()) {
      const why = state === 'standby' ? '; another sidecar follows it' : error === undefined ? '' : ` (${error.code})`;
      process.stdout.write(`${directory}: ${replicated_lsn} of ${durable_lsn} records replicated${why}\n`);
    }
  }
}

async function takeOver(directory: string, parts: SidecarParts, signal: AbortSignal): Promise<number> {
  const file = await readLogFile(directory);
  if (file === undefined) throw new VarveError('HOT_NOT_A_LOG', `${directory} is not a varve log: it has no log.json`);
  const config: Config = { ...parts.config, hot: { logs: directory } };
  const sidecar = new Sidecar({ ...parts, config });
  try {
    return await drain(sidecar, signal);
  } catch (error) {
    if (!isVarveError(error, 'HOT_DAMAGED')) throw error;
    const replicated = await takeOverPrefix(directory, file.log_id, parts, signal);
    process.stdout.write(`${directory}: damaged; what is whole before it is replicated, up to LSN ${replicated}\n`);
    throw error;
  }
}

/** What stands verified before the damage. Returns the last LSN of it that warm has. */
async function takeOverPrefix(
  directory: string,
  log_id: string,
  parts: SidecarParts,
  signal: AbortSignal,
): Promise<number> {
  const { config, pool, store } = parts;
  let last = 0;
  const open = (cursor: Cursor): Promise<HotSource> => {
    last = cursor.lsn;
    return Promise.resolve({
      log_id,
      epoch: NO_EPOCH,
      durableLsn: cursor.lsn,
      ack: () => Promise.resolve(),
      close: () => Promise.resolve(),
      [Symbol.asyncIterator]: () => prefixBehind(directory, cursor, signal),
    });
  };
  await followLog(directory, log_id, pool, store, open, {
    batchEvents: config.sidecar.batchEvents,
    batchBytes: config.sidecar.batchBytes,
    once: false,
    signal,
    retry: (work) => retry(work, signal, { longestPauseMs: config.sidecar.retryMaxMs }),
    onBegun: () => {},
    onHeld: () => {},
    onProgress: ({ cursor }) => {
      last = cursor.lsn;
    },
  });
  return last;
}

/** Nobody has opened the log for writing. */
const NO_EPOCH = '00000000-0000-0000-0000-000000000000';

/** @throws VarveError TAIL_CURSOR_UNKNOWN where the cursor is not of this log's past */
async function* prefixBehind(directory: string, cursor: Cursor, signal: AbortSignal): AsyncGenerator<TailBatch> {
  let last = cursor.lsn;
  for await (const batch of readPrefix(directory, signal)) {
    const records: TailItem[] = [];
    for (const item of batch.records) {
      if (item.kind === 'trimmed') continue;
      const lsn = Number(item.lsn);
      if (lsn === cursor.lsn && item.hash !== cursor.hash) {
        const message = `LSN ${lsn} of this log is not the record that warm has taken over: the log was restored or replaced`;
        throw new VarveError('TAIL_CURSOR_UNKNOWN', message, { cursor: lsn });
      }
      if (lsn <= last) continue;
      // What a trim took is named as missing. Its own last hash is not known; the next record's is.
      if (lsn > last + 1) records.push({ kind: 'trimmed', from_lsn: last + 1, to_lsn: lsn - 1, hash: START.hash });
      records.push(item);
      last = lsn;
    }
    if (records.length > 0) yield { records, cursor: batch.cursor };
  }
}
