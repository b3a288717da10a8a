import assert from 'node:assert/strict';
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { readPrefix } from '../../hot/drain.ts';
import { decodeHeads } from '../../hot/heads.ts';
import { HotLog } from '../../hot/log.ts';
import { newTrajectoryId, type TrajectoryId } from '../../schemas/ids.ts';
import { KIB } from '../../schemas/limits.ts';
import { TempDirectory } from '../support/temp.ts';
import { all, intent, note, refused, SMALL, sequences } from './support/hot.ts';

const LARGE = 'x'.repeat(100 * KIB);

/** A log with enough behind the event to be looked at that an open does not read so far back. */
async function longLog(dir: string): Promise<TrajectoryId> {
  const id = newTrajectoryId();
  const log = await HotLog.open(dir, SMALL);
  for (let n = 1; n <= 60; n++) await log.append(id, note(`<event ${n}>${'y'.repeat(20_000)}`));
  await log.close();
  // The last write buffer becomes a table.
  await (await HotLog.open(dir, SMALL)).close();
  return id;
}

/** Changes one byte of the table file that holds a text. */
function flip(dir: string, text: string): void {
  const tables = readdirSync(`${dir}/db`).filter((name) => name.endsWith('.sst'));
  for (const name of tables) {
    const bytes = readFileSync(`${dir}/db/${name}`);
    const at = bytes.indexOf(text);
    if (at < 0) continue;
    bytes[at + 1] = (bytes[at + 1] as number) ^ 1;
    writeFileSync(`${dir}/db/${name}`, bytes);
    return;
  }
  assert.fail(`${text} is in none of ${tables.length} tables`);
}

describe('verify', () => {
  it('names the first damaged record of a table, and everything before it stands; reading it is refused too', async () => {
    using temp = new TempDirectory('verify');
    const id = await longLog(temp.join('log'));
    flip(temp.join('log'), '<event 7>');
    await using log = await HotLog.open(temp.join('log'), SMALL);
    const { damage, events, tip } = await log.verify();
    assert.equal(damage?.lsn, 7);
    assert.match(damage?.reason ?? '', /contradicts itself/);
    assert.deepEqual([events, tip.lsn], [6, 6]);
    await refused(all(log.read(id, 7)), 'HOT_DAMAGED');
    await refused(all(log.readLog(6)), 'HOT_DAMAGED');
    assert.equal((await sequences(log.read(id, 8))).length, 53);
    assert.equal((await all(log.readLog(7))).length, 53);
  });

  it('finds damage in an envelope, in a hash and in an index block', async () => {
    for (const [text, reason] of [
      ['"sequence_number":9,', /contradicts itself/],
      ['"created_at":"', /contradicts itself/],
    ] as const) {
      using temp = new TempDirectory('verify');
      await longLog(temp.join('log'));
      flip(temp.join('log'), text);
      await using log = await HotLog.open(temp.join('log'), SMALL);
      const { damage } = await log.verify();
      assert.match(damage?.reason ?? 'none was found', reason, text);
    }
  });

  it('is refused at the open where the damage lies in what an open reads, and the prefix can still be drained', async () => {
    using temp = new TempDirectory('verify');
    const dir = temp.join('log');
    const log = await HotLog.open(dir, SMALL);
    const id = newTrajectoryId();
    for (let n = 1; n <= 10; n++) await log.append(id, note(`<event ${n}>${'y'.repeat(15_000)}`));
    await log.close();
    await (await HotLog.open(dir, SMALL)).close();
    flip(dir, '<event 3>');
    const before = readdirSync(`${dir}/db`);
    assert.equal((await refused(HotLog.open(dir, SMALL), 'HOT_DAMAGED')).details['lsn'], 3);
    assert.deepEqual(readdirSync(`${dir}/db`), before, 'nothing was opened for writing');
    const prefix = readPrefix(dir);
    const events: number[] = [];
    let last = await prefix.next();
    for (; last.done !== true; last = await prefix.next()) {
      for (const record of last.value.records) if (record.kind === 'event') events.push(record.event.sequence_number);
    }
    assert.deepEqual(events, [1, 2]);
    assert.equal(last.value?.lsn, 3);
  });

  it('names blobs that are missing or of another length, and with `deep` those with other bytes', async () => {
    using temp = new TempDirectory('verify');
    await using log = await HotLog.open(temp.join('log'), SMALL);
    const id = newTrajectoryId();
    for (const n of [1, 2, 3, 4]) await log.append(id, note(`${LARGE}${n}`));
    const events = await all(log.read(id));
    const [missing, short, rotten, whole] = events.map(
      ({ payload }) => (payload['note'] as { $blob: { sha256: string } }).$blob.sha256,
    ) as [string, string, string, string];
    assert.deepEqual((await log.verify({ deep: true })).bad_blobs, []);
    rmSync(log.blobs.pathOf(missing));
    writeFileSync(log.blobs.pathOf(short), 'short');
    const bytes = readFileSync(log.blobs.pathOf(rotten));
    bytes[5] = 0;
    writeFileSync(log.blobs.pathOf(rotten), bytes);
    const shallow = await log.verify();
    assert.deepEqual(
      [shallow.bad_blobs.toSorted(), shallow.blobs, shallow.damage],
      [[missing, short].toSorted(), 4, undefined],
    );
    const deep = await log.verify({ deep: true });
    assert.deepEqual(deep.bad_blobs.toSorted(), [missing, short, rotten].toSorted());
    assert.equal(deep.bad_blobs.includes(whole), false);
  });

  it('can be aborted', async () => {
    using temp = new TempDirectory('verify');
    await using log = await HotLog.open(temp.join('log'), SMALL);
    await log.append(newTrajectoryId(), note());
    await refused(log.verify({ signal: AbortSignal.abort() }), 'ABORTED');
    assert.equal((await log.verify()).events, 1);
  });
});

