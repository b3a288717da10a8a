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
import { stubsOf } from '../schemas/stubs.ts';
import { hashArray, int8Array, uuidArray } from './columns.ts';
import { databaseNow, type LogIdentity, lockCursor, moveCursor, openCursor, type WarmCursor } from './cursor-rows.ts';
import { ensurePartition, eventColumns, insertEvents, storedHashes } from './event-rows.ts';
import {
  type IngestPlan,
  type PlanContext,
  planIngest,
  planWaiting,
  type QuarantineReason,
  type TrajectoryState,
  unknownTrajectory,
  type Waiting,
  type WarmEvent,
  type WarmItem,
} from './ingest-plan.ts';
import { statement, type Tx, transaction, type Value, type WarmPool } from './pool.ts';
import {
  addQuarantined,
  decideUnproven,
  eventOf,
  type HeldSummary,
  heldSummary,
  type QuarantineRow,
  renameRows,
  settleRows,
  waitingRows,
} from './quarantine-rows.ts';
import { advanceStates, lockStates, setAnchors, setBlocks } from './trajectory-rows.ts';

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
  readonly columns: readonly Value[];
};

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
  /** Events that must not become visible, by LSN, and why (in the place of an SQLSTATE): their blobs are missing. */
  readonly unfit?: ReadonlyMap<number, string>;
};

/** Trajectories named in an ack; beyond it only their number matters to anybody. */
const HELD_MOST = 1000;
/** A batch is planned again after each thing learnt; more than this is a bug or an attack. */
const TRIES_MAX = 64;

/** Makes a batch ready: parses payloads and lays columns out while an earlier batch is under way. */
export function prepareBatch(
  items: readonly WarmItem[],
  from: WarmCursor,
  to: WarmCursor,
  durable_lsn: number,
): WarmBatch {
  const events = items.flatMap((item) => (item.kind === 'event' ? [item.event] : []));
  // Parsed here, where nothing waits for it; the events keep what they parsed.
  for (const event of events) void event.payload;
  const ids = [...new Set(items.flatMap(idsOf))];
  return { items, from, to, durable_lsn, ids, events, columns: eventColumns(events) };
}

export class Ingest {
  readonly log: LogIdentity;
  readonly #pool: WarmPool;
  /** Days whose partitions are known to be there. */
  readonly #days = new Set<number>();
  #hasHeld = true;

  private constructor(pool: WarmPool, log: LogIdentity) {
    this.#pool = pool;
    this.log = log;
  }

  /** @returns the ingest of a log, and where the log is taken up again */
  static async open(pool: WarmPool, log: LogIdentity): Promise<{ ingest: Ingest; cursor: WarmCursor }> {
    const cursor = await transaction(pool, (tx) => openCursor(tx, log));
    return { ingest: new Ingest(pool, log), cursor };
  }

  /** @throws VarveError WARM_… ; with WARM_OUTCOME_UNKNOWN the next `apply` of the same batch tells */
  async apply(batch: WarmBatch, options: ApplyOptions = {}): Promise<IngestOutcome> {
    const refused = new Map(options.unfit);
    const conflicting = new Set<number>();
    for (let tries = 0; tries < TRIES_MAX; tries++) {
      await this.#ensurePartitions(batch.events);
      try {
        return await transaction(
          this.#pool,
          (tx) => this.#attempt(tx, batch, refused, conflicting),
          options.signal === undefined ? {} : { signal: options.signal },
        );
      } catch (error) {
        if (isVarveError(error, 'WARM_NO_PARTITION')) this.#days.clear();
        else if (error instanceof Conflict) for (const lsn of error.lsns) conflicting.add(lsn);
        else if (isVarveError(error, 'WARM_REFUSED_DATA')) await this.#findRefused(batch, refused, error);
        else throw error;
      }
    }
    const message = `a batch of log ${this.log.log_id} from LSN ${batch.from.lsn} could not be placed in ${TRIES_MAX} tries`;
    throw new VarveError('WARM_REFUSED_DATA', message, { log_id: this.log.log_id, lsn: batch.from.lsn });
  }

