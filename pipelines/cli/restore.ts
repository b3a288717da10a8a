/** `varve restore`. */
import { type Command, Option } from 'commander';
import { loadConfig } from '../config.ts';
import { restore } from '../restore.ts';
import { TIERS, type Tier } from '../tiers.ts';
import { type ConfigFlag, fileOf, type JsonFlag } from './options.ts';

type RestoreFlags = ConfigFlag &
  JsonFlag & {
    readonly hot?: string;
    readonly fromFile?: string;
    readonly out?: string;
    readonly into?: string;
    readonly blobs?: string;
    readonly tier?: Tier;
    readonly force?: boolean;
    readonly dryRun?: boolean;
  };

export function addRestore(program: Command, signal: AbortSignal): void {
  program
    .command('restore')
    .description('whole trajectories out of whatever tier they are in: as event JSONL, or into a hot log')
    .argument('[trajectory...]', 'ids, or beginnings of ids')
    .option('--from-file <file>', 'a file that names them, one a line; - is standard input')
    .option('--out <path>', 'event JSONL: a file, a directory (one file each), or - for standard output')
    .option('--into <directory>', 'a hot log, made where there is none; run again, it goes on')
    .option(
      '--blobs <directory>',
      'with --out: put the bodies of offloaded strings there, as import --blobs takes them',
    )
    .addOption(new Option('--tier <name>', 'only from there; else cold, then warm, then hot').choices(TIERS))
    .option('--hot <path>', 'hot logs to look in: a directory or a glob (hot.logs)')
    .option('--force', 'replace files that are there')
    .option('--dry-run', 'say which tier has which events, write nothing')
    .option('--json', 'machine-readable output')
    .option('--config <file>', 'configuration file')
    .action(async (names: string[], { hot, force, dryRun, json, ...flags }: RestoreFlags) => {
      const { config } = await loadConfig({ ...fileOf(flags), flags: { 'hot.logs': hot } });
      const { fromFile, out, into, blobs, tier } = flags;
      const flagged = { force: force === true, dryRun: dryRun === true, json: json === true };
      process.exitCode = await restore(config, names, { fromFile, out, into, blobs, tier, ...flagged }, signal);
    });
}
