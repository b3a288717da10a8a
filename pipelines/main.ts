#!/usr/bin/env node
/**
 * The binary `varve`. Turns signals into one AbortSignal and errors into exit codes; everything else is commands.
 *
 *   0  done            2  the input or an option is wrong     3  done, with losses that were reported
 *   4  the environment: disk, lock, peer; later it may work   5  data that must not be trusted
 *   1  a bug in varve  128+n  ended by signal n
 */
import { constants } from 'node:os';
import { CommanderError } from 'commander';
import { ERROR_CODES, isVarveError } from '../schemas/errors.ts';
import { buildProgram } from './cli.ts';

const controller = new AbortController();
let received: NodeJS.Signals | undefined;
for (const name of ['SIGINT', 'SIGTERM'] as const) {
  process.on(name, () => {
    // The first asks for an end after what is under way, the second does not ask.
    if (received !== undefined) process.exit(128 + constants.signals[name]);
    received = name;
    controller.abort();
  });
}

// `varve … | head`: whoever read the output has seen enough.
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code !== 'EPIPE') throw error;
  process.exit(128 + constants.signals.SIGPIPE);
});

process.exitCode = await run();

async function run(): Promise<number> {
  try {
    await buildProgram(controller.signal).parseAsync();
  } catch (error) {
    if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2;
    if (!isVarveError(error)) throw error;
    if (error.code !== 'ABORTED') {
      process.stderr.write(`varve: ${error.message} [${error.code}]\n`);
      return ERROR_CODES[error.code].exit;
    }
  }
  // What a command has set itself: 3, 4 or 5 with an answer.
  const answered = Number(process.exitCode ?? 0);
  return received === undefined ? answered : 128 + constants.signals[received];
}
