/**
 * Plans what quarantine holds of one trajectory again, since what it lacked may have come: events that another log
 * brought, a blob, a newer server, the day of an id that was ahead.
 *
 * One transaction: the blocks that gap and poison had set are lifted, the held events of each log are planned in its
 * order against the locked row (warm/ingest-plan.ts, the same rules as at ingest), those that fit now go in, and what
 * does not stays held, with a block again where there must be one. Logs take turns until none of them can go on, since
 * each may hold what another one waits for. Fork and fenced are not tried: a person decides about them.
 *
 * Events are read page by page, so memory does not grow with what is held.
 */
import { isVarveError, VarveError } from '../schemas/errors.ts';
import type { TrajectoryId } from '../schemas/ids.ts';
import { int8Array, textArray } from './columns.ts';
import { databaseNow } from './cursor-rows.ts';
import { ensurePartition, eventColumns, insertEvents, storedHashes } from './event-rows.ts';
import { findRefused } from './find-refused.ts';
import {
  type IngestPlan,
  type PlanContext,
  planIngest,
  type Quarantined,
  type QuarantineReason,
  type TrajectoryState,
  type WarmEvent,
} from './ingest-plan.ts';
import type { Refusal } from './place.ts';
import { statement, type Tx, transaction, type WarmPool } from './pool.ts';
import { type HeldByReason, heldByReason, lockFor, logsWith, maybe } from './quarantine.ts';
import { decideUnproven, eventOf, type QuarantineRow, settleRows } from './quarantine-rows.ts';
import { advanceStates, readStates, SummaryCache, setBlocks } from './trajectory-rows.ts';

export type Replayed = {
  readonly trajectory_id: TrajectoryId;
  /** Events that went in. */
  readonly applied: number;
  /** Events that turned out to be in warm already. */
  readonly proven: number;
  readonly held: HeldByReason;
};

export type ReplayOptions = {
  /** Nothing stays of it but the answer. */
  readonly dryRun?: boolean;
  /** Events that must not become visible, by their row's number, and why: their blobs are missing. */
  readonly unfit?: ReadonlyMap<number, string>;
};

const MENDABLE: readonly QuarantineReason[] = ['gap', 'poison', 'unproven', 'waiting'];
/** Payloads have up to 1 MiB each. */
const PAGE_ROWS = 64;
/** It is planned again after each thing learnt; more than this is a bug or an attack. */
const TRIES_MAX = 64;

/** @throws VarveError INVALID_OPTION where quarantine holds nothing that could be mended */
export async function replayQuarantined(
  pool: WarmPool,
  trajectory_id: TrajectoryId,
  options: ReplayOptions = {},
): Promise<Replayed> {
  const dryRun = options.dryRun === true;
  if (!dryRun) await transaction(pool, (tx) => ensurePartition(tx, trajectory_id));
  const refused = new Map<number, Refusal>();
  for (const [id, detail] of options.unfit ?? []) refused.set(id, { detail });
  const conflicting = new Set<number>();
  for (let tries = 0; tries < TRIES_MAX; tries++) {
    const replay = new Replay(trajectory_id, refused, conflicting);
    try {
      return await maybe(pool, dryRun, async (tx) => {
        if (dryRun) await ensurePartition(tx, trajectory_id);
        return replay.run(tx);
      });
    } catch (error) {
      if (error instanceof Conflict) for (const id of error.rows) conflicting.add(id);
      else if (isVarveError(error, 'WARM_REFUSED_DATA')) {
        const found = await findRefused(pool, replay.inserting);
        if (found.size === 0) throw error;
        for (const [event, refusal] of found) refused.set(replay.rowOf(event), refusal);
      } else throw error;
    }
  }
  const message = `the quarantine of ${trajectory_id} could not be placed in ${TRIES_MAX} tries`;
  throw new VarveError('WARM_REFUSED_DATA', message, { trajectory_id });
}

/** Other rows stand in the place of these events. */
class Conflict extends Error {
  readonly rows: readonly number[];

  constructor(rows: readonly number[]) {
    super('other rows stand in the place of these events');
    this.rows = rows;
  }
}

type Block = NonNullable<TrajectoryState['block']>;

/** What a log has in this trajectory besides its events. */
type LogPart = Pick<TrajectoryState, 'block' | 'anchor' | 'waiting_sequence'> & {
  readonly log_id: string;
  /** A block that a replay does not lift. */
  readonly standing: Block | undefined;
  readonly blocked_at: number | undefined;
};

type Held = { readonly row: QuarantineRow; readonly event: WarmEvent };

class Replay {
  /** Events of the insert that was tried last. */
  inserting: readonly WarmEvent[] = [];
  readonly #id: TrajectoryId;
  readonly #refused: ReadonlyMap<number, Refusal>;
  readonly #conflicting: ReadonlySet<number>;
  readonly #rows = new Map<WarmEvent, number>();
  #state: TrajectoryState | undefined;
  #applied = 0;
  #proven = 0;
  #nowMs = 0;

