/** The commands of `varve`: names, options, help. What they do is in files of their own. */
import { Command, InvalidArgumentError } from 'commander';
import { benchDisk } from './bench-disk.ts';
import { start } from './start.ts';
import { startWorker } from './start-worker.ts';

export function buildProgram(signal: AbortSignal): Command {
  const program = new Command('varve')
    .description('A durable trajectory log for AI agents')
    .configureHelp({ showGlobalOptions: true })
    .exitOverride();

  program
    .command('start')
    .description('show the product at work on this machine, and leave the result to be looked at')
    .option('--dir <directory>', 'where everything is kept', '.varve')
    .option('--agents <n>', 'concurrent agents', positive, 48)
    .option('--turns <n>', 'turns of each agent', positive, 60)
    .action((options: { dir: string; agents: number; turns: number }) => start(options, signal));

  program
    .command('start-worker <directory>', { hidden: true })
    .option('--agents <n>', '', positive, 48)
    .option('--turns <n>', '', positive, 60)
    .action((directory: string, options: { agents: number; turns: number }) => startWorker(directory, options));

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

function positive(text: string): number {
  const value = Number(text);
  if (Number.isSafeInteger(value) && value > 0) return value;
  throw new InvalidArgumentError('a whole number from 1 is needed.');
}
