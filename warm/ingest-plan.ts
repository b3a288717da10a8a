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
 *   under a token that a claim has passed  fenced, behind the head at that claim
 *   what PostgreSQL refused, or nonsense   poison
 *
 * Gap, fork, poison and fenced *block* (trajectory, log, token): what the log sends for it under that or a lower token
 * goes to quarantine with the same reason, in order. Everything else goes on.
 */
import { chainHash, formatEnvelope } from '../schemas/chain.ts';
import { type SequenceNumber, type TrajectoryId, trajectoryStartMs } from '../schemas/ids.ts';
import { INITIAL_SUMMARY, type Summary, step } from '../schemas/summary.ts';
import type { FoldedEvent } from '../schemas/tally.ts';

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
  readonly fence_token: number;
  readonly fence_sequence_number: number;
  readonly summary: Summary;
  readonly block: { readonly reason: BlockReason; readonly fencing_token: number } | undefined;
  /** Where this log said that it goes on behind another log's event. */
  readonly anchor: { readonly sequence_number: number; readonly cryptographic_hash: string } | undefined;
  /** Last event of this log that waits in quarantine. */
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
  /** Unproven events of this log below this number turned out to be duplicates, or (forked) part of a fork. */
  readonly proven_below: number | undefined;
  readonly disproven_below: number | undefined;
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
  /** What PostgreSQL refused in an earlier try, by LSN: its SQLSTATE. */
  readonly refused: ReadonlyMap<number, string>;
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
    fence_sequence_number: 0,
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
  proven_below: number | undefined;
  disproven_below: number | undefined;
  /** Unproven events of this batch, in order. */
  unproven: { readonly lsn: number; readonly event: WarmEvent }[];
};

type Verdict =
  | { readonly kind: 'insert' }
  | { readonly kind: 'duplicate' }
  | { readonly kind: 'unproven' }
  | { readonly kind: 'waiting' }
  | { readonly kind: 'block'; readonly reason: BlockReason; readonly detail: string };

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
      draft.after = { ...draft.after, anchor: item.position, waiting_sequence: undefined };
      continue;
    }
    duplicates += place(draft, item.lsn, item.event, context, quarantined);
  }
  for (const draft of drafts.values()) {
    for (const { lsn, event } of draft.unproven) {
      const detail = `warm no longer has event ${event.sequence_number}, and no later one has decided`;
      quarantined.push({ lsn, event, reason: 'unproven', detail });
    }
  }
  const changes = Array.from(drafts.values(), finish);
  const inserts = Array.from(drafts.values()).flatMap(({ inserted }) => inserted);
  return { inserts, quarantined: quarantined.toSorted((a, b) => a.lsn - b.lsn), changes, anchors, missing, duplicates };
}

export type Waiting<Row> = { readonly row: Row; readonly event: WarmEvent };

export type WaitingPlan<Row> = {
  readonly after: TrajectoryState;
  /** In order; they go in with the predecessor's transaction. */
  readonly inserts: readonly WarmEvent[];
  readonly applied: readonly Row[];
  /** Their predecessor has come, and is another one than theirs. */
  readonly forked: readonly Row[];
};

/** What becomes of a trajectory's waiting events, in the order of their numbers, now that its head is `state`. */
export function planWaiting<Row>(state: TrajectoryState, waiting: readonly Waiting<Row>[]): WaitingPlan<Row> {
  let after = state;
  const inserts: WarmEvent[] = [];
  const applied: Row[] = [];
  const forked: Row[] = [];
  for (const { row, event } of waiting) {
    if (event.sequence_number > after.last_sequence_number + 1) break;
    const previous = Buffer.from(after.head_hash, 'hex');
    const isNext = event.sequence_number === after.last_sequence_number + 1;
    if (isNext && chainHash(previous, formatEnvelope(event)).toString('hex') === event.cryptographic_hash) {
      after = advanced(after, event);
      inserts.push(event);
      applied.push(row);
    } else if (event.cryptographic_hash === after.head_hash) {
      applied.push(row);
    } else {
      forked.push(row);
    }
  }
  const left = Math.max(0, state.waiting - applied.length - forked.length);
  const summary = step(after.summary, inserts);
  return { after: { ...after, summary, waiting: left }, inserts, applied, forked };
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
    proven_below: undefined,
    disproven_below: undefined,
    unproven: [],
  };
  drafts.set(id, draft);
  return draft;
}

