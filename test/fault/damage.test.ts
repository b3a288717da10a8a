/**
 * Damage: every kind of broken file that a dead machine or a bad disk leaves. Never a log with a hole, never an
 * acknowledged event dropped in silence, never evidence destroyed:
 *
 *   a torn tail (the last record of the newest WAL)      opens, without that record's events and with all others
 *   anything missing or changed before it                HOT_DAMAGED, and every file is as it was
 *
 * Every case works on a copy of a log whose writer was killed.
 */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync, rmSync, statSync, truncateSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import { HotLog } from '../../hot/log.ts';
import { isVarveError } from '../../schemas/errors.ts';
import { KIB } from '../../schemas/limits.ts';
import { checkLog } from '../support/check-log.ts';
import { copyLog, fingerprint, flip, isDamaged, opensWithout, tryToOpen } from '../support/damage.ts';
import { FaultLog } from '../support/fault-log.ts';
import { modestOrSoak, sample, summarize } from '../support/scale.ts';
import { type Random, seededRandom } from '../support/seed.ts';
import { TempDirectory } from '../support/temp.ts';
import { BLOCK_BYTES, readWal, type WalRecord, walFiles } from '../support/wal.ts';

const PAGE_BYTES = 4 * KIB;

describe('damage', () => {
  let home: TempDirectory;
  /** One WAL of several blocks, killed. */
  let oneWal: FaultLog;
  let copies = 0;

  before(async function () {
    this.timeout(60_000);
    home = new TempDirectory('damage');
    oneWal = new FaultLog(home.join('one-wal'), home.join('one-wal.ids'), 40);
    await using writer = oneWal.start([
      { do: 'open' },
      { do: 'append', events: 400 },
      // Few writers, small records: several of them lie in the last block.
      { do: 'append', events: 150, only: 'may-finish' },
      { do: 'die' },
    ]);
    await writer.exit();
    assert.ok(oneWal.acknowledged.length >= 550, writer.stderr);
  });

  after(() => home[Symbol.dispose]());

  function copyOf(log: FaultLog): string {
    const copy = home.join(`copy-${copies++}`);
    copyLog(log.directory, copy);
    return copy;
  }

  it('a log whose last record is cut at any byte opens without that record alone, and goes on', async function () {
    this.timeout(modestOrSoak(60_000, 600_000));
    // A small log with a small last record: in a soak it is opened hundreds of times.
    const small = new FaultLog(home.join('small'), home.join('small.ids'), 10);
    await using writer = small.start([
      { do: 'open' },
      { do: 'append', events: 60 },
      { do: 'append', events: 1, only: 'may-finish' },
      { do: 'die' },
    ]);
    await writer.exit();
    const wal = lastWal(small.directory);
    const last = readWal(wal).at(-1) as WalRecord;
    const torn = small.eventsIn(last.bytes);
    assert.ok(torn.length > 0, 'the last record holds no event');
    const bytes = Array.from({ length: last.end - last.start + 1 }, (_, i) => last.start + i);
    const cuts = sample(bytes, 24);
    for (const length of cuts) {
      const copy = copyOf(small);
      truncateSync(join(copy, 'db', basename(wal)), length);
      const lost = length < last.end ? torn : [];
      await opensWithout(small, copy, lost, `cut at byte ${length - last.start} of ${last.end - last.start}`);
      rmSync(copy, { recursive: true });
    }
    summarize({ torn_tails: cuts.length });
  });

  it('what a crash leaves behind the last record, zeros or rubbish, is no damage', async () => {
    const random = seededRandom('rubbish behind the end');
    const rubbish = Buffer.from(Array.from({ length: 5000 }, () => random.between(0, 255)));
    for (const tail of [Buffer.alloc(4096), Buffer.alloc(64 * KIB), rubbish, rubbish.subarray(0, 3)]) {
      const copy = copyOf(oneWal);
      const wal = lastWal(copy);
      writeFileSync(wal, Buffer.concat([readFileSync(wal), tail]));
      await opensWithout(oneWal, copy, [], `${tail.length} bytes behind the end`);
    }
  });

  it('a bit flipped in the middle of the WAL is damage', async function () {
    this.timeout(modestOrSoak(60_000, 300_000));
    const random = seededRandom('flipped bit');
    const flips = modestOrSoak(8, 80);
    for (let i = 0; i < flips; i++) {
      const copy = copyOf(oneWal);
      const wal = lastWal(copy);
      const at = flipIn(wal, random, (record) => record.start < lastBlockOf(wal));
      await isDamaged(copy, `a bit flipped at byte ${at}`);
    }
    summarize({ flipped_bits: flips });
  });

  it('4 KiB of zeros in the middle of the WAL are damage', async function () {
    this.timeout(modestOrSoak(60_000, 300_000));
    const random = seededRandom('zeroed page');
    const pages = modestOrSoak(4, 40);
    for (let i = 0; i < pages; i++) {
      const copy = copyOf(oneWal);
      const wal = lastWal(copy);
      const page = random.between(0, lastBlockOf(wal) / PAGE_BYTES - 1);
      zero(wal, page * PAGE_BYTES);
      await isDamaged(copy, `page ${page} zeroed`);
    }
    summarize({ zeroed_pages: pages });
  });

  // RocksDB drops the rest of a 32 KiB block behind a bad checksum: here that leaves no hole, only an earlier end.
  it('damage in the last block of the WAL, with whole records behind it, is damage and no torn tail', async function () {
    this.timeout(modestOrSoak(60_000, 300_000));
    const random = seededRandom('damage in the last block');
    for (let i = 0; i < modestOrSoak(6, 60); i++) {
      const copy = copyOf(oneWal);
      const wal = lastWal(copy);
      endAmongOthers(wal);
      const lastBlock = lastBlockOf(wal);
      const lastStart = (readWal(wal).at(-1) as WalRecord).start;
      if (i % 3 === 0 && lastStart - lastBlock > 2 * PAGE_BYTES) {
        const page = random.between(lastBlock / PAGE_BYTES, Math.floor(lastStart / PAGE_BYTES) - 1);
        zero(wal, page * PAGE_BYTES);
        await isDamaged(copy, `page ${page} zeroed, the last record begins at ${lastStart}`);
      } else {
        const at = flipIn(wal, random, (record) => record.start >= lastBlock);
        await isDamaged(copy, `a bit flipped at byte ${at}, the last record begins at ${lastStart}`);
      }
    }
  });

  it('an older WAL that is missing or cut short beside a newer one is damage', async function () {
    this.timeout(120_000);
    const two = await logWithTwoWals(home, 'two-wals', true);
    const missing = copyOf(two);
    const [older, newer] = walFiles(join(missing, 'db')).filter((path) => statSync(path).size > 0);
    assert.ok(older !== undefined && newer !== undefined);
    rmSync(older);
    await isDamaged(missing, 'the older of two WALs missing');

    const cut = copyOf(two);
    const records = readWal(join(cut, 'db', basename(older)));
    truncateSync(join(cut, 'db', basename(older)), (records[Math.floor(records.length / 2)] as WalRecord).start);
    await isDamaged(cut, 'the older of two WALs cut at a record in its middle');

    const torn = copyOf(two);
    truncateSync(join(torn, 'db', basename(older)), (records.at(-1) as WalRecord).end - 1);
    await isDamaged(torn, 'the last record of the older of two WALs torn');
    // The two are whole otherwise: without damage the log has everything.
    await opensWithout(two, copyOf(two), [], 'two WALs, no damage');
  });

  it('an older WAL whose events have all reached a table file may go, cut short or missing', async function () {
    this.timeout(120_000);
    const log = await logWithTwoWals(home, 'flushed', false);
    for (const harm of ['missing', 'cut short'] as const) {
      const copy = copyOf(log);
      const [older] = walFiles(join(copy, 'db'));
      assert.ok(older !== undefined);
      if (harm === 'missing') rmSync(older);
      else truncateSync(older, Math.floor(statSync(older).size / 2));
      await opensWithout(log, copy, [], `the older WAL, flushed, ${harm}`);
    }
  });

  for (const name of ['CURRENT', 'MANIFEST']) {
    it(`an emptied ${name} is damage`, async () => {
      const copy = copyOf(oneWal);
      const file = readdirSync(join(copy, 'db')).find((entry) => entry.startsWith(name)) as string;
      truncateSync(join(copy, 'db', file), 0);
      await isDamaged(copy, `${file} emptied`);
      rmSync(join(copy, 'db', file));
      await isDamaged(copy, `${file} missing`);
    });
  }

  it('a table file that is missing, emptied or changed never gives a log that claims to be whole', async function () {
    this.timeout(120_000);
    const random = seededRandom('table files');
    const log = new FaultLog(home.join('tables'), home.join('tables.ids'), 40);
    await using writer = log.start([
      { do: 'open', options: { writeBufferBytes: 256 * KIB } },
      { do: 'append', events: 2500 },
      { do: 'die' },
    ]);
    await writer.exit();
    const tables = readdirSync(join(log.directory, 'db')).filter((name) => name.endsWith('.sst'));
    assert.ok(tables.length > 0, 'nothing was flushed');
    for (const harm of ['missing', 'emptied', 'changed'] as const) {
      const copy = copyOf(log);
      const table = join(copy, 'db', random.pick(tables));
      if (harm === 'missing') rmSync(table);
      else if (harm === 'emptied') truncateSync(table, 0);
      else flip(table, random.between(0, Math.floor(statSync(table).size * 0.9)), random);
      await isFoundOut(log, copy, `${basename(table)} ${harm}`);
    }
  });
});