  async #attempt(
    tx: Tx,
    batch: WarmBatch,
    refused: ReadonlyMap<number, string>,
    conflicting: ReadonlySet<number>,
  ): Promise<IngestOutcome> {
    const { log_id } = this.log;
    const cursor = await lockCursor(tx, log_id);
    if (cursor.lsn !== batch.from.lsn || cursor.hash !== batch.from.hash) return { kind: 'moved', cursor };
    const states = await lockStates(tx, log_id, batch.ids);
    const plan = planIngest(batch.items, await this.#context(tx, batch, states, refused, conflicting));
    await this.#insert(tx, batch, plan);
    const applied_waiting = await this.#write(tx, plan);
    await moveCursor(tx, log_id, batch.to, batch.durable_lsn);
    const held = await this.#held(tx, plan);
    // COMMIT POINT. Everything above is lost and redone, or is there with the cursor.
    return { kind: 'applied', counts: countsOf(plan, applied_waiting), held };
  }

  async #context(
    tx: Tx,
    batch: WarmBatch,
    states: ReadonlyMap<TrajectoryId, TrajectoryState>,
    refused: ReadonlyMap<number, string>,
    conflicting: ReadonlySet<number>,
  ): Promise<PlanContext> {
    const state = (id: TrajectoryId) => states.get(id) ?? unknownTrajectory(id);
    const known = batch.events.filter(
      (event) => event.sequence_number < state(event.trajectory_id).last_sequence_number,
    );
    const hashes = known.length === 0 ? [] : await storedHashes(tx, known);
    const byKey = new Map(hashes.map((row) => [`${row.trajectory_id} ${row.sequence_number}`, row.hash]));
    return {
      state,
      storedHash: (id, sequence) => byKey.get(`${id} ${sequence}`),
      refused,
      conflicting,
      now_ms: await databaseNow(tx),
    };
  }

  async #insert(tx: Tx, batch: WarmBatch, plan: IngestPlan): Promise<void> {
    const { inserts } = plan;
    if (inserts.length === 0) return;
    const isWhole = inserts.length === batch.events.length;
    const inserted = await insertEvents(tx, isWhole ? batch.columns : eventColumns(inserts));
    if (inserted === inserts.length) return;
    // ON CONFLICT says nothing about what was in the way. The same row means that the trajectory's row had gone back.
    const stored = new Map(
      (await storedHashes(tx, inserts)).map((row) => [`${row.trajectory_id} ${row.sequence_number}`, row.hash]),
    );
    const lsns = batch.items.flatMap((item) => {
      if (item.kind !== 'event') return [];
      const { trajectory_id, sequence_number, cryptographic_hash } = item.event;
      const hash = stored.get(`${trajectory_id} ${sequence_number}`);
      return hash !== undefined && hash !== cryptographic_hash && inserts.includes(item.event) ? [item.lsn] : [];
    });
    if (lsns.length > 0) throw new Conflict(lsns);
  }

  /** Everything but the events themselves. Returns how many waiting events went in behind their predecessors. */
  async #write(tx: Tx, plan: IngestPlan): Promise<number> {
    const { log_id } = this.log;
    const advanced = plan.changes.filter(({ before, after }) => after !== before);
    const { states, count } = await this.#applyWaiting(
      tx,
      advanced.map(({ after }) => after),
      plan,
    );
    await advanceStates(tx, states);
    await addQuarantined(tx, log_id, plan.quarantined);
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
      plan.changes.flatMap(({ after: { trajectory_id }, proven_below, disproven_below }) => [
        ...(proven_below === undefined ? [] : [{ trajectory_id, below: proven_below, proven: true }]),
        ...(disproven_below === undefined ? [] : [{ trajectory_id, below: disproven_below, proven: false }]),
      ]),
    );
    for (const { from_lsn, to_lsn } of plan.missing) await tx.execute(ADD_MISSING, [log_id, from_lsn, to_lsn]);
    await addBlobRefs(tx, [...plan.inserts, ...plan.quarantined.map(({ event }) => event)]);
    return count;
  }

  async #applyWaiting(
    tx: Tx,
    states: readonly TrajectoryState[],
    plan: IngestPlan,
  ): Promise<{ states: readonly TrajectoryState[]; count: number }> {
    const moved = new Set(plan.inserts.map((event) => event.trajectory_id));
    const due = states.filter((state) => state.waiting > 0 && moved.has(state.trajectory_id));
    if (due.length === 0) return { states, count: 0 };
    const rows = await waitingRows(
      tx,
      due.map((state) => state.trajectory_id),
    );
    const byId = new Map<TrajectoryId, Waiting<QuarantineRow>[]>();
    for (const row of rows) {
      const event = eventOf(row);
      byId.set(event.trajectory_id, [...(byId.get(event.trajectory_id) ?? []), { row, event }]);
    }
    const plans = new Map(
      due.map((state) => [state.trajectory_id, planWaiting(state, byId.get(state.trajectory_id) ?? [])]),
    );
    const inserts = [...plans.values()].flatMap((waiting) => waiting.inserts);
    if (inserts.length > 0) await insertEvents(tx, eventColumns(inserts));
    const all = [...plans.values()];
    await settleRows(
      tx,
      all.flatMap(({ applied }) => applied.map(({ id }) => id)),
      'applied',
    );
    await this.#refuseForked(
      tx,
      all.flatMap(({ forked }) => forked),
    );
    return { states: states.map((state) => plans.get(state.trajectory_id)?.after ?? state), count: inserts.length };
  }

  /** Waiting events whose predecessor has come and is another one than theirs: their logs have forked. */
  async #refuseForked(tx: Tx, rows: readonly QuarantineRow[]): Promise<void> {
    const detail = 'the predecessor that came is another one';
    await renameRows(
      tx,
      rows.map(({ id }) => ({ id, reason: 'fork', detail })),
    );
    for (const row of rows) {
      const { trajectory_id, fencing_token, sequence_number } = eventOf(row);
      await setBlocks(tx, row.log_id, [{ trajectory_id, fencing_token, sequence_number, reason: 'fork' }]);
    }
  }

  /** What warm holds back of this log; looked up only while there is anything. */
  async #held(tx: Tx, plan: IngestPlan): Promise<readonly HeldSummary[]> {
    if (!this.#hasHeld && plan.quarantined.length === 0) return [];
    const held = await heldSummary(tx, this.log.log_id, HELD_MOST);
    this.#hasHeld = held.length > 0;
    return held;
  }

  /** What is held may change by other hands: a replay, an acceptance, a predecessor from another log. */
  async held(): Promise<readonly HeldSummary[]> {
    return this.#pool.lend((session) => heldSummary(session, this.log.log_id, HELD_MOST));
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

  /** Halves the batch until the rows that PostgreSQL refuses stand alone; all in transactions that are rolled back. */
  async #findRefused(batch: WarmBatch, refused: Map<number, string>, first: VarveError): Promise<void> {
    const before = refused.size;
    const lsnOf = new Map(
      batch.items.flatMap((item) => (item.kind === 'event' ? [[item.event, item.lsn] as const] : [])),
    );
    const search = async (events: readonly WarmEvent[]): Promise<void> => {
      const sqlstate = events.length === 0 ? undefined : await this.#tryInsert(events);
      if (sqlstate === undefined) return;
      if (events.length === 1) {
        refused.set(lsnOf.get(events[0] as WarmEvent) ?? 0, sqlstate);
        return;
      }
      const middle = events.length >> 1;
      await search(events.slice(0, middle));
      await search(events.slice(middle));
    };
    await search(batch.events.filter((event) => !refused.has(lsnOf.get(event) ?? 0)));
    // Not one of the rows by itself: the statement was at fault.
    if (refused.size === before) throw first;
  }

  /** SQLSTATE with which PostgreSQL refuses these rows, undefined where it takes them. Nothing stays. */
  async #tryInsert(events: readonly WarmEvent[]): Promise<string | undefined> {
    const rollback = new RangeError('rolled back on purpose');
    try {
      await transaction(this.#pool, async (tx) => {
        await insertEvents(tx, eventColumns(events));
        throw rollback;
      });
    } catch (error) {
      if (isVarveError(error, 'WARM_REFUSED_DATA')) return String(error.details['sqlstate']);
      if (error !== rollback) throw error;
    }
    return undefined;
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

