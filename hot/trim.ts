/**
 * Trim: lets go of what warm has had for long enough.
 *
 * Order is everything. First one mark per trajectory becomes durable, in the log and under `a‖t`; it names the last
 * event that goes, and from then on stands for all before it. Then the records are deleted, oldest first, so that a
 * trim that was cut off finds the rest by walking back from its mark. A range compaction follows at once: plain
 * deletes would make the next 100 MB of appends write 420 MB (measured). Then the floor moves up to the first batch
 * that still holds something, and what lies below it goes with its index blocks. Blobs go last, when no index entry
 * that is left names them.
 */

import { contextReach } from '../schemas/context.ts';
import { isVarveError } from '../schemas/errors.ts';
import { failpoint } from '../schemas/failpoint.ts';
import { trajectoryIdFromBytes } from '../schemas/ids.ts';
import type { BlobStore } from './blobs.ts';
import type { GroupCommit, Tip } from './commit.ts';
import type { Head, Heads } from './heads.ts';
import { type IndexBlock, type IndexEntry, TRIM } from './index-block.ts';
import type { Lookup } from './lookup.ts';
import { type Deletion, FLOOR_KEY, metaKey } from './meta.ts';
import { decodeRecord, indexKey, readU64, recordKey, type StoredEvent, type TrimHead } from './record.ts';
import type { Rocks } from './rocks.ts';
import { planTrim, type TrimCandidate, type TrimStep } from './trim-plan.ts';

export type TrimReport = {
  /** Those that let go of something. */
  readonly trajectories: number;
  readonly events: number;
  readonly blobs: number;
  readonly blob_bytes: number;
  /** Everything up to this LSN is gone, index blocks too. */
  readonly floor_lsn: number;
};

export type TrimNeeds = {
  readonly db: Rocks;
  readonly commit: GroupCommit;
  readonly heads: Heads;
  readonly blobs: BlobStore;
  readonly lookup: Lookup;
  readonly floor: () => Tip;
  readonly setFloor: (floor: Tip) => void;
  /** Deletions that an earlier trim announced and did not finish, by trajectory. */
  readonly unfinished: Map<string, Deletion>;
};

export type TrimLimits = {
  /** Records up to here were acknowledged long enough ago. */
  readonly ackedLsn: number;
  /** Trajectories that warm holds back. */
  readonly held: ReadonlySet<string>;
  /** Blobs younger than this stay, in milliseconds: an append may be about to name them. */
  readonly blobGraceMs: number;
  readonly nowMs: number;
};

const MARKS_AT_ONCE = 256;
const DELETES_AT_ONCE = 1000;

export async function trim(needs: TrimNeeds, limits: TrimLimits): Promise<TrimReport> {
  const deleted = { events: 0, first: Number.POSITIVE_INFINITY, last: 0 };
  await deleteAnnounced(needs, needs.unfinished, deleted);
  needs.unfinished.clear();
  const candidates: TrimCandidate[] = [];
  for (const head of needs.heads) candidates.push(await candidateOf(needs, head, limits));
  const steps = planTrim(candidates, limits.ackedLsn);
  let trajectories = 0;
  for (let i = 0; i < steps.length; i += MARKS_AT_ONCE) {
    const marked = await mark(needs, steps.slice(i, i + MARKS_AT_ONCE), limits.ackedLsn);
    trajectories += marked.size;
    await deleteAnnounced(needs, marked, deleted);
  }
  if (deleted.last > 0) await needs.db.compactRange(recordKey(deleted.first), recordKey(deleted.last));
  await raiseFloor(needs, limits.ackedLsn);
  const { blobs, bytes } = await needs.blobs.sweep(() => referenced(needs), limits.blobGraceMs, limits.nowMs);
  const floor_lsn = needs.floor().lsn;
  return { trajectories, events: deleted.events, blobs, blob_bytes: bytes, floor_lsn };
}

async function candidateOf(needs: TrimNeeds, head: Head, limits: TrimLimits): Promise<TrimCandidate> {
  const { durable } = head;
  return {
    trajectory_id: head.id,
    finished: head.finished,
    sequence: durable?.sequence_number ?? 0,
    lsn: Number(durable?.lsn ?? 0n),
    trimmedSequence: head.trimmed?.sequence ?? 0,
    neededFrom: head.finished || limits.held.has(head.id) ? undefined : await neededFrom(needs, head),
    held: limits.held.has(head.id),
  };
}

