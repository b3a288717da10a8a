import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import {
  existsSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { FileStore } from '../../cold/file-store.ts';
import { type CachedObject, CacheUser } from '../../cold/object-cache.ts';
import type { GetOptions, ObjectStore } from '../../cold/object-store.ts';
import { isVarveError, VarveError } from '../../schemas/errors.ts';
import { noise, rejects } from '../support/object-store-contract.ts';
import { TempDirectory } from '../support/temp.ts';

const BYTES = 10_000;

describe('the object cache', () => {
  let directory: TempDirectory;
  let store: ObjectStore;
  let root: string;
  let objects: (CachedObject & { readonly bytes: number })[];
  let fetched: string[];
  /** What a fetch meets. */
  let trouble: ((key: string) => void) | undefined;

  beforeEach(async () => {
    directory = new TempDirectory('cache');
    root = directory.join('cache');
    const inner = await FileStore.open(directory.join('store'));
    fetched = [];
    trouble = undefined;
    store = new Proxy(inner, {
      get: (target, name) => {
        const member = Reflect.get(target, name, target) as unknown;
        if (name === 'get') {
          return (key: string, options?: GetOptions) => {
            fetched.push(key);
            trouble?.(key);
            return target.get(key, options);
          };
        }
        return typeof member === 'function' ? (member as () => unknown).bind(target) : member;
      },
    });
    objects = [];
    for (let i = 0; i < 6; i++) {
      const body = Buffer.concat([Buffer.from([i]), noise(BYTES - 1)]);
      const sha256 = createHash('sha256').update(body).digest('hex');
      const key = `events/${sha256}.parquet`;
      await store.put(key, body);
      objects.push({ key, sha256, bytes: BYTES });
    }
  });

  afterEach(() => directory[Symbol.dispose]());

  const of = (...which: number[]) => which.map((i) => objects[i] as CachedObject & { bytes: number });
  const held = () => (existsSync(join(root, 'objects')) ? readdirSync(join(root, 'objects')) : []);
  const isHeld = (i: number) => held().includes(`${of(i)[0]?.sha256}.parquet`);

  async function use(bytesMax: number, ...which: number[]): Promise<void> {
    await using user = await CacheUser.open(root, bytesMax);
    await user.take(store, of(...which));
  }

  it('fetches an object once, whoever asks for it, and gives its bytes', async () => {
    await using first = await CacheUser.open(root, 10 * BYTES);
    await using second = await CacheUser.open(root, 10 * BYTES);
    await first.take(store, of(0, 1));
    await second.take(store, of(1, 0, 1));
    await second.take(store, of(0));
    assert.equal(fetched.length, 2);
    for (const user of [first, second]) {
      const bytes = readFileSync(user.pathOf(of(0)[0] as CachedObject));
      assert.equal(createHash('sha256').update(bytes).digest('hex'), of(0)[0]?.sha256);
    }
  });

  it('asks the store for a length that nobody knows', async () => {
    await using user = await CacheUser.open(root, 10 * BYTES);
    const [object] = of(0);
    await user.take(store, [{ key: object?.key as string, sha256: object?.sha256 as string }]);
    assert.equal(statSync(user.pathOf(object as CachedObject)).size, BYTES);
  });

  it('keeps within its bound, and lets go of what was used least recently', async () => {
    for (const i of [0, 1, 2]) await use(3 * BYTES, i);
    const old = new Date(Date.now() - 1000);
    for (const i of [0, 1, 2]) utimesSync(join(root, 'objects', `${of(i)[0]?.sha256}.parquet`), old, old);
    await use(3 * BYTES, 0);
    await use(3 * BYTES, 3, 4);
    assert.deepEqual([0, 1, 2, 3, 4].map(isHeld), [true, false, false, true, true]);
    assert.equal(held().length, 3);
  });

  it('never lets go of what is in use, and says that it waits for it', async () => {
    const user = await CacheUser.open(root, 3 * BYTES);
    await user.take(store, of(0, 1));
    await rejects(use(3 * BYTES, 2, 3), 'COLD_CACHE_BUSY');
    await use(3 * BYTES, 2);
    assert.deepEqual(
      [0, 1, 2].map((i) => existsSync(user.pathOf(of(i)[0] as CachedObject)) || isHeld(i)),
      [true, true, true],
    );
    await user.close();
    await use(3 * BYTES, 3, 4);
    assert.equal(held().length, 3);
  });

  it('refuses more than it may ever hold, before it fetches anything', async () => {
    await rejects(use(2 * BYTES, 0, 1, 2), 'COLD_CACHE_TOO_SMALL');
    await using user = await CacheUser.open(root, 2 * BYTES);
    await user.take(store, of(0, 1));
    await rejects(user.take(store, of(2)), 'COLD_CACHE_TOO_SMALL');
    assert.equal(fetched.length, 2);
    assert.deepEqual(
      readdirSync(user.folder).filter((name) => name.endsWith('.part')),
      [],
    );
  });

  it('counts what others are fetching', async () => {
    await using other = await CacheUser.open(root, 3 * BYTES);
    let release: () => void = () => {};
    const slow = new Promise<void>((resolve) => (release = resolve));
    const gets = new Proxy(store, {
      get: (target, name) =>
        name !== 'get'
          ? (Reflect.get(target, name, target) as unknown)
          : async function* (key: string) {
              await slow;
              yield* target.get(key);
            },
    });
    const taking = other.take(gets, of(0, 1));
    await waitFor(() => readdirSync(other.folder).filter((name) => name.endsWith('.part')).length === 2);
    await rejects(use(3 * BYTES, 2, 3), 'COLD_CACHE_BUSY');
    release();
    await taking;
  });

  it('takes nothing that has another SHA-256 than its name, and keeps nothing of it', async () => {
    const [object] = of(0);
    await store.put(object?.key as string, noise(BYTES));
    await rejects(use(3 * BYTES, 0), 'STORE_CORRUPT');
    await store.put(object?.key as string, noise(2 * BYTES));
    await rejects(use(3 * BYTES, 0), 'STORE_CORRUPT');
    await store.delete(object?.key as string);
    await rejects(use(3 * BYTES, 0), 'STORE_MISSING');
    assert.deepEqual(held(), []);
    assert.deepEqual(readdirSync(join(root, 'users')), []);
  });

  it('goes on after a failure with what it has', async () => {
    await using user = await CacheUser.open(root, 10 * BYTES);
    trouble = (key) => {
      if (key === of(5)[0]?.key) throw new VarveError('STORE_UNAVAILABLE', 'not now');
    };
    await rejects(user.take(store, of(0, 1, 2, 3, 4, 5)), 'STORE_UNAVAILABLE');
    trouble = undefined;
    fetched.length = 0;
    await user.take(store, of(0, 1, 2, 3, 4, 5));
    assert.deepEqual(fetched, [of(5)[0]?.key]);
  });

  it('fetches again what somebody made shorter', async () => {
    await use(3 * BYTES, 0);
    writeFileSync(join(root, 'objects', `${of(0)[0]?.sha256}.parquet`), 'short');
    await use(3 * BYTES, 0);
    assert.equal(fetched.length, 2);
    assert.equal(statSync(join(root, 'objects', `${of(0)[0]?.sha256}.parquet`)).size, BYTES);
  });

  it('removes what a crash left, once it is old, and nothing of those who live', async () => {
    await use(3 * BYTES, 0);
    const [dead, young] = ['dead', 'young'].map((name) => join(root, 'users', name));
    for (const folder of [dead as string, young as string]) {
      mkdirSync(folder);
      const name = `${of(0)[0]?.sha256}.parquet`;
      linkSync(join(root, 'objects', name), join(folder, name));
    }
    writeFileSync(join(dead as string, 'x.part'), noise(BYTES));
    const longAgo = new Date(Date.now() - 3_600_000);
    utimesSync(dead as string, longAgo, longAgo);
    await use(3 * BYTES, 1);
    assert.deepEqual(readdirSync(join(root, 'users')), ['young']);
    await use(2 * BYTES, 2);
    assert.equal(isHeld(0), true);
  });

  it('shared by many at once gives each of them whole files, one after the other where there is no room', async () => {
    await Promise.all(
      Array.from({ length: 12 }, async (_, i) => {
        await using user = await CacheUser.open(root, 4 * BYTES);
        const wanted = of(i % 6, (i + 1) % 6);
        // Those who reserve at the same moment may all find too little room: then chance decides who comes first.
        for (let isTaken = false; !isTaken; ) {
          isTaken = await user.take(store, wanted).then(
            () => true,
            (error: unknown) => {
              assert.ok(isVarveError(error, 'COLD_CACHE_BUSY'), String(error));
              return false;
            },
          );
          if (!isTaken) await new Promise((resolve) => setTimeout(resolve, Math.random() * 50));
        }
        for (const object of wanted) {
          const bytes = readFileSync(user.pathOf(object));
          assert.equal(createHash('sha256').update(bytes).digest('hex'), object.sha256);
        }
      }),
    );
    await use(4 * BYTES, 0, 1);
    assert.ok(held().length <= 4);
  });

  it('ends a fetch that is aborted', async () => {
    await using user = await CacheUser.open(root, 3 * BYTES);
    await rejects(user.take(store, of(0), { signal: AbortSignal.abort() }), 'ABORTED');
    await user.take(store, of(0));
  });
});

async function waitFor(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 5));
}