/** Either it is refused as damaged, or `verify` says so, or a read does; never a whole log with other content. */
async function isFoundOut(log: FaultLog, copy: string, what: string): Promise<void> {
  const before = fingerprint(copy);
  const opened = await tryToOpen(copy, { lockTimeoutMs: 1000, tail: false }, what);
  if (!(opened instanceof HotLog)) {
    assert.ok(isVarveError(opened, 'HOT_DAMAGED'), `${what}: ${String(opened)}`);
    assert.deepEqual(fingerprint(copy), before, `${what}: the refusal changed a file`);
    return;
  }
  try {
    const error = await checkLog(opened, log.ids, log.acknowledged).then(
      () => undefined,
      (reason: unknown) => reason,
    );
    // The changed byte may be one that nothing depends on: a filter, a property, padding.
    if (error !== undefined)
      assert.ok(isVarveError(error, 'HOT_DAMAGED'), `${what}: reading it gave ${inspect(error)}`);
  } finally {
    await opened.close();
  }
}

function lastWal(directory: string): string {
  return walFiles(join(directory, 'db')).findLast((path) => statSync(path).size > 0) as string;
}

/** Where the block begins in which the last record does. */
function lastBlockOf(wal: string): number {
  return Math.floor((readWal(wal).at(-1) as WalRecord).start / BLOCK_BYTES) * BLOCK_BYTES;
}

