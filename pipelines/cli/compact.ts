/** `varve compact` and `varve runs`. */
import { type Command, InvalidArgumentError } from 'commander';
import { type CompactOptions, compact } from '../compact.ts';
import { loadConfig } from '../config.ts';
import { print, printJson } from '../print.ts';
import { Progress } from '../progress.ts';
import { showRuns } from '../show-runs.ts';
import { type ConfigFlag, duration, fileOf, type JsonFlag, positive } from './options.ts';

type CompactFlags = ConfigFlag &
  JsonFlag & {
    readonly olderThan?: number;
    readonly tenant?: string;
    readonly until?: number;
    readonly dryRun?: boolean;
    readonly concurrency?: number;
    readonly maxHold?: number;
  };

const DAY_MS = 86_400_000;

export function addCompact(program: Command, signal: AbortSignal): void {
  program
    .command('compact')
    .description('move closed trajectories from the warm tier to the cold one, proven')
    .option('--older-than <age>', 'such as 7d, 12h, 30m or 0 (compact.olderThanDays)', duration)
    .option('--tenant <tenant>', 'only of this tenant')
    .option('--until <HH:MM>', "begin nothing after this time of the machine's day", timeOfDay)
    .option('--dry-run', 'say what would be moved, and change nothing')
    .option('--concurrency <n>', 'files that are made at once (compact.concurrency)', positive)
    .option(
      '--max-hold <age>',
      'longest wait of a partition that is too small for a file (compact.maxHoldDays; 0 with --older-than)',
      duration,
    )
    .option('--json', 'machine-readable output')
    .option('--config <file>', 'configuration file')
    .action(async (flags: CompactFlags) => {
      const { config } = await loadConfig(fileOf(flags));
      const progress = new Progress();
      const olderThanMs = flags.olderThan ?? config.compact.olderThanDays * DAY_MS;
      const options: CompactOptions = {
        olderThanMs,
        tenant: flags.tenant,
        untilMs: flags.until,
        dryRun: flags.dryRun === true,
        concurrency: flags.concurrency ?? config.compact.concurrency,
        // Who names an age wants what is so old to move.
        maxHoldMs: flags.maxHold ?? (flags.olderThan === undefined ? config.compact.maxHoldDays * DAY_MS : 0),
        onProgress: (report) => progress.at(() => report.line),
      };
      const report = await compact(config, options, signal);
      progress.end();
      if (flags.json === true) printJson(report);
      else print(report.text);
      if (report.skipped > 0) process.exitCode = 3;
    });

  program
    .command('runs')
    .description('what the runs of compact did, and what is left to move')
    .option('--last <n>', 'how many runs', positive, 20)
    .option('--json', 'machine-readable output')
    .option('--config <file>', 'configuration file')
    .action(async (flags: ConfigFlag & JsonFlag & { readonly last: number }) => {
      const { config } = await loadConfig(fileOf(flags));
      process.exitCode = await showRuns(config, flags.last, flags.json === true);
    });
}

/** The next time that a clock on this machine shows it, in milliseconds since the epoch. */
function timeOfDay(text: string): number {
  const [, hours, minutes] = /^([01]?\d|2[0-3]):([0-5]\d)$/.exec(text) ?? [];
  if (hours === undefined) throw new InvalidArgumentError('a time such as 06:00 is needed.');
  const at = new Date();
  at.setHours(Number(hours), Number(minutes), 0, 0);
  if (at.getTime() <= Date.now()) at.setDate(at.getDate() + 1);
  return at.getTime();
}
