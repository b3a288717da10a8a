/**
 * `varve restore`: whole trajectories out of whatever tier they are in, as event JSONL or into a hot log of their own.
 *
 * Every event is proven as it is read, over all tiers as one chain, and only then written. Each trajectory stands for
 * itself: one that is damaged is named and leaves nothing behind in files, and the others are restored.
 *
 * Exit code 3 where something is missing and was told, 5 where something must not be trusted.
 */
import { resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { BlobStore } from '../hot/blobs.ts';
import type { Config } from '../schemas/config.ts';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { isRedacted } from '../schemas/event.ts';
import type { TrajectoryId } from '../schemas/ids.ts';
import { stubsIn } from '../schemas/stubs.ts';
import { locateTrajectory } from './locate-trajectory.ts';
import { print, printJson } from './print.ts';
import { Progress } from './progress.ts';
import { readLines } from './read-lines.ts';
import { TrajectoryReading } from './read-trajectory.ts';
import { BodySource } from './restore-bodies.ts';
import { JsonlTarget, StdoutTarget } from './restore-jsonl.ts';
import { LogTarget } from './restore-log.ts';
import { type Located, locatedText, RestoreReport } from './restore-report.ts';
import type { RestoreTarget } from './restore-target.ts';
import { type Tier, Tiers } from './tiers.ts';

export type RestoreOptions = {
  /** Files that name trajectories, one a line; `-` is standard input. */
  readonly fromFile: string | undefined;
  /** A file, a directory, or `-`: event JSONL. */
  readonly out: string | undefined;
  /** Directory of a hot log. */
  readonly into: string | undefined;
  /** Where the bodies that JSONL refers to go; `varve import --blobs` takes it. */
  readonly blobs: string | undefined;
  /** Only from there. */
  readonly tier: Tier | undefined;
  /** Replace files that are there. */
  readonly force: boolean;
  readonly dryRun: boolean;
  readonly json: boolean;
};

const STDIO = '-';

/** @param names ids, or beginnings of them */
export async function restore(
  config: Config,
  names: readonly string[],
  options: RestoreOptions,
  signal: AbortSignal,
): Promise<number> {
  const { out, into } = checkOptions(options);
  const all = [...names, ...(options.fromFile === undefined ? [] : await namesIn(options.fromFile))];
  if (all.length === 0) throw new VarveError('INVALID_OPTION', 'no trajectory is named');
  const directory = into === undefined ? undefined : resolve(into);
  await using tiers = await Tiers.open(config, options.tier, signal, directory);
  const ids = await tiers.resolve(
    all.map((name) => name.toLowerCase()),
    signal,
  );
  if (options.dryRun) return await dryRun(tiers, ids, options.json, signal);
  const run = new Restore(tiers, ids, options, signal);
  const report = await run.run(directory, out);
  const text = options.json ? `${JSON.stringify(report)}\n` : report.text();
  // Standard output is for the events where they go there.
  if (out === STDIO) process.stderr.write(text);
  else print(text);
  return report.exitCode;
}

function checkOptions({ out, into, blobs, dryRun }: RestoreOptions): Pick<RestoreOptions, 'out' | 'into'> {
  if (out !== undefined && into !== undefined) throw new VarveError('INVALID_OPTION', 'either --out or --into');
  if (blobs !== undefined && into !== undefined) {
    throw new VarveError('INVALID_OPTION', '--blobs goes with --out; a log has its own');
  }
  if (out === undefined && into === undefined && !dryRun) {
    throw new VarveError('INVALID_OPTION', 'where to: --out <file|directory|-> or --into <directory of a log>');
  }
  return { out, into };
}

async function namesIn(path: string): Promise<string[]> {
  const names: string[] = [];
  if (path === STDIO) {
    for await (const line of createInterface({ input: process.stdin })) names.push(line);
  } else {
    for await (const { text = '' } of readLines(path)) names.push(text);
  }
  return names.map((name) => name.trim()).filter((name) => name !== '' && !name.startsWith('#'));
}

async function dryRun(tiers: Tiers, ids: readonly TrajectoryId[], json: boolean, signal: AbortSignal): Promise<number> {
  const located: Located[] = [];
  for (const trajectory_id of ids) {
    located.push({ trajectory_id, parts: await locateTrajectory(tiers, trajectory_id, signal) });
  }
  const isMissing = located.some(({ parts }) => parts.length === 0);
  if (json) printJson({ dry_run: true, trajectories: located, not_asked: tiers.troubles.map(({ text }) => text) });
  else print(locatedText(located));
  for (const { text } of tiers.troubles) process.stderr.write(`varve: ${text}\n`);
  return isMissing || tiers.troubles.length > 0 ? 3 : 0;
}

class Restore {
  readonly #tiers: Tiers;
  readonly #ids: readonly TrajectoryId[];
  readonly #options: RestoreOptions;
  readonly #signal: AbortSignal;
  readonly #report = new RestoreReport();
  readonly #progress = new Progress();
  /** Bodies that were not found, of the trajectory under way. */
  #missing: string[] = [];

  constructor(tiers: Tiers, ids: readonly TrajectoryId[], options: RestoreOptions, signal: AbortSignal) {
    this.#tiers = tiers;
    this.#ids = ids;
    this.#options = options;
    this.#signal = signal;
  }

  async run(directory: string | undefined, out: string | undefined): Promise<RestoreReport> {
    await using target = await this.#open(directory, out);
    for (const id of this.#ids) await this.#restore(id, target);
    await target.finish();
    this.#progress.end();
    this.#report.troubles(this.#tiers.troubles);
    return this.#report;
  }

  async #open(directory: string | undefined, out = STDIO): Promise<RestoreTarget> {
    const source = new BodySource(this.#tiers, this.#signal);
    if (directory !== undefined) return await LogTarget.open(directory, this.#ids, source);
    const { blobs, force } = this.#options;
    const onMissing = (text: string) => this.#missing.push(text);
    const bodies =
      blobs === undefined ? undefined : { source, target: await BlobStore.open(resolve(blobs)), onMissing };
    if (out === STDIO) return new StdoutTarget(bodies);
    return await JsonlTarget.open(out, this.#ids, { force, bodies });
  }

  async #restore(id: TrajectoryId, target: RestoreTarget): Promise<void> {
    this.#missing = [];
    const reading = new TrajectoryReading(this.#tiers, id, this.#signal);
    let [events, erased, bodies] = [0, 0, 0];
    try {
      await target.begin(id);
      for await (const event of reading) {
        if (this.#signal.aborted) throw new VarveError('ABORTED', 'the restore was aborted; run again');
        await target.take(event);
        events += 1;
        erased += Number(isRedacted(event.payload_bytes));
        bodies += stubsIn(event).length;
        this.#progress.at(() => `${id}: ${events} events restored`);
      }
      const to = await target.end();
      const { parts: from, head } = reading;
      const { sequence_number: last = 0, cryptographic_hash: head_hash = '' } = head ?? {};
      const losses = [...reading.losses, ...this.#missing];
      const first = from[0]?.first ?? 0;
      this.#report.restored({ trajectory_id: id, events, first, last, head_hash, from, erased, bodies, losses, to });
    } catch (error) {
      if (!isVarveError(error) || error.code === 'ABORTED' || error.code === 'OUTPUT_UNWRITABLE') throw error;
      if (error.code.startsWith('HOT_') && this.#options.into !== undefined && error.code !== 'HOT_DAMAGED')
        throw error;
      this.#report.failed({ trajectory_id: id, error, kept: await target.abandon() });
    }
  }
}
