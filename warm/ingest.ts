/**
 * Takes the records of one hot log over, batch by batch, each in one transaction.
 *
 * When `apply` resolves with `applied`, every record of the batch is in warm or in quarantine, the trajectories' rows
 * are advanced and the cursor stands behind the batch: all of it, or nothing. A batch sent twice changes nothing: its
 * cursor no longer fits, and the caller is told where to go on. What becomes of each record is decided by
 * `warm/ingest-plan.ts` under the rows' locks.
 *
 * One bad row fails its whole statement in PostgreSQL. It is found by halving, remembered for the next try, and then
 * planned as poison.
 */
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { type TrajectoryId, trajectoryStartMs } from '../schemas/ids.ts';
import { addBlobRefs, blobRefColumns, hasStub } from './blob-ref-rows.ts';
import { databaseNow, type LogIdentity, moveCursor, openCursor, readCursor, type WarmCursor } from './cursor-rows.ts';
import { ensurePartition, eventColumns, hashesOf, insertAll } from './event-rows.ts';
import { findRefused } from './find-refused.ts';
import { Forecast } from './forecast.ts';
import {
  type IngestPlan,
  type PlanContext,
  planIngest,
  type QuarantineReason,
  type TrajectoryChange,
  type TrajectoryState,
  unknownTrajectory,
  type WarmEvent,
  type WarmItem,
} from './ingest-plan.ts';
import { Conflict, Learnt } from './learnt.ts';
import type { Refusal } from './place.ts';
import { applyPlain, type PlainColumns, plainColumns } from './plain-batch.ts';
import { type Session, statement, type Tx, transaction, type Value, type WarmPool } from './pool.ts';
import { addQuarantined, decideUnproven, type HeldSummary, heldSummary } from './quarantine-rows.ts';
import { advanceStates, readStates, SummaryCache, setAnchors, setBlocks } from './trajectory-rows.ts';
import { applyWaiting, waitingOf } from './waiting.ts';

/** Records of a log behind its cursor, in LSN order, with what can be made ready before the locks are taken. */
export type WarmBatch = {
  readonly items: readonly WarmItem[];
  /** The cursor that the batch goes on from, and where it ends. */
  readonly from: WarmCursor;
  readonly to: WarmCursor;
  /** How far the log itself has come. */
  readonly durable_lsn: number;
  readonly ids: readonly TrajectoryId[];
  readonly events: readonly WarmEvent[];
  /** Those that may refer to blobs. */
  readonly stubbed: ReadonlySet<WarmEvent>;
  readonly columns: readonly Value[];
  /** What it will come to, if everything is as foreseen, and the generation of that forecast. */
  readonly foreseen: Foreseen | undefined;
};

type Laid = Pick<WarmBatch, 'items' | 'stubbed' | 'columns'>;

export type Foreseen = { readonly plan: IngestPlan; readonly generation: number; readonly columns: PlainColumns };

export type IngestCounts = {
  readonly inserted: number;
  readonly duplicates: number;
  readonly applied_waiting: number;
  /** Records that went to quarantine, by reason. */
  readonly quarantined: Readonly<Partial<Record<QuarantineReason, number>>>;
  /** Records that the log had trimmed and warm does not have. */
  readonly missing: number;
};

export type IngestOutcome =
  | { readonly kind: 'applied'; readonly counts: IngestCounts; readonly held: readonly HeldSummary[] }
  /** Another process was quicker, or the database went back: nothing was written; go on from here. */
  | { readonly kind: 'moved'; readonly cursor: WarmCursor };

export type ApplyOptions = {
  /** Aborted: no transaction is started; one under way is finished. */
  readonly signal?: AbortSignal;
  /** Events that must not become visible, by LSN, and why: their blobs are missing. */
  readonly unfit?: ReadonlyMap<number, string>;
  /** Told when the batch is on its way and the database at work, if it goes in one statement. */
  readonly onSent?: () => void;
};

/**
 * Trajectories that an ack can name: about 110 bytes each, and a frame of the tail has 2 MiB. `held` gives one more where
 * there are more.
 */
export const HELD_MOST = 10_000;
/** A batch is planned again after each thing learnt; more than this is a bug or an attack. */
const TRIES_MAX = 64;

/** What a transaction came to, and what its plan made of each trajectory. */
type Attempted = { readonly outcome: IngestOutcome; readonly changes: readonly TrajectoryChange[] };

/** What a statement needs to be sent whole, in milliseconds. */
const SENT_AFTER_MS = 1;

