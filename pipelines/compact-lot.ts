/**
 * One lot of compaction: claim → look where cold stands → files → commit → mark.
 *
 *   before the commit   nothing has changed for anybody; what was put are orphans
 *   after it            the events are in cold; marks and claims are repaired by whoever comes next
 *
 * What cold has is taken from the table log alone. A trajectory that proves broken is left out by name, and the lot is
 * made without it. Where another compactor was quicker, the table log refuses the commit, and its marks are taken over.
 */
import { type PlacedSegment, segmentsOfTrajectories } from '../cold/locate.ts';
import type { Segment } from '../cold/segments.ts';
import type { TableLog } from '../cold/table-log.ts';
import type { NewFile } from '../cold/table-log-plan.ts';
import { failpoint } from '../schemas/failpoint.ts';
import type { TrajectoryId } from '../schemas/ids.ts';
import {
  type Claimed,
  claimTrajectories,
  markCold,
  releaseClaims,
  type SeenTable,
  seeTable,
} from '../warm/compaction-rows.ts';
import { transaction, type WarmPool } from '../warm/pool.ts';
import { BrokenTrajectory, type ClaimedMember, type FileParts, type MadeFiles, makeFiles } from './compact-files.ts';
import type { Group, Member, Skip } from './compact-plan.ts';
import type { CompactionRun } from './compact-run.ts';
import { retry } from './retry.ts';

export type LotParts = FileParts & { readonly log: TableLog; readonly run: CompactionRun; readonly url: string };

export type LotOutcome = {
  readonly trajectories: number;
  readonly events: number;
  readonly files: number;
  readonly payload_bytes: number;
  readonly file_bytes: number;
  readonly skipped: readonly Skip[];
  /** Left for another time: claimed by others, or changing at this moment. */
  readonly busy: number;
  /** Others had brought them to cold meanwhile. */
  readonly overtaken: number;
};

const LOT_ATTEMPTS = 3;
const NEVER = new AbortController().signal;
const NOTHING = {
  trajectories: 0,
  events: 0,
  files: 0,
  payload_bytes: 0,
  file_bytes: 0,
  skipped: [],
  busy: 0,
  overtaken: 0,
};

export async function moveLot(parts: LotParts, groups: readonly Group[]): Promise<LotOutcome> {
  const { pool, log, run, signal, policy } = parts;
  const wanted = groups.flatMap(({ members }) => members);
  const ids = wanted.map(({ trajectory_id }) => trajectory_id);
  const claimed = await retry(() => transaction(pool, (tx) => claimTrajectories(tx, run.id, ids)), signal, policy);
  failpoint('compact.lot.claimed');
  const skipped: Skip[] = [];
  const busy = wanted.length - claimed.length;
  let members = await currentMembers(parts, wanted, claimed);
  let made: MadeFiles | undefined;
  while (made === undefined && members.length > 0) {
    try {
      const these = members;
      // A database that goes away in the middle: all of it again.
      made = await retry(() => makeFiles(parts, these), signal, { ...policy, attempts: LOT_ATTEMPTS });
    } catch (error) {
      if (!(error instanceof BrokenTrajectory)) throw error;
      skipped.push({ trajectory_id: error.trajectory_id, why: error.message });
      members = members.filter(({ trajectory_id }) => trajectory_id !== error.trajectory_id);
    }
  }
  const overtaken = claimed.length - skipped.length - members.length;
  if (made === undefined) {
    await mark(parts, [], ids, undefined);
    return { ...NOTHING, skipped, busy, overtaken };
  }
  // COMMIT POINT, inside: the put of the table log's next version.
  const outcome = await run.commit(log, 'COMPACT', made.files);
  if (outcome.kind !== 'committed') {
    await repairMarks(pool, log, ids, parts);
    await mark(parts, [], ids, undefined);
    return { ...NOTHING, skipped, busy, overtaken: overtaken + members.length };
  }
  failpoint('compact.commit.before-mark');
  await mark(parts, made.files, ids, outcome.version);
  failpoint('compact.commit.after-mark');
  return { ...made.counts, trajectories: members.length, files: made.files.length, skipped, busy, overtaken };
}

/** Marks in the database whatever the table log has of these trajectories. @returns how many marks were missing */
export async function repairMarks(
  pool: WarmPool,
  log: TableLog,
  ids: readonly TrajectoryId[],
  { signal, policy }: Pick<FileParts, 'signal' | 'policy'>,
): Promise<number> {
  const placed = await retry(
    async (signal) => segmentsOfTrajectories(log, await log.snapshot({ signal }), ids, { signal }),
    signal,
    policy,
  );
  const marks = [...placed.values()].flat().map(({ segment }) => segment);
  if (marks.length === 0) return 0;
  return await retry(() => transaction(pool, (tx) => markCold(tx, marks)), signal, policy);
}

/** What is claimed, from where the table log ends now to where warm ended when it was claimed. */
async function currentMembers(
  { log, signal, policy }: LotParts,
  wanted: readonly Member[],
  claimed: readonly Claimed[],
): Promise<ClaimedMember[]> {
  const byId = new Map(claimed.map((row) => [row.trajectory_id, row]));
  const placed = await retry(
    async (signal) => segmentsOfTrajectories(log, await log.snapshot({ signal }), byId.keys(), { signal }),
    signal,
    policy,
  );
  return wanted.flatMap((member) => {
    const row = byId.get(member.trajectory_id);
    const last = (placed.get(member.trajectory_id) ?? NO_SEGMENTS).at(-1)?.segment;
    // Another compactor has moved on since the plan was made.
    if (row === undefined || (last?.last_sequence_number ?? 0) !== member.after) return [];
    const { last_sequence_number, head_hash, summary } = row;
    return last_sequence_number > member.after ? [{ ...member, last_sequence_number, head_hash, summary }] : [];
  });
}

const NO_SEGMENTS: readonly PlacedSegment[] = [];

/** What was committed is marked, claims are given back, and the table's version is noted. Finished once begun. */
async function mark(
  { pool, log, run, url, policy }: LotParts,
  files: readonly NewFile[],
  ids: readonly TrajectoryId[],
  version: number | undefined,
): Promise<void> {
  const marks: Segment[] = files.flatMap(({ segments }) => [...segments.segments]);
  const { metaData } = await log.snapshot();
  await retry(
    () =>
      transaction(pool, async (tx) => {
        if (marks.length > 0) await markCold(tx, marks);
        if (version !== undefined) await seeTable(tx, { table_id: metaData.id, url, version } satisfies SeenTable);
        await releaseClaims(tx, run.id, ids);
      }),
    NEVER,
    policy,
  );
}
