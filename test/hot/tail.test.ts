import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { setImmediate as turnOfTheLoop } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import fc from 'fast-check';
import { LogDrain, readPrefix } from '../../hot/drain.ts';
import { HotLog } from '../../hot/log.ts';
import { ReadCheck, type TailItem } from '../../hot/read-check.ts';
import { type Cursor, FrameReader, type HeldReason, jsonFrame, START, TAIL_PROTOCOL } from '../../hot/tail-protocol.ts';
import { TailReader } from '../../hot/tail-reader.ts';
import { isVarveError } from '../../schemas/errors.ts';
import { newTrajectoryId } from '../../schemas/ids.ts';
import { KIB, MIB } from '../../schemas/limits.ts';
import { Child } from '../support/child.ts';
import { runs } from '../support/property.ts';
import { TempDirectory } from '../support/temp.ts';
import { ackOf, ackTo, all, crashCopy, cursorAt, denseLog, FINISH, note, refused, SMALL } from './support/hot.ts';

const OPTIONS = { ...SMALL, tail: true, lockTimeoutMs: 10_000 } as const;
const FOREIGN = 'ab'.repeat(32);

/** What a reader has taken over, over any number of connections: dense, and at each LSN one hash. */
class Taken {
  readonly hashes = new Map<number, string>();
  cursor: Cursor = START;

  take(records: readonly TailItem[], cursor: Cursor): void {
    for (const record of records) {
      const from = record.kind === 'trimmed' ? record.from_lsn : Number(record.lsn);
      assert.equal(from, this.cursor.lsn + 1, 'a gap or a duplicate');
      const to = record.kind === 'trimmed' ? record.to_lsn : from;
      if (record.kind === 'event') this.hashes.set(to, record.hash);
      this.cursor = { lsn: to, hash: record.hash };
    }
    assert.deepEqual(cursor, this.cursor);
  }
}

/** Reads until an LSN was taken over; the reader stays connected. */
async function follow(reader: TailReader, taken: Taken, until: number): Promise<void> {
  const batches = reader[Symbol.asyncIterator]();
  while (taken.cursor.lsn < until) {
    const { value, done } = await batches.next();
    assert.notEqual(done, true, 'the tail ended');
    taken.take(value.records, value.cursor);
  }
}

/** Hashes that the writer says were acknowledged. */
function ackedIn(lines: readonly string[]): [number, string][] {
  return lines.flatMap((line): [number, string][] => {
    const [word, lsn, hash] = line.split(' ');
    return word === 'acked' ? [[Number(lsn), hash as string]] : [];
  });
}

