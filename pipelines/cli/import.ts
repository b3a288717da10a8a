/** `varve import`. */
import type { Command } from 'commander';
import { loadConfig } from '../config.ts';
import { importEvents } from '../import.ts';
import { type ConfigFlag, fileOf, type JsonFlag } from './options.ts';

type ImportFlags = ConfigFlag &
  JsonFlag & {
    readonly hot?: string;
    readonly format: string;
    readonly blobs?: string;
    readonly report?: string;
    readonly dryRun?: boolean;
  };

export function addImport(program: Command, signal: AbortSignal): void {
  program
    .command('import')
    .description('event JSONL into a hot log, with the same hashes')
    .argument('<path...>', 'files; - is standard input')
    .option('--hot <directory>', 'the log (hot.logs); made where there is none')
    .option('--format <name>', 'varve: its own event JSONL', 'varve')
    .option('--blobs <directory>', 'where the bodies of offloaded strings are: a log, or a folder with its blobs/')
    .option('--report <file>', 'write every refused line and contradicted trajectory there, as JSON')
    .option('--dry-run', 'check everything, append nothing')
    .option('--json', 'machine-readable output')
    .option('--config <file>', 'configuration file')
    .action(async (paths: string[], { hot, format, blobs, report, dryRun, json, ...rest }: ImportFlags) => {
      const { config } = await loadConfig({ ...fileOf(rest), flags: { 'hot.logs': hot } });
      const options = {
        format,
        dryRun: dryRun === true,
        json: json === true,
        ...(blobs === undefined ? {} : { blobs }),
        ...(report === undefined ? {} : { report }),
      };
      process.exitCode = await importEvents(config, paths, options, signal);
    });
}
