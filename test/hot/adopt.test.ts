import assert from 'node:assert/strict';
import { readdirSync, rmSync } from 'node:fs';
import { HotLog } from '../../hot/log.ts';
import type { Position } from '../../hot/record.ts';
import type { HeldReason } from '../../hot/tail-protocol.ts';
import { newTrajectoryId, type SequenceNumber, type TrajectoryId } from '../../schemas/ids.ts';
import { TempDirectory } from '../support/temp.ts';
import {
  ackTo,
  all,
  crashCopy,
  denseLog,
  event,
  FINISH,
  intent,
  note,
  refused,
  result,
  SMALL,
  sequences,
} from './support/hot.ts';

const FOREIGN = 'ab'.repeat(32);

function position(sequence: number, more: Partial<Position> = {}): Omit<Position, 'trajectory_id'> {
  return {
    sequence_number: sequence as SequenceNumber,
    cryptographic_hash: FOREIGN,
    created_at: '2024-05-01T00:00:00.000Z',
    turn: 3,
    fencing_token: 9,
    ...more,
  };
}

describe('adopting a trajectory', () => {
  let temp: TempDirectory;
  let log: HotLog;
  let id: TrajectoryId;
  const open = () => HotLog.open(temp.join('log'), SMALL);
  beforeEach(async () => {
    temp = new TempDirectory('adopt');
    log = await open();
    id = newTrajectoryId();
  });
  afterEach(async () => {
    assert.equal((await log.verify({ deep: true })).damage, undefined);
    await denseLog(log);
    await log.close();
    temp[Symbol.dispose]();
  });

  /** In this process, after a clean reopening, and where heads are rebuilt. */
  async function everyWay(check: (log: HotLog) => Promise<void>): Promise<void> {
    await check(log);
    await log.close();
    log = await open();
    await check(log);
    await log.close();
    for (const name of readdirSync(temp.join('log'))) if (name.startsWith('heads-')) rmSync(temp.join('log', name));
    log = await open();
    await check(log);
  }

  it('goes on behind the event that it stands for: number, hash, turn, token and time', async () => {
    await log.adopt(id, position(41));
    await everyWay(async (log) => {
      const head = log.head(id);
      assert.deepEqual(
        [head?.sequence_number, head?.cryptographic_hash, head?.created_at],
        [41, FOREIGN, '2024-05-01T00:00:00.000Z'],
      );
      assert.deepEqual([...log.trajectories()], [id]);
      await refused(log.append(id, { ...note(), turn: 2 }), 'TURN_WENT_BACK');
      await refused(log.append(id, { ...note(), turn: 3, fencing_token: 8 }), 'FENCING_TOKEN_WENT_BACK');
      assert.deepEqual(await sequences(log.read(id, 42)), []);
      const error = await refused(all(log.read(id, 41)), 'HOT_TRIMMED');
      assert.deepEqual([error.details['tier'], error.details['first_available']], ['warm', 42]);
    });
    const receipt = await log.append(id, { ...note(), turn: 3 });
    assert.equal(receipt.sequence_number, 42);
    const [stored] = await all(log.read(id, 42));
    assert.equal(stored?.fencing_token, 9);
    assert.equal(stored?.previous_lsn, 1n);
  });

  it('reproduces recorded hashes: another log that adopts in the middle gets the same ones', async () => {
    const source = newTrajectoryId();
    await log.append(source, note('1'));
    await log.append(source, intent('c'));
    await log.append(source, { ...note('x'.repeat(100_000)), turn: 1, fencing_token: 4 });
    await log.append(source, { ...FINISH, turn: 1 });
    const events = await all(log.read(source));
    const recorded = events.map((event) => ({
      event_type: event.event_type,
      turn: event.turn,
      payload: event.payload,
      created_at: event.created_at,
      fencing_token: event.fencing_token,
      sequence_number: event.sequence_number,
      cryptographic_hash: event.cryptographic_hash,
    }));

    await using other = await HotLog.open(temp.join('other'), SMALL);
    // Its stub is refused until the body is there.
    await refused(other.appendRecorded(source, recorded), 'BLOB_MISSING');
    await other.blobs.put(Buffer.from('x'.repeat(100_000)));
    const whole = await other.appendRecorded(source, recorded);
    assert.deepEqual(
      whole.map((r) => r.cryptographic_hash),
      events.map((e) => e.cryptographic_hash),
    );
    assert.deepEqual(
      (await all(other.read(source))).map((e) => e.payload_text),
      events.map((e) => e.payload_text),
    );

    await using third = await HotLog.open(temp.join('third'), SMALL);
    await third.blobs.put(Buffer.from('x'.repeat(100_000)));
    const {
      trajectory_id: _,
      cryptographic_hash,
      created_at,
      turn,
      fencing_token,
      sequence_number,
    } = events[1] as (typeof events)[0];
    await third.adopt(source, { cryptographic_hash, created_at, turn, fencing_token, sequence_number });
    const rest = await third.appendRecorded(source, recorded.slice(2));
    assert.deepEqual(
      rest.map((r) => r.cryptographic_hash),
      events.slice(2).map((e) => e.cryptographic_hash),
    );
    await refused(all(third.read(source)), 'HOT_TRIMMED');
    assert.equal((await third.verify({ deep: true })).damage, undefined);
  });

  it('sets a local suffix aside: it is not read as the trajectory any more, and stays in the log', async () => {
    for (let n = 1; n <= 5; n++) await log.append(id, note(`${n}`));
    const third = (await all(log.read(id, 3)))[0];
    const { cryptographic_hash, created_at } = third as NonNullable<typeof third>;
    await log.append(id, intent('lost'));
    await log.adopt(id, position(3, { cryptographic_hash, created_at, turn: 0, fencing_token: 1 }));
    await log.append(id, note('4 again'));
    await everyWay(async (log) => {
      const events = await all(log.read(id));
      assert.deepEqual(
        events.map(({ payload }) => payload['note']),
        ['1', '2', '3', '4 again'],
      );
      assert.deepEqual(await sequences(log.read(id, 4)), [4]);
      assert.deepEqual(await log.inDoubt(), [], 'the intent is of the suffix');
    });
    const notes = (await denseLog(log)).flatMap((item) => (item.kind === 'event' ? [item.event.payload['note']] : []));
    assert.deepEqual(notes, ['1', '2', '3', '4', '5', undefined, '4 again']);
  });

  it('twice ends at the second place, also where an older branch lies between', async () => {
    for (let n = 1; n <= 5; n++) await log.append(id, note(`${n}`));
    const [, , , , fifth] = await all(log.read(id));
    const { cryptographic_hash, created_at } = fifth as NonNullable<typeof fifth>;
    await log.adopt(id, position(3, { created_at, turn: 0, fencing_token: 1 }));
    await log.append(id, note('of a branch that lost'));
    await refused(all(log.read(id, 3)), 'HOT_TRIMMED');
    await log.adopt(id, position(5, { cryptographic_hash, created_at, turn: 0, fencing_token: 2 }));
    await log.append(id, note('6'));
    await everyWay(async (log) => {
      assert.deepEqual(
        (await all(log.read(id))).map(({ payload }) => payload['note']),
        ['1', '2', '3', '4', '5', '6'],
      );
      assert.deepEqual(await sequences(log.read(id, 4)), [4, 5, 6]);
    });
  });

  it('is refused behind what this log has let go of', async () => {
    for (let n = 1; n <= 5; n++) await log.append(id, note(`${n}`));
    await log.append(id, FINISH);
    await ackTo(log);
    await log.trim();
    const { created_at } = log.head(id) as NonNullable<ReturnType<HotLog['head']>>;
    await refused(log.adopt(id, position(5, { created_at, turn: 0 })), 'ADOPT_BEHIND');
    await log.adopt(id, position(6, { created_at, turn: 0 }));
    assert.equal((await log.append(id, note())).sequence_number, 7);
    assert.deepEqual(await sequences(log.read(id, 7)), [7]);
  });

  it('is durable when it resolves, and an append called right behind it goes on from there', async () => {
    const adopted = log.adopt(id, position(10));
    const appended = log.append(id, { ...note(), turn: 3 });
    await adopted;
    await crashCopy(temp.join('log'), temp.join('copy'));
    assert.equal((await appended).sequence_number, 11);
    await using copy = await HotLog.open(temp.join('copy'), SMALL);
    assert.ok((copy.head(id)?.sequence_number ?? 0) >= 10, 'the anchor is lost');
  });
});

