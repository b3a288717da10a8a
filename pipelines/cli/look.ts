/** The commands that look at what is there: `verify`, `doctor`, `show`, `tail`. */
import { type Command, Option } from 'commander';
import type { SnapshotAt } from '../../cold/table-log.ts';
import type { SampleSize } from '../../cold/verify-sample.ts';
import { loadConfig } from '../config.ts';
import { doctor } from '../doctor.ts';
import { show } from '../show.ts';
import { tail } from '../tail.ts';
import { TIERS } from '../tiers.ts';
import { verify } from '../verify.ts';
import { type ConfigFlag, fileOf, type JsonFlag, positive, sampleSize, versionOrTime } from './options.ts';

type VerifyFlags = ConfigFlag &
  JsonFlag & {
    readonly hot?: string | true;
    readonly warm?: true;
    /** false for `--no-cold`. */
    readonly cold?: boolean;
    readonly deep?: true;
    readonly sample?: SampleSize;
    readonly seed?: string;
    readonly at?: SnapshotAt;
  };
type DoctorFlags = ConfigFlag &
  JsonFlag & { readonly hot?: string | true; readonly copy?: string; readonly fix?: true };
type ShowFlags = ConfigFlag &
  JsonFlag & {
    readonly hot?: string | true;
    readonly warm?: true;
    readonly cold?: true;
    readonly full?: true;
    readonly format?: 'markdown' | 'jsonl';
  };

export function addLooks(program: Command, signal: AbortSignal): void {
  program
    .command('verify')
    .description(
      'every hash, link and blob of hot logs, the warm and the cold tier; what is there, where none is named',
    )
    .option('--hot [path]', 'hot logs: a directory or a glob (hot.logs)')
    .option('--warm', 'the warm tier')
    .option('--cold', 'the cold tier')
    .option('--no-cold', 'not the cold tier')
    .option('--deep', 'also hash blobs again, step summaries again, look for bodies in the store, put bodies back')
    .option('--sample <size>', 'of the cold tier only some files: a share such as 1%, or a number', sampleSize)
    .option('--seed <text>', 'what decides which files; without it, the version of the table and the day')
    .option('--at <version|time>', 'the cold tier as it was', versionOrTime)
    .option('--json', 'machine-readable output')
    .option('--config <file>', 'configuration file')
    .action(async ({ hot, warm, cold, deep, json, sample, seed, at, ...flags }: VerifyFlags) => {
      const { config } = await loadConfig({ ...fileOf(flags), flags: hotFlag(hot) });
      const isNamed = hot !== undefined || warm !== undefined || cold === true;
      const what = isNamed
        ? { hot: hot !== undefined, warm: warm === true, cold: cold === true }
        : { hot: undefined, warm: undefined, cold };
      const options = { ...what, deep: deep === true, json: json === true, sample, seed, at };
      process.exitCode = await verify(config, options, signal);
    });

  program
    .command('doctor')
    .description('what is wrong, and what to do about it: hot logs, warm tier, store; touches nothing by itself')
    .option('--hot [path]', 'only hot logs: a directory or a glob (hot.logs)')
    .option('--copy <directory>', 'copy the evidence of damaged logs there')
    .option('--fix', 'remove what processes that are gone left behind')
    .option('--json', 'machine-readable output')
    .option('--config <file>', 'configuration file')
    .action(async ({ hot, copy, fix, json, ...flags }: DoctorFlags) => {
      const { config } = await loadConfig({ ...fileOf(flags), flags: hotFlag(hot) });
      const options = { hotOnly: hot !== undefined, fix: fix === true, json: json === true };
      process.exitCode = await doctor(config, copy === undefined ? options : { ...options, copy });
    });

  program
    .command('show')
    .description('a trajectory turn by turn: messages, replies, calls and their state, results, totals')
    .argument('<trajectory>', 'its id, or the beginning of it')
    .option('--hot [path]', 'from hot logs: a directory or a glob (hot.logs)')
    .option('--warm', 'from the warm tier alone')
    .option('--cold', 'from the cold tier alone; without any: cold up to its head, then warm, then hot')
    .option('--full', 'every text whole')
    .addOption(new Option('--format <name>', 'markdown, or its events as jsonl').choices(['markdown', 'jsonl']))
    .option('--json', 'machine-readable output')
    .option('--config <file>', 'configuration file')
    .action(async (id: string, { hot, warm, cold, full, format, json, ...flags }: ShowFlags, self: Command) => {
      const named = TIERS.filter((tier) => ({ hot, warm, cold })[tier] !== undefined);
      if (named.length > 1) self.error('one of --hot, --warm and --cold');
      const { config } = await loadConfig({ ...fileOf(flags), flags: hotFlag(hot) });
      const [from] = named;
      const shown = json === true ? 'json' : (format ?? 'markdown');
      await show(config, id.toLowerCase(), { from, format: shown, full: full === true }, signal);
    });

  program
    .command('tail')
    .description('every durable event of a log as it happens, until a signal comes')
    .argument('<directory>', 'directory of the log')
    .option('--from <lsn>', 'first LSN; without it, what becomes durable from now on', positive)
    .option('--trajectory <id>', 'only of this trajectory: its id, or the beginning of it', '')
    .option('--json', 'events as JSONL')
    .action(async (directory: string, { from, trajectory, json }: JsonFlag & { from?: number; trajectory: string }) =>
      tail(directory, { from, trajectory, json: json === true }, signal),
    );
}

/** `--hot` alone means the configured logs. */
export function hotFlag(hot: string | true | undefined): Record<string, unknown> {
  return typeof hot === 'string' ? { 'hot.logs': hot } : {};
}