describe('the tail', () => {
  let temp: TempDirectory;
  let log: HotLog;
  const dir = () => temp.join('log');
  const open = (options: object = {}) => HotLog.open(dir(), { ...OPTIONS, ...options });
  beforeEach(async () => {
    temp = new TempDirectory('tail');
    log = await open();
  });
  afterEach(async () => {
    await log.close();
    temp[Symbol.dispose]();
  });

  async function appendSome(count: number, bytes = 10): Promise<void> {
    const id = newTrajectoryId();
    await Promise.all(Array.from({ length: count }, (_, n) => log.append(id, note(`${n} ${'x'.repeat(bytes)}`))));
  }

  it('hands out every record once, in order, and none before it is durable', async () => {
    await appendSome(50);
    const taken = new Taken();
    await using reader = await TailReader.connect(dir());
    const writers = Promise.all(
      Array.from({ length: 16 }, async (_, w) => {
        const id = newTrajectoryId();
        for (let n = 0; n < 60; n++) await log.append(id, note('x'.repeat(w * n)));
      }),
    );
    for await (const { records, cursor } of reader) {
      for (const record of records)
        if (record.kind !== 'trimmed') assert.ok(record.lsn <= log.durableLsn, `LSN ${record.lsn} is not durable`);
      taken.take(records, cursor);
      if (taken.cursor.lsn === 50 + 16 * 60) break;
    }
    await writers;
    const wanted = (await denseLog(log)).map((item) => item.hash);
    assert.deepEqual([...taken.hashes.values()], wanted);
  });

  it('goes on behind any cursor of the log, and refuses every other by name', async () => {
    await appendSome(20);
    const events = await denseLog(log);
    for (const lsn of [0, 1, 7, 19, 20]) {
      const cursor = await cursorAt(log, lsn);
      await using reader = await TailReader.connect(dir(), { cursor, log_id: log.logId });
      assert.deepEqual(
        [reader.log_id, reader.epoch, reader.role, reader.pid],
        [log.logId, log.epoch, 'writer', process.pid],
      );
      const id = newTrajectoryId();
      const { lsn: last } = await log.append(id, note());
      const received: TailItem[] = [];
      for await (const { records } of reader) {
        received.push(...records);
        if (received.at(-1)?.kind === 'event' && (received.at(-1) as { lsn: bigint }).lsn === last) break;
      }
      assert.equal(received.length, Number(last) - lsn);
      if (lsn < 20) assert.equal(received[0]?.hash, events[lsn]?.hash);
    }
    const end = Number(log.durableLsn);
    await refused(TailReader.connect(dir(), { cursor: { lsn: 5, hash: FOREIGN } }), 'TAIL_CURSOR_UNKNOWN');
    await refused(
      TailReader.connect(dir(), { cursor: { lsn: 0, hash: FOREIGN }, log_id: newTrajectoryId() }),
      'TAIL_CURSOR_UNKNOWN',
    );
    await refused(TailReader.connect(dir(), { cursor: { lsn: end + 1, hash: FOREIGN } }), 'TAIL_CURSOR_AHEAD');
    await refused(TailReader.connect(dir(), { log_id: newTrajectoryId() }), 'TAIL_CURSOR_UNKNOWN');
    await log.close();
    assert.equal((await refused(TailReader.connect(dir()), 'TAIL_NO_WRITER')).retry, true);
  });

  it('of a log that went back in time is refused: its cursor is ahead, or another record is there', async () => {
    await appendSome(10);
    await crashCopy(dir(), temp.join('older'));
    await appendSome(5);
    const ahead = await cursorAt(log);
    await using older = await HotLog.open(temp.join('older'), OPTIONS);
    await refused(TailReader.connect(temp.join('older'), { cursor: ahead, log_id: log.logId }), 'TAIL_CURSOR_AHEAD');
    for (let n = 0; n < 9; n++) await older.append(newTrajectoryId(), note('another history'));
    await refused(TailReader.connect(temp.join('older'), { cursor: ahead, log_id: log.logId }), 'TAIL_CURSOR_UNKNOWN');
  });

  it('of a reader that does not read costs the writer little memory, and loses nothing', async () => {
    setFlagsFromString('--expose-gc');
    const gc = runInNewContext('gc') as () => void;
    const live = async () => {
      await turnOfTheLoop();
      gc();
      return process.memoryUsage().arrayBuffers;
    };
    await using reader = await TailReader.connect(dir());
    await appendSome(4);
    const taken = new Taken();
    await follow(reader, taken, 4);
    for (let i = 0; i < 10; i++) await appendSome(20, 60 * KIB);
    const before = await live();
    // It was live, and from here on it stands still.
    for (let i = 0; i < 80; i++) await appendSome(20, 60 * KIB);
    const grown = (await live()) - before;
    assert.ok(grown < 24 * MIB, `${Math.round(grown / MIB)} MiB are kept for a reader that takes nothing`);
    await follow(reader, taken, Number(log.durableLsn));
    assert.equal(taken.hashes.size, 4 + 9 * 200);
  });

  it('names what a trim took, and every cursor that it hands out is taken again', async () => {
    const stays = newTrajectoryId();
    for (let n = 0; n < 30; n++) {
      const id = newTrajectoryId();
      // Some batches hold both, some only what goes.
      await Promise.all([
        log.appendAll(id, [note(), note(), FINISH]),
        ...(n % 3 === 0 ? [log.append(stays, note())] : []),
      ]);
    }
    const all = (await denseLog(log)).map((item) => item.hash);
    const middle = await cursorAt(log, 50);
    await ackTo(log);
    await log.trim();
    const kinds = (await denseLog(log)).map(({ kind }) => kind);
    assert.ok(kinds.filter((kind) => kind === 'trimmed').length > 5, 'the log has no holes to name');
    for (const start of [START, middle]) {
      const cursors: Cursor[] = [];
      await using reader = await TailReader.connect(dir(), { cursor: start });
      const check = new Taken();
      check.cursor = start;
      for await (const { records, cursor } of reader) {
        check.take(records, cursor);
        for (const record of records)
          cursors.push({ lsn: record.kind === 'trimmed' ? record.to_lsn : Number(record.lsn), hash: record.hash });
        if (cursor.lsn === Number(log.durableLsn)) break;
      }
      assert.ok(cursors.length > 10, 'too few cursors to be a test');
      for (const cursor of cursors) {
        if (cursor.lsn <= all.length) assert.equal(cursor.hash, all[cursor.lsn - 1]);
        await (await TailReader.connect(dir(), { cursor, log_id: log.logId })).close();
        await log.acknowledge({ log_id: log.logId, epoch: log.epoch, cursor, held: [] });
      }
    }
  });

  it('ends a reader with TAIL_LOST when the writer closes, which may connect again', async () => {
    await appendSome(3);
    const taken = new Taken();
    const reader = await TailReader.connect(dir());
    await follow(reader, taken, 3);
    const ended = refused(follow(reader, taken, 4), 'TAIL_LOST');
    await log.close();
    assert.equal((await ended).retry, true);
    assert.equal(existsSync(temp.join('log', 'tail.sock')), false);
    await refused(reader.ack(await Promise.resolve({ log_id: '', epoch: '', cursor: START, held: [] })), 'TAIL_LOST');
    log = await open();
    await appendSome(2);
    await using again = await TailReader.connect(dir(), { cursor: taken.cursor, log_id: log.logId });
    await follow(again, taken, 5);
  });

  it('does not let a reader that stands still hold up the close of the writer', async () => {
    await using _idle = await TailReader.connect(dir());
    await appendSome(300, 60 * KIB);
    await log.close();
  });

  it('bears whatever comes in over the socket', async () => {
    await appendSome(3);
    const junk = [
      Buffer.from([0xff, 0xff, 0xff, 0xff, 0]),
      Buffer.from([0, 0, 0, 0, 0]),
      Buffer.from([0, 0, 0, 3, 0x6a, 0x7b, 0x7d]),
      Buffer.from([0, 0, 0, 2, 0x65, 1]),
      Buffer.from('GET / HTTP/1.1\r\n\r\n'),
      jsonFrame({ type: 'hello', protocol: 99, mode: 'who' }),
      jsonFrame({ type: 'hello', protocol: TAIL_PROTOCOL, mode: 'follow' } as never),
      jsonFrame({ type: 'hello', protocol: TAIL_PROTOCOL, mode: 'follow', cursor: { lsn: -3, hash: FOREIGN } }),
      jsonFrame({ type: 'hello', protocol: TAIL_PROTOCOL, mode: 'follow', cursor: { lsn: 1.5, hash: FOREIGN } }),
      jsonFrame({ type: 'hello', protocol: TAIL_PROTOCOL, mode: 'follow', cursor: { lsn: 'x', hash: 7 } } as never),
      jsonFrame({ type: 'ack', ack: null } as never),
    ];
    for (const bytes of junk) {
      const socket = connect(temp.join('log', 'tail.sock'));
      socket.resume();
      socket.write(bytes);
      await once(socket, 'close');
    }
    await using reader = await TailReader.connect(dir());
    await follow(reader, new Taken(), 3);
    assert.equal(log.acked, undefined);
  });

  describe('acks', () => {
    it('come over the tail, the last one counts, and they outlive the writer', async () => {
      await appendSome(20);
      await using reader = await TailReader.connect(dir());
      const following = follow(reader, new Taken(), 21);
      const held = [{ trajectory_id: newTrajectoryId(), from_lsn: 3, reason: 'gap' as const }];
      const acks = await Promise.all([ackOf(log, 4), ackOf(log, 20), ackOf(log, 9, held)]);
      await Promise.all(acks.map((ack) => reader.ack(ack)));
      assert.deepEqual(log.acked, acks[2]);
      await appendSome(1);
      await following;
      await log.close();
      assert.equal(
        (JSON.parse(readFileSync(temp.join('log', 'ack.json'), 'utf8')) as { cursor: Cursor }).cursor.lsn,
        9,
      );
      log = await open();
      assert.deepEqual(log.acked, acks[2]);
    });

    for (const [what, code, bend] of [
      ['of another log', 'TAIL_CURSOR_UNKNOWN', { log_id: newTrajectoryId() }],
      ['of another hash', 'TAIL_CURSOR_UNKNOWN', { cursor: { lsn: 2, hash: FOREIGN } }],
      ['of the future', 'TAIL_CURSOR_AHEAD', { cursor: { lsn: 99, hash: FOREIGN } }],
      ['of no form', 'TAIL_PROTOCOL', { held: [{}] }],
    ] as const) {
      it(`${what} are ${code}, and the one before stays in force`, async () => {
        await appendSome(5);
        const good = await ackOf(log, 3);
        await log.acknowledge(good);
        await refused(log.acknowledge({ ...good, ...(bend as object) }), code);
        await using reader = await TailReader.connect(dir());
        const ended = refused(follow(reader, new Taken(), 6), code);
        await refused(reader.ack({ ...good, ...(bend as object) }), 'TAIL_LOST');
        await ended;
        assert.deepEqual(log.acked, good);
      });
    }

    it('let whenReplicated resolve, or reject where warm holds the trajectory back', async () => {
      const [held, free] = [newTrajectoryId(), newTrajectoryId()];
      await log.appendAll(held, [note(), note()]);
      const { lsn } = await log.append(free, note());
      await ackTo(log, 1);
      await log.whenReplicated(1n as typeof lsn);
      for (const reason of ['gap', 'fork', 'poison', 'fenced', 'unproven'] satisfies HeldReason[]) {
        await ackTo(log, 1);
        const waiting = refused(log.whenReplicated(2n as typeof lsn), 'REPLICATION_HELD');
        const passed = Promise.all([log.whenReplicated(1n as typeof lsn), log.whenReplicated(lsn)]);
        await ackTo(log, 3, [{ trajectory_id: held, from_lsn: 2, reason }]);
        assert.equal((await waiting).details['reason'], reason);
        await passed;
        await refused(log.whenReplicated(2n as typeof lsn), 'REPLICATION_HELD');
      }
      let done = false;
      await ackTo(log, 3, [{ trajectory_id: held, from_lsn: 1, reason: 'waiting' }]);
      const waiting = (async () => {
        await log.whenReplicated(2n as typeof lsn);
        done = true;
      })();
      await ackTo(log, 3, [{ trajectory_id: held, from_lsn: 1, reason: 'waiting' }]);
      await turnOfTheLoop();
      assert.equal(done, false, 'it waits for a predecessor');
      await ackTo(log, 3);
      await waiting;
    });

    it('let whenReplicated be aborted, and end it when the log closes', async () => {
      await appendSome(1);
      const aborting = new AbortController();
      const aborted = refused(log.whenReplicated(log.durableLsn, { signal: aborting.signal }), 'ABORTED');
      aborting.abort();
      await aborted;
      await refused(log.whenReplicated(log.durableLsn, { signal: AbortSignal.abort() }), 'ABORTED');
      const closed = refused(log.whenReplicated(log.durableLsn), 'HOT_CLOSED');
      await log.close();
      await closed;
    });

    it('let whenReplicated resolve for what was trimmed since, whatever is held', async () => {
      const id = newTrajectoryId();
      await log.appendAll(id, [note(), FINISH]);
      await log.append(newTrajectoryId(), note());
      await ackTo(log);
      await log.trim();
      await ackTo(log, undefined, [{ trajectory_id: id, from_lsn: 1, reason: 'gap' }]);
      await log.whenReplicated(1n as typeof log.durableLsn);
    });
  });
});