class Conflict extends Error {
  readonly lsns: readonly number[];

  constructor(lsns: readonly number[]) {
    super('other rows stand in the place of these events');
    this.lsns = lsns;
  }
}

const ADD_MISSING = statement(
  'missing_records.add',
  `INSERT INTO missing_records (log_id, from_lsn, to_lsn) VALUES ($1, $2, $3)
   ON CONFLICT (log_id, from_lsn) DO UPDATE SET to_lsn = greatest(missing_records.to_lsn, excluded.to_lsn)`,
);

const ADD_BLOB_REFS = statement(
  'blob_refs.add',
  `INSERT INTO blob_refs (sha256, trajectory_id, sequence_number)
   SELECT * FROM unnest($1::bytea[], $2::uuid[], $3::bigint[]) ON CONFLICT DO NOTHING`,
);

async function addBlobRefs(tx: Tx, events: readonly WarmEvent[]): Promise<void> {
  const refs = events.flatMap((event) => {
    const text = Buffer.from(
      event.payload_bytes.buffer,
      event.payload_bytes.byteOffset,
      event.payload_bytes.byteLength,
    );
    if (!text.includes('"$blob":')) return [];
    const { trajectory_id, sequence_number } = event;
    return stubsOf(event.payload).map(({ sha256 }) => ({ sha256, trajectory_id, sequence_number }));
  });
  if (refs.length === 0) return;
  await tx.execute(ADD_BLOB_REFS, [
    hashArray(refs.map(({ sha256 }) => sha256)),
    uuidArray(refs.map(({ trajectory_id }) => trajectory_id)),
    int8Array(refs.map(({ sequence_number }) => sequence_number)),
  ]);
}

function countsOf(plan: IngestPlan, applied_waiting: number): IngestCounts {
  const quarantined: Partial<Record<QuarantineReason, number>> = {};
  const missing = plan.missing.reduce((sum, { from_lsn, to_lsn }) => sum + to_lsn - from_lsn + 1, 0);
  for (const { reason } of plan.quarantined) quarantined[reason] = (quarantined[reason] ?? 0) + 1;
  return { inserted: plan.inserts.length, duplicates: plan.duplicates, applied_waiting, quarantined, missing };
}
