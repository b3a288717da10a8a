/**
 * A child process that runs one of our TypeScript files, and its lines.
 *
 * A line that `lines` holds was received whole: what a child prints with `fs.writeSync(1, …)` is in the kernel when the
 * call returns, so it arrives even if the child is killed in its next instruction. A last line without its newline
 * never counts. No child outlives the test process.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const live = new Set<ChildProcess>();
process.on('exit', () => {
  for (const child of live) child.kill('SIGKILL');
});

export type ChildOptions = {
  readonly env?: Readonly<Record<string, string>>;
  /** A command that runs node, with its arguments: `['strace', '-f']`. */
  readonly under?: readonly string[];
  /** Called for each line, in order, before it is in `lines`. */
  readonly onLine?: (line: string) => void;
};

export type Exit = { readonly code: number | null; readonly signal: NodeJS.Signals | null };

export class Child implements AsyncDisposable {
  /** Complete lines of stdout so far. */
  readonly lines: string[] = [];
  /** Resolves when the process has ended and everything that it printed was received. */
  readonly exited: Promise<Exit>;
  stderr = '';
  readonly #process: ChildProcess;
  readonly #waiting = new Set<() => void>();
  #ended = false;

  private constructor(process: ChildProcess, onLine: (line: string) => void) {
    this.#process = process;
    let rest = '';
    process.stdout?.setEncoding('utf8').on('data', (text: string) => {
      const parts = (rest + text).split('\n');
      rest = parts.pop() as string;
      for (const line of parts) {
        onLine(line);
        this.lines.push(line);
      }
      this.#wake();
    });
    process.stderr?.setEncoding('utf8').on('data', (text: string) => {
      this.stderr = (this.stderr + text).slice(-16_384);
    });
    this.exited = once(process, 'close').then(([code, signal]) => {
      this.#ended = true;
      live.delete(process);
      this.#wake();
      return { code: code as number | null, signal: signal as NodeJS.Signals | null };
    });
  }

  /**
   * @param script name of a TypeScript file beside this one, or path of a compiled one (see compiled.ts); its argument is
   * passed as JSON
   */
  static start(script: string, argument: unknown, options: ChildOptions = {}): Child {
    const path = fileURLToPath(new URL(script, import.meta.url));
    const loader = script.endsWith('.ts') ? ['--import', 'tsx'] : [];
    const command = [...(options.under ?? []), process.execPath, ...loader, path, JSON.stringify(argument)];
    const child = spawn(command[0] as string, command.slice(1), {
      env: { ...process.env, ...options.env },
      stdio: ['pipe', 'pipe', 'pipe'],
    });
    live.add(child);
    // Nobody reads this error if the child is gone before a message to it: its exit says so.
    child.stdin.on('error', () => undefined);
    return new Child(child, options.onLine ?? (() => undefined));
  }

  get pid(): number {
    if (this.#process.pid === undefined) throw new Error(`the child did not start: ${this.stderr}`);
    return this.#process.pid;
  }

  kill(signal: NodeJS.Signals = 'SIGKILL'): void {
    this.#process.kill(signal);
  }

  /** One line on the child's stdin. */
  send(line: string): void {
    this.#process.stdin?.write(`${line}\n`);
  }

  /** The first line that starts with `prefix`, from the `from`th line on; it may have come already. */
  async line(prefix: string, timeoutMs = 30_000, from = 0): Promise<string> {
    const deadline = Date.now() + timeoutMs;
    let next = from;
    for (;;) {
      for (; next < this.lines.length; next++) {
        const line = this.lines[next] as string;
        if (line.startsWith(prefix)) return line;
      }
      const what = `before a line "${prefix}…"; last: ${this.lines.slice(-3).join(' | ')}; stderr: ${this.stderr}`;
      if (this.#ended) throw new Error(`the child ended ${what}`);
      if (Date.now() >= deadline) throw new Error(`${timeoutMs} ms passed ${what}`);
      await this.#news(deadline - Date.now());
    }
  }

  /** Ends when the exit is known or the time is over; then the child is killed and that is an error. */
  async exit(timeoutMs = 60_000): Promise<Exit> {
    const timer = new AbortController();
    const late = sleep(timeoutMs, 'late' as const, { signal: timer.signal }).catch(() => 'late' as const);
    const exit = await Promise.race([this.exited, late]);
    timer.abort();
    if (exit !== 'late') return exit;
    this.kill();
    throw new Error(`the child did not end in ${timeoutMs} ms; last: ${this.lines.slice(-3).join(' | ')}`);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#ended) this.kill();
    await this.exited;
  }

  #wake(): void {
    for (const wake of this.#waiting) wake();
    this.#waiting.clear();
  }

  #news(timeoutMs: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(wake, timeoutMs);
      function wake(): void {
        clearTimeout(timer);
        resolve();
      }
      this.#waiting.add(wake);
    });
  }
}
