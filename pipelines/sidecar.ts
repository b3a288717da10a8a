/**
 * The sidecar: replicates one hot log or many, each in its own loop, for as long as it runs.
 *
 * One log's trouble holds up no other log. Nothing here decides what becomes of an event.
 */
import { stat } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { glob } from 'tinyglobby';
import { VarveError } from '../schemas/errors.ts';
import { databaseNow } from '../warm/cursor-rows.ts';
import { ensureDaysAhead } from '../warm/event-rows.ts';
import { statement, transaction } from '../warm/pool.ts';
import { LogLoop, type LogStatus, pause, type SidecarParts } from './log-loop.ts';
import { SidecarMetrics } from './sidecar-metrics.ts';

const DISCOVER_EVERY_MS = 2000;
const MAINTAIN_EVERY_MS = 60_000;

export class Sidecar {
  readonly metrics: SidecarMetrics;
  readonly #parts: SidecarParts;
  readonly #loops = new Map<string, LogLoop>();
  #partitionsAhead = 0;
  #clockSkewMs = 0;
  #inDoubt = 0;

  constructor(parts: SidecarParts) {
    this.#parts = parts;
    this.metrics = new SidecarMetrics(
      () => this.statuses(),
      () => this.#partitionsAhead,
      () => this.#clockSkewMs,
      () => this.#inDoubt,
    );
  }

  statuses(): LogStatus[] {
    return Array.from(this.#loops.values(), (loop) => loop.status);
  }

  /** One line for each reason why this sidecar is not ready. */
  unready(): string[] {
    const { stalledAfterMs } = this.#parts.config.sidecar;
    return this.statuses().flatMap(({ directory, state, error, stalled_ms }) => {
      if (state === 'refused') return [`${directory}: ${error?.code}: ${error?.message}`];
      if (stalled_ms <= stalledAfterMs) return [];
      const why = error === undefined ? '' : ` (${error.code})`;
      return [`${directory}: no progress for ${Math.round(stalled_ms / 1000)} s${why}`];
    });
  }

  /** Runs until the signal is given; batches under way are finished. */
  async run(signal: AbortSignal): Promise<void> {
    const running = new Set<Promise<void>>();
    const maintaining = this.#maintain(signal);
    while (!signal.aborted) {
      for (const directory of await findLogs(this.#parts.config.hot.logs)) {
        if (this.#loops.has(directory)) continue;
        const loop = new LogLoop(directory, this.#parts, this.metrics);
        this.#loops.set(directory, loop);
        running.add(loop.run(signal));
      }
      await pause(DISCOVER_EVERY_MS, signal);
    }
    await Promise.all([...running, maintaining]);
  }

  /**
   * Replicates until every log is out. A log's trouble is thrown when the others are done.
   *
   * @returns are all of them out? false: the signal came first
   * @throws VarveError HOT_NOT_A_LOG where there is no log at all; what needs a person
   */
  async drain(signal: AbortSignal): Promise<boolean> {
    const { logs } = this.#parts.config.hot;
    const directories = await findLogs(logs);
    if (directories.length === 0) throw new VarveError('HOT_NOT_A_LOG', `there is no log at ${logs}`, { logs });
    const done = await Promise.allSettled(
      directories.map((directory) => {
        const loop = new LogLoop(directory, this.#parts, this.metrics);
        this.#loops.set(directory, loop);
        return loop.drain(signal);
      }),
    );
    const failed = done.find((result) => result.status === 'rejected');
    if (failed !== undefined) throw failed.reason;
    return done.every((result) => result.status === 'fulfilled' && result.value);
  }

  async #maintain(signal: AbortSignal): Promise<void> {
    const { config, pool, logger } = this.#parts;
    while (!signal.aborted) {
      try {
        this.#partitionsAhead = await transaction(pool, (tx) => ensureDaysAhead(tx, config.warm.daysAhead));
        const before = Date.now();
        const now = await pool.lend(databaseNow);
        this.#clockSkewMs = now - (before + Date.now()) / 2;
        this.#inDoubt = (await pool.lend((session) => session.query(IN_DOUBT)))[0]?.count ?? 0;
      } catch (error) {
        logger.failure('warm.maintenance', error, {});
      }
      await pause(MAINTAIN_EVERY_MS, signal);
    }
  }
}

/** Directories that hold a log: a path, or all that a glob finds. A log whose own name looks like a glob is itself. */
export async function findLogs(pattern: string): Promise<string[]> {
  const isGlob = /[*?[{]/.test(pattern) && !(await isLog(pattern));
  const found = isGlob
    ? await glob(pattern, { onlyDirectories: true, absolute: true, expandDirectories: false })
    : [pattern];
  const directories = found.map((path) => resolve(path));
  const areLogs = await Promise.all(directories.map(isLog));
  return directories.filter((_, i) => areLogs[i]).toSorted();
}

async function isLog(directory: string): Promise<boolean> {
  return (await stat(join(directory, 'log.json')).catch(() => undefined)) !== undefined;
}

/**
 * What the view `in_doubt` says of trajectories that have not finished, by the index of their status: every sidecar asks
 * once a minute, and the view looks at each trajectory there ever was (4 s of a million).
 */
const IN_DOUBT = statement<{ count: number }>(
  'sidecar.in_doubt',
  `SELECT (SELECT count(*) FROM trajectories t CROSS JOIN LATERAL json_array_elements(t.summary -> 'open_calls') AS c (call)
       WHERE t.status IN ('waiting_result', 'waiting_approval', 'halted') AND c.call ->> 'intent_at' IS NOT NULL)
     + (SELECT count(*) FROM quarantine q
       WHERE q.state = 'held' AND q.reason = 'fenced' AND q.envelope LIKE '%"event_type":"ToolIntent"%') AS count`,
);
