/**
 * A full disk and a failing disk: the log stops at the first error and says so to everybody.
 *
 * After the first error of a write or a sync there is no acknowledgement until the log is reopened, though the disk may
 * be well again at once; nothing waits without an answer, nothing is kept in memory for later. What failed is an unknown
 * outcome, and repeating it with its number (`at`) leaves exactly one copy. Nothing acknowledged is lost.
 */
import assert from 'node:assert/strict';
import { rmSync, writeFileSync } from 'node:fs';
import { HotLog } from '../../hot/log.ts';
import type { HotLogOptions } from '../../hot/options.ts';
import type { TrajectoryId } from '../../schemas/ids.ts';
import { KIB, MIB } from '../../schemas/limits.ts';
import type { Step } from '../support/append-child.ts';
import { checkLog, missingIn, type Place } from '../support/check-log.ts';
import { Child } from '../support/child.ts';
import { Mount, makeImage, whyNoLoopDisk } from '../support/disk.ts';
import { FailingDisk, type Fault, whyNoShim } from '../support/eio-shim.ts';
import { FaultLog, TailLines } from '../support/fault-log.ts';
import { summarize } from '../support/scale.ts';
import { skipAloud } from '../support/skip.ts';
import { TempDirectory } from '../support/temp.ts';
import { eventFor, GROUP, isGrouped, storedPayloadText } from '../support/workload.ts';

/** The budget refuses before the disk is full; here the disk itself is under test. */
const NO_BUDGET: HotLogOptions = { budget: { directoryBytes: 1024 * MIB, freeBytes: 0, ballastBytes: 0 } };

/** What an append may be refused with once the log has failed. */
const FAILED = new Set(['HOT_FAILED', 'HOT_DISK_FULL']);

describe('a full disk', () => {
  before(function () {
    const reason = whyNoLoopDisk();
    if (reason !== undefined) skipAloud(this, reason);
  });

  it('stops the log at the first error; with space again it reopens with everything acknowledged and goes on', async function () {
    this.timeout(120_000);
    using directory = new TempDirectory('full');
    makeImage(directory.join('image'), 40 * MIB);
    using disk = new Mount(directory.join('image'), directory.join('disk'));
    const filler = `${disk.at}/filler`;
    writeFileSync(filler, Buffer.alloc(20 * MIB));
    const log = new FaultLog(`${disk.at}/log`, directory.join('ids'), 64);
    await using writer = log.start([
      { do: 'open', options: NO_BUDGET },
      { do: 'append', events: null },
      { do: 'append', events: 200 },
      { do: 'wait', line: 'space' },
      { do: 'append', events: 200 },
      { do: 'close' },
      { do: 'open', options: NO_BUDGET },
      { do: 'append', events: 500 },
      { do: 'close' },
    ]);
    await writer.line('done append', 60_000);
    const first = writer.lines.indexOf('done append');
    await writer.line('done append', 30_000, first + 1);
    rmSync(filler);
    writer.send('space');
    const { code } = await writer.exit();
    assert.equal(code, 0, `${writer.lines.at(-1)} ${writer.stderr}`);
    failsStop(writer.lines);
    await log.recover(NO_BUDGET);
    summarize({ disks_filled: 1 });
  });

  it('a log that is killed while the disk is full opens again when there is space', async function () {
    this.timeout(120_000);
    using directory = new TempDirectory('full');
    makeImage(directory.join('image'), 40 * MIB);
    using disk = new Mount(directory.join('image'), directory.join('disk'));
    const filler = `${disk.at}/filler`;
    writeFileSync(filler, Buffer.alloc(20 * MIB));
    const log = new FaultLog(`${disk.at}/log`, directory.join('ids'), 64);
    // Small buffers: the disk fills while tables are flushed.
    const options = { ...NO_BUDGET, writeBufferBytes: 512 * KIB };
    await using writer = log.start([
      { do: 'open', options },
      { do: 'append', events: null },
      { do: 'append', events: 200 },
      { do: 'die' },
    ]);
    await writer.exit();
    failsStop(writer.lines);
    // While the disk is full opening may fail, but not by destroying anything.
    const opened = await HotLog.open(log.directory, { ...options, tail: false }).catch((error: unknown) => error);
    if (opened instanceof HotLog) await opened.close();
    rmSync(filler);
    await log.recover(options);
    summarize({ disks_filled: 1 });
  });
});