describe('a tail over the deaths of its ends', () => {
  it('has no gap and no duplicate for a reader that comes back, and lacks nothing that was acknowledged', async () => {
    using temp = new TempDirectory('deaths');
    const directory = temp.join('log');
    const taken = new Taken();
    const acked = new Map<number, string>();
    let log_id: string | undefined;
    for (let life = 0; life < 4; life++) {
      const onLine = (line: string) => {
        for (const [lsn, hash] of ackedIn([line])) acked.set(lsn, hash);
      };
      await using writer = Child.start('../hot/support/writer-child.ts', { directory, options: OPTIONS }, { onLine });
      await writer.line('open');
      const reader = await TailReader.connect(directory, {
        cursor: taken.cursor,
        ...(log_id === undefined ? {} : { log_id }),
      });
      log_id = reader.log_id;
      let asked = false;
      let acks: Promise<void> | undefined;
      const target = taken.cursor.lsn + 1500;
      try {
        for await (const { records, cursor } of reader) {
          taken.take(records, cursor);
          acks ??= reader.ack({ log_id: reader.log_id, epoch: reader.epoch, cursor, held: [] }).catch(() => undefined);
          if (!asked && cursor.lsn > target - 700) {
            asked = true;
            if (life % 2 === 1) writer.send('trim');
          }
          // Now the reader goes first, now the writer.
          if (cursor.lsn > target && life % 2 === 0) break;
          if (cursor.lsn > target) writer.kill();
        }
      } catch (error) {
        assert.ok(isVarveError(error, 'TAIL_LOST'), String(error));
      }
      await reader.close();
      await acks;
      writer.kill();
      await writer.exit();
    }
    const cursor = taken.cursor;
    await using drain = await LogDrain.open(directory, { cursor, ...(log_id === undefined ? {} : { log_id }) });
    for await (const { records, cursor } of drain) taken.take(records, cursor);
    for (const [lsn, hash] of acked) assert.equal(taken.hashes.get(lsn), hash, `acknowledged LSN ${lsn}`);
    assert.ok(acked.size > 4000, `${acked.size} were acknowledged`);
  });

  it('goes on for the writer when a reader is killed in the middle', async () => {
    using temp = new TempDirectory('killed');
    await using log = await HotLog.open(temp.join('log'), OPTIONS);
    for (let life = 0; life < 2; life++) {
      let stop = false;
      const writing = (async () => {
        for (const id = newTrajectoryId(); !stop; ) await log.append(id, note('x'.repeat(5000)));
      })();
      await using reader = Child.start('tail-child.ts', temp.join('log'));
      await reader.line('received');
      reader.kill();
      await reader.exit();
      stop = true;
      await writing;
      // What it printed is what the log has.
      const hashes = (await denseLog(log)).map((item) => item.hash);
      for (const [i, line] of reader.lines.filter((line) => line.startsWith('received')).entries()) {
        assert.equal(line, `received ${i + 1} ${hashes[i]}`);
      }
    }
  });
});