/** Cuts a WAL at the end of a record with at least three others before it in its block: it was killed a little earlier. */
function endAmongOthers(wal: string): void {
  const records = readWal(wal);
  const blockOf = (record: WalRecord) => Math.floor(record.start / BLOCK_BYTES);
  const last = records.findLast((record, i) => i >= 3 && blockOf(records[i - 3] as WalRecord) === blockOf(record));
  assert.ok(last !== undefined, 'no block of the WAL holds four records');
  truncateSync(wal, last.end);
}

function zero(path: string, at: number): void {
  const bytes = readFileSync(path);
  bytes.fill(0, at, at + PAGE_BYTES);
  writeFileSync(path, bytes);
}

/** Flips a bit in a record, other than the last, that `where` allows; returns the offset. */
function flipIn(wal: string, random: Random, where: (record: WalRecord) => boolean): number {
  const records = readWal(wal).slice(0, -1).filter(where);
  const record = random.pick(records);
  const at = random.between(record.start, record.end - 1);
  flip(wal, at, random);
  return at;
}

/**
 * A writer that was stopped, and killed, while two of its WALs held events. `beingFlushed`: the older one's events are
 * in no table file yet; else they are, the MANIFEST says so, and only the file has not been removed yet.
 */
async function logWithTwoWals(home: TempDirectory, name: string, beingFlushed: boolean): Promise<FaultLog> {
  const log = new FaultLog(home.join(name), home.join(`${name}.ids`), 200);
  await using writer = log.start([
    { do: 'open', options: { writeBufferBytes: 512 * KIB } },
    { do: 'append', events: null },
  ]);
  await writer.line('ack ');
  const database = join(log.directory, 'db');
  // RocksDB adds to its MANIFEST what a flush made, after the table file is whole and before the WAL is removed.
  let manifestOfOneWal = manifestBytes(database);
  for (const deadline = Date.now() + 60_000; Date.now() < deadline; await sleep(1)) {
    const bytes = manifestBytes(database);
    if (walFiles(database).length < 2) {
      if (bytes === manifestBytes(database)) manifestOfOneWal = bytes;
      continue;
    }
    writer.kill('SIGSTOP');
    await sleep(5);
    const sizes = walFiles(database).map((path) => statSync(path).size);
    const isFlushed = manifestBytes(database) !== manifestOfOneWal;
    if (sizes.length === 2 && sizes.every((size) => size > 20 * KIB) && isFlushed !== beingFlushed) {
      writer.kill();
      await writer.exited;
      return log;
    }
    writer.kill('SIGCONT');
  }
  throw new Error('no moment with two WALs was found');
}

function manifestBytes(database: string): number {
  const name = readdirSync(database).find((entry) => entry.startsWith('MANIFEST')) as string;
  return statSync(join(database, name)).size;
}