/** The least of last checkpoint, oldest reference of the context and oldest open intent. */
async function neededFrom(needs: TrimNeeds, head: Head): Promise<number | undefined> {
  // A finished trajectory went whole and may have gone on since.
  const goneLsn = head.trimmed?.lsn ?? 0;
  if (head.checkpointLsn <= goneLsn) return undefined;
  const lsns = [head.checkpointLsn, ...(head.openIntents?.values() ?? [])].filter((lsn) => lsn > goneLsn);
  let least = Number.POSITIVE_INFINITY;
  for (const lsn of lsns) {
    const record = await needs.lookup.record(lsn);
    if (record.kind === 'event') least = Math.min(least, record.event.sequence_number);
  }
  if (head.contextLsn <= goneLsn) return least;
  const context = await needs.lookup.record(head.contextLsn);
  return context.kind === 'event' ? Math.min(least, await oldestShown(needs, head, context.event)) : least;
}

/** A context may stand on an earlier one, and that on another. */
async function oldestShown(needs: TrimNeeds, head: Head, context: StoredEvent): Promise<number> {
  const { sequence_number } = context;
  const { oldest, base } = contextReach(context.payload);
  const least = Math.min(sequence_number, oldest ?? sequence_number);
  if (base === undefined || base >= sequence_number) return least;
  const event = await eventHere(needs, head, base);
  return event === undefined ? least : Math.min(least, await oldestShown(needs, head, event));
}

/** undefined: it was trimmed, or written elsewhere before this log adopted the trajectory. */
async function eventHere({ lookup }: TrimNeeds, head: Head, sequence: number): Promise<StoredEvent | undefined> {
  try {
    return (await lookup.eventAt(head, sequence)).event;
  } catch (error) {
    if (isVarveError(error, 'HOT_TRIMMED')) return undefined;
    throw error;
  }
}

/** Makes the marks durable; they stand for what they cover from then on. Returns the deletions that they announce. */
async function mark(needs: TrimNeeds, steps: readonly TrimStep[], ackedLsn: number): Promise<Map<string, Deletion>> {
  const { commit, heads } = needs;
  const marks: { head: Head; mark: TrimHead }[] = [];
  for (const { trajectory_id, through_sequence } of steps) {
    const head = heads.get(trajectory_id);
    if (head === undefined) continue;
    const event = await eventHere(needs, head, through_sequence);
    if (event === undefined || Number(event.lsn) > ackedLsn) continue;
    const { sequence_number, cryptographic_hash, created_at, turn, fencing_token } = event;
    const position = { trajectory_id, sequence_number, cryptographic_hash, created_at, turn, fencing_token };
    marks.push({ head, mark: { kind: 'trim', ...position, through_lsn: Number(event.lsn) } });
  }
  if (marks.length === 0) return new Map();
  if (commit.ended !== undefined) throw commit.ended;
  for (const { head, mark } of marks) {
    const deletion: Deletion = { through_lsn: mark.through_lsn };
    commit.batch.addControl(entryOf(head, mark, commit.nextLsn()), mark, [
      [metaKey('t', head.idBytes), Buffer.from(JSON.stringify(mark))],
      [metaKey('d', head.idBytes), Buffer.from(JSON.stringify(deletion))],
    ]);
  }
  const durable = commit.whenDurable();
  commit.schedule();
  await durable;
  failpoint('hot.trim.after-marks');
  for (const { head, mark } of marks) {
    head.trimmed = { sequence: mark.sequence_number, lsn: mark.through_lsn };
    head.lsns = head.lsns.slice(Math.max(0, mark.sequence_number + 1 - head.listedFrom));
    head.listedFrom = Math.max(head.listedFrom, mark.sequence_number + 1);
  }
  return new Map(marks.map(({ head, mark }) => [head.idBytes, { through_lsn: mark.through_lsn }]));
}