export class Ingest {
  readonly log: LogIdentity;
  readonly #pool: WarmPool;
  /** Days whose partitions are known to be there. */
  readonly #days = new Set<number>();
  readonly #summaries = new SummaryCache();
  readonly #forecast = new Forecast();
  #hasHeld = true;

  private constructor(pool: WarmPool, log: LogIdentity) {
    this.#pool = pool;
    this.log = log;
  }

  /** @returns the ingest of a log, and where the log is taken up again */
  static async open(pool: WarmPool, log: LogIdentity): Promise<{ ingest: Ingest; cursor: WarmCursor }> {
    const ingest = new Ingest(pool, log);
    const cursor = await transaction(pool, (tx) => openCursor(tx, log));
    ingest.#hasHeld = (await ingest.held()).length > 0;
    return { ingest, cursor };
  }

  /**
   * Makes the next batch ready, while an earlier one may be under way: parses payloads, lays columns out, and plans it
   * against what the earlier ones will leave. Batches are prepared in the order in which they are applied.
   */
  prepare(items: readonly WarmItem[], from: WarmCursor, to: WarmCursor, durable_lsn: number): WarmBatch {
    const events = items.flatMap((item) => (item.kind === 'event' ? [item.event] : []));
    const ids = [...new Set(items.flatMap(idsOf))];
    const laid = { items, events, stubbed: new Set(events.filter(hasStub)), columns: eventColumns(events) };
    return { ...laid, from, to, durable_lsn, ids, foreseen: this.#foresee(laid) };
  }

  #foresee({ items, stubbed, columns }: Laid): Foreseen | undefined {
    const plan = this.#forecast.plan(items, Date.now());
    if (plan === undefined) return undefined;
    const { generation } = this.#forecast;
    return { plan, generation, columns: plainColumns(plan, columns, blobRefColumns([...stubbed])) };
  }

  /** @throws VarveError WARM_… ; with WARM_OUTCOME_UNKNOWN the next `apply` of the same batch tells */
  async apply(batch: WarmBatch, options: ApplyOptions = {}): Promise<IngestOutcome> {
    const unfit = Array.from(options.unfit ?? [], ([lsn, detail]) => [lsn, { detail }] as const);
    const learnt = new Learnt(new Map(unfit));
    const foreseen = this.#foreseenNow(batch);
    const plain = await this.#applyPlain(batch, foreseen, learnt.refused, options);
    if (plain !== undefined) return plain;
    for (let tries = 0; tries < TRIES_MAX; tries++) {
      await this.#ensurePartitions(batch.events);
      try {
        const { outcome, changes } = await transaction(
          this.#pool,
          (tx) => this.#attempt(tx, batch, learnt),
          options.signal === undefined ? {} : { signal: options.signal },
        );
        const isAsForeseen = foreseen !== undefined && samePlaces(changes, foreseen.plan.changes);
        if (isAsForeseen) this.#forecast.settle(changes);
        else this.#forecast.restart(changes);
        return outcome;
      } catch (error) {
        // Whatever went wrong, batches that were planned behind this one are planned anew, and so is this one.
        this.#forecast.forget();
        if (isVarveError(error, 'WARM_NO_PARTITION')) this.#days.clear();
        else if (error instanceof Moved) continue;
        else if (error instanceof Conflict) learnt.conflict(error);
        else if (isVarveError(error, 'WARM_REFUSED_DATA')) await this.#findRefused(batch, learnt, error);
        else throw error;
      }
    }
    const message = `a batch of log ${this.log.log_id} from LSN ${batch.from.lsn} could not be placed in ${TRIES_MAX} tries`;
    throw new VarveError('WARM_REFUSED_DATA', message, { log_id: this.log.log_id, lsn: batch.from.lsn });
  }

  /** What was foreseen for a batch, again where that is void by now: everything before it has gone in. */
  #foreseenNow(batch: WarmBatch): Foreseen | undefined {
    if (batch.foreseen?.generation === this.#forecast.generation) return batch.foreseen;
    this.#forecast.restart([]);
    return this.#foresee(batch);
  }

