/**
 * What every object store promises, as a suite: each implementation's test calls it with a way to open one.
 */
import assert from 'node:assert/strict';
import { createHash, hash } from 'node:crypto';
import { type BodySource, collect } from '../../cold/body.ts';
import { compareKeys } from '../../cold/keys.ts';
import type { ByteRange, ObjectStore, Upload } from '../../cold/object-store.ts';
import { type ErrorCode, isVarveError } from '../../schemas/errors.ts';
import { MIB } from '../../schemas/limits.ts';

export type StorePlace = {
  /** A store at an empty root of its own; the same folder under it gives the same objects. */
  open(folder: string): Promise<ObjectStore>;
  /** Leaves an unfinished put of that key in the folder, as a writer that was killed does. */
  leaveUpload(folder: string, key: string): Promise<void>;
  dispose(): Promise<void>;
};

export type ContractSizes = {
  /** More keys than one page of the store holds, where it has pages. */
  readonly keys: number;
  /** A body that `put` sends in parts, where the store knows parts. */
  readonly longBytes: number;
};

const ODD_KEYS = [
  'a b/c  d/ e ',
  'plus+and%20percent%/100%',
  'quotes\'"`/and,semicolon;colon:',
  'amp&lt<gt>/question?hash#/equals=tilde~at@bang!star*paren()',
  'back\\slash/pipe|caret^/dollar$brace{}bracket[]',
  '...three/.hidden/-dash/_under',
  'tenant=acme/date=2026-01-02/model_version=x%2Fy/0.parquet',
  'ünïcödé/日本語/עברית/e\u0301',
  'pair/\u{1f600}',
  'pair/\uff5e',
  'pair/\u{10ffff}',
  `long/${'s'.repeat(220)}/${'é'.repeat(110)}`,
];

const ILLEGAL_KEYS = [
  '',
  '/',
  '/a',
  'a/',
  'a//b',
  '.',
  '..',
  'a/../b',
  '../a',
  'a/.',
  'nul\0',
  'line\nfeed',
  'escape\u001b',
  'half\ud800',
  'not\ufffexml',
  '.varve-tmp.x.0123456789abcdef',
  'a/.varve-tmp.x',
  'x'.repeat(221),
  `${'x'.repeat(200)}/`.repeat(5) + 'x'.repeat(100),
];

export function objectStoreContract(name: string, setUp: () => Promise<StorePlace>, sizes: ContractSizes): void {
  describe(`object store contract: ${name}`, () => {
    let place: StorePlace;
    let store: ObjectStore;
    let folders = 0;
    before(async function () {
      this.timeout(120_000);
      place = await setUp();
    });
    beforeEach(async () => {
      folders += 1;
      store = await place.open(`f${folders}`);
    });
    afterEach(() => store.close());
    after(() => place?.dispose());
    const now: Now = {
      store: () => store,
      again: () => place.open(`f${folders}`),
      within: (folder) => place.open(`f${folders}/${folder}`),
      leaveUpload: (key) => place.leaveUpload(`f${folders}`, key),
    };
    puttingAndGetting(now);
    conditions(now);
    keysAndLists(now, sizes);
    bodies(now, sizes);
    aborting(now);
    uploads(now, sizes);
  });
}

type Now = {
  store(): ObjectStore;
  again(): Promise<ObjectStore>;
  within(folder: string): Promise<ObjectStore>;
  leaveUpload(key: string): Promise<void>;
};

