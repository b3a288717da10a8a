import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import fc from 'fast-check';
import type { EventInput, RecordedEvent } from '../../hot/door.ts';
import { HotLog } from '../../hot/log.ts';
import type { HotLogOptions } from '../../hot/options.ts';
import { canonicalJson, type JsonObject } from '../../schemas/canonical.ts';
import type { ErrorCode } from '../../schemas/errors.ts';
import { newTrajectoryId, type TrajectoryId } from '../../schemas/ids.ts';
import { KINDS } from '../../schemas/kinds.ts';
import { KIB, MIB, OFFLOAD_OVER_BYTES, TURN_MAX } from '../../schemas/limits.ts';
import { mayHoldStub, stubFor } from '../../schemas/stubs.ts';
import { Child } from '../support/child.ts';
import { anyObject, anyPayload } from '../support/events.ts';
import { runs } from '../support/property.ts';
import { hasCommand, isRoot, skipAloud } from '../support/skip.ts';
import { TempDirectory } from '../support/temp.ts';
import { all, event, FINISH, note, refused, SMALL } from './support/hot.ts';

const HASH = 'ab'.repeat(32);

/** One trajectory with three events: turn 2, token 5, at a fixed time, and its lease not over. */
async function withSome(log: HotLog): Promise<TrajectoryId> {
  const id = newTrajectoryId();
  await log.appendRecorded(id, [recorded(1), recorded(2), recorded(3)]);
  return id;
}

function recorded(n: number, more: Partial<RecordedEvent> = {}): RecordedEvent {
  const created_at = `2024-05-0${n}T00:00:00.000Z`;
  return { ...note(`event ${n}`), turn: 2, fencing_token: 5, created_at, sequence_number: n, ...more };
}

const next = (more: Partial<EventInput>): EventInput => ({ ...note('next'), turn: 2, ...more });
const bad = (value: unknown): EventInput => next({ payload: { note: 'x', value: value as string } });
const nested = (levels: number): JsonObject => (levels === 1 ? {} : { a: nested(levels - 1) });
const aheadOfClock = (): TrajectoryId => {
  const ms = (Date.now() + 120_000).toString(16).padStart(12, '0');
  return `${ms.slice(0, 8)}-${ms.slice(8)}-7000-8000-000000000000` as TrajectoryId;
};

type Call = (log: HotLog, id: TrajectoryId) => Promise<unknown>;
const append =
  (event: EventInput, at?: number): Call =>
  (log, id) =>
    at === undefined ? log.append(id, event) : log.append(id, event, { at });
const record =
  (...events: RecordedEvent[]): Call =>
  (log, id) =>
    log.appendRecorded(id, events);
const adopt =
  (more: object): Call =>
  (log, id) =>
    log.adopt(id, {
      sequence_number: 9,
      cryptographic_hash: HASH,
      created_at: '2024-06-01T00:00:00.000Z',
      turn: 2,
      fencing_token: 6,
      ...more,
    } as Parameters<HotLog['adopt']>[1]);