describe('draining the log of a dead writer', () => {
  let temp: TempDirectory;
  let hashes: string[];
  const dir = () => temp.join('dead');
  beforeEach(async () => {
    temp = new TempDirectory('drain');
    await using log = await HotLog.open(temp.join('log'), SMALL);
    const id = newTrajectoryId();
    await log.appendAll(
      id,
      Array.from({ length: 3000 }, () => note()),
    );
    hashes = (await denseLog(log)).map((item) => item.hash);
    await crashCopy(temp.join('log'), dir());
  });
  afterEach(() => temp[Symbol.dispose]());

  it('hands out what is behind the cursor, takes the ack, and leaves the log as it was', async () => {
    const drain = await LogDrain.open(dir());
    const taken = new Taken();
    for await (const { records, cursor } of drain) {
      taken.take(records, cursor);
      await drain.ack({ log_id: drain.log_id, epoch: drain.epoch, cursor, held: [] });
    }
    await drain.close();
    assert.deepEqual([...taken.hashes.values()], hashes);
    await using log = await HotLog.open(dir(), SMALL);
    assert.equal(log.acked?.cursor.lsn, 3000);
    assert.equal(log.durableLsn, 3000n);
    await refused(LogDrain.open(dir(), { cursor: { lsn: 2, hash: FOREIGN }, lockTimeoutMs: 0 }), 'HOT_LOCKED');
    await log.close();
    await refused(LogDrain.open(dir(), { cursor: { lsn: 2, hash: FOREIGN } }), 'TAIL_CURSOR_UNKNOWN');
    await refused(LogDrain.open(dir(), { cursor: { lsn: 3001, hash: FOREIGN } }), 'TAIL_CURSOR_AHEAD');
    await refused(LogDrain.open(dir(), { log_id: newTrajectoryId() }), 'TAIL_CURSOR_UNKNOWN');
    await (await HotLog.open(dir(), SMALL)).close();
  });

  for (const [what, socketPath] of [
    ['on its own socket', undefined],
    ['where the sockets are others', 'd.sock'],
  ] as const) {
    it(`gives the log to a writer that wants it after the batch under way, ${what}`, async () => {
      const path = socketPath === undefined ? {} : { socketPath: temp.join(socketPath) };
      const drain = await LogDrain.open(dir(), path);
      const taken = new Taken();
      let opening: Promise<HotLog> | undefined;
      for await (const { records, cursor } of drain) {
        taken.take(records, cursor);
        if (opening !== undefined) continue;
        opening = HotLog.open(dir(), OPTIONS);
        while (!drain.yielding) await turnOfTheLoop();
        // The batch under way can still be acknowledged.
        await drain.ack({ log_id: drain.log_id, epoch: drain.epoch, cursor, held: [] });
      }
      assert.ok(taken.cursor.lsn > 0 && taken.cursor.lsn < 3000, `it stopped at ${taken.cursor.lsn}`);
      await using log = await (opening as Promise<HotLog>);
      assert.equal(log.acked?.cursor.lsn, taken.cursor.lsn);
      await log.append(newTrajectoryId(), note());
      await using reader = await TailReader.connect(dir(), { cursor: taken.cursor, log_id: log.logId });
      await follow(reader, taken, 3001);
      assert.deepEqual([...taken.hashes.values()].slice(0, 3000), hashes);
    });
  }

  it('gives the log up at once while nothing is read', async () => {
    await LogDrain.open(dir());
    await using log = await HotLog.open(dir(), OPTIONS);
    assert.equal(log.durableLsn, 3000n);
  });

  it('is as good from a prefix that needs no lock, where the log is whole', async () => {
    const records = (await all(readPrefix(dir()))).flatMap((batch) => batch.records);
    assert.deepEqual(
      records.map((record) => record.hash),
      hashes,
    );
    await refused(all(readPrefix(temp.path)), 'HOT_NOT_A_LOG');
  });
});

