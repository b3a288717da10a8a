/**
 * What a process asked of the kernel, from the output of `strace -f -y`: calls with the order of their starts and ends.
 *
 * A call of one thread may be cut by calls of others ("<unfinished …>", "resumed"): `startedAt` and `endedAt` are
 * line numbers, so "completed before" is `a.endedAt < b.startedAt`.
 */

export type Call = {
  readonly name: string;
  /** Path behind the first argument where it is a descriptor; `pipe:[…]` and the like otherwise. */
  readonly path: string | undefined;
  readonly args: string;
  readonly result: number;
  readonly startedAt: number;
  readonly endedAt: number;
};

/** The command to run a process under; `calls` are names of system calls. */
export function straceCommand(output: string, calls: readonly string[]): string[] {
  const filter = calls.map((name) => `?${name}`).join(',');
  return [
    'strace',
    '-f',
    '-y',
    '-s',
    '160',
    '--seccomp-bpf',
    '-e',
    `trace=${filter}`,
    '-e',
    'signal=none',
    '-o',
    output,
  ];
}

const UNFINISHED = /^(\d+)\s+(\w+)\((.*) <unfinished \.\.\.>$/;
const RESUMED = /^(\d+)\s+<\.\.\. (\w+) resumed>(.*)\)\s+= (-?\d+)/;
const WHOLE = /^(\d+)\s+(\w+)\((.*)\)\s+= (-?\d+)/;

/** Calls in the order of their ends. Calls that never returned (the process was killed) are left out. */
export function parseStrace(text: string): Call[] {
  const calls: Call[] = [];
  const open = new Map<string, { name: string; args: string; startedAt: number }>();
  for (const [at, line] of text.split('\n').entries()) {
    const unfinished = UNFINISHED.exec(line);
    if (unfinished !== null) {
      const [, pid, name, args] = unfinished as unknown as [string, string, string, string];
      open.set(pid, { name, args, startedAt: at });
      continue;
    }
    const resumed = RESUMED.exec(line);
    if (resumed !== null) {
      const [, pid, , rest, result] = resumed as unknown as [string, string, string, string, string];
      const call = open.get(pid);
      open.delete(pid);
      if (call !== undefined) calls.push(toCall(call.name, call.args + rest, result, call.startedAt, at));
      continue;
    }
    const whole = WHOLE.exec(line);
    if (whole === null) continue;
    const [, , name, args, result] = whole as unknown as [string, string, string, string, string];
    calls.push(toCall(name, args, result, at, at));
  }
  return calls;
}

function toCall(name: string, args: string, result: string, startedAt: number, endedAt: number): Call {
  return { name, path: /^\d+<([^>]*)>/.exec(args)?.[1], args, result: Number(result), startedAt, endedAt };
}

/** The quoted strings among a call's arguments: the paths of rename and mkdir. */
export function quotedIn(args: string): string[] {
  return Array.from(args.matchAll(/"((?:[^"\\]|\\.)*)"/g), (match) => match[1] as string);
}
