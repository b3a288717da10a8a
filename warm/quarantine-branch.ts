/**
 * Gives the events behind a fork, or behind a fence, a trajectory of their own (warm/branch-plan.ts says how).
 *
 * When it resolves, the branch is in warm like any other trajectory, the rows that it came from say so (state
 * `branched`), and the block that stopped them counts as accepted: what the log still sends under it is put aside as
 * accepted, and a further call lets the branch grow by it.
 *
 * Taken is what hangs together: events of one log, in its order, each covering the one before. What lies behind a break
 * stays for a further call.
 */
import { chainHash, formatEnvelope } from '../schemas/chain.ts';
import { VarveError } from '../schemas/errors.ts';
import { newTrajectoryId, type TrajectoryId } from '../schemas/ids.ts';
import { step } from '../schemas/summary.ts';
import { addBlobRefs } from './blob-ref-rows.ts';
import { type Branch, type BranchPosition, branchEvent, branchNumber, branchStart } from './branch-plan.ts';
import { int8Array } from './columns.ts';
import { databaseNow } from './cursor-rows.ts';
import { ensurePartition, eventColumns, insertEvents, storedHashes } from './event-rows.ts';
import type { TrajectoryState, WarmEvent } from './ingest-plan.ts';
import { advanced } from './place.ts';
import { statement, type Tx, transaction, type WarmPool } from './pool.ts';
import { DECIDED_BY_PEOPLE, heldByReason, lockFor, logsWith, maybe, nothingToDecide } from './quarantine.ts';
import { eventOf, type QuarantineRow } from './quarantine-rows.ts';
import { advanceStates, readStates, SummaryCache } from './trajectory-rows.ts';

export type Branched = {
  readonly trajectory_id: TrajectoryId;
  readonly log_id: string;
  readonly branch_id: TrajectoryId;
  /** Event of the origin that the branch goes on after; null where that is not proven. */
  readonly parent_sequence_number: number | null;
  readonly events: number;
  /** Did the branch exist before, and has it grown? */
  readonly grown: boolean;
  /** Events of this log behind a break, which did not become part of it. */
  readonly left: number;
};

export type BranchOptions = {
  /** The log whose events are meant. @default the only one that has any */
  readonly log_id?: string;
  readonly dryRun?: boolean;
};

/** Payloads have up to 1 MiB each. */
const PAGE_ROWS = 64;

/** @throws VarveError INVALID_OPTION where nothing is to be branched, or several logs have something */
export async function branchQuarantined(
  pool: WarmPool,
  trajectory_id: TrajectoryId,
  why: string,
  options: BranchOptions = {},
): Promise<Branched> {
  const dryRun = options.dryRun === true;
  const fresh = newTrajectoryId(await pool.lend(databaseNow));
  if (!dryRun) await transaction(pool, (tx) => ensurePartition(tx, fresh));
  return await maybe(pool, dryRun, async (tx) => {
    if (dryRun) await ensurePartition(tx, fresh);
    const log_id = await chooseLog(tx, trajectory_id, options.log_id);
    await lockFor(tx, trajectory_id, [log_id]);
    const writer = await BranchWriter.open(tx, trajectory_id, log_id, fresh);
    const branched = await writer.run(why);
    // COMMIT POINT.
    return branched;
  });
}

async function chooseLog(tx: Tx, trajectory_id: TrajectoryId, wanted: string | undefined): Promise<string> {
  const logs = await logsWith(tx, trajectory_id, ['held', 'accepted'], DECIDED_BY_PEOPLE);
  const [first, ...others] = wanted === undefined ? logs : logs.filter((log) => log === wanted);
  if (first === undefined) throw nothingToDecide(trajectory_id, await heldByReason(tx, trajectory_id));
  if (others.length === 0) return first;
  const message = `several logs forked ${trajectory_id}: name one with --log (${logs.join(', ')})`;
  throw new VarveError('INVALID_OPTION', message, { logs });
}

class BranchWriter {
  readonly #tx: Tx;
  readonly #log: string;
  readonly #branch: Branch;
  readonly #before: TrajectoryState;
  readonly #grown: boolean;
  #state: TrajectoryState;
  /** The last event taken, as its log wrote it. */
  #last: BranchPosition;
  #events = 0;

  private constructor(
    tx: Tx,
    log: string,
    branch: Branch,
    state: TrajectoryState,
    last: BranchPosition,
    grown: boolean,
  ) {
    this.#tx = tx;
    this.#log = log;
    this.#branch = branch;
    this.#before = state;
    this.#state = state;
    this.#last = last;
    this.#grown = grown;
  }

  static async open(tx: Tx, origin_id: TrajectoryId, log_id: string, fresh: TrajectoryId): Promise<BranchWriter> {
    const [known] = await tx.query(KNOWN_BRANCH, [origin_id, log_id]);
    const [first] = await tx.query(PAGE, [origin_id, log_id, 0, 1]);
    if (known !== undefined && first !== undefined) {
      const { branch_id, first_sequence_number, last_sequence_number, last_hash } = known;
      await lockFor(tx, branch_id, []);
      const state = await stateOf(tx, log_id, branch_id);
      const forked_after = first_sequence_number - 1;
      const branch = { branch_id, origin_id, forked_after, has_parent: state.summary.parent !== null };
      const isWhole = state.last_sequence_number === branchNumber(branch, last_sequence_number);
      const last = { sequence_number: last_sequence_number, hash: last_hash };
      if (isWhole && follows(last, eventOf(first))) return new BranchWriter(tx, log_id, branch, state, last, true);
    }
    if (first === undefined) throw nothingToDecide(origin_id, await heldByReason(tx, origin_id));
    const event = eventOf(first);
    const forked_after = event.sequence_number - 1;
    const hash = await hashBefore(tx, event);
    const last = { sequence_number: forked_after, hash: hash ?? '' };
    const has_parent = forked_after > 0 && hash !== undefined && follows(last, event);
    const branch = { branch_id: fresh, origin_id, forked_after, has_parent };
    const writer = new BranchWriter(tx, log_id, branch, await stateOf(tx, log_id, fresh), last, false);
    const { tenant, agent } = (await stateOf(tx, log_id, origin_id)).summary;
    await writer.#add([branchStart(branch, event, { tenant, agent })]);
    return writer;
  }

