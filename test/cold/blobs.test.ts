import assert from 'node:assert/strict';
import { hash } from 'node:crypto';
import { readdir } from 'node:fs/promises';
import * as fc from 'fast-check';
import { decompress } from 'fzstd';
import { blobKey, blobOfKey, getBlob, hasBlob, putBlob } from '../../cold/blobs.ts';
import { collect } from '../../cold/body.ts';
import { FileStore } from '../../cold/file-store.ts';
import type { ObjectStore } from '../../cold/object-store.ts';
import { pack, packFrame, unpack } from '../../cold/zstd.ts';
import { FRAME_BYTES_MAX, FrameError, FrameSplitter } from '../../cold/zstd-frames.ts';
import { retry } from '../../pipelines/retry.ts';
import { isVarveError } from '../../schemas/errors.ts';
import { MIB } from '../../schemas/limits.ts';
import { FaultStore } from '../support/fault-store.ts';
import { keysOf, noise, pattern, read, rejects, sha256OfPattern } from '../support/object-store-contract.ts';
import { runs } from '../support/property.ts';
import { openBucket } from '../support/s3-place.ts';
import { S3Server } from '../support/s3-server.ts';
import { TempDirectory } from '../support/temp.ts';

describe('blobs', () => {
  let directory: TempDirectory;
  let store: FaultStore;
  before(async () => {
    directory = new TempDirectory('blobs');
  });
  let folders = 0;
  beforeEach(async () => {
    folders += 1;
    store = new FaultStore(await FileStore.open(directory.join(`f${folders}`)));
  });
  after(() => directory[Symbol.dispose]());

  it('have keys that name their hash, and only those are blobs', () => {
    const sha256 = hash('sha256', 'x');
    const key = blobKey(sha256);
    assert.equal(key, `blobs/sha256/${sha256.slice(0, 2)}/${sha256.slice(2, 4)}/${sha256}.zst`);
    assert.equal(blobOfKey(key), sha256);
    for (const other of [key.slice(1), `${key}x`, key.replace('blobs', 'globs'), key.replace('.zst', '.zip'), '']) {
      assert.equal(blobOfKey(other), undefined, other);
    }
    for (const bad of ['', sha256.toUpperCase(), sha256.slice(1), `${sha256}0`, '../../x']) {
      assert.throws(
        () => blobKey(bad),
        (error) => isVarveError(error, 'INVALID_OPTION'),
      );
    }
  });

  it('come back as they were put, from bytes or a stream, of no, one or several frames', async function () {
    this.timeout(60_000);
    for (const bytes of [
      0,
      1,
      100_000,
      FRAME_BYTES_MAX - 1,
      FRAME_BYTES_MAX,
      FRAME_BYTES_MAX + 1,
      3 * FRAME_BYTES_MAX,
    ]) {
      const sha256 = sha256OfPattern(bytes);
      assert.equal(await hasBlob(store, sha256), false);
      assert.equal(await putBlob(store, sha256, stream(pattern(bytes)), options()), 'created');
      assert.equal(await hasBlob(store, sha256), true);
      assert.equal(hash('sha256', await whole(store, sha256)), sha256);
      assert.equal(await putBlob(store, sha256, Buffer.concat([...pattern(bytes)]), options()), 'exists');
      await store.delete(blobKey(sha256));
      assert.equal(await putBlob(store, sha256, Buffer.concat([...pattern(bytes)]), options()), 'created');
      assert.equal(hash('sha256', await whole(store, sha256)), sha256);
    }
    assert.deepEqual(await scratch(), [], 'scratch files are gone');
  });

  it('are zstd to anybody: an independent decoder reads several frames as one', async () => {
    const plain = Buffer.concat([...pattern(FRAME_BYTES_MAX + 5)]);
    const sha256 = hash('sha256', plain);
    await putBlob(store, sha256, plain, options());
    const packed = await read(store, blobKey(sha256));
    assert.equal(hash('sha256', decompress(packed)), sha256);
  });

  it('are not stored under a name that is not theirs', async () => {
    const name = hash('sha256', 'other');
    for (const bytes of [0, 10, 2 * FRAME_BYTES_MAX]) {
      await rejects(putBlob(store, name, stream(pattern(bytes)), options()), 'STORE_BODY_MISMATCH');
      await rejects(putBlob(store, name, Buffer.concat([...pattern(bytes)]), options()), 'STORE_BODY_MISMATCH');
    }
    assert.deepEqual(await keysOf(store), []);
    assert.deepEqual(await scratch(), []);
  });

  it('are missing by name', async () => {
    await rejects(whole(store, hash('sha256', 'nowhere')), 'STORE_MISSING');
  });

  it('are corrupt wherever one bit of what is stored differs', async () => {
    const plain = Buffer.from('a body that is not long '.repeat(40));
    const sha256 = hash('sha256', plain);
    await putBlob(store, sha256, plain);
    const bits = (await read(store, blobKey(sha256))).byteLength * 8;
    for (let bit = 0; bit < bits; bit++) {
      store.inject({ method: 'get', kind: 'flipped', bit });
      const got = await whole(store, sha256).catch((error: unknown) => error);
      // A bit that means nothing to the decoder changes nothing.
      if (Buffer.isBuffer(got)) assert.ok(got.equals(plain), `bit ${bit}`);
      else assert.ok(isVarveError(got, 'STORE_CORRUPT'), `bit ${bit}: ${String(got)}`);
    }
  });

  it('are corrupt wherever what is stored ends early, and pass on what the store says', async () => {
    const plain = noise(1000);
    const sha256 = hash('sha256', plain);
    await putBlob(store, sha256, plain);
    for (let afterBytes = 0; afterBytes < 1000; afterBytes += 7) {
      store.inject({ method: 'get', kind: 'cut', afterBytes });
      await rejects(whole(store, sha256), 'STORE_CORRUPT');
    }
    store.inject({ method: 'get', kind: 'cut', afterBytes: 500, code: 'STORE_UNAVAILABLE' });
    await rejects(whole(store, sha256), 'STORE_UNAVAILABLE');
  });

  it('that are there and look otherwise are trusted only when read: another packing is, damage is not', async () => {
    const plain = Buffer.from('x'.repeat(5000));
    const sha256 = hash('sha256', plain);
    const twoFrames = Buffer.concat([await packFrame(plain.subarray(0, 10)), await packFrame(plain.subarray(10))]);
    await store.put(blobKey(sha256), twoFrames);
    assert.equal(await putBlob(store, sha256, plain), 'exists');
    for (const damaged of [Buffer.alloc(0), Buffer.from('junk'), await packFrame(Buffer.from('other'))]) {
      await store.put(blobKey(sha256), damaged);
      await rejects(putBlob(store, sha256, plain), 'STORE_CORRUPT');
      assert.ok(damaged.equals(await read(store, blobKey(sha256))), 'and it stays as evidence');
    }
  });

  it('that exist are not sent again when they are long', async () => {
    const plain = noise(3 * MIB);
    const sha256 = hash('sha256', plain);
    await putBlob(store, sha256, plain);
    store.calls.length = 0;
    assert.equal(await putBlob(store, sha256, plain), 'exists');
    assert.deepEqual(store.calls, [`head ${blobKey(sha256)}`]);
  });

  it('that are longer than a conditional request may be go by an unconditional one', async () => {
    Object.defineProperty(store, 'putIfAbsentBytesMax', { value: 100 });
    const plain = noise(1000);
    const sha256 = hash('sha256', plain);
    assert.equal(await putBlob(store, sha256, plain), 'created');
    assert.deepEqual(store.calls, [`put ${blobKey(sha256)}`]);
    assert.ok((await whole(store, sha256)).equals(plain));
  });

  it('that vanish between two looks are to be put again', async () => {
    const plain = noise(10);
    const sha256 = hash('sha256', plain);
    await putBlob(store, sha256, plain);
    store.head = async () => undefined;
    await rejects(putBlob(store, sha256, plain), 'STORE_CONFLICT');
  });

  it('are put once through lost answers, in S3 as anywhere', async function () {
    this.timeout(60_000);
    await using server = await S3Server.start();
    await using bucket = await openBucket(server, 'root');
    const faulty = new FaultStore(bucket);
    for (const bytes of [1000, 2 * FRAME_BYTES_MAX]) {
      const sha256 = sha256OfPattern(bytes);
      faulty.inject(
        { method: 'putIfAbsent', kind: 'after', code: 'STORE_AMBIGUOUS' },
        { method: 'putIfAbsent', kind: 'before', code: 'STORE_THROTTLED' },
      );
      const put = () => putBlob(faulty, sha256, stream(pattern(bytes)), options());
      assert.equal(await retry(put, new AbortController().signal, { firstPauseMs: 1 }), 'exists');
      assert.equal(hash('sha256', await whole(faulty, sha256)), sha256);
      assert.deepEqual(await keysOf(bucket, blobKey(sha256)), [blobKey(sha256)]);
      faulty.inject({ method: 'get', kind: 'cut', afterBytes: 100, code: 'STORE_UNAVAILABLE' });
      assert.equal(hash('sha256', await retry(() => whole(faulty, sha256), new AbortController().signal)), sha256);
    }
  });

  it('stop when aborted, and leave no scratch file', async () => {
    const abort = new AbortController();
    const endless = async function* () {
      for (;;) {
        yield noise(MIB);
        if (calls++ === 20) abort.abort();
      }
    };
    let calls = 0;
    await rejects(putBlob(store, hash('sha256', ''), endless(), { ...options(), signal: abort.signal }), 'ABORTED');
    assert.deepEqual(await scratch(), []);
    assert.deepEqual(await keysOf(store), []);
  });

  it('take little memory, whatever their size', async function () {
    this.timeout(60_000);
    const bytes = 192 * MIB;
    const sha256 = sha256OfPattern(bytes);
    globalThis.gc?.();
    const before = process.memoryUsage().rss;
    let peak = 0;
    const timer = setInterval(() => {
      peak = Math.max(peak, process.memoryUsage().rss);
    }, 5);
    try {
      await putBlob(store, sha256, stream(pattern(bytes)), options());
      for await (const plain of getBlob(store, sha256)) assert.ok(plain.byteLength <= FRAME_BYTES_MAX);
    } finally {
      clearInterval(timer);
    }
    assert.ok(peak - before < 150 * MIB, `${Math.round((peak - before) / MIB)} MiB more`);
  });

  function options() {
    return { scratchDir: directory.path };
  }

  async function scratch(): Promise<string[]> {
    return (await readdir(directory.path)).filter((name) => name.startsWith('varve-blob-'));
  }
});

