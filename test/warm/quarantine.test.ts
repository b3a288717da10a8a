/** Quarantine: what came to fit goes in, what never will is decided by a person, and nothing is lost on the way. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { canonicalJson, type JsonObject } from '../../schemas/canonical.ts';
import { chainHash, formatEnvelope, GENESIS_HASH, payloadSha256 } from '../../schemas/chain.ts';
import { isVarveError } from '../../schemas/errors.ts';
import { verifyEvent } from '../../schemas/event.ts';
import { newTrajectoryId, type SequenceNumber, type TrajectoryId } from '../../schemas/ids.ts';
import { Ingest } from '../../warm/ingest.ts';
import type { WarmEvent, WarmItem } from '../../warm/ingest-plan.ts';
import { statement } from '../../warm/pool.ts';
import { acceptQuarantined, listQuarantine, quarantineEntries } from '../../warm/quarantine.ts';
import { branchQuarantined } from '../../warm/quarantine-branch.ts';
import { replayQuarantined } from '../../warm/quarantine-replay.ts';
import { heldSummary } from '../../warm/quarantine-rows.ts';
import { createDatabase, type TestDatabase } from '../support/postgres.ts';

type Draft = { readonly event_type?: string; readonly payload?: JsonObject; readonly token?: number };

const BASE_MS = Date.now();

/** Events that follow one another, from behind `before` on. */
function chain(trajectory_id: TrajectoryId, drafts: readonly Draft[], before?: WarmEvent): WarmEvent[] {
  let hash: Uint8Array = before === undefined ? GENESIS_HASH : Buffer.from(before.cryptographic_hash, 'hex');
  let number = before?.sequence_number ?? 0;
  return drafts.map(({ event_type = 'Noted', payload = {}, token = 0 }) => {
    number += 1;
    const text = canonicalJson(payload);
    const envelope = {
      trajectory_id,
      sequence_number: number as SequenceNumber,
      event_type,
      turn: 0,
      created_at: new Date(BASE_MS + number).toISOString(),
      fencing_token: token,
      payload_sha256: payloadSha256(text),
    };
    hash = chainHash(hash, formatEnvelope(envelope));
    const cryptographic_hash = Buffer.from(hash).toString('hex');
    return { ...envelope, cryptographic_hash, payload, payload_bytes: Buffer.from(text) };
  });
}

function notes(count: number, text = 'n'): Draft[] {
  return Array.from({ length: count }, (_, i) => ({ payload: { note: `${text}${i}` } }));
}

/** A log as its sidecar sends it. */
class Log {
  readonly log_id = randomUUID();
  readonly #database: TestDatabase;
  #ingest: Ingest | undefined;
  #cursor = { lsn: 0, hash: '0'.repeat(64) };

  constructor(database: TestDatabase) {
    this.#database = database;
  }

  async send(events: readonly WarmEvent[], unfit: readonly WarmEvent[] = []): Promise<void> {
    if (this.#ingest === undefined) {
      const identity = { log_id: this.log_id, epoch: randomUUID(), host: 'here', directory: '/log' };
      this.#ingest = (await Ingest.open(this.#database.pool, identity)).ingest;
    }
    const from = this.#cursor;
    const items = events.map((event, i): WarmItem => ({ kind: 'event', lsn: from.lsn + 1 + i, event }));
    const to = { lsn: from.lsn + events.length, hash: events.at(-1)?.cryptographic_hash ?? from.hash };
    const missing = new Map(unfit.map((event) => [from.lsn + 1 + events.indexOf(event), 'a blob is missing']));
    const batch = this.#ingest.prepare(items, from, to, to.lsn);
    const outcome = await this.#ingest.apply(batch, { unfit: missing });
    assert.equal(outcome.kind, 'applied');
    this.#cursor = to;
  }
}

