/** The cold part of `varve start`: what is finished moves to Parquet in an object store, which is a folder here. */
import { join } from 'node:path';
import { type CompactOptions, compact } from './compact.ts';
import type { CompactReport } from './compact-report.ts';
import { loadConfig } from './config.ts';

/** The configuration of everything that `varve start` keeps below one directory. */
export async function startConfig(dir: string) {
  const flags = {
    'hot.logs': join(dir, 'hot'),
    'warm.directory': join(dir, 'warm'),
    'cold.store': `file:${join(dir, 'cold')}`,
    'cold.scratch': join(dir, 'scratch'),
    'log.level': 'warn',
  };
  return (await loadConfig({ environment: {}, flags })).config;
}

/** Everything that is closed, however young. */
export const AT_ONCE: CompactOptions = {
  olderThanMs: 0,
  tenant: undefined,
  untilMs: undefined,
  dryRun: false,
  concurrency: 1,
  maxHoldMs: 0,
  onProgress: () => {},
};

export async function startCold(dir: string, signal: AbortSignal): Promise<CompactReport> {
  return await compact(await startConfig(dir), AT_ONCE, signal);
}