function puttingAndGetting(now: Now): void {
  it('gives back what was put, whole, with its length and time', async () => {
    const store = now.store();
    for (const body of [Buffer.alloc(0), Buffer.from('x'), noise(3 * MIB + 17)]) {
      const key = `k/${body.byteLength}`;
      await store.put(key, body);
      assert.ok(body.equals(await read(store, key)));
      const head = await store.head(key);
      assert.equal(head?.bytes, body.byteLength);
      assert.ok(Math.abs(head.modifiedMs - Date.now()) < 60_000, 'the time is that of the put');
    }
  });

  it('gives exactly the range asked for, and an error where the object does not have all of it', async () => {
    const store = now.store();
    const body = noise(100_000);
    await store.put('r', body);
    for (const [start, end] of [
      [0, 1],
      [0, 100_000],
      [99_999, 100_000],
      [17, 70_001],
    ] as const) {
      assert.ok(body.subarray(start, end).equals(await read(store, 'r', { start, end })), `${start}-${end}`);
    }
    for (const range of [
      { start: 0, end: 100_001 },
      { start: 100_000, end: 100_001 },
      { start: 5e9, end: 6e9 },
    ]) {
      await rejects(read(store, 'r', range), 'STORE_CORRUPT');
    }
    for (const range of [
      { start: 5, end: 5 },
      { start: 5, end: 4 },
      { start: -1, end: 4 },
      { start: 0.5, end: 4 },
    ]) {
      await rejects(read(store, 'r', range), 'INVALID_OPTION');
    }
  });

  it('says what is missing: an error of get, undefined of head, nothing of delete', async () => {
    const store = now.store();
    await store.put('there/x', Buffer.from('x'));
    for (const key of ['missing', 'there/y', 'no/folder/z']) {
      await rejects(read(store, key), 'STORE_MISSING');
      await rejects(read(store, key, { start: 0, end: 1 }), 'STORE_MISSING');
      assert.equal(await store.head(key), undefined);
      await store.delete(key);
    }
    await rejects(read(store, 'there'), 'STORE_MISSING');
    assert.equal(await store.head('there'), undefined, 'a folder is no object');
    await store.delete('there');
    assert.deepEqual(await keysOf(store), ['there/x']);
  });

  it('deletes, one or many, there or not', async () => {
    const store = now.store();
    for (const key of ['a', 'b/1', 'b/2', 'c']) await store.put(key, Buffer.from(key));
    await store.delete('a');
    await store.delete('a');
    await store.deleteMany([]);
    await store.deleteMany(['b/1', 'b/3', 'c']);
    assert.deepEqual(await keysOf(store), ['b/2']);
  });

  it('shows objects to whoever opens the same place, and only those below it', async () => {
    const store = now.store();
    await store.put('in/x', Buffer.from('1'));
    await store.put('inner', Buffer.from('2'));
    await using again = await now.again();
    assert.deepEqual(await keysOf(again), ['in/x', 'inner']);
    await using within = await now.within('in');
    assert.deepEqual(await keysOf(within), ['x']);
    assert.equal(String(await read(within, 'x')), '1');
    assert.equal(await within.putIfAbsent('x', Buffer.from('3')), 'exists');
  });

  it('leaves nothing behind when it is opened, and closes more than once', async () => {
    assert.deepEqual(await keysOf(now.store()), []);
    const again = await now.again();
    await again.close();
    await again.close();
  });
}

function conditions(now: Now): void {
  it('puts if absent once; whoever comes later changes nothing', async () => {
    const store = now.store();
    assert.equal(await store.putIfAbsent('c/1', Buffer.from('first')), 'created');
    assert.equal(await store.putIfAbsent('c/1', Buffer.from('second')), 'exists');
    assert.equal(await store.putIfAbsent('c/1', sourceOf(noise(2 * MIB))), 'exists');
    assert.equal(String(await read(store, 'c/1')), 'first');
    await store.delete('c/1');
    assert.equal(await store.putIfAbsent('c/1', Buffer.from('third')), 'created');
  });

  it('of twenty who race to put if absent, one wins and its bytes are there', async () => {
    await using other = await now.again();
    const racers = Array.from({ length: 20 }, async (_, i) => {
      try {
        return await (i % 2 === 0 ? now.store() : other).putIfAbsent('race', Buffer.from(`racer ${i}`));
      } catch (error) {
        // Some stores tell a loser to come again while the winner is being written.
        if (isVarveError(error, 'STORE_CONFLICT')) return 'exists';
        throw error;
      }
    });
    const outcomes = await Promise.all(racers);
    const winners = outcomes.flatMap((outcome, i) => (outcome === 'created' ? [i] : []));
    assert.equal(winners.length, 1, `winners: ${winners.join()}`);
    assert.equal(String(await read(now.store(), 'race')), `racer ${winners[0]}`);
  });

  it('overwrites with put, and a reader gets one version or the other, never a mixture', async () => {
    const store = now.store();
    const versions = [0, 1, 2, 3].map((i) => Buffer.alloc(300_000, i));
    await store.put('v', versions[0] as Buffer);
    const reading = Array.from({ length: 8 }, async () => {
      const seen = await read(store, 'v');
      assert.equal(seen.byteLength, 300_000);
      assert.ok(
        versions.some((version) => version.equals(seen)),
        'a mixture',
      );
    });
    for (const version of versions) await store.put('v', version);
    await Promise.all(reading);
    assert.ok(versions[3]?.equals(await read(store, 'v')));
  });
}

