/**
 * A test that cannot run here says so, with the reason, in the output: a silent skip looks like a pass. `FAULT_STRICT=1`
 * turns every skip into a failure, for machines that are meant to run all of them.
 */
import { spawnSync } from 'node:child_process';
import type { Context } from 'mocha';

export function skipAloud(context: Context, reason: string): never {
  // A hook's own title says "before all"; the suite's says what is not tested.
  const title = context.test?.parent?.fullTitle() ?? 'a test';
  if (process.env['FAULT_STRICT'] === '1') throw new Error(`cannot run here: ${reason}`);
  console.log(`    SKIPPED ${title}: ${reason}`);
  return context.skip();
}

/** Is a command on the PATH? */
export function hasCommand(name: string): boolean {
  return spawnSync('sh', ['-c', `command -v ${name}`], { stdio: 'ignore' }).status === 0;
}

export function isRoot(): boolean {
  return process.getuid?.() === 0;
}
