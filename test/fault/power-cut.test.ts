/**
 * Power cut: what was acknowledged, and what a tail reader was shown, is on the disk.
 *
 * The log lies on ext4 on a loop device. At a random moment the writer is stopped and the image is copied: it holds what
 * reached the "disk"; what was written and not synced is in the page cache of the file system above and not in the copy
 * (see disk.ts). The copy is mounted and the log recovered from it. With `sync: false` the same method must lose
 * something, or it would prove nothing.
 */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import { HotLog } from '../../hot/log.ts';
import type { HotLogOptions } from '../../hot/options.ts';
import { KIB, MIB } from '../../schemas/limits.ts';
import { checkLog, missingIn, type Place } from '../support/check-log.ts';
import { Child } from '../support/child.ts';
import { copyImage, Mount, makeImage, standsStill, whyNoLoopDisk } from '../support/disk.ts';
import { FaultLog, TailLines } from '../support/fault-log.ts';
import { runs, summarize } from '../support/scale.ts';
import { seededRandom } from '../support/seed.ts';
import { skipAloud } from '../support/skip.ts';
import { TempDirectory } from '../support/temp.ts';

const IMAGE_BYTES = 256 * MIB;
/** Two folders deep: their entries must be as durable as what is in them. */
const LOG = ['logs', 'worker-1'];

describe('power cut', () => {
  before(function () {
    const reason = whyNoLoopDisk();
    if (reason !== undefined) skipAloud(this, reason);
  });

  it('nothing that was acknowledged or shown to a tail reader is lost, not even by a log just made', async function () {
    const cuts = runs(2, 10);
    this.timeout(30_000 + cuts * 30_000);
    const random = seededRandom('power cut');
    let acknowledged = 0;
    let received = 0;
    for (let cut = 0; cut < cuts; cut++) {
      // Every other log is cut as soon as it has acknowledged anything: its folders and files are all new then.
      const afterMs = cut % 2 === 0 ? random.between(0, 20) : random.between(200, 1500);
      const counts = await cutOnce(afterMs, { writeBufferBytes: random.pick([256 * KIB, MIB, 16 * MIB]) });
      assert.equal(counts.lost, 0, `cut ${afterMs} ms after the first acknowledgement: ${counts.why}`);
      acknowledged += counts.acknowledged;
      received += counts.received;
    }
    assert.ok(received > 0, 'the tail reader never received anything: that part proved nothing');
    summarize({ cuts, acknowledged, received });
  });

  it('the same cut loses events when the log does not sync, so it can see a missing barrier', async function () {
    this.timeout(60_000);
    const { acknowledged, recovered, lost } = await cutOnce(500, { commit: { sync: false } });
    assert.ok(lost > 0, `${acknowledged} events acknowledged without a sync, ${recovered} recovered, none lost`);
    summarize({ lost_without_sync: lost });
  });
});

type Counts = {
  readonly acknowledged: number;
  readonly received: number;
  readonly recovered: number;
  readonly lost: number;
  readonly why: string;
};

async function cutOnce(afterMs: number, options: HotLogOptions): Promise<Counts> {
  using directory = new TempDirectory('cut');
  makeImage(directory.join('image'), IMAGE_BYTES);
  const tail = new TailLines();
  let log: FaultLog;
  {
    using live = new Mount(directory.join('image'), directory.join('live'));
    log = new FaultLog(join(live.at, ...LOG), directory.join('ids'), 200);
    await using reader = Child.start('tail-child.ts', log.directory, { onLine: (line) => tail.take(line) });
    await reader.line('started');
    await using writer = log.start([
      { do: 'open', options },
      { do: 'append', events: null },
    ]);
    await writer.line('ack ');
    await sleep(afterMs);
    writer.kill('SIGSTOP');
    await standsStill(writer.pid);
    copyImage(directory.join('image'), directory.join('cut'));
    // Lines that were printed before the stop and are still in a pipe count as well.
    writer.kill('SIGKILL');
    reader.kill('SIGKILL');
    await Promise.all([writer.exited, reader.exited]);
  }
  using dead = new Mount(directory.join('cut'), directory.join('dead'));
  return await holdAgainst(log, dead.at, tail.received);
}

/** Opens what the disk holds and counts what should be in it and is not. */
async function holdAgainst(log: FaultLog, at: string, received: readonly Place[]): Promise<Counts> {
  const counts = { acknowledged: log.acknowledged.length, received: received.length };
  const recovered = await HotLog.open(join(at, ...LOG), { create: false, tail: false }).catch(
    (error: unknown) => error,
  );
  if (!(recovered instanceof HotLog))
    return { ...counts, recovered: 0, lost: counts.acknowledged, why: inspect(recovered) };
  try {
    const acknowledged = log.acknowledged.map(({ lsn, cryptographic_hash }): Place => [lsn, cryptographic_hash]);
    const lost = await missingIn(recovered, [...acknowledged, ...received]);
    const why = `lost: LSN ${lost.slice(0, 3).map(String).join('; ')}`;
    if (lost.length === 0) await checkLog(recovered, log.ids, log.acknowledged);
    return { ...counts, recovered: Number(recovered.durableLsn), lost: lost.length, why };
  } finally {
    await recovered.close();
  }
}
