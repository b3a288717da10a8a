/** The commands of `varve`: names, options, help. What they do is in files of their own. */
import { Command } from 'commander';
import { benchDisk } from './bench-disk.ts';
import { addCompact } from './cli/compact.ts';
import { addImport } from './cli/import.ts';
import { addLooks } from './cli/look.ts';
import { type ConfigFlag, fileOf, positive, whole } from './cli/options.ts';
import { addQuarantine } from './cli/quarantine.ts';
import { addQuery } from './cli/query.ts';
import { addRestore } from './cli/restore.ts';
import { loadConfig } from './config.ts';
import { runMigrate } from './run-migrate.ts';
import { runSidecar } from './run-sidecar.ts';
import { showConfig } from './show-config.ts';
import { showStatus } from './show-status.ts';
import { DEFAULT_DIR, start } from './start.ts';
import { startWorker } from './start-worker.ts';

export function buildProgram(signal: AbortSignal): Command {
  const program = new Command('varve')
    .description('A durable trajectory log for AI agents')
    .configureHelp({ showGlobalOptions: true })
    .exitOverride();

  program
    .command('start')
    .description('show the product at work on this machine, and leave the result to be looked at')
    .option('--dir <directory>', 'where everything is kept', DEFAULT_DIR)
    .option('--agents <n>', 'concurrent agents', positive, 48)
    .option('--turns <n>', 'turns of each agent', positive, 60)
    .action((options: { dir: string; agents: number; turns: number }) => start(options, signal));

  program
    .command('start-worker <directory>', { hidden: true })
    .option('--agents <n>', '', positive, 48)
    .option('--turns <n>', '', positive, 60)
    .action((directory: string, options: { agents: number; turns: number }) => startWorker(directory, options));

  program
    .command('sidecar')
    .description('replicate hot logs to the warm tier, for as long as it runs')
    .option('--hot <path>', 'directory of a log, or a glob of several (hot.logs)')
    .option('--port <n>', 'port of /healthz, /readyz, /status and /metrics; 0 takes a free one (sidecar.port)', whole)
    .option('--drain', 'replicate until everything is out, then end')
    .option('--once <directory>', "take over what is whole of a dead host's log, then end")
    .option('--config <file>', 'configuration file')
    .action(async (options: SidecarFlags) => {
      const flags = { 'hot.logs': options.hot, 'sidecar.port': options.port };
      const { config } = await loadConfig({ ...fileOf(options), flags });
      const { drain, once } = options;
      process.exitCode = await runSidecar(
        config,
        { ...(drain === undefined ? {} : { drain }), ...(once === undefined ? {} : { once }) },
        signal,
      );
    });

  program
    .command('migrate')
    .description('bring the database of the warm tier up to date')
    .option('--dry-run', 'say what would be done')
    .option('--json', 'machine-readable output')
    .option('--config <file>', 'configuration file')
    .action(async (options: ConfigFlag & { dryRun?: boolean; json?: boolean }) => {
      const { config } = await loadConfig(fileOf(options));
      await runMigrate(config, options);
    });

  program
    .command('status')
    .description('how far each log is replicated, what is held back, what needs a person')
    .option('--json', 'machine-readable output')
    .option('--config <file>', 'configuration file')
    .action(async (options: ConfigFlag & { json?: boolean }) => {
      const { config } = await loadConfig(fileOf(options));
      process.exitCode = await showStatus(config, options.json === true);
    });

  addLooks(program, signal);
  addCompact(program, signal);
  addImport(program, signal);
  addRestore(program, signal);
  addQuarantine(program, signal);
  addQuery(program, signal);

  program
    .command('config')
    .description('what is in force, and where it came from')
    .option('--json', 'machine-readable output')
    .option('--config <file>', 'configuration file')
    .action(async (options: ConfigFlag & { json?: boolean }) =>
      showConfig(await loadConfig(fileOf(options)), options.json === true),
    );

  program
    .command('bench')
    .description('measure this machine')
    .command('disk')
    .description("what a barrier costs on a directory's own disk")
    .option('--dir <directory>', 'directory on the disk to measure', '.')
    .option('--rounds <n>', 'how often each interface is measured', positive)
    .option('--bytes <n>', 'bytes of one event', positive)
    .option('--json', 'machine-readable output')
    .action((options: { dir: string; rounds?: number; bytes?: number; json?: boolean }) => benchDisk(options, signal));

  return program;
}

type SidecarFlags = ConfigFlag & {
  readonly hot?: string;
  readonly port?: number;
  readonly drain?: boolean;
  readonly once?: string;
};
