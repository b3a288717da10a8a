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

  it('keeps through a power cut what a put, a conditional put or a delete has acknowledged', async function () {
    const reason = whyNoLoopDisk();
    if (reason !== undefined) skipAloud(this, reason);
    makeImage(directory.join('image'), 64 * MIB);
    {
      using disk = new Mount(directory.join('image'), directory.join('disk'));
      const live = await FileStore.open(join(disk.at, 'new', 'root'));
      await live.putIfAbsent('a/b/c/once', noise(MIB));
      await live.put('a/over', Buffer.from('old'));
      await live.put('a/over', noise(1000));
      await live.put('gone', Buffer.from('x'));
      await live.delete('gone');
      // Published by a writer that died before its syncs: whoever is told that it exists may rely on it.
      await mkdir(join(disk.at, 'new/root/other'));
      await writeFile(join(disk.at, 'new/root/other/.tmp'), 'y', { flush: true });
      await link(join(disk.at, 'new/root/other/.tmp'), join(disk.at, 'new/root/other/exists'));
      assert.equal(await live.putIfAbsent('other/exists', Buffer.from('z')), 'exists');
      await writeFile(join(disk.at, 'new/root/unsynced'), 'lost');
      copyImage(directory.join('image'), directory.join('cut'));
    }
    using dead = new Mount(directory.join('cut'), directory.join('dead'));
    const found = await FileStore.open(join(dead.at, 'new', 'root'));
    assert.ok((await read(found, 'a/b/c/once')).equals(noise(MIB)));
    assert.ok((await read(found, 'a/over')).equals(noise(1000)));
    assert.equal(await found.head('gone'), undefined);
    assert.equal(String(await read(found, 'other/exists')), 'y');
    assert.equal((await found.head('unsynced'))?.bytes ?? 0, 0, 'the cut takes what nobody synced');
  });
});