  /** The short way, for a batch that was foreseen. undefined: it takes the long one. */
  async #applyPlain(
    batch: WarmBatch,
    foreseen: Foreseen | undefined,
    unfit: ReadonlyMap<number, Refusal>,
    { signal, onSent }: ApplyOptions,
  ): Promise<IngestOutcome | undefined> {
    const { from, to, durable_lsn } = batch;
    if (foreseen === undefined || unfit.size > 0 || this.#hasHeld) return undefined;
    if (signal?.aborted === true) throw new VarveError('ABORTED', 'aborted before a batch was sent', {});
    await this.#ensurePartitions(batch.events);
    const apply = (session: Session) => {
      const applied = applyPlain(session, this.log.log_id, from, to, durable_lsn, foreseen.columns);
      // Half a megabyte does not fit into a socket at once: the loop needs its turns to send the rest.
      if (onSent !== undefined) setTimeout(onSent, SENT_AFTER_MS);
      return applied;
    };
    // COMMIT POINT, inside: one statement, which is there whole or not at all.
    const isApplied = await this.#pool.lend(apply).catch((error: unknown) => {
      // Rows that PostgreSQL refuses and partitions that are gone are looked into on the long way.
      if (isVarveError(error, 'WARM_REFUSED_DATA') || isVarveError(error, 'WARM_NO_PARTITION')) return false;
      throw error;
    });
    if (!isApplied) {
      this.#forecast.forget();
      return undefined;
    }
    this.#forecast.settle(foreseen.plan.changes);
    return { kind: 'applied', counts: countsOf(foreseen.plan, 0), held: [] };
  }

  async #attempt(tx: Tx, batch: WarmBatch, learnt: Learnt): Promise<Attempted> {
    const { log_id } = this.log;
    if (!(await moveCursor(tx, log_id, batch.from, batch.to, batch.durable_lsn))) {
      return { outcome: { kind: 'moved', cursor: await readCursor(tx, log_id) }, changes: [] };
    }
    const states = await readStates(tx, log_id, batch.ids, this.#summaries);
    const plan = planIngest(batch.items, await this.#context(tx, batch, states, learnt));
    await this.#insert(tx, batch, plan);
    const applied_waiting = await this.#write(tx, plan, learnt);
    const held = await this.#held(tx, plan);
    // COMMIT POINT. Everything above is lost and redone, or is there with the cursor.
    return { outcome: { kind: 'applied', counts: countsOf(plan, applied_waiting), held }, changes: plan.changes };
  }

  async #context(
    tx: Tx,
    batch: WarmBatch,
    states: ReadonlyMap<TrajectoryId, TrajectoryState>,
    learnt: Learnt,
  ): Promise<PlanContext> {
    const state = (id: TrajectoryId) => states.get(id) ?? unknownTrajectory(id);
    const known = batch.events.filter(
      (event) => event.sequence_number <= state(event.trajectory_id).last_sequence_number,
    );
    return {
      state,
      storedHash: await hashesOf(tx, known),
      refused: learnt.refused,
      conflicting: learnt.conflicting,
      now_ms: await databaseNow(tx),
    };
  }

  async #insert(tx: Tx, batch: WarmBatch, plan: IngestPlan): Promise<void> {
    const { inserts } = plan;
    if (inserts.length === 0) return;
    const isWhole = inserts.length === batch.events.length;
    const others = await insertAll(tx, inserts, isWhole ? batch.columns : eventColumns(inserts));
    if (others.size === 0) return;
    const lsns = batch.items.flatMap((item) => (item.kind === 'event' && others.has(item.event) ? [item.lsn] : []));
    throw new Conflict({ lsns });
  }

  /** Everything but the events themselves. Returns how many waiting events went in behind their predecessors. */
  async #write(tx: Tx, plan: IngestPlan, learnt: Learnt): Promise<number> {
    const { log_id } = this.log;
    const changed = plan.changes.filter(
      ({ before, after }) => after.head_hash !== before.head_hash || after.waiting !== before.waiting,
    );
    // Before those that wait are looked at: an event of this batch may wait for one that another log has brought.
    await addQuarantined(tx, log_id, plan.quarantined);
    const { advances, count } = await applyWaiting(tx, changed, plan, learnt);
    if (!(await advanceStates(tx, advances, this.#summaries))) throw new Moved();
    await setAnchors(tx, log_id, plan.anchors);
    await setBlocks(
      tx,
      log_id,
      plan.changes.flatMap(({ after, blocked_at }) =>
        blocked_at === undefined || after.block === undefined
          ? []
          : [{ trajectory_id: after.trajectory_id, ...after.block, sequence_number: blocked_at }],
      ),
    );
    await decideUnproven(
      tx,
      log_id,
      plan.changes.flatMap(({ after: { trajectory_id }, decisions }) =>
        decisions.map((decision) => ({ trajectory_id, ...decision })),
      ),
    );
    for (const { from_lsn, to_lsn } of plan.missing) await tx.execute(ADD_MISSING, [log_id, from_lsn, to_lsn]);
    await addBlobRefs(tx, [...plan.inserts, ...plan.quarantined.map(({ event }) => event)]);
    return count;
  }

  /** What warm holds back of this log; looked up only while there is anything. */
  async #held(tx: Tx, plan: IngestPlan): Promise<readonly HeldSummary[]> {
    if (!this.#hasHeld && plan.quarantined.length === 0) return [];
    const held = await heldSummary(tx, this.log.log_id, HELD_MOST + 1);
    this.#hasHeld = held.length > 0;
    return held;
  }

  /** What is held may change by other hands: a replay, an acceptance, a predecessor from another log. */
  async held(): Promise<readonly HeldSummary[]> {
    return this.#pool.lend((session) => heldSummary(session, this.log.log_id, HELD_MOST + 1));
  }

  async #ensurePartitions(events: readonly WarmEvent[]): Promise<void> {
    const missing = new Map<number, TrajectoryId>();
    for (const { trajectory_id } of events) {
      const day = Math.floor(trajectoryStartMs(trajectory_id) / 86_400_000);
      if (!this.#days.has(day)) missing.set(day, trajectory_id);
    }
    if (missing.size === 0) return;
    const limitMs = (await this.#pool.lend(databaseNow)) + 86_400_000;
    for (const [day, id] of missing) {
      // Poison, for which no partition is made.
      if (trajectoryStartMs(id) > limitMs) continue;
      await transaction(this.#pool, (tx) => ensurePartition(tx, id));
      this.#days.add(day);
    }
  }

  /** Of the batch, or of what goes in behind an event of it. */
  async #findRefused(batch: WarmBatch, learnt: Learnt, first: VarveError): Promise<void> {
    const before = learnt.refused.size + learnt.refusedRows.size;
    const lsns = new Map(
      batch.items.flatMap((item) =>
        item.kind === 'event' && !learnt.refused.has(item.lsn) ? [[item.event, item.lsn] as const] : [],
      ),
    );
    for (const [event, refusal] of await findRefused(this.#pool, [...lsns.keys()])) {
      learnt.refused.set(lsns.get(event) ?? 0, refusal);
    }
    if (learnt.refused.size + learnt.refusedRows.size > before) return;
    const waiting = await transaction(this.#pool, (tx) => waitingOf(tx, batch.ids));
    const ids = new Map(
      [...waiting.values()]
        .flat()
        .flatMap(({ row, event }) => (learnt.refusedRows.has(row.id) ? [] : [[event, row.id] as const])),
    );
    for (const [event, refusal] of await findRefused(this.#pool, [...ids.keys()])) {
      learnt.refusedRows.set(ids.get(event) ?? 0, refusal);
    }
    // Not one of the rows by itself: the statement was at fault.
    if (learnt.refused.size + learnt.refusedRows.size === before) throw first;
  }
}

function idsOf(item: WarmItem): TrajectoryId[] {
  switch (item.kind) {
    case 'event':
      return [item.event.trajectory_id];
    case 'anchor':
      return [item.position.trajectory_id];
    case 'missing':
      return [];
  }
}

/** A trajectory has moved since the batch was planned: it is planned again. */
class Moved extends Error {}

const ADD_MISSING = statement(
  'missing_records.add',
  `INSERT INTO missing_records (log_id, from_lsn, to_lsn) VALUES ($1, $2, $3)
   ON CONFLICT (log_id, from_lsn) DO UPDATE SET to_lsn = greatest(missing_records.to_lsn, excluded.to_lsn)`,
);

/** Does every trajectory end where it was foreseen to? */
function samePlaces(changes: readonly TrajectoryChange[], foreseen: readonly TrajectoryChange[]): boolean {
  const heads = new Map(foreseen.map(({ after }) => [after.trajectory_id, after.head_hash]));
  return (
    changes.length === heads.size && changes.every(({ after }) => heads.get(after.trajectory_id) === after.head_hash)
  );
}

function countsOf(plan: IngestPlan, applied_waiting: number): IngestCounts {
  const quarantined: Partial<Record<QuarantineReason, number>> = {};
  const missing = plan.missing.reduce((sum, { from_lsn, to_lsn }) => sum + to_lsn - from_lsn + 1, 0);
  for (const { reason } of plan.quarantined) quarantined[reason] = (quarantined[reason] ?? 0) + 1;
  return { inserted: plan.inserts.length, duplicates: plan.duplicates, applied_waiting, quarantined, missing };
}
