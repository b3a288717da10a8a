/**
 * `varve compact`: moves closed trajectories that are old enough from warm to cold.
 *
 * Rounds of candidates, in the order of their partitions; of each round a plan (compact-plan.ts), and its lots one after
 * the other, or several at once (compact-lot.ts). Any number of compactors may work beside each other. The end
 * of its time starts nothing new; a signal also gives up the lot under way, unless its commit has begun.
 */
import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import { DuckDb } from '../cold/duckdb.ts';
import { type PlacedSegment, segmentsOfTrajectories } from '../cold/locate.ts';
import type { ObjectStore } from '../cold/object-store.ts';
import type { TableLog } from '../cold/table-log.ts';
import type { Config } from '../schemas/config.ts';
import { type ErrorCode, invariant, isVarveError } from '../schemas/errors.ts';
import { failpoint } from '../schemas/failpoint.ts';
import type { TrajectoryId } from '../schemas/ids.ts';
import { MIB } from '../schemas/limits.ts';
import { dateOf } from '../schemas/parquet.ts';
import {
  type Candidate,
  type CandidateKey,
  type CandidateRule,
  readBacklog,
  readCandidates,
  readSizes,
} from '../warm/compaction-rows.ts';
import type { WarmPool } from '../warm/pool.ts';
import { BlobPutter } from './blob-putter.ts';
import { type LotParts, moveLot, repairMarks } from './compact-lot.ts';
import { examine, type Group, groupByPartition, isHeld, lotsOf, type Skip } from './compact-plan.ts';
import { CompactReport } from './compact-report.ts';
import { CompactionRun } from './compact-run.ts';
import { Logger } from './logger.ts';
import { openColdStore } from './open-cold.ts';
import { openWarm } from './open-warm.ts';
import { openOwnTable } from './own-table.ts';
import { type RetryPolicy, retry } from './retry.ts';
import { openScratch } from './scratch.ts';
import { settleAllUnproven } from './settle-unproven.ts';

export type CompactOptions = {
  readonly olderThanMs: number;
  readonly tenant: string | undefined;
  /** Nothing new is begun later than this, in milliseconds since the epoch. */
  readonly untilMs: number | undefined;
  readonly dryRun: boolean;
  readonly concurrency: number;
  /** Longest wait of a tiny partition, in milliseconds; 0: none. */
  readonly maxHoldMs: number;
  readonly onProgress: (report: CompactReport) => void;
};

/** Candidates of one round: their ids, heads and partitions are in memory. */
const ROUND = 20_000;
/** Larger groups are worth a file in any case; they are not measured. */
const MEASURED_EVENTS_MAX = 20_000;
/** Of each instance of DuckDB; the process takes twice as much, with rows under way and what allocators keep. */
const DUCK_BYTES = 160 * MIB;
const DAY_MS = 86_400_000;

/** @returns what it did, or with `dryRun` would do */
export async function compact(config: Config, options: CompactOptions, signal: AbortSignal): Promise<CompactReport> {
  await using warm = await openWarm(config);
  await using store = await openColdStore(config, { signal, readOnly: options.dryRun });
  await using scratch = await openScratch(config.cold.scratch);
  const scratchDir = scratch.path;
  await using duck = await openDuck(scratchDir);
  const report = new CompactReport(options.dryRun);
  const logger = new Logger(config.log.level);
  const policy: RetryPolicy = {
    onRetry: ({ error }) => {
      report.retries += 1;
      logger.failure('compact.retry', error, {});
    },
  };
  const log = await openOwnTable({ pool: warm.pool, store, duck, scratchDir }, options.dryRun);
  const job = { config, options, pool: warm.pool, store, log, scratchDir, report, policy, signal };
  if (options.dryRun) {
    await allRounds(job, undefined);
    report.end = isOver(job) ? 'stopped' : 'finished';
    return report;
  }
  invariant(log !== undefined, 'a table is made where there is none');
  await using run = await CompactionRun.begin(warm.pool, config.compact.claimTtlMs, policy);
  report.run_id = run.id;
  failpoint('compact.run.begun');
  try {
    await allRounds(job, run);
    const { proven, forks } = await settleAllUnproven({ pool: warm.pool, store, log, signal, policy });
    report.settled_unproven = proven;
    report.found_forks = forks;
    await log.checkpointIfDue();
    report.end = isOver(job) ? 'stopped' : 'finished';
  } catch (error) {
    report.end = isVarveError(error, 'ABORTED') ? 'stopped' : 'failed';
    report.error = isVarveError(error) ? { code: error.code, message: error.message } : undefined;
    throw error;
  } finally {
    await noteEnd(warm.pool, run, dueRuleOf(config), report);
  }
  return report;
}

