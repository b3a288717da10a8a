/**
 * A measurement that needs a process of its own: for its own I/O counters, its own thread pool, or to be the one that
 * starts after a crash. The child is a file of `children/`; its last line on stdout is its result, as JSON.
 */
import * as fs from 'node:fs';
import { Child } from '../../support/child.ts';

const TIMEOUT_MS = 15 * 60_000;

export function startChild(script: string, argument: unknown, env: Readonly<Record<string, string>> = {}): Child {
  return Child.start(`../bench/children/${script}`, argument, { env });
}

/** Runs a child to its end. Rejects with what it printed on stderr if it fails. */
export async function childResult<Result>(
  script: string,
  argument: unknown,
  env: Readonly<Record<string, string>> = {},
): Promise<Result> {
  await using child = startChild(script, argument, env);
  const { code, signal } = await child.exit(TIMEOUT_MS);
  const line = child.lines.at(-1);
  if (code === 0 && line !== undefined) return JSON.parse(line) as Result;
  throw new Error(`${script} ended with ${signal ?? code}: ${child.stderr}`);
}

/** In the child: what it was asked to do. */
export function childArgument(): unknown {
  return JSON.parse(process.argv[2] as string);
}

/** In the child: one line that has left the process when the call returns. */
export function tellParent(value: unknown): void {
  fs.writeSync(1, `${JSON.stringify(value)}\n`);
}