describe('an open', () => {
  const placesOf = (dir: string): number[] =>
    readdirSync(dir)
      .filter((name) => name.startsWith('heads-'))
      .toSorted()
      .map((name) => decodeHeads(readFileSync(`${dir}/${name}`))?.place.bytes ?? -1);

  it('reads no further back than a few write buffers, also after openings in which little was written', async () => {
    using temp = new TempDirectory('window');
    const dir = temp.join('log');
    const id = await longLog(dir);
    for (let n = 0; n < 3; n++) {
      const log = await HotLog.open(dir, SMALL);
      await log.append(id, note());
      await log.close();
    }
    const places = placesOf(dir);
    const window = 4 * SMALL.writeBufferBytes;
    const last = places.at(-1) as number;
    assert.ok(
      places.some((bytes) => bytes <= last - window && bytes >= last - 2 * window),
      `snapshots at ${places.join()}`,
    );
    // What lies before it is not read: damage there is found by verify.
    flip(dir, '<event 2>');
    await using log = await HotLog.open(dir, SMALL);
    assert.equal((await log.verify()).damage?.lsn, 2);
    assert.equal((await log.append(id, note())).sequence_number, 64);
  });

  it('keeps a bounded number of head snapshots', async () => {
    using temp = new TempDirectory('window');
    await longLog(temp.join('log'));
    assert.ok(placesOf(temp.join('log')).length <= 8, 'they pile up');
  });

  it('gives the same heads with snapshots, without them and with those of another log', async () => {
    using temp = new TempDirectory('heads');
    const dir = temp.join('log');
    const id = await longLog(dir);
    const open = async () => {
      await using log = await HotLog.open(dir, SMALL);
      const receipt = await log.append(id, intent('c'));
      return [Number(receipt.sequence_number), (await log.inDoubt()).length, (await sequences(log.read(id))).length];
    };
    assert.deepEqual(await open(), [61, 1, 61]);
    const snapshots = readdirSync(dir).filter((name) => name.startsWith('heads-'));
    for (const name of snapshots) rmSync(temp.join('log', name));
    assert.deepEqual(await open(), [62, 1, 62]);
    // Of the same length and the same LSNs, but of another log.
    mkdirSync(temp.join('other'));
    await longLog(temp.join('other', 'log'));
    for (const name of readdirSync(temp.join('other', 'log')).filter((name) => name.startsWith('heads-'))) {
      writeFileSync(temp.join('log', name), readFileSync(temp.join('other', 'log', name)));
    }
    assert.deepEqual(await open(), [63, 1, 63]);
  });
});