function entryOf(head: Head, mark: TrimHead, lsn: number): IndexEntry {
  return {
    code: TRIM,
    id: head.idBytes,
    lsn,
    sequence: mark.sequence_number,
    previousLsn: 0,
    hash: Buffer.from(mark.cryptographic_hash, 'hex').toString('latin1'),
    turn: mark.turn,
    token: mark.fencing_token,
    createdMs: Date.parse(mark.created_at),
    tag: '',
    blobs: [],
  };
}

type Deleted = { events: number; first: number; last: number };

/** Deletes the records of all these trajectories, then the announcements, under one barrier. */
async function deleteAnnounced(
  needs: TrimNeeds,
  deletions: ReadonlyMap<string, Deletion>,
  deleted: Deleted,
): Promise<void> {
  if (deletions.size === 0) return;
  for (const { through_lsn } of deletions.values()) await deleteRecords(needs, through_lsn, deleted);
  // With a sync: once an announcement is gone, nobody would look for records that came back.
  await needs.db.write((batch) => {
    for (const idBytes of deletions.keys()) batch.del(metaKey('d', idBytes));
  }, true);
}

/** Deletes a trajectory's records up to an LSN, oldest first. */
async function deleteRecords({ db }: TrimNeeds, throughLsn: number, deleted: Deleted): Promise<void> {
  const lsns: number[] = [];
  for (let lsn = throughLsn; lsn > 0; ) {
    const value = await db.get(recordKey(lsn));
    if (value === undefined) break;
    lsns.push(lsn);
    if (decodeRecord(lsn, value)?.kind === 'event') deleted.events += 1;
    lsn = readU64(value, 0);
  }
  lsns.reverse();
  for (let i = 0; i < lsns.length; i += DELETES_AT_ONCE) {
    const part = lsns.slice(i, i + DELETES_AT_ONCE);
    await db.write((batch) => {
      for (const lsn of part) batch.del(recordKey(lsn));
    }, false);
    failpoint('hot.trim.mid-delete');
  }
  deleted.first = Math.min(deleted.first, lsns[0] ?? deleted.first);
  deleted.last = Math.max(deleted.last, lsns.at(-1) ?? 0);
}

/** Moves the floor over every batch of which nothing is left, and deletes what lies below. */
async function raiseFloor(needs: TrimNeeds, ackedLsn: number): Promise<void> {
  const { db, heads, lookup } = needs;
  const before = needs.floor();
  let floor = before;
  for await (const block of lookup.blocksForwards(floor.lsn)) {
    if (!isGone(block, heads, ackedLsn)) break;
    const hash = Buffer.from(block.entries.at(-1)?.hash ?? '', 'latin1').toString('hex');
    floor = { lsn: block.lastLsn, hash, bytes: block.bytes };
  }
  if (floor.lsn === before.lsn) return;
  failpoint('hot.trim.before-floor');
  await db.write((batch) => batch.put(FLOOR_KEY, Buffer.from(JSON.stringify(floor))), true);
  needs.setFloor(floor);
  failpoint('hot.trim.after-floor');
  // From the very start: an earlier run may have been cut off here.
  const range = { gte: recordKey(0), lte: indexKey(floor.lsn) };
  for await (const rows of db.pages(range)) {
    await db.write((batch) => {
      for (const [key] of rows) batch.del(key);
    }, false);
  }
  await db.compactRange(range.gte, range.lte);
}

function isGone(block: IndexBlock, heads: Heads, ackedLsn: number): boolean {
  return block.entries.every((entry) => {
    if (entry.code === TRIM) return entry.lsn <= ackedLsn;
    const trimmed = heads.get(trajectoryIdFromBytes(Buffer.from(entry.id, 'latin1')))?.trimmed;
    return trimmed !== undefined && trimmed.lsn >= entry.lsn;
  });
}

/** Blobs that an index entry still names, less those of trimmed events. */
async function referenced({ heads, lookup }: TrimNeeds): Promise<ReadonlySet<string>> {
  const needed = new Set<string>();
  for await (const block of lookup.blocksBackwards()) {
    for (const entry of block.entries) {
      if (entry.blobs.length === 0) continue;
      const trimmed = heads.at(entry.id).trimmed;
      if (trimmed !== undefined && trimmed.lsn >= entry.lsn) continue;
      for (const sha256 of entry.blobs) needed.add(sha256);
    }
  }
  return needed;
}