describe('a trajectory that its worker may no longer write', () => {
  let temp: TempDirectory;
  let log: HotLog;
  let id: TrajectoryId;
  const open = () => HotLog.open(temp.join('log'), SMALL);
  beforeEach(async () => {
    temp = new TempDirectory('fenced');
    log = await open();
    id = newTrajectoryId();
    await log.appendAll(id, [note(), intent('out'), intent('too')]);
  });
  afterEach(async () => {
    await log.close();
    temp[Symbol.dispose]();
  });

  async function takesOnlyResults(): Promise<void> {
    await refused(log.append(id, note()), 'HOT_FENCED');
    await refused(log.append(id, intent('new')), 'HOT_FENCED');
    await refused(log.append(id, FINISH), 'HOT_FENCED');
    await refused(log.append(id, result('never sent')), 'HOT_FENCED');
    await refused(log.appendAll(id, [result('out'), note()]), 'HOT_FENCED');
    await log.append(id, result('out'));
    await refused(log.append(id, result('out')), 'HOT_FENCED');
  }

  it('takes only results of open intents once its lease is over, and all again when it is renewed', async () => {
    log.lease(id, 3_600_000);
    await log.append(id, note());
    log.lease(id, 0);
    await takesOnlyResults();
    await log.append(newTrajectoryId(), note());
    log.lease(id, 3_600_000);
    await log.append(id, note());
    log.lease(id, -5);
    await refused(log.append(id, note()), 'HOT_FENCED');
    log.lease(id, Number.POSITIVE_INFINITY);
    await log.append(id, event('Noted', { note: 'without leases' }));
  });

  it('takes only results once replication says that it is fenced, whatever lease it states, also after reopening', async () => {
    await ackTo(log, 1, [{ trajectory_id: id, from_lsn: 1, reason: 'fenced' }]);
    log.lease(id, 3_600_000);
    await takesOnlyResults();
    await log.close();
    log = await open();
    await refused(log.append(id, note()), 'HOT_FENCED');
    await log.append(id, result('too'));
    log.lease(id, Number.POSITIVE_INFINITY);
    await refused(log.append(id, note()), 'HOT_FENCED');
  });

  it('is not fenced by being held for another reason', async () => {
    for (const reason of ['waiting', 'gap', 'fork', 'poison', 'unproven'] satisfies HeldReason[]) {
      await ackTo(log, 1, [{ trajectory_id: id, from_lsn: 1, reason }]);
      await log.append(id, note());
    }
  });

  it('is written again after it was claimed and adopted, though warm still keeps what was fenced', async () => {
    const held = [{ trajectory_id: id, from_lsn: 2, reason: 'fenced' as const }];
    await ackTo(log, 1, held);
    const { created_at } = log.head(id) as NonNullable<ReturnType<HotLog['head']>>;
    await log.adopt(id, position(20, { created_at, turn: 0, fencing_token: 2 }));
    await log.append(id, note());
    await ackTo(log, undefined, held);
    await log.append(id, note());
    await log.close();
    log = await open();
    assert.deepEqual(log.acked?.held, held);
    await log.append(id, note());
    // What is fenced behind the anchor counts.
    await ackTo(log, undefined, [{ ...(held[0] as (typeof held)[0]), from_lsn: Number(log.durableLsn) }]);
    await refused(log.append(id, note()), 'HOT_FENCED');
  });
});
