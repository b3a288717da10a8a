/**
 * Everything that a snapshot of the table names, or a sample of its files: each file for itself (verify-file.ts), the
 * segments of all files together (verify-chains.ts), and, deep, what payloads refer to (verify-bodies.ts).
 *
 * Nothing that is bad, and nothing that cannot be read, keeps the rest from being verified. What is damaged is in the
 * findings; what could not be looked at, since the store or this machine failed, is in `unverified`, and then nothing is
 * said of the chains over all files, nor is it of a sample. It writes nothing but scratch files.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { type ErrorCode, isVarveError } from '../schemas/errors.ts';
import { MIB } from '../schemas/limits.ts';
import { refuseAborted } from './body.ts';
import { DuckDb } from './duckdb.ts';
import { makeFolder } from './files.ts';
import { type ColdProblem, Findings, NAMED_MAX, type ProblemKind } from './findings.ts';
import type { LocalCopyOptions } from './local-copy.ts';
import type { ObjectStore } from './object-store.ts';
import { SCRATCH_PREFIX } from './parquet-writer.ts';
import { parquetKey } from './table-keys.ts';
import type { LiveFile, Snapshot } from './table-log-plan.ts';
import { Bodies } from './verify-bodies.ts';
import { Chains } from './verify-chains.ts';
import { verifyFile } from './verify-file.ts';
import { chooseSample, type Sample } from './verify-sample.ts';

export type VerifyTableOptions = Pick<LocalCopyOptions, 'signal' | 'scratchDir' | 'pathOf'> & {
  /** Put bodies back, and read every blob that is referred to. @default false */
  readonly deep?: boolean | undefined;
  /** Only these files. @default all */
  readonly sample?: Sample | undefined;
  /** Files that are verified at once; each takes a core and some 100 MiB. @default the cores there are, at most 4 */
  readonly parallel?: number | undefined;
  /** Does the work, again where it failed for a passing reason. @default once */
  readonly attempt?: (<T>(work: () => Promise<T>) => Promise<T>) | undefined;
  readonly onProgress?: ((progress: VerifyProgress) => void) | undefined;
};

export type VerifyProgress = {
  readonly files: number;
  readonly ofFiles: number;
  readonly bytes: number;
  readonly ofBytes: number;
};

export type TableVerdict = {
  /** Of the snapshot. */
  readonly version: number;
  /** Live files of the snapshot, and those of them that were looked at. */
  readonly live_files: number;
  readonly files: number;
  readonly bytes: number;
  readonly events: number;
  /** Events with bodies in blobs: their payloads are proven only by a deep verification. */
  readonly offloaded: number;
  /** Events whose payload an erasure took. */
  readonly redacted: number;
  readonly segments: number;
  /** undefined: chains over all files were not judged. */
  readonly trajectories: number | undefined;
  /** undefined: not deep. */
  readonly blobs: number | undefined;
  readonly sample: { readonly seed: string } | undefined;
  readonly problems: readonly ColdProblem[];
  readonly counts: Readonly<Partial<Record<ProblemKind, number>>>;
  /** The problem of the first bad event. */
  readonly first: ColdProblem | undefined;
  readonly unverified: readonly Unverified[];
  readonly unverified_count: number;
};

export type Unverified = { readonly key: string; readonly code: ErrorCode; readonly message: string };

const PARALLEL_MAX = 4;
const MEMORY_BYTES = 128 * MIB;