const STORED = statement<{ n: number; hash: string }>(
  'test.stored',
  `SELECT sequence_number AS n, encode(cryptographic_hash, 'hex') AS hash FROM trajectory_events
   WHERE trajectory_id = $1 ORDER BY sequence_number`,
);
const EVENTS = statement<Omit<WarmEvent, 'payload_bytes' | 'payload_sha256'>>(
  'test.events',
  `SELECT trajectory_id, sequence_number, event_type, turn, payload, encode(cryptographic_hash, 'hex') AS cryptographic_hash,
     created_at, fencing_token FROM trajectory_events WHERE trajectory_id = $1 ORDER BY sequence_number`,
);
const BLOCKS = statement<{ log_id: string; reason: string; accepted: boolean }>(
  'test.blocks',
  `SELECT log_id, reason, accepted_at IS NOT NULL AS accepted FROM blocks WHERE trajectory_id = $1 ORDER BY log_id`,
);
const ROW = statement<{ last: number; head: string; waiting: number; counted: number }>(
  'test.row',
  `SELECT last_sequence_number AS last, encode(head_hash, 'hex') AS head, waiting,
     (summary #>> '{counts,events}')::bigint AS counted FROM trajectories WHERE trajectory_id = $1`,
);
const CLAIM = statement<{ fencing_token: number }>(
  'test.claim',
  `SELECT fencing_token FROM lease_claim($1, 'other', '1 hour', $2, decode($3, 'hex'))`,
);