const LARGE = 'x'.repeat(OFFLOAD_OVER_BYTES + 1);
const REFUSED: readonly (readonly [what: string, code: ErrorCode, call: Call])[] = [
  ['an id that is no UUIDv7', 'INVALID_ID', (log) => log.append('nonsense' as TrajectoryId, note())],
  ['an id in upper case', 'INVALID_ID', (log, id) => log.append(id.toUpperCase() as TrajectoryId, note())],
  ['a new id two minutes ahead of the clock', 'ID_AHEAD_OF_CLOCK', (log) => log.append(aheadOfClock(), note())],
  ['an event type with a space', 'INVALID_EVENT_TYPE', append(next({ event_type: 'a b' }))],
  ['an event type of 129 characters', 'INVALID_EVENT_TYPE', append(next({ event_type: 'a'.repeat(129) }))],
  ['no event type', 'INVALID_EVENT_TYPE', append(next({ event_type: undefined as unknown as string }))],
  ['half a turn', 'INVALID_TURN', append(next({ turn: 2.5 }))],
  ['a turn over 31 bits', 'INVALID_TURN', append(next({ turn: TURN_MAX + 1 }))],
  ['a negative token', 'INVALID_FENCING_TOKEN', append(next({ fencing_token: -1 }))],
  ['a token over 2^53', 'INVALID_FENCING_TOKEN', append(next({ fencing_token: 2 ** 53 }))],
  ['a payload that is a list', 'INVALID_PAYLOAD', append(next({ payload: [] as unknown as JsonObject }))],
  ['a payload that is null', 'INVALID_PAYLOAD', append(next({ payload: null as unknown as JsonObject }))],
  ['a known field of the wrong type', 'INVALID_PAYLOAD', append(next({ payload: { note: 3 } }))],
  ['a required field that is missing', 'INVALID_PAYLOAD', append({ ...event('ToolIntent', {}), turn: 2 })],
  ['undefined', 'INVALID_PAYLOAD', append(bad(undefined))],
  ['a bigint', 'INVALID_PAYLOAD', append(bad(1n))],
  ['a date', 'INVALID_PAYLOAD', append(bad(new Date(0)))],
  ['NaN', 'NUMBER_NOT_FINITE', append(bad(Number.NaN))],
  ['infinity deep inside', 'NUMBER_NOT_FINITE', append(bad([{ a: [Number.POSITIVE_INFINITY] }]))],
  ['half of a surrogate pair', 'STRING_NOT_WELL_FORMED', append(bad('\ud800'))],
  ['half of a pair in a key', 'STRING_NOT_WELL_FORMED', append(bad({ '\udc00': 1 }))],
  ['257 levels', 'NESTING_TOO_DEEP', append(next({ payload: nested(257) }))],
  ['over 1 MiB of numbers', 'EVENT_TOO_LARGE', append(bad(Array.from({ length: 300_000 }, () => 1234)))],
  ['over 1 MiB of short strings', 'EVENT_TOO_LARGE', append(bad(Array.from({ length: 1100 }, () => 'x'.repeat(KIB))))],
  ['a stub with a field too many', 'STUB_MALFORMED', append(bad({ ...stubFor(Buffer.from('x')), extra: 1 }))],
  ['a stub without a length', 'STUB_MALFORMED', append(bad({ $blob: { sha256: HASH, media_type: 'text/plain' } }))],
  ['a stub that is null', 'STUB_MALFORMED', append(bad({ $blob: null }))],
  ['a payload that is a stub', 'STUB_MALFORMED', append(next({ payload: { ...stubFor(Buffer.from('x')) } }))],
  ['an erasure', 'REDACTED_AT_DOOR', append(next({ payload: { $redacted: {} } }))],
  [
    'a stub whose body is not here',
    'BLOB_MISSING',
    append(next({ payload: { note: stubFor(Buffer.from('not here')) } })),
  ],
  ['an earlier turn', 'TURN_WENT_BACK', append(next({ turn: 1 }))],
  ['an earlier turn with a body for a blob', 'TURN_WENT_BACK', append({ ...note(LARGE), turn: 1 })],
  ['a lower token', 'FENCING_TOKEN_WENT_BACK', append(next({ fencing_token: 4 }))],
  ['a number that holds another event', 'SEQUENCE_TAKEN', append(next({}), 2)],
  ['the same event of another turn', 'SEQUENCE_TAKEN', append({ ...note('event 3'), turn: 1 }, 3)],
  ['a number past the next one', 'SEQUENCE_AHEAD', append(next({}), 5)],
  ['number 0', 'SEQUENCE_AHEAD', append(next({}), 0)],
  ['half a number', 'SEQUENCE_AHEAD', append(next({}), 2.5)],
  [
    'a number of a trajectory that is not here',
    'SEQUENCE_AHEAD',
    (log) => log.append(newTrajectoryId(), note(), { at: 2 }),
  ],
  ['a group with one bad event', 'NUMBER_NOT_FINITE', (log, id) => log.appendAll(id, [next({}), bad(Number.NaN)])],
  ['a group whose turns go back', 'TURN_WENT_BACK', (log, id) => log.appendAll(id, [next({ turn: 3 }), next({})])],
  [
    'a group of over 64 MiB',
    'EVENT_TOO_LARGE',
    (log, id) =>
      log.appendAll(
        id,
        Array.from({ length: 80 }, () => bad(Array.from({ length: 900 }, () => 'x'.repeat(1000)))),
      ),
  ],
  [
    'a recorded time without milliseconds',
    'INVALID_CREATED_AT',
    record(recorded(4, { created_at: '2024-05-04T00:00:00Z' })),
  ],
  ['February 30', 'INVALID_CREATED_AT', record(recorded(4, { created_at: '2024-02-30T00:00:00.000Z' }))],
  ['an earlier recorded time', 'CREATED_AT_WENT_BACK', record(recorded(4, { created_at: '2024-05-02T00:00:00.000Z' }))],
  [
    'an earlier time within a group',
    'CREATED_AT_WENT_BACK',
    record(recorded(5, { sequence_number: 4 }), recorded(4, { sequence_number: 5 })),
  ],
  ['a lower recorded token', 'FENCING_TOKEN_WENT_BACK', record(recorded(4, { fencing_token: 4 }))],
  ['a recorded number that is there', 'SEQUENCE_TAKEN', record(recorded(3))],
  ['a recorded number that is ahead', 'SEQUENCE_AHEAD', record(recorded(5))],
  ['another recorded hash', 'CHAIN_BROKEN', record(recorded(4, { cryptographic_hash: HASH }))],
  [
    'a second recorded hash that is another',
    'CHAIN_BROKEN',
    record(recorded(4), recorded(5, { cryptographic_hash: HASH })),
  ],
  ['adoption under a lower token', 'FENCING_TOKEN_WENT_BACK', adopt({ fencing_token: 4 })],
  ['adoption at number 0', 'INVALID_OPTION', adopt({ sequence_number: 0 })],
  ['adoption at no hash', 'INVALID_OPTION', adopt({ cryptographic_hash: 'AB'.repeat(32) })],
  ['adoption at no time', 'INVALID_CREATED_AT', adopt({ created_at: 'yesterday' })],
  ['adoption at no turn', 'INVALID_TURN', adopt({ turn: -1 })],
  ['adoption under no token', 'INVALID_FENCING_TOKEN', adopt({ fencing_token: 0.5 })],
  [
    'an event after the lease has run out',
    'HOT_FENCED',
    async (log, id) => {
      log.lease(id, -1);
      await log.append(id, next({})).finally(() => log.lease(id, Number.POSITIVE_INFINITY));
    },
  ],
  ['reading what was never here', 'HOT_UNKNOWN_TRAJECTORY', (log) => all(log.read(newTrajectoryId()))],
  ['a lease of what was never here', 'HOT_UNKNOWN_TRAJECTORY', async (log) => log.lease(newTrajectoryId(), 1)],
  ['reading from number 0', 'INVALID_OPTION', (log, id) => all(log.read(id, 0))],
  ['reading the log from LSN −1', 'NOT_AN_LSN', (log) => all(log.readLog(-1))],
];