  constructor(id: TrajectoryId, refused: ReadonlyMap<number, Refusal>, conflicting: ReadonlySet<number>) {
    this.#id = id;
    this.#refused = refused;
    this.#conflicting = conflicting;
  }

  rowOf(event: WarmEvent): number {
    return this.#rows.get(event) ?? 0;
  }

  async run(tx: Tx): Promise<Replayed> {
    const trajectory_id = this.#id;
    const logs = await logsWith(tx, trajectory_id, ['held'], MENDABLE);
    if (logs.length === 0) {
      throw new VarveError('INVALID_OPTION', `quarantine holds nothing of ${trajectory_id} that a replay could mend`);
    }
    await lockFor(tx, trajectory_id, logs);
    this.#nowMs = await databaseNow(tx);
    let parts: LogPart[] = [];
    for (const log_id of logs) parts.push(await this.#open(tx, log_id));
    const before = this.#state;
    for (let moved = true; moved; ) {
      const last = this.#state?.last_sequence_number;
      const next: LogPart[] = [];
      for (const part of parts) next.push(await this.#passOver(tx, part));
      parts = next;
      moved = this.#state?.last_sequence_number !== last;
    }
    for (const part of parts) await this.#writeBlock(tx, part);
    if (before !== undefined && this.#state !== undefined) await this.#writeState(tx, before, this.#state);
    const held = await heldByReason(tx, trajectory_id);
    // COMMIT POINT.
    return { trajectory_id, applied: this.#applied, proven: this.#proven, held };
  }

  async #open(tx: Tx, log_id: string): Promise<LogPart> {
    const state = (await readStates(tx, log_id, [this.#id])).get(this.#id);
    this.#state ??= state;
    const block = state?.block;
    const stands = block?.reason === 'fork' || block?.reason === 'fenced';
    const { anchor, waiting_sequence } = state ?? {};
    const standing = stands ? block : undefined;
    return { log_id, block: undefined, anchor, waiting_sequence, standing, blocked_at: undefined };
  }

  /** All that a log holds, once, in its order. A block of an earlier pass is lifted again. */
  async #passOver(tx: Tx, part: LogPart): Promise<LogPart> {
    let current: LogPart = { ...part, block: undefined, blocked_at: undefined };
    for (let after = 0; ; ) {
      const page = await tx.query(HELD_PAGE, [this.#id, part.log_id, MENDABLE, after, PAGE_ROWS]);
      const last = page.at(-1);
      if (last === undefined) return current;
      current = await this.#place(tx, current, this.#due(page));
      after = last.lsn;
    }
  }

  /** Without those that still wait for a predecessor. */
  #due(page: readonly QuarantineRow[]): Held[] {
    let reach = this.#state?.last_sequence_number ?? 0;
    const due: Held[] = [];
    for (const row of page) {
      const event = eventOf(row);
      const { sequence_number } = event;
      if (row.reason === 'waiting' && sequence_number > reach + 1) continue;
      if (sequence_number === reach + 1) reach += 1;
      due.push({ row, event });
    }
    return due;
  }

  async #place(tx: Tx, part: LogPart, due: readonly Held[]): Promise<LogPart> {
    if (due.length === 0 || this.#state === undefined) return part;
    const { log_id, block, anchor, waiting_sequence } = part;
    const state = { ...this.#state, block, anchor, waiting_sequence };
    const items = due.map(({ row, event }) => ({ kind: 'event', lsn: row.lsn, event }) as const);
    const plan = planIngest(items, await this.#context(tx, state, due));
    await this.#insert(tx, due, plan);
    await this.#settle(tx, log_id, due, plan);
    const [change] = plan.changes;
    if (change === undefined) return part;
    this.#state = change.after;
    return { ...part, block: change.after.block, blocked_at: change.blocked_at ?? part.blocked_at };
  }

  async #context(tx: Tx, state: TrajectoryState, due: readonly Held[]): Promise<PlanContext> {
    const known = due.map(({ event }) => event).filter((event) => event.sequence_number <= state.last_sequence_number);
    const hashes = known.length === 0 ? [] : await storedHashes(tx, known);
    const bySequence = new Map(hashes.map(({ sequence_number, hash }) => [sequence_number, hash]));
    const refused = new Map<number, Refusal>();
    const conflicting = new Set<number>();
    for (const { row } of due) {
      const why = this.#refused.get(row.id);
      if (why !== undefined) refused.set(row.lsn, why);
      if (this.#conflicting.has(row.id)) conflicting.add(row.lsn);
    }
    const storedHash = (_: TrajectoryId, sequence: number) => bySequence.get(sequence);
    return { state: () => state, storedHash, refused, conflicting, now_ms: this.#nowMs };
  }

  async #insert(tx: Tx, due: readonly Held[], { inserts }: IngestPlan): Promise<void> {
    if (inserts.length === 0) return;
    for (const { row, event } of due) this.#rows.set(event, row.id);
    this.inserting = inserts;
    const inserted = await insertEvents(tx, eventColumns(inserts));
    this.#applied += inserts.length;
    if (inserted === inserts.length) return;
    const stored = new Map((await storedHashes(tx, inserts)).map((row) => [row.sequence_number, row.hash]));
    const others = inserts.filter((event) => stored.get(event.sequence_number) !== event.cryptographic_hash);
    if (others.length > 0) throw new Conflict(others.map((event) => this.rowOf(event)));
  }

  async #settle(tx: Tx, log_id: string, due: readonly Held[], plan: IngestPlan): Promise<void> {
    const inserted = new Set(plan.inserts);
    const still = new Map(plan.quarantined.map((entry) => [entry.event, entry]));
    const applied = due.filter(({ event }) => inserted.has(event));
    const proven = due.filter(({ event }) => !inserted.has(event) && !still.has(event));
    await settleRows(tx, applied.map(idOf), 'applied');
    await settleRows(tx, proven.map(idOf), 'proven');
    this.#proven += proven.length;
    await restate(
      tx,
      due.flatMap(({ row, event }) => {
        const entry = still.get(event);
        return entry === undefined ? [] : [{ id: row.id, entry }];
      }),
    );
    const [change] = plan.changes;
    const decisions = change?.decisions ?? [];
    await decideUnproven(
      tx,
      log_id,
      decisions.map((decision) => ({ trajectory_id: this.#id, ...decision })),
    );
  }

  /** A block that came out as it was keeps its time. */
  async #writeBlock(tx: Tx, { log_id, block, blocked_at, standing }: LogPart): Promise<void> {
    const trajectory_id = this.#id;
    if (standing !== undefined && (block === undefined || block.fencing_token <= standing.fencing_token)) return;
    if (block === undefined || blocked_at === undefined) {
      await tx.execute(LIFT, [trajectory_id, log_id]);
      return;
    }
    const same = [trajectory_id, log_id, block.reason, block.fencing_token, blocked_at];
    if ((await tx.query(SAME_BLOCK, same)).length > 0) return;
    await setBlocks(tx, log_id, [{ trajectory_id, ...block, sequence_number: blocked_at }]);
  }

  async #writeState(tx: Tx, before: TrajectoryState, after: TrajectoryState): Promise<void> {
    const [row] = await tx.query(WAITING, [this.#id]);
    const waiting = row?.waiting ?? 0;
    if (before.head_hash === after.head_hash && before.waiting === waiting) return;
    const isWritten = await advanceStates(tx, [{ before, after: { ...after, waiting } }], new SummaryCache());
    if (!isWritten) throw new VarveError('WARM_CONFLICT', `${this.#id} has changed under its lock`, {});
  }
}

function idOf({ row }: Held): number {
  return row.id;
}

const HELD_PAGE = statement<QuarantineRow>(
  'quarantine.held_page',
  `SELECT id, log_id, lsn, reason, envelope, payload, encode(cryptographic_hash, 'hex') AS hash FROM quarantine
   WHERE trajectory_id = $1 AND log_id = $2 AND state = 'held' AND reason = ANY ($3::text[]) AND lsn > $4
   ORDER BY lsn LIMIT $5`,
);

const LIFT = statement('quarantine.lift', `DELETE FROM blocks WHERE trajectory_id = $1 AND log_id = $2`);

const SAME_BLOCK = statement<{ same: boolean }>(
  'quarantine.same_block',
  `SELECT true AS same FROM blocks
   WHERE trajectory_id = $1 AND log_id = $2 AND reason = $3 AND fencing_token = $4 AND sequence_number = $5`,
);

const WAITING = statement<{ waiting: number }>(
  'quarantine.count_waiting',
  `SELECT count(*) AS waiting FROM quarantine WHERE trajectory_id = $1 AND state = 'held' AND reason = 'waiting'`,
);

const RESTATE = statement(
  'quarantine.restate',
  `UPDATE quarantine q SET reason = u.reason, detail = u.detail, sqlstate = u.sqlstate
   FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[]) AS u (id, reason, detail, sqlstate)
   WHERE q.id = u.id AND q.state = 'held' AND (q.reason, q.detail, q.sqlstate) IS DISTINCT FROM (u.reason, u.detail, u.sqlstate)`,
);

/** What an event is held for now. */
async function restate(tx: Tx, rows: readonly { readonly id: number; readonly entry: Quarantined }[]): Promise<void> {
  if (rows.length === 0) return;
  await tx.execute(RESTATE, [
    int8Array(rows.map(({ id }) => id)),
    textArray(rows.map(({ entry }) => entry.reason)),
    textArray(rows.map(({ entry }) => entry.detail)),
    textArray(rows.map(({ entry }) => entry.sqlstate)),
  ]);
}
