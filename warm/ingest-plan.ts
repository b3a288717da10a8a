/**
 * Decides what becomes of every record of a batch; touches nothing. `warm/ingest.ts` carries it out in one transaction.
 *
 * For one log, in its order, against what warm knows of each trajectory:
 *
 *   the next event, covering the head      insert
 *   at or below the head, same hash        duplicate; other hash: fork; hash no longer known: unproven, until an event
 *                                          whose hash is known decides for all before it (the chain)
 *   behind the next                        waiting, if the log announced an anchor there, or its event before it waits;
 *                                          otherwise a gap
 *   under a token that a claim has passed  fenced, behind the head that the claim stated, whatever warm has there
 *   what PostgreSQL refused, or nonsense   poison
 *
 * Gap, fork, poison and fenced *block* (trajectory, log, token): what the log sends for it under that or a lower token
 * goes to quarantine with the same reason, in order. Everything else goes on.
 */
import { type SequenceNumber, type TrajectoryId, trajectoryStartMs } from '../schemas/ids.ts';
import { INITIAL_SUMMARY, type Summary, step } from '../schemas/summary.ts';
import type { FoldedEvent } from '../schemas/tally.ts';
import { advanced, allowed, block, type Place, placeOf, type Refusal, STOPPED_EARLIER, storedAt } from './place.ts';

/** An event as a log hands it over, with the exact bytes of its payload. */
export type WarmEvent = FoldedEvent & {
  readonly trajectory_id: TrajectoryId;
  readonly sequence_number: SequenceNumber;
  readonly fencing_token: number;
  readonly payload_sha256: string;
  /** Hex. */
  readonly cryptographic_hash: string;
  readonly payload_bytes: Uint8Array;
};

export type WarmPosition = {
  readonly trajectory_id: TrajectoryId;
  readonly sequence_number: number;
  readonly cryptographic_hash: string;
  readonly fencing_token: number;
};

export type WarmItem =
  | { readonly kind: 'event'; readonly lsn: number; readonly event: WarmEvent }
  | { readonly kind: 'anchor'; readonly lsn: number; readonly position: WarmPosition }
  /** The log no longer has these records. */
  | { readonly kind: 'missing'; readonly from_lsn: number; readonly to_lsn: number };

/** A claim of a lease: from it on, lower tokens are accepted only up to the head that it stated. */
export type Fence = { readonly fencing_token: number; readonly sequence_number: number };

export type BlockReason = 'gap' | 'fork' | 'poison' | 'fenced';
export type QuarantineReason = BlockReason | 'waiting' | 'unproven';

/** What warm knows of a trajectory, read under its row's lock, and of this log's part in it. */
export type TrajectoryState = {
  readonly trajectory_id: TrajectoryId;
  readonly last_sequence_number: number;
  /** Hex. */
  readonly head_hash: string;
  readonly turn: number;
  /** Milliseconds since the epoch, 0 before the first event. */
  readonly created_ms: number;
  readonly fencing_token: number;
  /** Token of the newest claim. */
  readonly fence_token: number;
  /** Every claim that still decides about something. */
  readonly fences: readonly Fence[];
  readonly summary: Summary;
  readonly block: { readonly reason: BlockReason; readonly fencing_token: number } | undefined;
  /** Where this log said that it goes on behind another log's event. */
  readonly anchor: { readonly lsn: number; readonly sequence_number: number } | undefined;
  /** The event of this log that came last to wait in quarantine. */
  readonly waiting_sequence: number | undefined;
  /** Events of any log that wait for this trajectory. */
  readonly waiting: number;
};

export type Quarantined = {
  readonly lsn: number;
  readonly event: WarmEvent;
  readonly reason: QuarantineReason;
  readonly detail: string;
  readonly sqlstate?: string;
};

export type TrajectoryChange = {
  readonly before: TrajectoryState;
  readonly after: TrajectoryState;
  /** A block that this batch set, at this sequence number. */
  readonly blocked_at: number | undefined;
  readonly decisions: readonly Decision[];
};

/**
 * An event whose hash is known decides for the unproven ones before it in the same log: proven, they were duplicates;
 * else they are part of a fork. An anchor between them cuts the chain, so only what lies behind it is decided.
 */