describe('a refusal', () => {
  let temp: TempDirectory;
  let log: HotLog;
  let id: TrajectoryId;

  before(async () => {
    temp = new TempDirectory('refusals');
    log = await HotLog.open(temp.join('log'), SMALL);
    id = await withSome(log);
  });

  after(async () => {
    assert.equal((await log.verify({ deep: true })).damage, undefined);
    await log.close();
    temp[Symbol.dispose]();
  });

  for (const [what, code, call] of REFUSED) {
    it(`of ${what} is ${code} and leaves no trace`, async () => {
      const { durableLsn } = log;
      const before = log.head(id);
      const trajectories = [...log.trajectories()];
      const error = await refused(call(log, id), code);
      assert.equal(error.retry, false);
      assert.equal(log.durableLsn, durableLsn);
      assert.equal(log.head(id), before);
      assert.deepEqual([...log.trajectories()], trajectories);
      assert.deepEqual(await all(log.blobs.list()), [], 'a body was written for an event that was refused');

      // In its own trajectory and in a new one the next append gets the number that it would have had.
      const receipt = await log.append(id, next({}));
      assert.equal(receipt.sequence_number, (before?.sequence_number ?? 0) + 1);
      assert.equal(receipt.lsn, durableLsn + 1n);
      // Back to where the table's cases begin, as far as a log can go back.
      id = await withSome(log);
      assert.equal(log.durableLsn, durableLsn + 4n);
    });
  }

  it('of one of many appends under way leaves the numbers of the others dense', async () => {
    const own = newTrajectoryId();
    const calls = Array.from({ length: 50 }, (_, i) =>
      i % 3 === 2
        ? refused(log.append(own, { ...note(), event_type: '!' }), 'INVALID_EVENT_TYPE')
        : log.append(own, note(`${i}`)),
    );
    await Promise.all(calls);
    const events = await all(log.read(own));
    assert.deepEqual(
      events.map(({ sequence_number, payload }) => [Number(sequence_number), payload['note']]),
      Array.from({ length: 50 }, (_, i) => `${i}`)
        .filter((_, i) => i % 3 !== 2)
        .map((text, i) => [i + 1, text]),
    );
  });
});

