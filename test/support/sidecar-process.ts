/** `varve` as a process of its own: a sidecar with its HTTP server, and commands that end. */
import { setTimeout as sleep } from 'node:timers/promises';
import { openStore } from '../../cold/open-store.ts';
import { loadConfig } from '../../pipelines/config.ts';
import type { LogStatus } from '../../pipelines/log-loop.ts';
import { Logger } from '../../pipelines/logger.ts';
import { Sidecar } from '../../pipelines/sidecar.ts';
import { openPool } from '../../warm/pool.ts';
import { Child, type Exit } from './child.ts';

export type Place = {
  /** Directory of a log, or a glob. */
  readonly logs: string;
  readonly url: string;
  /** Folder of the object store. */
  readonly store: string;
  readonly env?: Readonly<Record<string, string>>;
  /** A command that runs node, with its arguments. */
  readonly under?: readonly string[];
  /** Path of a compiled `sidecar-cli.ts`. @default the source, by tsx */
  readonly script?: string;
};

const SCRIPT = 'sidecar-cli.ts';

function environment({ logs, url, store, env }: Place): Record<string, string> {
  return {
    DATABASE_URL: url,
    VARVE_HOT_LOGS: logs,
    VARVE_COLD_STORE: `file:${store}`,
    VARVE_SIDECAR_PORT: '0',
    VARVE_SIDECAR_RETRY_MAX_MS: '300',
    ...env,
  };
}

export class SidecarProcess implements AsyncDisposable {
  readonly child: Child;

  private constructor(child: Child) {
    this.child = child;
  }

  static start(place: Place): SidecarProcess {
    const options = { env: environment(place), ...(place.under === undefined ? {} : { under: place.under }) };
    return new SidecarProcess(Child.start(place.script ?? SCRIPT, ['sidecar'], options));
  }

  /** Of its HTTP server, once it listens. */
  async port(): Promise<number> {
    return until('the sidecar to listen', () => {
      const port = /"event":"sidecar\.started".*"port":(\d+)/.exec(this.child.stderr)?.[1];
      return port === undefined ? undefined : Number(port);
    });
  }

  async get(path: string): Promise<{ readonly status: number; readonly text: string }> {
    const response = await fetch(`http://127.0.0.1:${await this.port()}${path}`);
    return { status: response.status, text: await response.text() };
  }

  async statuses(): Promise<LogStatus[]> {
    return JSON.parse((await this.get('/status')).text) as LogStatus[];
  }

  /** Of its one log, or of the one in this directory. */
  async status(directory?: string): Promise<LogStatus | undefined> {
    return (await this.statuses()).find((status) => directory === undefined || status.directory === directory);
  }

  /** Waits for a log to be in a state. */
  async reaches(wanted: (status: LogStatus) => boolean, directory?: string, timeoutMs?: number): Promise<LogStatus> {
    let last: LogStatus | undefined;
    const found = async () => {
      last = await this.status(directory);
      return last !== undefined && wanted(last) ? last : undefined;
    };
    return until('a status', found, timeoutMs, () => `${JSON.stringify(last)} ${this.child.stderr.slice(-2000)}`);
  }

  async stop(signal: NodeJS.Signals = 'SIGTERM'): Promise<Exit> {
    this.child.kill(signal);
    return this.child.exit();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.child[Symbol.asyncDispose]();
  }
}

export type Ran = Exit & { readonly stdout: string; readonly stderr: string };

/** Runs a command of `varve` to its end. */
export async function varve(place: Place, ...args: readonly string[]): Promise<Ran> {
  await using child = Child.start(SCRIPT, args, { env: environment(place) });
  const exit = await child.exit(120_000);
  return { ...exit, stdout: child.lines.join('\n'), stderr: child.stderr };
}

/**
 * The same as `varve sidecar --drain`, in this process: quicker than to start another one.
 *
 * @throws what the log or the database refuses
 */
export async function drainHere(place: Place): Promise<readonly LogStatus[]> {
  const { config } = await loadConfig({ environment: environment(place) });
  await using pool = await openPool(place.url, { max: 4 });
  await using store = await openStore(config.cold.store);
  const sidecar = new Sidecar({ config, pool, store, logger: new Logger('error') });
  const done = await sidecar.drain(AbortSignal.timeout(60_000));
  if (!done) throw new Error(`not drained in a minute: ${JSON.stringify(sidecar.statuses())}`);
  return sidecar.statuses();
}

/** What a promise gives, which must be soon. */
export async function within<T>(what: string, promise: Promise<T>, timeoutMs = 20_000): Promise<T> {
  const timer = new AbortController();
  const late = sleep(timeoutMs, undefined, { signal: timer.signal }).then(
    () => {
      throw new Error(`${timeoutMs} ms passed before ${what}`);
    },
    () => undefined as never,
  );
  try {
    return await Promise.race([promise, late]);
  } finally {
    timer.abort();
  }
}

/** Looks again and again until there is an answer. */
export async function until<T>(
  what: string,
  look: () => T | undefined | Promise<T | undefined>,
  timeoutMs = 30_000,
  last: () => string = () => '',
): Promise<T> {
  for (const deadline = Date.now() + timeoutMs; ; ) {
    const found = await look();
    if (found !== undefined && found !== false) return found;
    if (Date.now() >= deadline) throw new Error(`${timeoutMs} ms passed before ${what}: ${last()}`);
    await sleep(20);
  }
}