describe('what every reader checks', () => {
  it('is that nothing is missing, comes twice, or does not follow', async () => {
    using temp = new TempDirectory('check');
    await using log = await HotLog.open(temp.join('log'), SMALL);
    const [a, b] = [newTrajectoryId(), newTrajectoryId()];
    for (let n = 0; n < 4; n++) for (const id of [a, b]) await log.append(id, note());
    const items = await denseLog(log);
    const take = (items: readonly TailItem[], cursor = START) => {
      const check = new ReadCheck(cursor);
      for (const item of items) check.take(item);
      return check.cursor.lsn;
    };
    assert.equal(take(items), 8);
    assert.equal(take(items.slice(3), await cursorAt(log, 3)), 8);
    for (let i = 0; i < items.length; i++) {
      if (i < 7) assert.throws(() => take(items.toSpliced(i, 1)), { code: 'TAIL_GAP' });
      assert.throws(() => take(items.toSpliced(i, 0, items[i] as TailItem)), { code: 'TAIL_GAP' });
    }
    const relabelled = items.map((item, i) => (i === 4 ? { ...(items[6] as TailItem), lsn: 5n } : item)) as TailItem[];
    assert.throws(() => take(relabelled), { code: 'HOT_DAMAGED' });
    assert.throws(() => take([{ kind: 'trimmed', from_lsn: 1, to_lsn: 0, hash: FOREIGN }]), { code: 'TAIL_GAP' });
  });

  it('cuts frames alike, however they arrive', () => {
    const body = fc.string({ maxLength: 50 });
    fc.assert(
      fc.property(
        fc.array(body, { maxLength: 8 }),
        fc.array(fc.integer({ min: 1, max: 30 }), { minLength: 1 }),
        (bodies, cuts) => {
          const stream = Buffer.concat(
            bodies.map((code) => jsonFrame({ type: 'refused', code: 'ABORTED', message: code })),
          );
          const reader = new FrameReader();
          const messages: string[] = [];
          for (let at = 0, i = 0; at < stream.length; i++) {
            const size = cuts[i % cuts.length] as number;
            for (const frame of reader.push(stream.subarray(at, at + size))) {
              messages.push((JSON.parse(frame.body.toString()) as { message: string }).message);
            }
            at += size;
          }
          assert.deepEqual(messages, bodies);
        },
      ),
      runs(100),
    );
  });
});