describe('the door', () => {
  it('passes every legal payload byte-exactly, of known kinds with extra fields and of unknown kinds', async () => {
    using temp = new TempDirectory('door');
    await using log = await HotLog.open(temp.join('log'), SMALL);
    const known = fc
      .constantFrom(...(Object.keys(KINDS) as (keyof typeof KINDS)[]))
      .chain((event_type) => anyPayload[event_type].map((payload) => ({ event_type: event_type as string, payload })));
    const unknown = fc.record({
      event_type: fc
        .constantFrom('x.Custom', 'constructor', '__proto__x', 'A:/-_.9')
        .map((type) => type.replace(/^_+/, '')),
      payload: anyObject,
    });
    const draft = fc.oneof(known, unknown).filter(({ payload }) => !mayHoldStub(canonicalJson(payload)));
    const id = newTrajectoryId();
    await fc.assert(
      fc.asyncProperty(fc.array(draft, { minLength: 1, maxLength: 10 }), async (drafts) => {
        const receipts = await Promise.all(drafts.map((draft) => log.append(id, { ...draft, turn: 0 })));
        const events = await all(log.read(id, receipts[0]?.sequence_number));
        assert.deepEqual(
          events.map(({ event_type, payload_text }) => [event_type, payload_text]),
          drafts.map(({ event_type, payload }) => [event_type, canonicalJson(payload)]),
        );
      }),
      runs(30),
    );
  });

  it('keeps verbatim text verbatim: digits, repeated keys, U+0000, astral text', async () => {
    using temp = new TempDirectory('door');
    await using log = await HotLog.open(temp.join('log'), SMALL);
    const id = newTrajectoryId();
    const texts = ['{"a":9007199254740993,"a":1.10}', '\u0000', 'a\u0000\u{1f600}\uffff', '\u{10ffff}', '\u2028\r\n'];
    for (const text of texts) await log.append(id, event('ToolIntent', { tool_call_id: 'c', arguments: text }));
    const stored = (await all(log.read(id))).map(({ payload }) => payload['arguments']);
    assert.deepEqual(stored, texts);
  });

  it('takes an id up to a minute ahead of the clock, and one that is known whenever it starts', async () => {
    using temp = new TempDirectory('door');
    let now = Date.now();
    const clock = () => now;
    await using log = await HotLog.open(temp.join('log'), SMALL, { clock });
    const id = newTrajectoryId(now + 59_000);
    await log.append(id, note());
    now -= 3_600_000;
    await log.append(id, note());
    await refused(log.append(newTrajectoryId(now + 61_000), note()), 'ID_AHEAD_OF_CLOCK');
    const [first, second] = await all(log.read(id));
    assert.equal(second?.created_at, first?.created_at, 'time never goes back within a trajectory');
  });
});