function keysAndLists(now: Now, sizes: ContractSizes): void {
  it('takes every legal key as it is, however odd', async () => {
    const store = now.store();
    for (const key of ODD_KEYS) assert.equal(await store.putIfAbsent(key, Buffer.from(key)), 'created', key);
    for (const key of ODD_KEYS) {
      assert.equal(String(await read(store, key)), key);
      assert.equal((await store.head(key))?.bytes, Buffer.byteLength(key));
      assert.deepEqual(await keysOf(store, key), [key]);
    }
    const inOrder = ODD_KEYS.toSorted((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
    assert.deepEqual(await keysOf(store), inOrder);
    assert.deepEqual(await keysOf(store, 'pair/'), ['pair/\uff5e', 'pair/\u{1f600}', 'pair/\u{10ffff}']);
    await store.deleteMany(ODD_KEYS.slice(1));
    assert.deepEqual(await keysOf(store), ODD_KEYS.slice(0, 1));
  });

  it('takes keys of 1,024 bytes', async () => {
    const store = now.store();
    // The root inside a bucket counts as well; it has 100 at most here.
    const key = '0123456789/'.repeat(84).slice(0, 923);
    await store.put(key, Buffer.from('x'));
    assert.deepEqual(await keysOf(store), [key]);
  });

  it('refuses illegal keys and prefixes before anything happens', async () => {
    const store = now.store();
    for (const key of ILLEGAL_KEYS) {
      const calls: Promise<unknown>[] = [
        store.putIfAbsent(key, Buffer.from('x')),
        store.put(key, Buffer.from('x')),
        read(store, key),
        store.head(key),
        store.delete(key),
        store.deleteMany(['ok', key]),
        store.abortUpload({ key, id: '0123456789abcdef', startedMs: 0 }),
      ];
      for (const call of calls) await rejects(call, 'STORE_KEY_INVALID', JSON.stringify(key));
    }
    for (const prefix of ['/', '../', 'a/../', 'a//', '.varve-tmp.', 'a\0']) {
      await rejects(keysOf(store, prefix), 'STORE_KEY_INVALID', JSON.stringify(prefix));
    }
    assert.deepEqual(await keysOf(store), []);
  });

  it('lists by prefix and from a key on, in order, over as many pages as there are', async function () {
    this.timeout(120_000);
    const store = now.store();
    const keys = Array.from({ length: sizes.keys }, (_, i) => `p/${String(i).padStart(5, '0')}`);
    const around = ['o', 'p-before', 'p.before', 'p0after', 'q/1'];
    await inParallel([...keys, ...around], (key) => store.put(key, Buffer.from('x')));
    assert.deepEqual(await keysOf(store), [...keys, ...around].toSorted(compareKeys));
    assert.deepEqual(await keysOf(store, 'p/'), keys);
    assert.deepEqual(await keysOf(store, 'p/0000'), keys.slice(0, 10));
    assert.deepEqual(await keysOf(store, 'p'), [...around.slice(1, 4), ...keys].toSorted(compareKeys));
    assert.deepEqual(await keysOf(store, 'nothing'), []);
    assert.deepEqual(await keysOf(store, 'p/', keys[10]), keys.slice(11));
    assert.deepEqual(await keysOf(store, 'p/', 'p/00010x'), keys.slice(11));
    assert.deepEqual(await keysOf(store, 'p/', keys.at(-1)), []);
    assert.deepEqual(await keysOf(store, '', 'p/99999'), ['p0after', 'q/1']);
    assert.deepEqual(await keysOf(store, 'p/', 'q'), []);
    for await (const entry of store.list('')) {
      assert.equal(entry.bytes, 1);
      assert.ok(Math.abs(entry.modifiedMs - Date.now()) < 120_000);
    }
    await store.deleteMany(keys);
    assert.deepEqual(await keysOf(store), around.toSorted(compareKeys));
  });
}

function bodies(now: Now, sizes: ContractSizes): void {
  it('streams bodies of known length, with or without a known hash, short and long', async function () {
    this.timeout(120_000);
    const store = now.store();
    for (const [bytes, isKnown] of [
      [0, false],
      [1, true],
      [5 * MIB, false],
      [sizes.longBytes, true],
    ] as const) {
      const sha256 = isKnown ? sha256OfPattern(bytes) : undefined;
      await store.put('put', patternSource(bytes, sha256));
      await readsPattern(store, 'put', bytes);
      assert.equal(await store.putIfAbsent(`once/${bytes}`, patternSource(bytes, sha256)), 'created');
      await readsPattern(store, `once/${bytes}`, bytes);
    }
  });

  it('stores nothing of a body that is shorter, longer or other than announced', async function () {
    this.timeout(120_000);
    const store = now.store();
    const good = noise(100_000);
    const liars: BodySource[] = [
      { bytes: good.byteLength + 1, open: () => chunks(good) },
      { bytes: good.byteLength - 1, open: () => chunks(good) },
      { bytes: 0, open: () => chunks(good) },
      { bytes: good.byteLength + 1, sha256: hash('sha256', good), open: () => chunks(good) },
      { bytes: good.byteLength - 1, sha256: hash('sha256', good), open: () => chunks(good) },
      { bytes: good.byteLength, sha256: '0'.repeat(64), open: () => chunks(good) },
    ];
    for (const liar of liars) {
      await rejects(store.putIfAbsent('liar', liar), 'STORE_BODY_MISMATCH');
      await rejects(store.put('liar', liar), 'STORE_BODY_MISMATCH');
      assert.equal(await store.head('liar'), undefined);
    }
    await rejects(store.put('liar', patternSource(sizes.longBytes, '0'.repeat(64))), 'STORE_BODY_MISMATCH');
    assert.equal(await store.head('liar'), undefined);
    await leavesNothing(now);
  });

  it('stores nothing of a body that fails, and passes on its error', async function () {
    this.timeout(120_000);
    const store = now.store();
    const failure = new Error('the source broke');
    for (const bytes of [100_000, sizes.longBytes]) {
      const broken: BodySource = {
        bytes,
        sha256: sha256OfPattern(bytes),
        open: () => failing(pattern(Math.floor(bytes * 0.9)), failure),
      };
      await assert.rejects(store.putIfAbsent('broken', broken), (error) => error === failure);
      await assert.rejects(store.put('broken', broken), (error) => error === failure);
      assert.equal(await store.head('broken'), undefined);
    }
    await leavesNothing(now);
    await store.put('broken', Buffer.from('mended'));
  });
}

function aborting(now: Now): void {
  it('starts nothing when aborted before', async () => {
    const store = now.store();
    await store.put('k', Buffer.from('x'));
    const signal = AbortSignal.abort();
    await rejects(store.putIfAbsent('n', Buffer.from('y'), { signal }), 'ABORTED');
    await rejects(store.put('k', Buffer.from('y'), { signal }), 'ABORTED');
    await rejects(store.head('k', { signal }), 'ABORTED');
    await rejects(store.delete('k', { signal }), 'ABORTED');
    await rejects(store.deleteMany(['k'], { signal }), 'ABORTED');
    await rejects(collect(store.get('k', { signal }), MIB), 'ABORTED');
    await rejects(keysOf(store, '', undefined, signal), 'ABORTED');
    assert.deepEqual(await keysOf(store), ['k']);
    assert.equal(String(await read(store, 'k')), 'x');
  });

  it('cuts a body that is being sent, and then nothing is there', async () => {
    const store = now.store();
    const bytes = 8 * MIB;
    for (const put of ['put', 'putIfAbsent'] as const) {
      const abort = new AbortController();
      const open = async function* () {
        let sent = 0;
        for (const chunk of pattern(bytes)) {
          yield chunk;
          sent += chunk.byteLength;
          if (sent > bytes / 2) abort.abort();
        }
      };
      const body = { bytes, sha256: sha256OfPattern(bytes), open };
      await rejects(store[put]('cut', body, { signal: abort.signal }), 'ABORTED');
      assert.equal(await store.head('cut'), undefined);
    }
    await leavesNothing(now);
  });

  it('cuts a read under way', async () => {
    const store = now.store();
    await store.put('long', noise(8 * MIB));
    const abort = new AbortController();
    const reading = async () => {
      for await (const chunk of store.get('long', { signal: abort.signal })) if (chunk.byteLength > 0) abort.abort();
    };
    await rejects(reading(), 'ABORTED');
  });

  it('lets a reader stop early, many times over', async () => {
    const store = now.store();
    await store.put('long', noise(4 * MIB));
    for (let i = 0; i < 60; i++) {
      for await (const chunk of store.get('long')) if (chunk.byteLength > 0) break;
    }
    assert.equal((await read(store, 'long')).byteLength, 4 * MIB);
  });
}

function uploads(now: Now, sizes: ContractSizes): void {
  it('shows what killed writers left, by prefix and age, and removes it alone', async function () {
    this.timeout(60_000);
    const store = now.store();
    await store.put('a/whole', Buffer.from('x'));
    for (const key of ['a/left', 'a/left', 'b/ left &<+%20 ']) await now.leaveUpload(key);
    const inAMinute = Date.now() + 60_000;
    const all = await uploadsOf(store, '', inAMinute);
    assert.deepEqual(all.map(({ key }) => key).toSorted(compareKeys), ['a/left', 'a/left', 'b/ left &<+%20 ']);
    assert.equal(new Set(all.map(({ id }) => id)).size, 3);
    assert.deepEqual(
      (await uploadsOf(store, 'b/', inAMinute)).map(({ key }) => key),
      ['b/ left &<+%20 '],
    );
    assert.deepEqual(await uploadsOf(store, '', Date.now() - 3_600_000), [], 'none of them is an hour old');
    await using within = await now.within('b');
    assert.deepEqual(
      (await uploadsOf(within, '', inAMinute)).map(({ key }) => key),
      [' left &<+%20 '],
    );
    assert.deepEqual(await keysOf(store), ['a/whole']);
    for (const upload of all) {
      await store.abortUpload(upload);
      await store.abortUpload(upload);
    }
    assert.deepEqual(await uploadsOf(store, '', inAMinute), []);
    assert.deepEqual(await keysOf(store), ['a/whole']);
  });

  it('leaves no upload when a long put has succeeded', async function () {
    this.timeout(60_000);
    await now.store().put('long', patternSource(sizes.longBytes));
    await leavesNothing(now, ['long']);
  });
}

async function leavesNothing(now: Now, keys: readonly string[] = []): Promise<void> {
  assert.deepEqual(await uploadsOf(now.store(), '', Date.now() + 60_000), []);
  assert.deepEqual(await keysOf(now.store()), keys);
}

export async function read(store: ObjectStore, key: string, range?: ByteRange): Promise<Buffer> {
  return await collect(store.get(key, { range }), 256 * MIB);
}

export async function keysOf(
  store: ObjectStore,
  prefix = '',
  startAfter?: string,
  signal?: AbortSignal,
): Promise<string[]> {
  const keys: string[] = [];
  for await (const { key } of store.list(prefix, { startAfter, signal })) keys.push(key);
  return keys;
}

export async function uploadsOf(store: ObjectStore, prefix: string, startedBeforeMs: number): Promise<Upload[]> {
  const found: Upload[] = [];
  for await (const upload of store.listUploads(prefix, startedBeforeMs)) found.push(upload);
  return found;
}

export async function rejects(promise: Promise<unknown>, code: ErrorCode, message?: string): Promise<void> {
  await assert.rejects(promise, (error) => {
    if (!isVarveError(error)) throw new Error(`${message ?? ''}: not a VarveError`, { cause: error });
    assert.equal(error.code, code, `${message ?? ''} ${error.message}`);
    return true;
  });
}

/** Bytes that do not compress, the same every time. */
export function noise(bytes: number): Buffer {
  const out = Buffer.allocUnsafe(bytes);
  let state = 0x9e3779b9;
  for (let i = 0; i < bytes; i++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    out[i] = state >>> 24;
  }
  return out;
}

export function sourceOf(body: Buffer, sha256?: string): BodySource {
  return { bytes: body.byteLength, sha256, open: () => chunks(body) };
}

async function* chunks(body: Buffer): AsyncGenerator<Buffer, void, void> {
  for (let at = 0; at < body.byteLength; at += 65_536) yield body.subarray(at, at + 65_536);
}

async function* failing(from: Iterable<Buffer>, failure: Error): AsyncGenerator<Buffer, void, void> {
  yield* from;
  throw failure;
}

const BLOCK = noise(MIB);

/** Long bodies of repeated noise: nothing has to hold them. */
export function* pattern(bytes: number): Generator<Buffer, void, void> {
  for (let at = 0; at < bytes; at += MIB) yield BLOCK.subarray(0, Math.min(MIB, bytes - at));
}

export function patternSource(bytes: number, sha256?: string): BodySource {
  const open = async function* () {
    yield* pattern(bytes);
  };
  return { bytes, sha256, open };
}

const known = new Map<number, string>();

export function sha256OfPattern(bytes: number): string {
  let found = known.get(bytes);
  if (found === undefined) {
    const digest = createHash('sha256');
    for (const block of pattern(bytes)) digest.update(block);
    found = digest.digest('hex');
    known.set(bytes, found);
  }
  return found;
}

async function readsPattern(store: ObjectStore, key: string, bytes: number): Promise<void> {
  assert.equal(hash('sha256', await read(store, key)), sha256OfPattern(bytes), key);
}

async function inParallel<T>(items: readonly T[], work: (item: T) => Promise<void>): Promise<void> {
  const left = [...items];
  const worker = async () => {
    for (let item = left.pop(); item !== undefined; item = left.pop()) await work(item);
  };
  await Promise.all(Array.from({ length: 16 }, worker));
}