type Job = {
  readonly config: Config;
  readonly options: CompactOptions;
  readonly pool: WarmPool;
  readonly store: ObjectStore;
  readonly log: TableLog | undefined;
  readonly scratchDir: string;
  readonly report: CompactReport;
  readonly policy: RetryPolicy;
  readonly signal: AbortSignal;
};

/** Nothing new is begun. */
function isOver({ signal, options }: Job): boolean {
  return signal.aborted || (options.untilMs !== undefined && Date.now() >= options.untilMs);
}

async function allRounds(job: Job, run: CompactionRun | undefined): Promise<void> {
  const { config, options, pool, report, signal } = job;
  const blobs = new BlobPutter(job.store, job.scratchDir, signal, job.policy);
  let after: CandidateKey | undefined;
  const rule = ruleOf(config, options);
  for (;;) {
    if (isOver(job)) return;
    const found = await pool.lend((session) => readCandidates(session, rule, options.tenant, after, ROUND, run?.id));
    const last = found.at(-1);
    if (last === undefined) return;
    const { tenant, trajectory_id } = last;
    after = { tenant, model_version: last.model_version ?? '', trajectory_id };
    const groups = await plan(job, found, run !== undefined);
    report.planned(groups);
    if (run !== undefined) await moveAll(job, run, blobs, lotsOf(groups));
    options.onProgress(report);
    report.blobs = blobs.blobs;
    report.blob_bytes = blobs.bytes;
  }
}

/** Groups that are to be moved now; notes what stays, and repairs marks. */
async function plan(job: Job, found: readonly Candidate[], repair: boolean): Promise<Group[]> {
  const { log, pool, report, signal, policy } = job;
  const { placed, skips } = await locate(job, found);
  const inCold = [...placed.keys()];
  if (repair && log !== undefined && inCold.length > 0) {
    report.repaired_marks += await repairMarks(pool, log, inCold, { signal, policy });
  }
  report.skip(skips);
  const unknown = new Set(skips.map(({ trajectory_id }) => trajectory_id));
  const verdicts = found
    .filter(({ trajectory_id }) => !unknown.has(trajectory_id))
    .map((ripe) => examine(ripe, placed.get(ripe.trajectory_id) ?? []));
  report.skip(verdicts.flatMap((verdict) => (verdict.kind === 'skip' ? [verdict.skip] : [])));
  const members = verdicts.flatMap((verdict) => (verdict.kind === 'move' ? [verdict.member] : []));
  return await withoutHeld(job, groupByPartition(members));
}

/** What of a store is not as the table log says. */
const DAMAGED: ReadonlySet<ErrorCode> = new Set(['COLD_SEGMENTS_INVALID', 'STORE_MISSING', 'STORE_CORRUPT']);

/**
 * Where the candidates lie in cold, day by day: files hold trajectories of one day, so a day with a damaged list of
 * segments, of which nobody can say what it holds, keeps only its own trajectories here.
 */