describe('opening', () => {
  let temp: TempDirectory;
  beforeEach(() => {
    temp = new TempDirectory('open');
  });
  afterEach(() => temp[Symbol.dispose]());

  async function made(name = 'log'): Promise<string> {
    const log = await HotLog.open(temp.join(name), SMALL);
    await log.append(newTrajectoryId(), note());
    await log.close();
    return temp.join(name);
  }

  async function refusesAndTouchesNothing(dir: string, code: ErrorCode, options: HotLogOptions = SMALL): Promise<void> {
    const listing = () => (existsSync(dir) ? spawnSync('ls', ['-lRa', dir], { encoding: 'utf8' }).stdout : 'not there');
    const before = listing();
    await refused(HotLog.open(dir, options), code);
    assert.equal(listing(), before);
  }

  it('refuses what is no log', async () => {
    writeFileSync(temp.join('file'), '');
    await refusesAndTouchesNothing(temp.join('file'), 'HOT_NOT_A_LOG');
    await refusesAndTouchesNothing(temp.join('file', 'below'), 'HOT_NOT_A_LOG');
    mkdirSync(temp.join('other'));
    writeFileSync(temp.join('other', 'readme'), '');
    await refusesAndTouchesNothing(temp.join('other'), 'HOT_NOT_A_LOG');
    mkdirSync(temp.join('empty'));
    await refusesAndTouchesNothing(temp.join('empty'), 'HOT_NOT_A_LOG', { ...SMALL, create: false });
    await refusesAndTouchesNothing(temp.join('absent'), 'HOT_NOT_A_LOG', { ...SMALL, create: false });
  });

  it('refuses a newer format by its own code, and a log.json that is none', async () => {
    const dir = await made();
    const file = JSON.parse(readFileSync(`${dir}/log.json`, 'utf8')) as object;
    writeFileSync(`${dir}/log.json`, JSON.stringify({ ...file, format: 2 }));
    await refusesAndTouchesNothing(dir, 'HOT_FORMAT_NEWER');
    writeFileSync(`${dir}/log.json`, JSON.stringify({ ...file, format: 'one' }));
    await refusesAndTouchesNothing(dir, 'HOT_FORMAT_UNKNOWN');
    writeFileSync(`${dir}/log.json`, JSON.stringify({ ...file, log_id: newTrajectoryId() }));
    await refusesAndTouchesNothing(dir, 'HOT_DAMAGED');
  });

  it('refuses a path that no socket can have, before it makes anything; another socket helps', async () => {
    const dir = temp.join('x'.repeat(120));
    await refusesAndTouchesNothing(dir, 'SOCKET_PATH_TOO_LONG', { ...SMALL, tail: true });
    const log = await HotLog.open(dir, { ...SMALL, tail: { socketPath: temp.join('s') } });
    await log.close();
  });

  it('refuses a socket that cannot be made, and leaves the log free', async () => {
    const dir = await made();
    const tail = { socketPath: temp.join('nowhere', 'tail.sock') };
    await refused(HotLog.open(dir, { ...SMALL, tail }), 'HOT_UNWRITABLE');
    await (await HotLog.open(dir, SMALL)).close();
  });

  for (const options of [
    { commit: { windowMs: -1 } },
    { commit: { windowMs: Number.NaN } },
    { commit: { maxBatchEvents: 0 } },
    { commit: { maxQueuedBytes: KIB } },
    { offloadOverBytes: 10 },
    { offloadOverBytes: 2 * MIB },
    { writeBufferBytes: KIB },
    { retention: { trimAfterMs: -1 } },
    { lockTimeoutMs: Number.NaN },
  ] satisfies HotLogOptions[]) {
    it(`refuses ${Object.entries(options)
      .map(([name, value]) => `${name} ${typeof value === 'object' ? Object.entries(value).join(' ') : value}`)
      .join()}`, async () => {
      await refusesAndTouchesNothing(temp.join('log'), 'INVALID_OPTION', { ...SMALL, ...options });
    });
  }

  it('names the process that has the log, here or elsewhere', async () => {
    const dir = await made();
    await using own = await HotLog.open(dir, SMALL);
    assert.equal((await refused(HotLog.open(dir, SMALL), 'HOT_LOCKED')).details['pid'], process.pid);
    await own.close();

    await using child = Child.start('../hot/support/open-child.ts', { directory: dir, options: SMALL });
    await child.line('open');
    const error = await refused(HotLog.open(dir, SMALL), 'HOT_LOCKED');
    assert.equal(error.details['pid'], child.pid);
    assert.match(error.message, new RegExp(`\\b${child.pid}\\b`));
    assert.equal(error.retry, true);
    child.send('close');
    await child.line('closed');
    await (await HotLog.open(dir, SMALL)).close();
  });

  it('refuses a directory that it may not write', async function () {
    if (!isRoot() || !hasCommand('setpriv')) skipAloud(this, 'running a child as another user needs root and setpriv');
    const nobody = ['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups'];
    chmodSync(temp.path, 0o755);
    const dir = await made();
    for (const directory of [dir, temp.join('new')]) {
      const options = { ...SMALL, lockTimeoutMs: 0 };
      const child = Child.start('../hot/support/open-child.ts', { directory, options }, { under: nobody });
      assert.match(await child.line('refused'), /^refused HOT_UNWRITABLE/);
      await child.exit();
    }
    assert.deepEqual(readdirSync(temp.path), ['log']);
  });

  it('refuses a read-only file system and a full one, and both open when that is over', async function () {
    if (!isRoot() || !hasCommand('mount')) skipAloud(this, 'mounting needs root');
    const at = temp.join('disk');
    mkdirSync(at);
    const mounted = spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=4m', 'varve-test', at]);
    if (mounted.status !== 0) skipAloud(this, `tmpfs cannot be mounted: ${String(mounted.stderr)}`);
    try {
      const dir = await made('disk/log');
      execFileSync('mount', ['-o', 'remount,ro', at]);
      await refused(HotLog.open(dir, SMALL), 'HOT_UNWRITABLE');
      await refused(HotLog.open(`${at}/new`, SMALL), 'HOT_UNWRITABLE');
      execFileSync('mount', ['-o', 'remount,rw', at]);
      spawnSync('sh', ['-c', `cat /dev/zero > ${at}/filler`], { stdio: 'ignore' });
      await refused(HotLog.open(dir, SMALL), 'HOT_DISK_FULL');
      await refused(HotLog.open(`${at}/new`, SMALL), 'HOT_DISK_FULL');
      execFileSync('rm', [`${at}/filler`]);
      for (const name of [dir, `${at}/new`]) {
        const log = await HotLog.open(name, SMALL);
        await log.append(newTrajectoryId(), FINISH);
        await log.close();
      }
    } finally {
      execFileSync('umount', ['-l', at]);
    }
  });
});