describe('warm/quarantine', () => {
  let database: TestDatabase;
  let id: TrajectoryId;

  beforeEach(async () => {
    database = await createDatabase();
    id = newTrajectoryId();
  });
  afterEach(() => database[Symbol.asyncDispose]());

  async function stored(of = id): Promise<number[]> {
    return (await database.pool.lend((session) => session.query(STORED, [of]))).map(({ n }) => n);
  }

  async function states(): Promise<string[]> {
    const list: string[] = [];
    for await (const { sequence_number, reason, state } of quarantineEntries(database.pool, id))
      list.push(`${sequence_number} ${reason} ${state}`);
    return list;
  }

  const blocks = () => database.pool.lend((session) => session.query(BLOCKS, [id]));
  const row = async () => (await database.pool.lend((session) => session.query(ROW, [id])))[0];

  it('a replay puts in what a gap held back once another log has brought what was missing', async () => {
    const events = chain(id, notes(6));
    const [a, b] = [new Log(database), new Log(database)];
    await a.send([...events.slice(0, 2), ...events.slice(3)]);
    assert.deepEqual(await states(), ['4 gap held', '5 gap held', '6 gap held']);
    await b.send(events.slice(0, 3));
    const replayed = await replayQuarantined(database.pool, id);
    assert.deepEqual([replayed.applied, replayed.proven, replayed.held], [3, 0, {}]);
    assert.deepEqual(await stored(), [1, 2, 3, 4, 5, 6]);
    assert.deepEqual(await blocks(), []);
    const last = events.at(-1)?.cryptographic_hash;
    assert.deepEqual(await row(), { last: 6, head: last, waiting: 0, counted: 6 });
    await a.send(chain(id, notes(1, 'late'), events[5]));
    assert.deepEqual(await stored(), [1, 2, 3, 4, 5, 6, 7]);
  });

  it('a replay that mends nothing changes nothing, and keeps the block', async () => {
    const events = chain(id, notes(4));
    const log = new Log(database);
    await log.send([...events.slice(0, 1), ...events.slice(2)]);
    const before = await states();
    const { applied, held } = await replayQuarantined(database.pool, id);
    assert.deepEqual([applied, held], [0, { gap: 2 }]);
    assert.deepEqual(await states(), before);
    assert.deepEqual(await blocks(), [{ log_id: log.log_id, reason: 'gap', accepted: false }]);
  });

  it('logs that each hold what the other lacks mend each other in one replay', async () => {
    const events = chain(id, notes(7));
    const [a, b] = [new Log(database), new Log(database)];
    const pick = (...numbers: number[]) => numbers.map((n) => events[n - 1] as WarmEvent);
    await a.send(pick(1, 3, 4, 7));
    await b.send(pick(5, 6));
    assert.deepEqual(await stored(), [1]);
    await new Log(database).send(pick(1, 2));
    const { applied, held } = await replayQuarantined(database.pool, id);
    assert.deepEqual([applied, held], [5, {}]);
    assert.deepEqual(await stored(), [1, 2, 3, 4, 5, 6, 7]);
  });

  it('a dry run says what a replay would do, and leaves everything as it was', async () => {
    const events = chain(id, notes(4));
    const a = new Log(database);
    await a.send([...events.slice(0, 1), ...events.slice(2)]);
    await new Log(database).send(events.slice(0, 2));
    const before = await states();
    assert.equal((await replayQuarantined(database.pool, id, { dryRun: true })).applied, 2);
    assert.deepEqual([await states(), await stored()], [before, [1, 2]]);
    assert.equal((await blocks()).length, 1);
  });

  it('poison goes in when what was wrong with it is mended, and stays while it is not', async () => {
    const events = chain(id, notes(3));
    await new Log(database).send(events, events.slice(1, 2));
    const entries = [];
    for await (const entry of quarantineEntries(database.pool, id)) entries.push(entry);
    const unfit = new Map([[entries[0]?.id ?? 0, 'blob missing']]);
    assert.deepEqual((await replayQuarantined(database.pool, id, { unfit })).held, { poison: 2 });
    assert.deepEqual((await replayQuarantined(database.pool, id)).held, {});
    assert.deepEqual(await stored(), [1, 2, 3]);
  });

  it('what was in quarantine turns out to be a duplicate where another log brought it', async () => {
    const events = chain(id, notes(4));
    await new Log(database).send([...events.slice(0, 1), ...events.slice(2)]);
    await new Log(database).send(events);
    const { applied, proven, held } = await replayQuarantined(database.pool, id);
    assert.deepEqual([applied, proven, held], [0, 2, {}]);
    assert.deepEqual(await states(), ['3 gap proven', '4 gap proven']);
  });

  it('ingest of the same log waits for a replay, and then goes on behind it', async () => {
    const events = chain(id, notes(40));
    const a = new Log(database);
    await a.send([...events.slice(0, 1), ...events.slice(2, 30)]);
    await new Log(database).send(events.slice(0, 2));
    await Promise.all([replayQuarantined(database.pool, id), a.send(events.slice(30))]);
    await replayQuarantined(database.pool, id).catch((error: unknown) => {
      if (!isVarveError(error, 'INVALID_OPTION')) throw error;
    });
    assert.equal((await stored()).length, 40);
    assert.equal((await states()).filter((state) => state.endsWith('held')).length, 0);
  });

  async function fork(): Promise<{ a: Log; b: Log; common: WarmEvent[]; lost: WarmEvent[] }> {
    const common = chain(id, notes(3));
    const lost = chain(
      id,
      [...notes(2, 'lost'), { event_type: 'ToolIntent', payload: { tool_call_id: 'c' } }],
      common[2],
    );
    const [a, b] = [new Log(database), new Log(database)];
    await a.send(common);
    await b.send([...common, ...chain(id, notes(3, 'won'), common[2])]);
    await a.send(lost);
    return { a, b, common, lost };
  }

  it('a fork is not replayed; accepted, it is no longer held, and neither is what still comes', async () => {
    const { a, lost } = await fork();
    await assert.rejects(replayQuarantined(database.pool, id), (error) => isVarveError(error, 'INVALID_OPTION'));
    assert.equal((await acceptQuarantined(database.pool, id, 'looked', { dryRun: true })).accepted, 3);
    assert.equal((await states()).filter((state) => state.endsWith('held')).length, 3);
    const accepted = await acceptQuarantined(database.pool, id, 'looked at it');
    assert.deepEqual([accepted.accepted, accepted.intents, accepted.held], [3, 1, {}]);
    await a.send(chain(id, notes(2, 'late'), lost[2]));
    assert.deepEqual((await states()).slice(3), ['7 fork accepted', '8 fork accepted']);
    assert.deepEqual(await stored(), [1, 2, 3, 4, 5, 6]);
    await assert.rejects(acceptQuarantined(database.pool, id, 'again'), (error) =>
      isVarveError(error, 'INVALID_OPTION'),
    );
  });

  it('an intent that comes after its block was accepted is held: its effect may be real', async () => {
    const { a, lost } = await fork();
    await acceptQuarantined(database.pool, id, 'looked');
    await a.send(chain(id, [{ event_type: 'ToolIntent', payload: { tool_call_id: 'd' } }], lost[2]));
    assert.equal((await states()).at(-1), '7 fork held');
  });

  it('a log goes on being told that it holds what was accepted, so that its worker passes no gate', async () => {
    const { a } = await fork();
    await acceptQuarantined(database.pool, id, 'looked');
    const told = await database.pool.lend((session) => heldSummary(session, a.log_id, 10));
    assert.deepEqual(told, [{ trajectory_id: id, from_lsn: 4, reason: 'fork', events: 0 }]);
  });

  it('a fork becomes a trajectory of its own, whole, chained, and with its parent', async () => {
    const { a, lost } = await fork();
    const branched = await branchQuarantined(database.pool, id, 'keep it');
    assert.deepEqual(
      [branched.events, branched.parent_sequence_number, branched.left, branched.grown],
      [3, 3, 0, false],
    );
    const events = await database.pool.lend((session) => session.query(EVENTS, [branched.branch_id]));
    for (const [i, event] of events.entries()) verifyEvent(events[i - 1], event);
    assert.equal(events[0]?.event_type, 'TaskStarted');
    assert.deepEqual(events[0]?.payload['parent'], { trajectory_id: id, sequence_number: 3 });
    assert.deepEqual(
      events.slice(1).map(({ event_type, payload, created_at }) => ({ event_type, payload, created_at })),
      lost.map(({ event_type, payload, created_at }) => ({ event_type, payload, created_at })),
    );
    assert.deepEqual(await states(), ['4 fork branched', '5 fork branched', '6 fork branched']);

    await a.send(chain(id, notes(2, 'late'), lost[2]));
    const grown = await branchQuarantined(database.pool, id, 'more');
    assert.deepEqual([grown.branch_id, grown.grown, grown.events], [branched.branch_id, true, 2]);
    assert.deepEqual(await stored(branched.branch_id), [1, 2, 3, 4, 5, 6]);
  });

  it('a branch counts its events anew, also inside payloads, and says where each came from', async () => {
    const common = chain(id, notes(3));
    const context = {
      messages: [
        { from: 2, to: 5 },
        { from: 4, to: 4 },
      ],
    };
    const lost = chain(
      id,
      [
        ...notes(2),
        { event_type: 'ContextBuilt', payload: context },
        { event_type: 'RolledBack', payload: { to_sequence_number: 4 } },
        { event_type: 'ContextBuilt', payload: { messages: [{ base: 2 }] } },
      ],
      common[2],
    );
    const [a, b] = [new Log(database), new Log(database)];
    await b.send([...common, ...chain(id, notes(1, 'won'), common[2])]);
    await a.send([...common, ...lost]);
    const { branch_id } = await branchQuarantined(database.pool, id, 'keep it');
    const events = await database.pool.lend((session) => session.query(EVENTS, [branch_id]));
    assert.deepEqual(events[3]?.payload, {
      messages: [
        { trajectory_id: id, from: 2, to: 3 },
        { from: 2, to: 3 },
        { from: 2, to: 2 },
      ],
      branched_from: { trajectory_id: id, sequence_number: 6 },
    });
    assert.equal(events[4]?.payload['to_sequence_number'], 2);
    assert.equal('messages' in (events[5]?.payload ?? {}), false);
  });

  it('what a fenced worker wrote becomes a branch behind the head at the claim', async () => {
    const common = chain(id, notes(2));
    const log = new Log(database);
    await log.send(common);
    await database.pool.lend((session) => session.query(CLAIM, [id, 2, common[1]?.cryptographic_hash ?? '']));
    await log.send(chain(id, notes(2, 'stale'), common[1]));
    assert.deepEqual(await states(), ['3 fenced held', '4 fenced held']);
    const { parent_sequence_number, events } = await branchQuarantined(database.pool, id, 'keep it');
    assert.deepEqual([parent_sequence_number, events], [2, 2]);
  });

  it('a branch of a dry run leaves nothing behind', async () => {
    await fork();
    const before = await states();
    const { branch_id, events } = await branchQuarantined(database.pool, id, 'try', { dryRun: true });
    assert.equal(events, 3);
    assert.deepEqual([await states(), await stored(branch_id)], [before, []]);
  });

  it('the list names each trajectory, log and reason once, with what a person must know', async () => {
    const { a } = await fork();
    const list = await database.pool.lend((session) => listQuarantine(session, {}, 10));
    const [group] = list;
    assert.equal(list.length, 1);
    assert.deepEqual(
      [group?.trajectory_id, group?.log_id, group?.reason, group?.events, group?.intents],
      [id, a.log_id, 'fork', 3, 1],
    );
    const none = await database.pool.lend((session) => listQuarantine(session, { reason: 'gap' }, 10));
    assert.deepEqual(none, []);
  });
});