export type Decision = {
  /** Of that anchor, and of the event that decides: what lies between them is decided. */
  readonly after_lsn: number;
  readonly before_lsn: number;
  /** Its sequence number. */
  readonly below: number;
  readonly proven: boolean;
};

export type IngestPlan = {
  readonly inserts: readonly WarmEvent[];
  readonly quarantined: readonly Quarantined[];
  readonly changes: readonly TrajectoryChange[];
  readonly anchors: readonly (WarmPosition & { readonly lsn: number })[];
  readonly missing: readonly { readonly from_lsn: number; readonly to_lsn: number }[];
  readonly duplicates: number;
};

export type PlanContext = {
  readonly state: (id: TrajectoryId) => TrajectoryState;
  /** Hex hash of a stored event or of a segment's end, for events at or below the head; undefined: no longer known. */
  readonly storedHash: (id: TrajectoryId, sequence: number) => string | undefined;
  /** What PostgreSQL refused in an earlier try, and what is unfit otherwise, by LSN. */
  readonly refused: ReadonlyMap<number, Refusal>;
  /** LSNs of events in whose place warm turned out to hold another row in an earlier try. */
  readonly conflicting: ReadonlySet<number>;
  /** Milliseconds since the epoch, of the database. */
  readonly now_ms: number;
};

/** A trajectory may start at most this far ahead of the database's clock, in milliseconds. */
const ID_AHEAD_MS_MAX = 86_400_000;

/** The state of a trajectory that warm has never heard of. */
export function unknownTrajectory(trajectory_id: TrajectoryId): TrajectoryState {
  return {
    trajectory_id,
    last_sequence_number: 0,
    head_hash: '0'.repeat(64),
    turn: 0,
    created_ms: 0,
    fencing_token: 0,
    fence_token: 0,
    fences: [],
    summary: INITIAL_SUMMARY,
    block: undefined,
    anchor: undefined,
    waiting_sequence: undefined,
    waiting: 0,
  };
}

type Draft = {
  readonly before: TrajectoryState;
  after: TrajectoryState;
  inserted: WarmEvent[];
  blocked_at: number | undefined;
  decisions: Decision[];
  /** Unproven events of this batch that the next known one decides for, in order. */
  unproven: { readonly lsn: number; readonly event: WarmEvent }[];
  /** Unproven events before an anchor. */
  undecided: { readonly lsn: number; readonly event: WarmEvent }[];
};

type Verdict = Exclude<Place, { kind: 'early' }> | { readonly kind: 'waiting' };

export function planIngest(items: readonly WarmItem[], context: PlanContext): IngestPlan {
  const drafts = new Map<TrajectoryId, Draft>();
  const quarantined: Quarantined[] = [];
  const anchors: (WarmPosition & { lsn: number })[] = [];
  const missing: { from_lsn: number; to_lsn: number }[] = [];
  let duplicates = 0;
  for (const item of items) {
    if (item.kind === 'missing') {
      missing.push({ from_lsn: item.from_lsn, to_lsn: item.to_lsn });
      continue;
    }
    const id = item.kind === 'event' ? item.event.trajectory_id : item.position.trajectory_id;
    const draft = draftOf(drafts, id, context);
    if (item.kind === 'anchor') {
      anchors.push({ ...item.position, lsn: item.lsn });
      draft.after = { ...draft.after, anchor: { lsn: item.lsn, sequence_number: item.position.sequence_number } };
      draft.undecided.push(...draft.unproven);
      draft.unproven = [];
      continue;
    }
    duplicates += place(draft, item.lsn, item.event, context, quarantined);
  }
  for (const draft of drafts.values()) {
    for (const { lsn, event } of [...draft.undecided, ...draft.unproven]) {
      const detail = `warm no longer has event ${event.sequence_number}, and no later one has decided`;
      quarantined.push({ lsn, event, reason: 'unproven', detail });
    }
  }
  const changes = Array.from(drafts.values(), finish);
  const inserts = Array.from(drafts.values()).flatMap(({ inserted }) => inserted);
  return { inserts, quarantined: quarantined.toSorted((a, b) => a.lsn - b.lsn), changes, anchors, missing, duplicates };
}

