/**
 * What compaction does with the trajectories that are old enough: which move, in which files, and which stay and why.
 * Decides; touches nothing. `compact.ts` carries it out, and a dry run prints it.
 *
 *   examine    one trajectory against the table log: what of it is to be exported, behind which event
 *   group      those of one partition (tenant, date, model version) go to one file
 *   hold       a group with too little in it waits for more of the same, for a while: tiny files make everything slow
 *   lot        groups that are moved together, in one commit
 */
import type { PlacedSegment } from '../cold/locate.ts';
import { followsOn } from '../cold/locate.ts';
import type { Partition } from '../cold/row-check.ts';
import { GENESIS_HASH } from '../schemas/chain.ts';
import type { TrajectoryId } from '../schemas/ids.ts';
import { dateOf, MODEL_VERSION_UNKNOWN } from '../schemas/parquet.ts';
import type { Candidate } from '../warm/compaction-rows.ts';

/** Events to export: those behind `after`. */
export type Member = {
  readonly trajectory_id: TrajectoryId;
  readonly after: number;
  /** Hash of event `after`, hex. */
  readonly previous_hash: string;
  readonly last_sequence_number: number;
  readonly ripe_at: string;
  readonly partition: Partition;
};

export type Skip = { readonly trajectory_id: TrajectoryId; readonly why: string };

export type Verdict =
  | { readonly kind: 'move'; readonly member: Member }
  /** Cold has all of it; only the mark is missing. */
  | { readonly kind: 'in-cold' }
  | { readonly kind: 'skip'; readonly skip: Skip };

export type Group = { readonly partition: Partition; readonly members: readonly Member[]; readonly events: number };

export type HoldRule = {
  /** Less than this, in bytes, waits. */
  readonly minFileBytes: number;
  /** As long as its oldest member has been ripe for less than this, in milliseconds. */
  readonly maxHoldMs: number;
  readonly nowMs: number;
};

/** Events of one commit: redone as a whole where one trajectory of it proves broken. */
const LOT_EVENTS = 400_000;
/** Files of one commit. */
const LOT_GROUPS = 64;
const GENESIS = Buffer.from(GENESIS_HASH).toString('hex');

/** @param placed its segments in the table log, in order */
export function examine(ripe: Candidate, placed: readonly PlacedSegment[]): Verdict {
  const { trajectory_id, last_sequence_number, ripe_at } = ripe;
  const skip = (why: string): Verdict => ({ kind: 'skip', skip: { trajectory_id, why } });
  if (ripe.blocked !== null) return skip(`events of it are held back in quarantine (${ripe.blocked})`);
  let last: PlacedSegment | undefined;
  for (const next of placed) {
    if (!followsOn(last?.segment, next.segment)) {
      return skip(`its segments in cold do not follow each other at event ${next.segment.first_sequence_number}`);
    }
    last = next;
  }
  const after = last?.segment.last_sequence_number ?? 0;
  if (after === last_sequence_number && last?.segment.head_hash !== ripe.head_hash) {
    return skip(`cold has another event ${after} than warm: a fork, and cold's came first`);
  }
  // Warm was restored to an earlier time, or says so of a trajectory that has grown elsewhere: hot sends the rest again.
  if (after >= last_sequence_number) return { kind: 'in-cold' };
  const first = placed[0]?.file.add.partitionValues;
  const partition = {
    tenant: first?.tenant ?? ripe.tenant,
    date: first?.date ?? dateOf(trajectory_id),
    model_version: first?.model_version ?? ripe.model_version ?? MODEL_VERSION_UNKNOWN,
  };
  const previous_hash = last?.segment.head_hash ?? GENESIS;
  return { kind: 'move', member: { trajectory_id, after, previous_hash, last_sequence_number, ripe_at, partition } };
}

/** By partition, in its order; members ascend by id, as the rows of a file must. */
export function groupByPartition(members: readonly Member[]): Group[] {
  const byKey = new Map<string, Member[]>();
  for (const member of members) {
    const { tenant, date, model_version } = member.partition;
    const key = JSON.stringify([tenant, date, model_version]);
    const group = byKey.get(key) ?? [];
    group.push(member);
    byKey.set(key, group);
  }
  return [...byKey]
    .toSorted(([a], [b]) => (a < b ? -1 : 1))
    .map(([, group]) => ({
      partition: (group[0] as Member).partition,
      members: group.toSorted((a, b) => (a.trajectory_id < b.trajectory_id ? -1 : 1)),
      events: eventsOf(group),
    }));
}

/** Does the group wait? `bytes` are those of its payloads, compressed. */
export function isHeld({ members }: Group, bytes: number, { minFileBytes, maxHoldMs, nowMs }: HoldRule): boolean {
  if (bytes >= minFileBytes) return false;
  const oldestMs = Math.min(...members.map(({ ripe_at }) => Date.parse(ripe_at)));
  return nowMs - oldestMs < maxHoldMs;
}

/** Groups that are committed together. A group that is too large for one lot is cut between trajectories. */
export function lotsOf(groups: readonly Group[]): Group[][] {
  const lots: Group[][] = [];
  let lot: Group[] = [];
  let events = 0;
  for (const group of groups.flatMap(cut)) {
    if (lot.length > 0 && (events + group.events > LOT_EVENTS || lot.length >= LOT_GROUPS)) {
      lots.push(lot);
      lot = [];
      events = 0;
    }
    lot.push(group);
    events += group.events;
  }
  if (lot.length > 0) lots.push(lot);
  return lots;
}

function cut(group: Group): Group[] {
  if (group.events <= LOT_EVENTS) return [group];
  const parts: Group[] = [];
  let members: Member[] = [];
  let events = 0;
  for (const member of group.members) {
    const more = member.last_sequence_number - member.after;
    if (members.length > 0 && events + more > LOT_EVENTS) {
      parts.push({ partition: group.partition, members, events });
      members = [];
      events = 0;
    }
    members.push(member);
    events += more;
  }
  parts.push({ partition: group.partition, members, events });
  return parts;
}

function eventsOf(members: readonly Member[]): number {
  return members.reduce((sum, { after, last_sequence_number }) => sum + last_sequence_number - after, 0);
}