export async function verifyTable(
  store: ObjectStore,
  snapshot: Snapshot,
  options: VerifyTableOptions,
): Promise<TableVerdict> {
  await makeFolder(options.scratchDir);
  const folder = await mkdtemp(join(options.scratchDir, SCRATCH_PREFIX));
  try {
    return await new TableVerification(store, snapshot, { ...options, scratchDir: folder }).run();
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

class TableVerification {
  readonly #store: ObjectStore;
  readonly #options: VerifyTableOptions;
  readonly #snapshot: Snapshot;
  readonly #files: readonly LiveFile[];
  readonly #ofBytes: number;
  readonly #chains: Chains;
  readonly #bodies: Bodies | undefined;
  readonly #findings = new Findings();
  readonly #unverified: Unverified[] = [];
  #unverifiedCount = 0;
  #next = 0;
  #done = { files: 0, bytes: 0, events: 0, offloaded: 0, redacted: 0 };

  constructor(store: ObjectStore, snapshot: Snapshot, options: VerifyTableOptions) {
    this.#store = store;
    this.#options = options;
    this.#snapshot = snapshot;
    const live = [...snapshot.files.values()].toSorted((a, b) => (a.stem < b.stem ? -1 : 1));
    this.#files = options.sample === undefined ? live : chooseSample(live, options.sample);
    this.#ofBytes = this.#files.reduce((sum, { add }) => sum + add.size, 0);
    this.#chains = new Chains(options.scratchDir, this.#files);
    if (options.deep === true) this.#bodies = new Bodies(store, options.scratchDir);
  }

  async run(): Promise<TableVerdict> {
    const { parallel = Math.min(PARALLEL_MAX, availableParallelism()), sample, signal } = this.#options;
    const workers = Math.min(parallel, this.#files.length);
    await settled(Array.from({ length: workers }, (_, i) => this.#work(i)));
    const report = (problem: ColdProblem) => this.#findings.add(problem);
    const isAll = sample === undefined && this.#unverifiedCount === 0;
    const trajectories = isAll ? await this.#chains.judgeAll(report, { signal }) : undefined;
    const guard = (key: string, work: () => Promise<void>) => this.#guard(key, work);
    const blobs = await this.#bodies?.verifyBlobs(report, guard, { signal });
    return {
      version: this.#snapshot.version,
      live_files: this.#snapshot.files.size,
      ...this.#done,
      segments: this.#chains.segments,
      trajectories,
      blobs,
      sample: sample === undefined ? undefined : { seed: sample.seed },
      problems: this.#findings.named,
      counts: this.#findings.counts,
      first: this.#findings.first,
      unverified: this.#unverified,
      unverified_count: this.#unverifiedCount,
    };
  }

  /** Takes file after file, until none is left. */
  async #work(worker: number): Promise<void> {
    await using engine = new Engine(join(this.#options.scratchDir, `spill-${worker}`));
    try {
      for (let index = this.#next++; index < this.#files.length; index = this.#next++) {
        refuseAborted(this.#options.signal);
        const file = this.#files[index] as LiveFile;
        await this.#guard(parquetKey(file.stem), () => this.#verifyFile(engine, file, index));
      }
    } catch (error) {
      // The others end with their file.
      this.#next = this.#files.length;
      throw error;
    }
  }

  async #verifyFile(engine: Engine, file: LiveFile, index: number): Promise<void> {
    const { signal, scratchDir, pathOf } = this.#options;
    const duck = await engine.duck();
    engine.isTrusted = false;
    const bodies = this.#bodies;
    let read = 0;
    const onBytes = (bytes: number) => {
      read += bytes;
      this.#progress(Math.min(read, file.add.size));
    };
    const onReadable =
      bodies === undefined
        ? undefined
        : (path: string, report: (problem: ColdProblem) => void) =>
            bodies.verifyFile(duck, path, parquetKey(file.stem), report, { signal });
    const verdict = await verifyFile(this.#store, duck, file, {
      signal,
      scratchDir,
      pathOf,
      onBytes,
      onReadable,
    });
    // A file that is damaged may have broken the instance that read it.
    engine.isTrusted = verdict.findings.counts.file === undefined;
    // Only now: the same file may have to be verified again.
    this.#findings.addAll(verdict.findings);
    this.#chains.add(index, verdict.segments);
    const { files, bytes, events, offloaded, redacted } = this.#done;
    this.#done = {
      files: files + 1,
      bytes: bytes + file.add.size,
      events: events + verdict.events,
      offloaded: offloaded + verdict.standIns.offloaded,
      redacted: redacted + verdict.standIns.redacted,
    };
    this.#progress(0);
  }

  async #guard(key: string, work: () => Promise<void>): Promise<void> {
    const { attempt = (once) => once() } = this.#options;
    try {
      await attempt(work);
    } catch (error) {
      if (!isVarveError(error) || error.code === 'ABORTED') throw error;
      this.#unverifiedCount += 1;
      if (this.#unverified.length < NAMED_MAX) {
        this.#unverified.push({ key, code: error.code, message: error.message });
      }
    }
  }

  #progress(underway: number): void {
    const { files, bytes } = this.#done;
    this.#options.onProgress?.({ files, ofFiles: this.#files.length, bytes: bytes + underway, ofBytes: this.#ofBytes });
  }
}

/** An instance of DuckDB: opened when it is needed, and anew where it was not trusted again after its last use. */
class Engine implements AsyncDisposable {
  readonly #tempDir: string;
  #duck: DuckDb | undefined;
  isTrusted = true;

  constructor(tempDir: string) {
    this.#tempDir = tempDir;
  }

  async duck(): Promise<DuckDb> {
    if (!this.isTrusted) await this[Symbol.asyncDispose]();
    this.#duck ??= await DuckDb.open({ tempDir: this.#tempDir, memoryLimitBytes: MEMORY_BYTES });
    return this.#duck;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#duck?.close();
    this.#duck = undefined;
  }
}

/** Waits for all, then throws what the first of them threw: none is left at work. */
async function settled(works: readonly Promise<void>[]): Promise<void> {
  for (const result of await Promise.allSettled(works)) {
    if (result.status === 'rejected') throw result.reason;
  }
}
