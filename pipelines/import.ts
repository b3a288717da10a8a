/**
 * `varve import`: event JSONL, varve's own, into a hot log, with the same hashes.
 *
 * The files are read twice. The first reading appends nothing: it checks every line and every chain, and finds the
 * trajectories that contradict what is there; nothing of those is appended. The second reading appends. Run again, it
 * finds everything there and appends nothing; after a kill it goes on where it was. Standard input is put into a
 * temporary file first.
 *
 * Exit code 3 where a line was refused or a trajectory contradicted; the rest is in.
 */
import { createWriteStream } from 'node:fs';
import { rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { BlobStore } from '../hot/blobs.ts';
import { type Prepared, prepare } from '../hot/door.ts';
import { temporaryName } from '../hot/files.ts';
import { HotLog } from '../hot/log.ts';
import { readLogFile } from '../hot/meta.ts';
import type { Config } from '../schemas/config.ts';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { parseEventLine, type TrajectoryEvent } from '../schemas/event.ts';
import { type TrajectoryId, trajectoryStartMs } from '../schemas/ids.ts';
import { ID_AHEAD_MS_MAX, MIB, PAYLOAD_BYTES_MAX } from '../schemas/limits.ts';
import { EVENTS_MAX, type Stored, TrajectoryPlan } from './import-plan.ts';
import { ImportReport } from './import-report.ts';
import { print, printJson } from './print.ts';
import { Progress } from './progress.ts';
import { readLines } from './read-lines.ts';

export type ImportOptions = {
  readonly format: string;
  /** Of bodies that stubs name: a log's directory, or one that has its `blobs` folder. @default the log's own */
  readonly blobs?: string;
  /** File for the whole report, as JSON. */
  readonly report?: string;
  readonly dryRun: boolean;
  readonly json: boolean;
};

const STDIN = '-';
/** Events of one trajectory that are appended together, and bytes of all that are under way. */
const GROUP_EVENTS = 256;
const BATCH_BYTES = 8 * MIB;
const LOCK_TIMEOUT_MS = 1000;

export async function importEvents(
  config: Config,
  paths: readonly string[],
  options: ImportOptions,
  signal: AbortSignal,
): Promise<number> {
  if (options.format !== 'varve') {
    const message = `the format ${options.format} is not known; varve reads its own event JSONL (varve)`;
    throw new VarveError('INVALID_OPTION', message, { format: options.format });
  }
  const directory = resolve(config.hot.logs);
  if (/[*?[{]/.test(config.hot.logs)) {
    throw new VarveError('INVALID_OPTION', `${config.hot.logs} may be several logs: name one with --hot`);
  }
  const spooled = paths.includes(STDIN) ? await spool() : undefined;
  try {
    const files = paths.map((path) => ({ name: path, path: path === STDIN ? (spooled ?? path) : path }));
    await using log = await openTarget(directory, options.dryRun);
    const run = new Import(log, directory, files, options, signal);
    const report = await run.run();
    if (options.report !== undefined) await writeFile(options.report, `${JSON.stringify(report.toJSON(), null, 2)}\n`);
    if (options.json) printJson(report.toJSON());
    else print(report.text());
    return report.isClean ? 0 : 3;
  } finally {
    if (spooled !== undefined) await rm(spooled, { force: true });
  }
}

async function spool(): Promise<string> {
  const path = temporaryName(join(tmpdir(), 'varve-import'));
  await pipeline(process.stdin, createWriteStream(path, { flags: 'wx', mode: 0o600 }));
  return path;
}

/** undefined: a dry run on a log that is not there yet. Strings are left as they are: what was hashed stays. */
async function openTarget(directory: string, dryRun: boolean): Promise<HotLog | undefined> {
  const isThere = (await readLogFile(directory)) !== undefined;
  if (dryRun && !isThere) return undefined;
  return await HotLog.open(directory, {
    create: !dryRun,
    lockTimeoutMs: LOCK_TIMEOUT_MS,
    offloadOverBytes: PAYLOAD_BYTES_MAX,
  });
}

type InputFile = { readonly name: string; readonly path: string };
type Group = { readonly events: TrajectoryEvent[]; from: number };

class Import {
  readonly #log: HotLog | undefined;
  readonly #directory: string;
  readonly #files: readonly InputFile[];
  readonly #options: ImportOptions;
  readonly #signal: AbortSignal;
  readonly #plans = new Map<TrajectoryId, TrajectoryPlan>();
  readonly #bodies: BlobStore | undefined;
  readonly #progress = new Progress();
  #held = 0;

  constructor(
    log: HotLog | undefined,
    directory: string,
    files: readonly InputFile[],
    options: ImportOptions,
    signal: AbortSignal,
  ) {
    this.#log = log;
    this.#directory = directory;
    this.#files = files;
    this.#options = options;
    this.#signal = signal;
    this.#bodies = options.blobs === undefined ? undefined : BlobStore.of(resolve(options.blobs));
  }

  async run(): Promise<ImportReport> {
    const report = new ImportReport(this.#directory, this.#options.dryRun);
    await this.#check(report);
    for (const plan of this.#plans.values()) report.trajectory(plan);
    if (!this.#options.dryRun) await this.#append(report);
    this.#progress.end();
    return report;
  }

  async #check(report: ImportReport): Promise<void> {
    for await (const { file, line } of this.#lines('checked')) {
      report.lines += 1;
      if (line.text === undefined) {
        report.bad(file, line.number, line.why);
        continue;
      }
      try {
        const event = parseEventLine(line.text);
        const plan = await this.#planOf(event.trajectory_id);
        const prepared = prepare(event, PAYLOAD_BYTES_MAX);
        const { payload_sha256 } = prepared;
        const refusal = event.sequence_number > plan.last ? await this.#refusal(event, prepared) : undefined;
        const before = plan.count;
        const verdict = plan.take(event, { ...event, payload_sha256 }, refusal);
        this.#held += plan.count - before;
        report.verdict(file, line.number, verdict);
      } catch (error) {
        // What the line itself is refused for; anything else ends the import.
        if (!isVarveError(error) || error.code.startsWith('HOT_') || error.code === 'INVALID_OPTION') throw error;
        report.bad(file, line.number, `${error.message} [${error.code}]`);
      }
      this.#limit();
    }
  }

  #limit(): void {
    if (this.#held <= EVENTS_MAX) return;
    const message = `these files name trajectories of over ${EVENTS_MAX} events: import them in parts, each trajectory whole`;
    throw new VarveError('INVALID_OPTION', message, { most: EVENTS_MAX });
  }

  /** Why an event could not be appended, whatever is before it. */
  async #refusal(event: TrajectoryEvent, { refs }: Prepared): Promise<string | undefined> {
    const ahead = trajectoryStartMs(event.trajectory_id) - Date.now();
    if (event.sequence_number === 1 && ahead > ID_AHEAD_MS_MAX) return 'its trajectory starts ahead of the clock';
    for (const { sha256, bytes } of refs) {
      const size = (await this.#log?.blobs.size(sha256)) ?? (await this.#bodies?.size(sha256));
      if (size === bytes) continue;
      const where =
        this.#bodies === undefined ? 'the log has not (--blobs names where it is)' : '--blobs has not either';
      return size === undefined
        ? `it needs the body ${sha256}, which ${where}`
        : `the body ${sha256} has ${size} bytes, not ${bytes}`;
    }
    return undefined;
  }

  async #append(report: ImportReport): Promise<void> {
    const log = this.#log;
    if (log === undefined) return;
    const reached = new Map<TrajectoryId, number>();
    let groups = new Map<TrajectoryId, Group>();
    let bytes = 0;
    const flush = async () => {
      const due = groups;
      groups = new Map();
      bytes = 0;
      await Promise.all(Array.from(due, ([id, group]) => this.#appendGroup(log, id, group.events, report)));
    };
    for await (const { line } of this.#lines('imported')) {
      const event = line.text === undefined ? undefined : eventOf(line.text);
      const plan = event === undefined ? undefined : this.#plans.get(event.trajectory_id);
      if (event === undefined || plan === undefined || plan.contradiction !== undefined) continue;
      const { trajectory_id, sequence_number } = event;
      const next = (reached.get(trajectory_id) ?? plan.stored) + 1;
      if (sequence_number !== next || !plan.has(event)) continue;
      reached.set(trajectory_id, sequence_number);
      const group = groups.get(trajectory_id) ?? { events: [], from: sequence_number };
      group.events.push(event);
      groups.set(trajectory_id, group);
      bytes += line.text?.length ?? 0;
      if (bytes >= BATCH_BYTES || group.events.length >= GROUP_EVENTS) await flush();
    }
    await flush();
  }

  async #appendGroup(
    log: HotLog,
    id: TrajectoryId,
    events: readonly TrajectoryEvent[],
    report: ImportReport,
  ): Promise<void> {
    if (this.#bodies !== undefined) for (const event of events) await this.#bring(log, event);
    await log.appendRecorded(id, events);
    report.appended += events.length;
  }

  async #bring(log: HotLog, event: TrajectoryEvent): Promise<void> {
    for (const { sha256, media_type } of prepare(event, PAYLOAD_BYTES_MAX).refs) {
      if (this.#bodies === undefined || (await log.blobs.size(sha256)) !== undefined) continue;
      if (!(await this.#bodies.verify(sha256))) {
        throw new VarveError('BLOB_MISSING', `${this.#bodies.pathOf(sha256)} has other bytes than its name says`, {
          sha256,
        });
      }
      await log.blobs.put(Readable.from(this.#bodies.get(sha256)), media_type);
    }
  }

  async #planOf(id: TrajectoryId): Promise<TrajectoryPlan> {
    const known = this.#plans.get(id);
    if (known !== undefined) return known;
    const plan = new TrajectoryPlan(id, await storedOf(this.#log, id));
    this.#plans.set(id, plan);
    this.#held += plan.count;
    return plan;
  }

  async *#lines(doing: string) {
    let lines = 0;
    for (const { name, path } of this.#files) {
      for await (const line of readLines(path)) {
        if (this.#signal.aborted) throw new VarveError('ABORTED', 'the import was aborted; run again, it goes on');
        yield { file: name, line };
        lines += 1;
        this.#progress.at(() => `${name}: ${lines} lines ${doing}`);
      }
    }
  }
}

function eventOf(text: string): TrajectoryEvent | undefined {
  try {
    return parseEventLine(text);
  } catch (error) {
    // The first reading has reported it.
    if (isVarveError(error)) return undefined;
    throw error;
  }
}

async function storedOf(log: HotLog | undefined, id: TrajectoryId): Promise<Stored> {
  const nothing: Stored = { from: 1, hashes: [], last: undefined };
  const head = log?.head(id);
  if (log === undefined || head === undefined) return nothing;
  try {
    return await readStored(log, id, 1);
  } catch (error) {
    if (!isVarveError(error, 'HOT_TRIMMED')) throw error;
    const from = Number(error.details['first_available'] ?? head.sequence_number);
    if (from <= head.sequence_number) return await readStored(log, id, from);
    const message = `${id} is trimmed in this log, which has nothing left to compare with: import it into another log`;
    throw new VarveError('HOT_TRIMMED', message, { trajectory_id: id }, error);
  }
}

async function readStored(log: HotLog, id: TrajectoryId, from: number): Promise<Stored> {
  const hashes: Buffer[] = [];
  let last: Stored['last'];
  for await (const event of log.read(id, from)) {
    hashes.push(Buffer.from(event.cryptographic_hash, 'hex'));
    last = event;
  }
  return { from, hashes, last };
}