describe('a closed log', () => {
  it('answers every call with HOT_CLOSED, and its head still stands', async () => {
    using temp = new TempDirectory('closed');
    const log = await HotLog.open(temp.join('log'), SMALL);
    const id = newTrajectoryId();
    const { lsn } = await log.append(id, event('ToolIntent', { tool_call_id: 'c' }));
    const cursor = { log_id: log.logId, epoch: '', cursor: { lsn: 1, hash: HASH }, held: [] };
    await Promise.all([log.close(), log.close()]);
    const calls: Record<string, () => Promise<unknown>> = {
      append: () => log.append(id, note()),
      'append at': () => log.append(id, note(), { at: 1 }),
      appendAll: () => log.appendAll(id, [note()]),
      appendRecorded: () => log.appendRecorded(id, [recorded(2)]),
      adopt: () => adopt({})(log, id),
      read: () => all(log.read(id)),
      readLog: () => all(log.readLog()),
      inDoubt: () => log.inDoubt(),
      verify: () => log.verify(),
      trim: () => log.trim(),
      whenReplicated: () => log.whenReplicated(lsn),
      acknowledge: () => log.acknowledge(cursor),
    };
    for (const [name, call] of Object.entries(calls)) {
      const error = await refused(call(), 'HOT_CLOSED');
      assert.match(error.message, /closed/, name);
    }
    assert.equal(log.head(id)?.lsn, lsn);
  });
});