async function locate({ log, signal, policy }: Job, found: readonly Candidate[]) {
  const placed = new Map<TrajectoryId, PlacedSegment[]>();
  const skips: Skip[] = [];
  if (log === undefined) return { placed, skips };
  const snapshot = await retry((signal) => log.snapshot({ signal }), signal, policy);
  const byDay = new Map<string, TrajectoryId[]>();
  for (const { trajectory_id } of found) {
    const day = dateOf(trajectory_id);
    const ids = byDay.get(day) ?? [];
    ids.push(trajectory_id);
    byDay.set(day, ids);
  }
  for (const ids of byDay.values()) {
    try {
      const some = await retry((signal) => segmentsOfTrajectories(log, snapshot, ids, { signal }), signal, policy);
      for (const [trajectory_id, segments] of some) placed.set(trajectory_id, segments);
    } catch (error) {
      if (!isVarveError(error) || !DAMAGED.has(error.code)) throw error;
      skips.push(
        ...ids.map((trajectory_id) => ({
          trajectory_id,
          why: `what cold has of its day is unknown: ${error.message}`,
        })),
      );
    }
  }
  return { placed, skips };
}

async function withoutHeld({ config, options, pool, report }: Job, groups: readonly Group[]): Promise<Group[]> {
  const hold = { minFileBytes: config.compact.minFileBytes, maxHoldMs: options.maxHoldMs, nowMs: Date.now() };
  if (hold.maxHoldMs === 0 || hold.minFileBytes === 0) return [...groups];
  const small = groups.filter(({ events }) => events < MEASURED_EVENTS_MAX);
  const members = small.flatMap((group) => group.members);
  const sizes = await pool.lend((session) => readSizes(session, members));
  const bytesOf = (group: Group) =>
    group.members.reduce((sum, { trajectory_id }) => sum + (sizes.get(trajectory_id) ?? 0), 0);
  const held = new Set(small.filter((group) => isHeld(group, bytesOf(group), hold)));
  report.hold([...held]);
  return groups.filter((group) => !held.has(group));
}

/** Lots, several at once; the first failure ends the others before they begin another one. */
async function moveAll(job: Job, run: CompactionRun, blobs: BlobPutter, lots: readonly Group[][]): Promise<void> {
  const { log, report, options } = job;
  if (log === undefined || lots.length === 0) return;
  const queue = [...lots];
  let hasFailed = false;
  const worker = async (): Promise<void> => {
    await using duck = await openDuck(job.scratchDir);
    const parts: LotParts = {
      pool: job.pool,
      store: job.store,
      url: job.store.url,
      log,
      run,
      duck,
      blobs,
      scratchDir: job.scratchDir,
      offloadOverBytes: job.config.cold.offloadOverBytes,
      signal: job.signal,
      policy: job.policy,
      onEvents: (events) => {
        report.streamed += events;
        options.onProgress(report);
      },
    };
    for (let lot = queue.shift(); lot !== undefined && !hasFailed && !isOver(job); lot = queue.shift()) {
      try {
        report.moved(await moveLot(parts, lot));
      } catch (error) {
        hasFailed = true;
        throw error;
      }
      options.onProgress(report);
    }
  };
  const workers = Array.from({ length: Math.min(options.concurrency, lots.length) }, worker);
  const results = await Promise.allSettled(workers);
  for (const result of results) if (result.status === 'rejected') throw result.reason;
}

async function openDuck(scratchDir: string): Promise<DuckDb> {
  return await DuckDb.open({ tempDir: join(scratchDir, `duck-${randomUUID()}`), memoryLimitBytes: DUCK_BYTES });
}

async function noteEnd(pool: WarmPool, run: CompactionRun, rule: CandidateRule, report: CompactReport): Promise<void> {
  failpoint('compact.run.before-end');
  report.backlog = await pool.lend((session) => readBacklog(session, rule)).catch(() => undefined);
  await run.end(report.end, report.error?.code, report.toJSON());
}

/** What is due by the configuration: backlogs by this rule alone can be compared from run to run. */
export function dueRuleOf(config: Config): CandidateRule {
  return ruleOf(config, { olderThanMs: config.compact.olderThanDays * DAY_MS });
}

function ruleOf({ lifecycle }: Config, { olderThanMs }: { olderThanMs: number }): CandidateRule {
  return {
    olderThanMs,
    importIdleMs: lifecycle.importIdleMinutes * 60_000,
    abandonAfterMs: lifecycle.abandonAfterDays * 86_400_000,
  };
}
