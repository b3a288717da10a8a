/**
 * The command line, as a process of its own, or in this one, where many commands are to be tried and starting each of
 * them would take longer than what it does.
 */
import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { CommanderError } from 'commander';
import { buildProgram } from '../../pipelines/cli.ts';
import { ERROR_CODES, isVarveError } from '../../schemas/errors.ts';

const MAIN = fileURLToPath(new URL('../../pipelines/main.ts', import.meta.url));
/** Found from whatever directory the process is started in. */
const TSX = import.meta.resolve('tsx');

export type Ran = { readonly code: number; readonly stdout: string; readonly stderr: string };

export function startVarve(args: readonly string[], options: { readonly cwd: string }): ChildProcessWithoutNullStreams {
  const child = spawn(process.execPath, ['--import', TSX, MAIN, ...args], { cwd: options.cwd });
  const stop = () => child.kill('SIGKILL');
  process.once('exit', stop);
  child.once('close', () => process.off('exit', stop));
  return child;
}

/** Runs a command in a process of its own. */
export async function runVarve(
  args: readonly string[],
  options: { readonly cwd: string; readonly input?: string },
): Promise<Ran> {
  const child = startVarve(args, options);
  let [stdout, stderr] = ['', ''];
  child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text));
  child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text));
  child.stdin.end(options.input ?? '');
  const [code] = (await once(child, 'close')) as [number | null];
  return { code: code ?? -1, stdout, stderr };
}

/** Runs a command in this process, with what it prints and the code with which it would have ended. */
export async function varve(...args: string[]): Promise<Ran> {
  const { stdout, stderr } = process;
  const taken = { stdout: '', stderr: '' };
  const [out, err, code] = [stdout.write.bind(stdout), stderr.write.bind(stderr), process.exitCode];
  stdout.write = (text: string | Uint8Array) => ((taken.stdout += Buffer.from(text as string).toString()), true);
  stderr.write = (text: string | Uint8Array) => ((taken.stderr += Buffer.from(text as string).toString()), true);
  process.exitCode = 0;
  try {
    await buildProgram(new AbortController().signal).parseAsync(args, { from: 'user' });
    return { ...taken, code: answered() };
  } catch (error) {
    if (error instanceof CommanderError) return { ...taken, code: error.exitCode === 0 ? 0 : 2 };
    if (!isVarveError(error)) throw error;
    return {
      stdout: taken.stdout,
      stderr: `${taken.stderr}${error.message} [${error.code}]`,
      code: ERROR_CODES[error.code].exit,
    };
  } finally {
    stdout.write = out;
    stderr.write = err;
    process.exitCode = code;
  }
}

/** What a command has set. */
function answered(): number {
  return Number(process.exitCode ?? 0);
}
