import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { existsSync, readdirSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs';
import { Readable } from 'node:stream';
import fc from 'fast-check';
import { BlobStore } from '../../hot/blobs.ts';
import { HotLog } from '../../hot/log.ts';
import type { JsonObject } from '../../schemas/canonical.ts';
import { newTrajectoryId, type TrajectoryId } from '../../schemas/ids.ts';
import { EVENT_BYTES_MAX, KIB, OFFLOAD_OVER_BYTES } from '../../schemas/limits.ts';
import { stubFor, stubsOf } from '../../schemas/stubs.ts';
import { runs } from '../support/property.ts';
import { TempDirectory } from '../support/temp.ts';
import { all, event, note, refused, SMALL } from './support/hot.ts';

const sha256 = (body: Uint8Array | string) => createHash('sha256').update(body).digest('hex');
const HOUR_MS = 3_600_000;

async function bodyOf(blobs: BlobStore, hash: string): Promise<Buffer> {
  return Buffer.concat(await all(blobs.get(hash)));
}

describe('bodies of events', () => {
  let temp: TempDirectory;
  let log: HotLog;
  let id: TrajectoryId;
  beforeEach(async () => {
    temp = new TempDirectory('bodies');
    log = await HotLog.open(temp.join('log'), SMALL);
    id = newTrajectoryId();
  });
  afterEach(async () => {
    assert.deepEqual((await log.verify({ deep: true })).bad_blobs, []);
    await log.close();
    temp[Symbol.dispose]();
  });

  async function stored(payload: JsonObject): Promise<JsonObject> {
    const { sequence_number } = await log.append(id, event('x.Any', payload));
    const [found] = await all(log.read(id, sequence_number));
    return (found as NonNullable<typeof found>).payload;
  }

  it('leave the payload from 64 KiB and one byte on, counted in UTF-8', async () => {
    const border = OFFLOAD_OVER_BYTES;
    for (const text of [
      'x'.repeat(border),
      'é'.repeat(border / 2),
      '\u{1f600}'.repeat(border / 4),
      '\u0000'.repeat(border),
    ]) {
      assert.equal(Buffer.byteLength(text), border);
      assert.deepEqual(await stored({ text }), { text });
      const over = `${text.slice(0, -2)}${text.slice(-2)}x`;
      assert.deepEqual(await stored({ text: over }), { text: stubFor(Buffer.from(over)) });
      assert.equal((await bodyOf(log.blobs, sha256(over))).toString(), over);
    }
  });

  it('leave at the threshold that the log was given', async () => {
    await using other = await HotLog.open(temp.join('other'), { ...SMALL, offloadOverBytes: 2000 });
    const [small, large] = ['x'.repeat(2000), 'x'.repeat(2001)];
    await other.append(id, event('x.Any', { deep: [{ small, large }] }));
    const [found] = await all(other.read(id));
    assert.deepEqual(found?.payload, { deep: [{ small, large: stubFor(Buffer.from(large)) }] });
  });

  it('leave largest first until the event fits, also where each is small; ties by pointer', async () => {
    const texts = Object.fromEntries(
      Array.from({ length: 30 }, (_, i) => [`k${String(i).padStart(2, '0')}`, 'y'.repeat(40 * KIB + (i % 3))]),
    );
    const payload = await stored(texts);
    const gone = Object.keys(texts).filter((key) => typeof payload[key] !== 'string');
    assert.ok(gone.length > 0 && gone.length < 10, `${gone.length} left`);
    // Those with two bytes more go first, in the order of their keys.
    assert.deepEqual(
      gone,
      Object.keys(texts)
        .filter((_, i) => i % 3 === 2)
        .slice(0, gone.length),
    );
    const [found] = (await all(log.read(id))).slice(-1);
    assert.ok((found?.payload_bytes.byteLength ?? 0) <= EVENT_BYTES_MAX, 'it does not fit');
  });

  it('are kept once, however often they come, also after reopening', async () => {
    const text = 'z'.repeat(100_000);
    await Promise.all(Array.from({ length: 5 }, () => log.append(id, note(text))));
    const put = log.blobs.bytesPut;
    await log.append(newTrajectoryId(), note(text));
    assert.equal(log.blobs.bytesPut, put, 'it was written again');
    assert.deepEqual(await all(log.blobs.list()), [sha256(text)]);
    await log.close();
    log = await HotLog.open(temp.join('log'), SMALL);
    await log.append(id, note(text));
    assert.equal(log.blobs.bytesPut, 0);
  });

  it('come back byte by byte, whatever text they are', async () => {
    const text = fc.string({
      unit: fc.constantFrom('\u0000', '\u{1f600}', 'é', 'a', '\ufffd', '\uffff', '"', '\u2028'),
      minLength: 1,
      maxLength: 20,
    });
    await fc.assert(
      fc.asyncProperty(text, async (unit) => {
        const body = unit.repeat(Math.ceil((OFFLOAD_OVER_BYTES + 1) / Buffer.byteLength(unit)));
        const payload = await stored({ body });
        const [ref] = stubsOf(payload);
        assert.equal(ref?.bytes, Buffer.byteLength(body));
        assert.equal((await bodyOf(log.blobs, ref?.sha256 ?? '')).toString('utf8'), body);
      }),
      runs(15),
    );
  });

  it('may be put first and named by a stub, which is refused while the body is not there or is another', async () => {
    const body = Buffer.from('a body that was put by hand');
    const stub = stubFor(body, 'image/png');
    await refused(log.append(id, event('x.Any', { stub })), 'BLOB_MISSING');
    assert.deepEqual(await log.blobs.put(body, 'image/png'), stub.$blob);
    await refused(log.append(id, event('x.Any', { stub: { $blob: { ...stub.$blob, bytes: 5 } } })), 'BLOB_MISSING');
    assert.deepEqual(await stored({ stub }), { stub });
    // A key that only looks like it, and a stub as text, are no stubs.
    const text = JSON.stringify(stub);
    assert.deepEqual(await stored({ text, $blobs: stub.$blob }), { text, $blobs: stub.$blob });
  });
});

describe('the blobs of a log', () => {
  let temp: TempDirectory;
  let blobs: BlobStore;
  const none = () => Promise.resolve(new Set<string>());
  beforeEach(async () => {
    temp = new TempDirectory('blobs');
    blobs = await BlobStore.open(temp.path);
  });
  afterEach(() => temp[Symbol.dispose]());

  it('take bytes and streams of any length, and give them back under their hash', async () => {
    for (const body of [Buffer.alloc(0), Buffer.from([0]), Buffer.alloc(3_000_000, 7)]) {
      const ref = { sha256: sha256(body), bytes: body.byteLength, media_type: 'application/x' };
      const chunks = Array.from({ length: Math.ceil(body.length / 70_000) }, (_, i) =>
        body.subarray(i * 70_000, (i + 1) * 70_000),
      );
      assert.deepEqual(await blobs.put(Readable.from(chunks), 'application/x'), ref);
      assert.deepEqual(await blobs.put(body, 'application/x'), ref);
      assert.ok((await bodyOf(blobs, ref.sha256)).equals(body), 'other bytes came back');
      assert.equal(await blobs.size(ref.sha256), body.byteLength);
      assert.equal(await blobs.verify(ref.sha256), true);
      assert.equal(statSync(blobs.pathOf(ref.sha256)).mode & 0o777, 0o600);
    }
    assert.deepEqual(readdirSync(temp.join('blobs', 'tmp')), []);
  });

  it('leave nothing of a stream that breaks', async () => {
    const broken = Readable.from(
      (function* () {
        yield Buffer.alloc(10);
        throw new Error('the source broke');
      })(),
    );
    await assert.rejects(blobs.put(broken), /the source broke/);
    assert.deepEqual(await all(blobs.list()), []);
    assert.deepEqual(readdirSync(temp.join('blobs', 'tmp')), []);
  });

  it('say of a hash that is not there, of one that is none, and of a body that has rotted', async () => {
    await refused(all(blobs.get(sha256('x'))), 'BLOB_MISSING');
    assert.equal(await blobs.size(sha256('x')), undefined);
    for (const hash of ['', '../../../etc/passwd', sha256('x').toUpperCase()]) {
      assert.throws(() => blobs.pathOf(hash), { code: 'INVALID_OPTION' });
    }
    const ref = await blobs.put(Buffer.from('abc'));
    writeFileSync(blobs.pathOf(ref.sha256), 'abd');
    assert.equal(await blobs.verify(ref.sha256), false);
  });

  it('are written again where a file of that name is cut short', async () => {
    const ref = await blobs.put(Buffer.from('whole'));
    writeFileSync(blobs.pathOf(ref.sha256), 'who');
    const later = await BlobStore.open(temp.path);
    await later.put(Buffer.from('whole'));
    assert.equal(await later.verify(ref.sha256), true);
  });

  it('go in a sweep only when they are old enough, not referenced and not in use', async () => {
    const [referenced, pinned, young, used, due] = await Promise.all(
      ['referenced', 'pinned', 'young', 'used', 'due'].map((text) => blobs.put(Buffer.from(text))),
    );
    const path = (ref: typeof due) => blobs.pathOf(ref?.sha256 ?? '');
    const old = new Date(Date.now() - 2 * HOUR_MS);
    for (const ref of [referenced, pinned, used, due]) utimesSync(path(ref), old, old);
    blobs.pin(pinned?.sha256 ?? '');
    const swept = await blobs.sweep(
      async () => {
        // Somebody needs it between the look for references and the removal.
        await blobs.put(Buffer.from('used'));
        return new Set([referenced?.sha256 ?? '']);
      },
      HOUR_MS,
      Date.now(),
    );
    assert.deepEqual(swept, { blobs: 1, bytes: 3 });
    assert.deepEqual(
      [referenced, pinned, young, used, due].map((ref) => existsSync(path(ref))),
      [true, true, true, true, false],
    );
    blobs.unpin(pinned?.sha256 ?? '');
    assert.equal(
      (await blobs.sweep(none, HOUR_MS, Date.now())).blobs,
      2,
      'the one that was pinned, and the referenced one',
    );
  });

  it('are there when a put has returned, though a sweep was removing them', async () => {
    for (let round = 0; round < 40; round++) {
      const body = Buffer.from(`round ${round}`);
      await blobs.put(body);
      const sweeping = blobs.sweep(none, 0, Date.now() + 1000);
      const again = round % 2 === 0 ? blobs.put(body) : blobs.put(Readable.from([body]));
      const ref = await again;
      const stayed = await blobs.size(ref.sha256);
      await sweeping;
      assert.equal(stayed, body.length);
      assert.equal(await blobs.size(ref.sha256), body.length, `round ${round}`);
    }
  });

  it('lose the temporary files of dead writers in a sweep, and never one that is being written', async () => {
    const dead = temp.join('blobs', 'tmp', '1.dead');
    writeFileSync(dead, 'torn');
    let written: (() => void) | undefined;
    const firstWritten = new Promise<void>((resolve) => {
      written = resolve;
    });
    let release: (() => void) | undefined;
    const held = new Promise<void>((resolve) => {
      release = resolve;
    });
    const slow = blobs.put(
      Readable.from(
        (async function* () {
          yield Buffer.from('first');
          written?.();
          await held;
          yield Buffer.from('second');
        })(),
      ),
    );
    await firstWritten;
    await blobs.sweep(none, 0, Date.now() + 1000);
    assert.equal(existsSync(dead), false);
    release?.();
    const ref = await slow;
    assert.equal((await bodyOf(blobs, ref.sha256)).toString(), 'firstsecond');
    rmSync(dead, { force: true });
  });
});
