/**
 * `varve restore` in a process of its own, compiled or not, and what it took at its peak:
 *
 *   done <exit code> <peak resident bytes>
 */
import { readFileSync, writeSync } from 'node:fs';
import { loadConfig } from '../../pipelines/config.ts';
import { type RestoreOptions, restore } from '../../pipelines/restore.ts';

export type RestorePlan = {
  /** Path of the configuration file. */
  readonly config: string;
  readonly names: readonly string[];
  readonly options: Partial<RestoreOptions>;
};

const plan = JSON.parse(process.argv[2] as string) as RestorePlan;
// Whoever started this has died.
process.stdin.on('end', () => process.exit(1)).resume();
const { config } = await loadConfig({ file: plan.config });
const nothing = { fromFile: undefined, out: undefined, into: undefined, blobs: undefined, tier: undefined };
const options = { ...nothing, force: false, dryRun: false, json: false, ...plan.options };
const code = await restore(config, plan.names, options, new AbortController().signal);
const kib = /^VmHWM:\s+(\d+) kB/m.exec(readFileSync('/proc/self/status', 'latin1'))?.[1];
writeSync(1, `done ${code} ${Number(kib) * 1024}\n`);
process.exit(0);