describe('zstd frames', () => {
  it('are found however the bytes are cut', async () => {
    const bodies = [Buffer.alloc(0), Buffer.from('a'), Buffer.alloc(300_000, 'ab'), noise(300_000), noise(70_000)];
    const packed = await Promise.all(bodies.map(packFrame));
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.nat(4), { maxLength: 6 }),
        fc.integer({ min: 1, max: 200_000 }),
        async (order, step) => {
          const joined = Buffer.concat(order.map((i) => packed[i] as Buffer));
          const splitter = new FrameSplitter();
          const found: Buffer[] = [];
          for (let at = 0; at < joined.byteLength; at += step) {
            for (const frame of splitter.push(joined.subarray(at, at + step))) found.push(frame);
          }
          splitter.end();
          assert.deepEqual(
            found.map((frame) => hash('sha256', frame)),
            order.map((i) => hash('sha256', packed[i] as Buffer)),
          );
        },
      ),
      runs(60),
    );
  });

  it('are found one byte at a time', async () => {
    const packed = Buffer.concat([await packFrame(Buffer.from('one')), await packFrame(noise(1000))]);
    const splitter = new FrameSplitter();
    let frames = 0;
    for (const byte of packed) for (const _ of splitter.push(Uint8Array.of(byte))) frames += 1;
    splitter.end();
    assert.equal(frames, 2);
  });

  it('that claim more than varve writes are refused before anything is decompressed', async () => {
    const header = Buffer.from('28b52ffd0058', 'hex');
    // 300 run-length blocks of 128 KiB each, of four bytes; one block of 1 MiB; no end in sight.
    const bomb = Buffer.concat([header, ...Array.from({ length: 300 }, () => Buffer.from('02001000', 'hex'))]);
    const block = Buffer.concat([header, Buffer.from('050080', 'hex')]);
    const endless = Buffer.concat([
      header,
      ...Array(200).fill(Buffer.concat([Buffer.from('000010', 'hex'), noise(131_072)])),
    ]);
    const type = Buffer.concat([header, Buffer.from('070000', 'hex')]);
    const skippable = Buffer.from('502a4d180400000000000000', 'hex');
    const dictionary = Buffer.from('28b52ffd210105', 'hex');
    for (const bytes of [bomb, block, endless, type, skippable, dictionary]) {
      await assert.rejects(collect(unpack(stream([bytes])), MIB), FrameError);
    }
  });

  it('give the same bytes every time', async () => {
    const body = () => stream(pattern(FRAME_BYTES_MAX + 1000));
    const [a, b] = [await collect(pack(body()), 64 * MIB), await collect(pack(body()), 64 * MIB)];
    assert.ok(a.equals(b));
  });
});

async function whole(store: ObjectStore, sha256: string): Promise<Buffer> {
  return await collect(getBlob(store, sha256), 256 * MIB);
}

async function* stream(chunks: Iterable<Buffer>): AsyncGenerator<Buffer, void, void> {
  yield* chunks;
}
