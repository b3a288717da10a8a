import assert from 'node:assert/strict';
import { link, lstat, mkdir, readdir, rm, symlink, utimes, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { FileStore } from '../../cold/file-store.ts';
import { MIB } from '../../schemas/limits.ts';
import { copyImage, Mount, makeImage, whyNoLoopDisk } from '../support/disk.ts';
import {
  keysOf,
  noise,
  objectStoreContract,
  patternSource,
  read,
  rejects,
  uploadsOf,
} from '../support/object-store-contract.ts';
import { skipAloud } from '../support/skip.ts';
import { TempDirectory } from '../support/temp.ts';

objectStoreContract('file:', setUpFiles, { keys: 300, longBytes: 20 * MIB });

async function setUpFiles() {
  const directory = new TempDirectory('files');
  return {
    open: (folder: string) => FileStore.open(directory.join(folder)),
    leaveUpload: async (folder: string, key: string) => {
      const path = directory.join(folder, key);
      await mkdir(dirname(path), { recursive: true });
      await writeFile(temporaryOf(path), 'half');
    },
    dispose: async () => directory[Symbol.dispose](),
  };
}

let temporaries = 0;
function temporaryOf(path: string): string {
  temporaries += 1;
  const id = temporaries.toString(16).padStart(16, '0');
  return join(dirname(path), `.varve-tmp.${path.slice(dirname(path).length + 1)}.${id}`);
}

describe('FileStore', () => {
  let directory: TempDirectory;
  let root: string;
  let store: FileStore;
  beforeEach(async () => {
    directory = new TempDirectory('files');
    root = directory.join('deep', 'root');
    store = await FileStore.open(root);
  });
  afterEach(() => directory[Symbol.dispose]());

  it('keeps each object in the file of its key, for its owner alone', async () => {
    await store.putIfAbsent('a/b/one', Buffer.from('1'));
    await store.put('a/two', Buffer.from('2'));
    for (const [path, mode] of [
      ['', 0o700],
      ['a', 0o700],
      ['a/b', 0o700],
      ['a/b/one', 0o600],
      ['a/two', 0o600],
    ] as const) {
      assert.equal((await lstat(join(root, path))).mode & 0o777, mode, path);
    }
    assert.deepEqual(await readdir(join(root, 'a', 'b')), ['one'], 'and nothing else beside it');
    assert.equal((await lstat(join(root, 'a/b/one'))).nlink, 1);
  });

  it('is named by a URL', () => {
    assert.match(store.url, /^file:\/\/\/.*\/deep\/root$/);
  });

  it('never shows a file that is being written', async () => {
    const seen: string[] = [];
    const body = patternSource(3 * MIB);
    const watching = {
      bytes: body.bytes,
      open: async function* () {
        for await (const chunk of body.open()) {
          yield chunk;
          seen.push(...(await keysOf(store)));
          assert.equal(await store.head('x/y'), undefined);
        }
      },
    };
    await store.put('x/y', watching);
    assert.deepEqual(seen, []);
    assert.deepEqual(await keysOf(store), ['x/y']);
  });

  it('takes an upload for alive as long as it writes', async () => {
    const left = temporaryOf(join(root, 'k'));
    await writeFile(left, 'half');
    await utimes(left, 1000, 1000);
    assert.deepEqual(await uploadsOf(store, '', 999_000), []);
    const [upload] = await uploadsOf(store, '', 1_001_000);
    assert.equal(upload?.startedMs, 1_000_000);
  });

  it('aborts only uploads, whatever id it is given', async () => {
    await store.put('k', Buffer.from('x'));
    for (const id of ['', '../k', 'k', '0123456789abcde', '0123456789ABCDEF']) {
      await rejects(store.abortUpload({ key: 'k', id, startedMs: 0 }), 'INVALID_OPTION');
    }
    assert.deepEqual(await keysOf(store), ['k']);
  });

  it('refuses a key that is a folder of others, or below an object', async () => {
    await store.put('a/b', Buffer.from('x'));
    for (const put of ['put', 'putIfAbsent'] as const) {
      await rejects(store[put]('a', Buffer.from('y')), 'STORE_KEY_INVALID');
      await rejects(store[put]('a/b/c', Buffer.from('y')), 'STORE_KEY_INVALID');
    }
    assert.equal(await store.head('a/b/c'), undefined);
    await rejects(read(store, 'a/b/c'), 'STORE_MISSING');
    assert.deepEqual(await uploadsOf(store, '', Number.MAX_SAFE_INTEGER), []);
  });

  it('follows a folder that is elsewhere, and leaves out files with names that are no keys', async () => {
    await mkdir(directory.join('elsewhere'));
    await symlink(directory.join('elsewhere'), join(root, 'far'));
    await store.put('far/x', noise(10));
    await writeFile(join(root, 'line\nfeed'), '');
    await writeFile(Buffer.concat([Buffer.from(`${root}/`), Buffer.from([0xff, 0xfe])]), '');
    await symlink('nowhere', join(root, 'broken'));
    assert.deepEqual(await keysOf(store), ['far/x']);
  });

  it('makes again what others removed', async () => {
    await store.put('a/b/c', Buffer.from('1'));
    await rm(join(root, 'a'), { recursive: true });
    await store.put('a/b/c', Buffer.from('2'));
    assert.equal(String(await read(store, 'a/b/c')), '2');
  });

  it('says corrupt when a file becomes shorter while it is read', async () => {
    await store.put('k', noise(2 * MIB));
    const reading = store.get('k');
    await reading.next();
    await writeFile(join(root, 'k'), 'short');
    await rejects(reading.next(), 'STORE_CORRUPT');
  });

  it('reports a full disk and a root that cannot be', async function () {
    await writeFile(directory.join('file'), '');
    await rejects(FileStore.open(directory.join('file')), 'STORE_KEY_INVALID');
    await rejects(FileStore.open(directory.join('file', 'below')), 'STORE_KEY_INVALID');
    const reason = whyNoLoopDisk();
    if (reason !== undefined) skipAloud(this, reason);
    makeImage(directory.join('image'), 8 * MIB);
    using disk = new Mount(directory.join('image'), directory.join('disk'));
    const small = await FileStore.open(join(disk.at, 'root'));
    await rejects(small.put('k', patternSource(16 * MIB)), 'STORE_FULL');
    assert.deepEqual(await keysOf(small), []);
    await small.put('k', noise(MIB));
  });

  it('keeps through a power cut what it has acknowledged, each operation by itself', async function () {
    this.timeout(60_000);
    const reason = whyNoLoopDisk();
    if (reason !== undefined) skipAloud(this, reason);
    for (const { name, live, dead } of CUTS) {
      const image = directory.join(`image-${name}`);
      makeImage(image, 16 * MIB);
      {
        using disk = new Mount(image, directory.join('disk'));
        const at = join(disk.at, 'new', 'root');
        await live(await FileStore.open(at), at);
        // On ext4 any sync takes along what was done before it: the one that counts must be the last.
        copyImage(image, directory.join('cut'));
      }
      using disk = new Mount(directory.join('cut'), directory.join('dead'));
      await dead(await FileStore.open(join(disk.at, 'new', 'root'))).catch((error: unknown) => {
        throw new Error(`after ${name}`, { cause: error });
      });
    }
  });
});

type Cut = {
  readonly name: string;
  readonly live: (store: FileStore, root: string) => Promise<void>;
  readonly dead: (store: FileStore) => Promise<void>;
};

const CUTS: readonly Cut[] = [
  {
    name: 'putIfAbsent',
    live: async (store) => assert.equal(await store.putIfAbsent('a/b/once', noise(MIB)), 'created'),
    dead: async (store) => assert.ok((await read(store, 'a/b/once')).equals(noise(MIB))),
  },
  {
    name: 'put',
    live: async (store) => {
      await store.put('a/over', Buffer.from('old'));
      await store.put('a/over', noise(100_000));
    },
    dead: async (store) => assert.ok((await read(store, 'a/over')).equals(noise(100_000))),
  },
  {
    name: 'delete',
    live: async (store) => {
      await store.put('gone', Buffer.from('x'));
      await store.delete('gone');
    },
    dead: async (store) => assert.equal(await store.head('gone'), undefined),
  },
  {
    name: 'deleteMany',
    live: async (store) => {
      await store.put('a/1', Buffer.from('x'));
      await store.deleteMany(['a/1', 'b/2']);
    },
    dead: async (store) => assert.deepEqual(await keysOf(store), []),
  },
  {
    // Published by a writer that died before its syncs: whoever is told that it exists may rely on it.
    name: 'exists',
    live: async (store, root) => {
      await mkdir(join(root, 'other'));
      await writeFile(join(root, 'other', 'draft'), 'y', { flush: true });
      await link(join(root, 'other', 'draft'), join(root, 'other', 'exists'));
      assert.equal(await store.putIfAbsent('other/exists', Buffer.from('z')), 'exists');
    },
    dead: async (store) => assert.equal(String(await read(store, 'other/exists')), 'y'),
  },
  {
    // Without this one the test would prove nothing.
    name: 'a write that nobody synced',
    live: async (_, root) => await writeFile(join(root, 'unsynced'), 'lost'),
    dead: async (store) => assert.equal((await store.head('unsynced'))?.bytes ?? 0, 0),
  },
];