  async run(why: string): Promise<Branched> {
    let left = 0;
    for (let after = 0; ; ) {
      const page = await this.#tx.query(PAGE, [this.#branch.origin_id, this.#log, after, PAGE_ROWS]);
      const last = page.at(-1);
      if (last === undefined) break;
      after = last.lsn;
      left += await this.#take(page, why, left > 0);
    }
    const { branch_id, origin_id, forked_after, has_parent } = this.#branch;
    if (left === 0) await this.#tx.execute(MARK_BLOCK, [origin_id, this.#log, branch_id]);
    const written = await advanceStates(this.#tx, [{ before: this.#before, after: this.#state }], new SummaryCache());
    if (!written) throw new VarveError('WARM_CONFLICT', `${branch_id} has changed under its lock`, {});
    return {
      trajectory_id: origin_id,
      log_id: this.#log,
      branch_id,
      parent_sequence_number: has_parent ? forked_after : null,
      events: this.#events,
      grown: this.#grown,
      left,
    };
  }

  /** Returns how many rows of the page lie behind a break. */
  async #take(page: readonly QuarantineRow[], why: string, isBroken: boolean): Promise<number> {
    const taken: number[] = [];
    const events: WarmEvent[] = [];
    let { sequence_number, hash } = positionOf(this.#state);
    for (const row of isBroken ? [] : page) {
      const event = eventOf(row);
      // The first one of a branch may hang on nothing that is known.
      const isFirst = !this.#grown && this.#events + taken.length === 0;
      if (!isFirst && !follows(this.#last, event)) break;
      this.#last = { sequence_number: event.sequence_number, hash: event.cryptographic_hash };
      const next = branchEvent(this.#branch, event, { sequence_number, hash });
      ({ sequence_number } = next);
      hash = next.cryptographic_hash;
      events.push(next);
      taken.push(row.id);
    }
    await this.#add(events);
    this.#events += taken.length;
    await this.#tx.execute(SETTLE, [int8Array(taken), this.#branch.branch_id, why]);
    return page.length - taken.length;
  }

  async #add(events: readonly WarmEvent[]): Promise<void> {
    if (events.length === 0) return;
    await insertEvents(this.#tx, eventColumns(events));
    await addBlobRefs(this.#tx, events);
    const summary = step(this.#state.summary, events);
    this.#state = { ...events.reduce(advanced, this.#state), summary };
  }
}

function positionOf(state: TrajectoryState): BranchPosition {
  return { sequence_number: state.last_sequence_number, hash: state.head_hash };
}

function follows(last: BranchPosition, event: WarmEvent): boolean {
  const hash = chainHash(Buffer.from(last.hash, 'hex'), formatEnvelope(event)).toString('hex');
  return event.sequence_number === last.sequence_number + 1 && hash === event.cryptographic_hash;
}

async function stateOf(tx: Tx, log_id: string, id: TrajectoryId): Promise<TrajectoryState> {
  const state = (await readStates(tx, log_id, [id])).get(id);
  if (state === undefined) throw new VarveError('WARM_CONFLICT', `the row of ${id} is gone`, {});
  return state;
}

/** Hash (hex) of the origin's event before; undefined where warm no longer has it. */
async function hashBefore(tx: Tx, { trajectory_id, sequence_number }: WarmEvent): Promise<string | undefined> {
  const [stored] = await storedHashes(tx, [{ trajectory_id, sequence_number: sequence_number - 1 }]);
  return stored?.hash;
}

type KnownBranch = {
  readonly branch_id: TrajectoryId;
  readonly first_sequence_number: number;
  readonly last_sequence_number: number;
  readonly last_hash: string;
};

const KNOWN_BRANCH = statement<KnownBranch>(
  'branch.known',
  `SELECT b.branch_id, min(q.sequence_number) AS first_sequence_number, max(q.sequence_number) AS last_sequence_number,
     (array_agg(encode(q.cryptographic_hash, 'hex') ORDER BY q.lsn DESC))[1] AS last_hash
   FROM blocks b JOIN quarantine q ON q.trajectory_id = b.trajectory_id AND q.log_id = b.log_id AND q.branch_id = b.branch_id
   WHERE b.trajectory_id = $1 AND b.log_id = $2 GROUP BY b.branch_id`,
);

const PAGE = statement<QuarantineRow>(
  'branch.page',
  `SELECT id, log_id, lsn, reason, envelope, payload, encode(cryptographic_hash, 'hex') AS hash FROM quarantine
   WHERE trajectory_id = $1 AND log_id = $2 AND state IN ('held', 'accepted') AND reason IN ('fork', 'fenced') AND lsn > $3
   ORDER BY lsn LIMIT $4`,
);

const SETTLE = statement(
  'branch.settle',
  `UPDATE quarantine SET state = 'branched', settled_at = varve_now(), branch_id = $2, settled_why = $3
   WHERE id = ANY ($1::bigint[])`,
);

const MARK_BLOCK = statement(
  'branch.mark_block',
  `UPDATE blocks SET accepted_at = coalesce(accepted_at, varve_now()), branch_id = $3
   WHERE trajectory_id = $1 AND log_id = $2 AND reason IN ('fork', 'fenced')`,
);