describe('a failing disk', () => {
  before(function () {
    const reason = whyNoShim();
    if (reason !== undefined) skipAloud(this, reason);
  });

  const WAL = '.log';
  const faults: readonly (Fault & { readonly options?: HotLogOptions })[] = [
    { call: 'sync', how: 'EIO', count: 1, file: WAL },
    { call: 'sync', how: 'EIO', count: 0, file: WAL },
    { call: 'sync', how: 'lost', count: 1, file: WAL },
    { call: 'write', how: 'EIO', count: 1, file: WAL },
    { call: 'write', how: 'ENOSPC', count: 1, file: WAL },
    { call: 'write', how: 'short', count: 1, file: WAL },
    { call: 'write', how: 'EIO', count: 1, file: '/blobs/' },
    { call: 'write', how: 'ENOSPC', count: 1, file: '/blobs/' },
    { call: 'sync', how: 'EIO', count: 1, file: '/blobs/' },
    { call: 'write', how: 'ENOSPC', count: 0, file: '.sst', options: { writeBufferBytes: 256 * KIB } },
    { call: 'sync', how: 'EIO', count: 0, file: '.sst', options: { writeBufferBytes: 256 * KIB } },
    { call: 'write', how: 'EIO', count: 0, file: 'MANIFEST', options: { writeBufferBytes: 256 * KIB } },
  ];

  for (const fault of faults) {
    const times = fault.count === 0 ? 'from now on' : `${fault.count} time`;
    it(`${fault.call} of *${fault.file}* failing with ${fault.how} ${times}: fail-stop, and nothing lost`, async function () {
      this.timeout(120_000);
      using directory = new TempDirectory('eio');
      const log = new FaultLog(directory.join('log'), directory.join('ids'), 64);
      const disk = new FailingDisk(directory.path, log.directory);
      const options = { ...NO_BUDGET, ...fault.options };
      const steps: Step[] = [
        { do: 'open', options },
        { do: 'append', events: 300 },
        { do: 'write-file', path: disk.trigger, text: FailingDisk.text(fault) },
        { do: 'append', events: null },
        { do: 'append', events: 200 },
        { do: 'die' },
      ];
      const tail = new TailLines();
      await using reader = Child.start('tail-child.ts', log.directory, { onLine: (line) => tail.take(line) });
      await using writer = log.start(steps, { env: disk.env });
      const { signal } = await writer.exit(90_000);
      await reader.exited;
      assert.equal(signal, 'SIGKILL', `${writer.lines.at(-1)} ${writer.stderr}`);
      assert.ok(disk.hits > 0, 'the fault never happened');
      failsStop(writer.lines);
      assert.ok(tail.received.length > 0, 'the tail reader never received anything');
      await resolvesUnknownOutcomes(log, writer.lines, tail.received);
      await log.recover(options);
      summarize({ disk_faults: 1 });
    });
  }
});

/**
 * From the first error to the next `open` there is no acknowledgement, every append has an answer, and after the first
 * round every answer is that the log has failed.
 */
function failsStop(lines: readonly string[]): void {
  const first = lines.findIndex((line) => line.startsWith('error '));
  assert.ok(first >= 0, 'no append failed');
  const reopened = lines.findIndex((line, at) => at > first && line.startsWith('open '));
  const failed = lines.slice(first, reopened < 0 ? undefined : reopened);
  assert.deepEqual(failed.filter((line) => line.startsWith('ack ')).slice(0, 3), [], 'acknowledged after an error');
  assert.deepEqual(
    failed.filter((line) => line.startsWith('pending ')),
    [],
    'appends without an answer',
  );
  const codes = new Set(failed.filter((line) => line.startsWith('error ')).map((line) => line.split(' ')[3] as string));
  for (const code of codes) assert.ok(FAILED.has(code), `an append after the failure was refused with ${code}`);
  const rounds = failed.filter((line) => line === 'done append').length;
  assert.ok(rounds >= 2, 'the failed log was not asked again');
}

/** Repeats every append that had no acknowledgement, with its number; each event is then there exactly once. */
async function resolvesUnknownOutcomes(
  log: FaultLog,
  lines: readonly string[],
  received: readonly Place[],
): Promise<void> {
  const unknown = lines.flatMap((line) => {
    const [word, n, s] = line.split(' ');
    if (word !== 'error') return [];
    // What `appendAll` could not finish is repeated event by event: it was all or nothing, so this completes it.
    const events = isGrouped(Number(n)) ? GROUP : 1;
    return Array.from({ length: events }, (_, i) => ({ n: Number(n), s: Number(s) + i }));
  });
  const reopened = await HotLog.open(log.directory, { ...NO_BUDGET, tail: false });
  try {
    await checkLog(reopened, log.ids, log.acknowledged);
    assert.deepEqual(await missingIn(reopened, received), [], 'records that a tail reader was shown are gone');
    for (const { n, s } of unknown) {
      const id = log.ids[n] as TrajectoryId;
      const result = await reopened.append(id, eventFor(n, s), { at: s });
      assert.equal(result.sequence_number, s);
      const again = await reopened.append(id, eventFor(n, s), { at: s });
      assert.deepEqual([again.lsn, again.cryptographic_hash], [result.lsn, result.cryptographic_hash]);
      let copies = 0;
      for await (const event of reopened.read(id, s)) {
        if (event.sequence_number === s) copies += 1;
        assert.equal(event.payload_text, storedPayloadText(eventFor(n, event.sequence_number)));
      }
      assert.equal(copies, 1, `event ${s} of trajectory ${n} after a repeated append`);
    }
  } finally {
    await reopened.close();
  }
}
