/**
 * Settles what warm could not prove: an event at or below a trajectory's head whose row is gone from warm is a duplicate
 * if cold has the same event under its number, and a fork if cold has another one. What cold does not have either, or
 * cannot read, stays as it is.
 */
import { type PlacedSegment, segmentsOfTrajectories } from '../cold/locate.ts';
import type { ObjectStore } from '../cold/object-store.ts';
import { SegmentReader } from '../cold/segment-reader.ts';
import type { TableLog } from '../cold/table-log.ts';
import { isVarveError } from '../schemas/errors.ts';
import type { TrajectoryId } from '../schemas/ids.ts';
import { transaction, type WarmPool } from '../warm/pool.ts';
import { readUnproven, settleUnproven, type UnprovenEvent, type UnprovenKey } from '../warm/unproven-rows.ts';
import { type RetryPolicy, retry } from './retry.ts';

export type Settled = { readonly proven: number; readonly forks: number };

type Parts = {
  readonly pool: WarmPool;
  readonly store: ObjectStore;
  readonly log: TableLog;
  readonly signal: AbortSignal;
  readonly policy: RetryPolicy;
};

const PAGE = 1000;

export async function settleAllUnproven(parts: Parts): Promise<Settled> {
  const { pool, store, log, signal, policy } = parts;
  const reader = new SegmentReader(store, log);
  let after: UnprovenKey | undefined;
  let [proven, forks] = [0, 0];
  while (!signal.aborted) {
    const page = await retry(() => pool.lend((session) => readUnproven(session, after, PAGE)), signal, policy);
    after = page.at(-1);
    if (after === undefined) break;
    const decisions = await decide(parts, reader, page);
    if (decisions.length === 0) continue;
    await retry(() => transaction(pool, (tx) => settleUnproven(tx, decisions)), signal, policy);
    proven += decisions.filter((decision) => decision.proven).length;
    forks += decisions.filter((decision) => !decision.proven).length;
  }
  return { proven, forks };
}

type Decision = { readonly id: number; readonly proven: boolean };

async function decide(
  { log, signal, policy }: Parts,
  reader: SegmentReader,
  page: readonly UnprovenEvent[],
): Promise<Decision[]> {
  const byId = groupById(page);
  const decisions: Decision[] = [];
  for (const [trajectory_id, events] of byId) {
    try {
      const placed = await retry(
        async (signal) => segmentsOfTrajectories(log, await log.snapshot({ signal }), [trajectory_id], { signal }),
        signal,
        policy,
      );
      for (const one of placed.get(trajectory_id) ?? []) {
        decisions.push(...(await retry(() => against(reader, one, events, signal), signal, policy)));
      }
    } catch (error) {
      // Damage in cold is verify's to name; here it proves nothing.
      if (!isVarveError(error) || error.code === 'ABORTED' || error.retry) throw error;
    }
  }
  return decisions;
}

function groupById(page: readonly UnprovenEvent[]): Map<TrajectoryId, UnprovenEvent[]> {
  const byId = new Map<TrajectoryId, UnprovenEvent[]>();
  for (const event of page) byId.set(event.trajectory_id, [...(byId.get(event.trajectory_id) ?? []), event]);
  return byId;
}

/** Events whose number lies in the segment, against the ones that are there. */
async function against(
  reader: SegmentReader,
  placed: PlacedSegment,
  events: readonly UnprovenEvent[],
  signal: AbortSignal,
): Promise<Decision[]> {
  const { first_sequence_number, last_sequence_number } = placed.segment;
  const wanted = new Map<number, UnprovenEvent[]>();
  for (const event of events) {
    const { sequence_number } = event;
    if (sequence_number < first_sequence_number || sequence_number > last_sequence_number) continue;
    wanted.set(sequence_number, [...(wanted.get(sequence_number) ?? []), event]);
  }
  if (wanted.size === 0) return [];
  const decisions: Decision[] = [];
  for await (const rows of reader.read(placed, { signal })) {
    for (const { sequence_number, cryptographic_hash } of rows) {
      for (const { id, cryptographic_hash: theirs } of wanted.get(sequence_number) ?? []) {
        decisions.push({ id, proven: theirs === cryptographic_hash });
      }
    }
  }
  return decisions;
}