function finish(draft: Draft): TrajectoryChange {
  const { before, after, inserted, blocked_at, proven_below, disproven_below } = draft;
  const summary = inserted.length > 0 ? step(before.summary, inserted) : before.summary;
  return { before, after: { ...after, summary }, blocked_at, proven_below, disproven_below };
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
      draft.unproven = [];
      draft.proven_below = event.sequence_number;
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
        draft.unproven = [];
        draft.disproven_below = event.sequence_number;
      }
      if (draft.after.block === undefined || draft.after.block.fencing_token < event.fencing_token) {
        draft.after = { ...draft.after, block: { reason, fencing_token: event.fencing_token } };
        draft.blocked_at = event.sequence_number;
      }
      const sqlstate = context.refused.get(lsn);
      quarantined.push({ lsn, event, reason, detail, ...(sqlstate === undefined ? {} : { sqlstate }) });
      return 0;
    }
  }
}

function judge(draft: Draft, lsn: number, event: WarmEvent, context: PlanContext): Verdict {
  const { after: state } = draft;
  const { trajectory_id, sequence_number, fencing_token } = event;
  const next = state.last_sequence_number + 1;
  if (state.block !== undefined && fencing_token <= state.block.fencing_token) {
    return { kind: 'block', reason: state.block.reason, detail: 'an earlier event of this log was stopped' };
  }
  const sqlstate = context.refused.get(lsn);
  if (sqlstate !== undefined) return block('poison', `PostgreSQL refused it (SQLSTATE ${sqlstate})`);
  if (trajectoryStartMs(trajectory_id) > context.now_ms + ID_AHEAD_MS_MAX) {
    return block('poison', 'its trajectory starts over a day ahead of the database');
  }
  if (sequence_number < next) return judgeKnown(draft, event, context);
  if (fencing_token < state.fence_token && sequence_number > state.fence_sequence_number) {
    return block(
      'fenced',
      `token ${fencing_token} was passed by ${state.fence_token} at event ${state.fence_sequence_number}`,
    );
  }
  if (sequence_number > next) {
    const waits =
      state.waiting_sequence === sequence_number - 1 || state.anchor?.sequence_number === sequence_number - 1;
    return waits
      ? { kind: 'waiting' }
      : block('gap', `event ${next} comes next; ${next} to ${sequence_number - 1} are missing`);
  }
  const previous = Buffer.from(state.head_hash, 'hex');
  if (chainHash(previous, formatEnvelope(event)).toString('hex') !== event.cryptographic_hash) {
    return block('fork', `its hash does not cover the event ${sequence_number - 1} that warm has`);
  }
  if (context.conflicting.has(lsn)) return block('fork', `warm has another event ${sequence_number}`);
  const goesBack =
    event.turn < state.turn || fencing_token < state.fencing_token || Date.parse(event.created_at) < state.created_ms;
  if (goesBack) return block('poison', 'its turn, time or token went back');
  return { kind: 'insert' };
}

/** An event at or below the head: it is never inserted again. */
function judgeKnown(draft: Draft, event: WarmEvent, context: PlanContext): Verdict {
  const { after: state } = draft;
  const { trajectory_id, sequence_number } = event;
  const inBatch = draft.inserted.find((inserted) => inserted.sequence_number === sequence_number);
  const isHead = sequence_number === state.last_sequence_number;
  const stored =
    inBatch?.cryptographic_hash ?? (isHead ? state.head_hash : context.storedHash(trajectory_id, sequence_number));
  if (stored === undefined) return { kind: 'unproven' };
  if (stored === event.cryptographic_hash) return { kind: 'duplicate' };
  return block('fork', `warm has another event ${sequence_number}`);
}

function block(reason: BlockReason, detail: string): Verdict {
  return { kind: 'block', reason, detail };
}

/** The state behind an event that is inserted. The summary follows at the end, in one go. */
export function advanced(state: TrajectoryState, event: WarmEvent): TrajectoryState {
  return {
    ...state,
    last_sequence_number: event.sequence_number,
    head_hash: event.cryptographic_hash,
    turn: event.turn,
    created_ms: Date.parse(event.created_at),
    fencing_token: event.fencing_token,
  };
}
