/** The commands that look at what is there: `verify`, `doctor`, `show`, `tail`. */
import { type Command, Option } from 'commander';
import { loadConfig } from '../config.ts';
import { doctor } from '../doctor.ts';
import { show } from '../show.ts';
import { tail } from '../tail.ts';
import { TIERS } from '../tiers.ts';
import { verify } from '../verify.ts';
import { type ConfigFlag, fileOf, type JsonFlag, positive } from './options.ts';

type VerifyFlags = ConfigFlag & JsonFlag & { readonly hot?: string | true; readonly warm?: true; readonly deep?: true };
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
    .description('every hash, link and blob of hot logs and of the warm tier; what is there, where none is named')
    .option('--hot [path]', 'hot logs: a directory or a glob (hot.logs)')
    .option('--warm', 'the warm tier')
    .option('--deep', 'also hash blobs again, step summaries again, look for bodies in the store')
    .option('--json', 'machine-readable output')
    .option('--config <file>', 'configuration file')
    .action(async ({ hot, warm, deep, json, ...flags }: VerifyFlags) => {
      const { config } = await loadConfig({ ...fileOf(flags), flags: hotFlag(hot) });
      const either = hot === undefined && warm === undefined;
      const what = either ? { hot: undefined, warm: undefined } : { hot: hot !== undefined, warm: warm === true };
      process.exitCode = await verify(config, { ...what, deep: deep === true, json: json === true }, signal);
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