function draftOf(drafts: Map<TrajectoryId, Draft>, id: TrajectoryId, context: PlanContext): Draft {
  const known = drafts.get(id);
  if (known !== undefined) return known;
  const before = context.state(id);
  const draft: Draft = {
    before,
    after: before,
    inserted: [],
    blocked_at: undefined,
    decisions: [],
    unproven: [],
    undecided: [],
  };
  drafts.set(id, draft);
  return draft;
}

function finish(draft: Draft): TrajectoryChange {
  const { before, after, inserted, blocked_at, decisions } = draft;
  const summary = inserted.length > 0 ? step(before.summary, inserted) : before.summary;
  return { before, after: { ...after, summary }, blocked_at, decisions };
}

function decide(draft: Draft, before_lsn: number, below: number, proven: boolean): void {
  const after_lsn = draft.after.anchor?.lsn ?? 0;
  const last = draft.decisions.at(-1);
  if (last?.after_lsn === after_lsn && last.proven === proven) draft.decisions.pop();
  draft.decisions.push({ after_lsn, before_lsn, below, proven });
  draft.unproven = [];
}

/** Returns the number of duplicates found. */
function place(draft: Draft, lsn: number, event: WarmEvent, context: PlanContext, quarantined: Quarantined[]): number {
  const verdict = judge(draft, lsn, event, context);
  switch (verdict.kind) {
    case 'insert':
      draft.after = advanced(draft.after, event);
      draft.inserted.push(event);
      return 0;
    case 'duplicate': {
      // The chain: an event that is known proves all that came before it in the same log.
      const proven = draft.unproven.length;
      decide(draft, lsn, event.sequence_number, true);
      return 1 + proven;
    }
    case 'unproven':
      draft.unproven.push({ lsn, event });
      return 0;
    case 'waiting':
      draft.after = { ...draft.after, waiting_sequence: event.sequence_number, waiting: draft.after.waiting + 1 };
      quarantined.push({ lsn, event, reason: 'waiting', detail: 'its predecessor has not arrived from another log' });
      return 0;
    case 'block': {
      const { reason, detail } = verdict;
      if (reason === 'fork') {
        for (const earlier of draft.unproven) quarantined.push({ ...earlier, reason, detail });
        decide(draft, lsn, event.sequence_number, false);
      }
      if (draft.after.block === undefined || draft.after.block.fencing_token < event.fencing_token) {
        draft.after = { ...draft.after, block: { reason, fencing_token: event.fencing_token } };
        draft.blocked_at = event.sequence_number;
      }
      const sqlstate = reason === 'poison' ? context.refused.get(lsn)?.sqlstate : undefined;
      quarantined.push({ lsn, event, reason, detail, ...(sqlstate === undefined ? {} : { sqlstate }) });
      return 0;
    }
  }
}

function judge(draft: Draft, lsn: number, event: WarmEvent, context: PlanContext): Verdict {
  const { after: state } = draft;
  const { trajectory_id, sequence_number, fencing_token } = event;
  const inBatch = draft.inserted.find((inserted) => inserted.sequence_number === sequence_number);
  const storedHash = (sequence: number) => context.storedHash(trajectory_id, sequence);
  const place = placeOf(state, event, inBatch?.cryptographic_hash ?? storedAt(state, event, storedHash));
  if (place.kind === 'duplicate') return place;
  if (state.block !== undefined && fencing_token <= state.block.fencing_token) {
    return block(state.block.reason, STOPPED_EARLIER);
  }
  if (place.kind === 'early' && !isAwaited(state, sequence_number)) {
    const next = state.last_sequence_number + 1;
    return block('gap', `event ${next} comes next; ${next} to ${sequence_number - 1} are missing`);
  }
  const isAhead = trajectoryStartMs(trajectory_id) > context.now_ms + ID_AHEAD_MS_MAX;
  const refusal = isAhead ? AHEAD : context.refused.get(lsn);
  const verdict = allowed(place, refusal, context.conflicting.has(lsn), event);
  return verdict.kind === 'early' ? { kind: 'waiting' } : verdict;
}

const AHEAD: Refusal = { detail: 'its trajectory starts over a day ahead of the database' };

/** Did this log announce that it goes on there, or does the event before this one wait? */
function isAwaited({ waiting_sequence, anchor }: TrajectoryState, sequence: number): boolean {
  return waiting_sequence === sequence - 1 || anchor?.sequence_number === sequence - 1;
}
