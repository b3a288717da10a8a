import assert from 'node:assert/strict';
import { hash } from 'node:crypto';
import { writeFile } from 'node:fs/promises';
import { Readable } from 'node:stream';
import { inspect } from 'node:util';
import {
  CompleteMultipartUploadCommand,
  CreateMultipartUploadCommand,
  DeleteObjectsCommand,
  GetObjectCommand,
  PutObjectCommand,
  UploadPartCommand,
} from '@aws-sdk/client-s3';
import { openStore } from '../../cold/open-store.ts';
import { S3Store } from '../../cold/s3-store.ts';
import { type ErrorCode, isVarveError } from '../../schemas/errors.ts';
import { MIB } from '../../schemas/limits.ts';
import { FaultProxy, type ProxyFault } from '../support/fault-proxy.ts';
import {
  keysOf,
  noise,
  objectStoreContract,
  patternSource,
  read,
  rejects,
  sourceOf,
  uploadsOf,
} from '../support/object-store-contract.ts';
import {
  type Bucket,
  bucketOfEnvironment,
  makeBucket,
  openBucket,
  placeInBucket,
  plainClient,
  withKeys,
} from '../support/s3-place.ts';
import { S3Server } from '../support/s3-server.ts';
import { skipAloud } from '../support/skip.ts';
import { TempDirectory } from '../support/temp.ts';

const LONG_BYTES = 40 * MIB;

objectStoreContract('s3:, the strict server', setUpServer, { keys: 300, longBytes: LONG_BYTES });

async function setUpServer() {
  const server = await S3Server.start();
  server.vices.pageKeys = 100;
  return await placeInBucket(server, () => server[Symbol.asyncDispose]());
}

describe('s3: of VARVE_TEST_S3', () => {
  const real = bucketOfEnvironment();
  if (real === undefined) {
    it('keeps the contract', function () {
      skipAloud(this, 'VARVE_TEST_S3 names no server');
    });
    return;
  }
  const setUpReal = async () => {
    await makeBucket(real);
    return await placeInBucket(real, async () => {});
  };
  objectStoreContract(`s3:, ${real.endpoint}`, setUpReal, { keys: 1100, longBytes: LONG_BYTES });
  faultsOnTheWay(async () => {
    await makeBucket(real);
    return { bucket: real, dispose: async () => {} };
  });
});

describe('S3Store', () => {
  let server: S3Server;
  beforeEach(async () => {
    server = await S3Server.start();
  });
  afterEach(() => server[Symbol.asyncDispose]());

  describe('at open', () => {
    it('refuses a server that ignores conditions, or refuses requests that have one', async () => {
      for (const conditions of ['ignored', 'refused'] as const) {
        server.vices.conditions = conditions;
        await rejects(openBucket(server), 'STORE_UNCONDITIONAL');
        assert.deepEqual([...server.objects.keys()], [], 'the probe is cleaned up');
      }
    });

    it('speaks the dialect of Google to a server that knows no other', async () => {
      server.vices.conditions = 'goog-generation';
      await using store = await openBucket(server, 'root');
      for (const key of ['k', 'odd key/+%20&ü*()']) {
        assert.equal(await store.putIfAbsent(key, Buffer.from('first')), 'created');
        assert.equal(await store.putIfAbsent(key, Buffer.from('second')), 'exists');
        assert.equal(String(await read(store, key)), 'first');
        await store.put(key, Buffer.from('third'));
        assert.equal(String(await read(store, key)), 'third');
        await store.delete(key);
        assert.equal(await store.putIfAbsent(key, sourceOf(noise(3 * MIB))), 'created');
      }
    });

    it('takes credentials from the usual chain: environment, shared file; without any it is denied', async () => {
      using directory = new TempDirectory('aws');
      const { accessKey, secretKey } = server.keys;
      const file = `[default]\naws_access_key_id = ${accessKey}\naws_secret_access_key = ${secretKey}\n`;
      await writeFile(directory.join('credentials'), file);
      const open = () => openStore('s3://bucket/root', { endpoint: server.endpoint });
      await withKeys(server.keys, async () => await (await open()).close());
      await withKeys({ accessKey, secretKey: 'wrong' }, () => rejects(open(), 'STORE_DENIED'));
      const before = { ...process.env };
      Object.assign(process.env, { AWS_EC2_METADATA_DISABLED: 'true', AWS_CONFIG_FILE: directory.join('none') });
      try {
        process.env['AWS_SHARED_CREDENTIALS_FILE'] = directory.join('credentials');
        await (await open()).close();
        process.env['AWS_SHARED_CREDENTIALS_FILE'] = directory.join('none');
        await rejects(open(), 'STORE_DENIED');
      } finally {
        for (const name of ['AWS_EC2_METADATA_DISABLED', 'AWS_CONFIG_FILE', 'AWS_SHARED_CREDENTIALS_FILE']) {
          if (before[name] === undefined) delete process.env[name];
          else process.env[name] = before[name];
        }
      }
    });

    it('says what cannot be: no such bucket, nobody there, no region', async () => {
      await rejects(openBucket({ endpoint: server.endpoint, bucket: 'other', keys: server.keys }), 'STORE_REFUSED');
      await rejects(
        openBucket({ endpoint: 'http://127.0.0.1:1', bucket: 'b', keys: server.keys }),
        'STORE_UNAVAILABLE',
      );
      await withKeys(server.keys, async () => {
        const region = process.env['AWS_REGION'];
        delete process.env['AWS_REGION'];
        await rejects(S3Store.open({ bucket: 'bucket' }), 'STORE_REFUSED');
        if (region !== undefined) process.env['AWS_REGION'] = region;
      });
    });

    it('keeps everything below its root', async () => {
      await using store = await openBucket(server, 'a/root');
      assert.equal(store.url, 's3://bucket/a/root/');
      await store.put('k', Buffer.from('x'));
      assert.deepEqual([...server.objects.keys()], ['a/root/k']);
      await rejects(store.put(`${'x'.repeat(200)}/`.repeat(5) + 'y'.repeat(15), Buffer.from('x')), 'STORE_KEY_INVALID');
    });
  });

  describe('with a server that has vices', () => {
    let store: S3Store;
    beforeEach(async () => {
      store = await openBucket(server, 'r');
      server.log.length = 0;
    });
    afterEach(() => store.close());

    it('takes 403 for what it is, never for absence', async () => {
      server.vices.missingIsDenied = true;
      await rejects(store.head('missing'), 'STORE_DENIED');
      await rejects(read(store, 'missing'), 'STORE_DENIED');
      await rejects(store.putIfAbsent('missing', noise(2 * MIB)), 'STORE_DENIED');
      assert.equal(server.objects.size, 0);
    });

    it('says corrupt of an object that changed where it lies', async () => {
      await store.put('k', noise(1000));
      const stored = server.objects.get('r/k');
      stored?.body.writeUInt8(1 ^ stored.body.readUInt8(500), 500);
      await rejects(read(store, 'k'), 'STORE_CORRUPT');
      await store.put('long', patternSource(LONG_BYTES));
      const long = server.objects.get('r/long');
      long?.body.writeUInt8(1 ^ long.body.readUInt8(LONG_BYTES - 1), LONG_BYTES - 1);
      await rejects(read(store, 'long'), 'STORE_CORRUPT');
    });

    it('names the keys that a server would not delete, and deletes one by one where it must', async () => {
      for (const key of ['a', 'b', 'c']) await store.put(key, Buffer.from(key));
      server.vices.undeletable = { key: /\/b$/, code: 'AccessDenied' };
      await assert.rejects(store.deleteMany(['a', 'b', 'c']), (error) => {
        assert.ok(isVarveError(error, 'STORE_DENIED'));
        assert.deepEqual(error.details['failed'], ['b']);
        return true;
      });
      assert.deepEqual(await keysOf(store), ['b']);
      server.vices.refusesDeleteObjects = true;
      await store.deleteMany(['b', 'never was']);
      assert.deepEqual(await keysOf(store), []);
    });

    it('does not take a list that is out of order', async () => {
      for (const key of ['a', 'b']) await store.put(key, Buffer.from(key));
      server.vices.listsBackwards = true;
      await rejects(keysOf(store), 'STORE_REFUSED');
    });

    it('does not take an answer of 200 with an error in it for a completed upload', async () => {
      server.vices.failsCompletion = true;
      await rejects(store.put('long', patternSource(LONG_BYTES)), 'STORE_AMBIGUOUS');
      assert.equal(await store.head('long'), undefined);
      const left = await uploadsOf(store, '', Date.now() + 60_000);
      assert.equal(left.length, 1, 'what may have happened is left to the sweep');
    });

    it('refuses bodies that no request can take, before anything is sent', async () => {
      const open = () => assert.fail('nothing is read');
      await rejects(store.putIfAbsent('k', { bytes: 5 * 1024 * MIB + 1, open }), 'STORE_TOO_LARGE');
      await rejects(store.put('k', { bytes: 640_001 * MIB, open }), 'STORE_TOO_LARGE');
      assert.deepEqual(server.log, []);
    });

    it('does not send a long body for a key that is taken', async () => {
      await store.put('k', noise(2 * MIB));
      server.log.length = 0;
      assert.equal(await store.putIfAbsent('k', noise(2 * MIB)), 'exists');
      assert.deepEqual(
        server.log.map((line) => line.slice(0, 8)),
        ['HEAD r/k'],
      );
    });
  });

  faultsOnTheWay(async () => {
    const own = await S3Server.start();
    return { bucket: own, dispose: () => own[Symbol.asyncDispose]() };
  });
});

/** The same for the strict server and a real one: what is harmed is on the way. */
function faultsOnTheWay(setUp: () => Promise<{ bucket: Bucket; dispose: () => Promise<void> }>): void {
  describe('with faults on the way', () => {
    let dispose: () => Promise<void>;
    let proxy: FaultProxy;
    let store: S3Store;
    /** Gives up on a silent server soon; for nothing else, since a busy machine is silent too. */
    let impatient: S3Store;
    let direct: S3Store;
    before(async () => {
      const place = await setUp();
      dispose = place.dispose;
      proxy = await FaultProxy.start(place.bucket.endpoint);
      const root = `faults-${Date.now()}`;
      direct = await openBucket(place.bucket, root);
      const { bucket, keys } = place.bucket;
      const proxied = { endpoint: proxy.endpoint, bucket, keys };
      store = await openBucket(proxied, root);
      impatient = await openBucket(proxied, root, { timeoutMs: 700 });
    });
    after(async () => {
      for (const one of [store, impatient, direct]) await one.close();
      await proxy[Symbol.asyncDispose]();
      await dispose();
    });
    afterEach(() => assert.equal(proxy.pending, 0, 'a fault was never met'));

    const refusals: [status: number, code: string, write: ErrorCode, read: ErrorCode][] = [
      [500, 'InternalError', 'STORE_AMBIGUOUS', 'STORE_UNAVAILABLE'],
      [502, 'Bad', 'STORE_AMBIGUOUS', 'STORE_UNAVAILABLE'],
      [503, 'ServiceUnavailable', 'STORE_AMBIGUOUS', 'STORE_UNAVAILABLE'],
      [503, 'SlowDown', 'STORE_THROTTLED', 'STORE_THROTTLED'],
      [429, 'TooManyRequests', 'STORE_THROTTLED', 'STORE_THROTTLED'],
      [409, 'ConditionalRequestConflict', 'STORE_CONFLICT', 'STORE_CONFLICT'],
      [403, 'AccessDenied', 'STORE_DENIED', 'STORE_DENIED'],
      [400, 'BadDigest', 'STORE_BODY_MISMATCH', 'STORE_BODY_MISMATCH'],
      [404, 'NoSuchBucket', 'STORE_REFUSED', 'STORE_REFUSED'],
      [400, 'Whatever', 'STORE_REFUSED', 'STORE_REFUSED'],
    ];
    for (const [status, code, write, reading] of refusals) {
      it(`${status} ${code}: ${write} of a put, ${reading} of a read, with no second try`, async () => {
        await direct.put('there', Buffer.from('x'));
        proxy.inject({ method: 'PUT', kind: 'status', status, code });
        await rejects(store.putIfAbsent('k1', Buffer.from('x')), write);
        proxy.inject({ method: 'PUT', kind: 'status', status, code });
        await rejects(store.put('k1', sourceOf(noise(MIB))), write);
        proxy.inject({ method: 'GET', kind: 'status', status, code });
        await rejects(read(store, 'there'), reading);
        proxy.inject({ method: 'GET', kind: 'status', status, code });
        await rejects(keysOf(store), reading);
        proxy.inject({ method: 'DELETE', kind: 'status', status, code });
        await rejects(store.delete('there'), reading);
        assert.equal(await direct.head('k1'), undefined);
        assert.equal((await direct.head('there'))?.bytes, 1);
      });
    }

    it('a put whose answer is lost is ambiguous, and its object is there', async () => {
      const lost: ProxyFault[] = [
        { method: 'PUT', kind: 'silent' },
        { method: 'PUT', kind: 'reset' },
        { method: 'PUT', kind: 'status-after', status: 500, code: 'InternalError' },
        { method: 'PUT', kind: 'status-after', status: 504, code: 'GatewayTimeout' },
      ];
      for (const [i, fault] of lost.entries()) {
        proxy.inject(fault);
        const patience = fault.kind === 'silent' ? impatient : store;
        await rejects(patience.putIfAbsent(`lost/${i}`, Buffer.from('mine')), 'STORE_AMBIGUOUS', fault.kind);
        await proxy.idle();
        assert.equal(String(await read(direct, `lost/${i}`)), 'mine');
        assert.equal(await store.putIfAbsent(`lost/${i}`, Buffer.from('other')), 'exists');
      }
    });

    it('a put that never arrived is ambiguous too where the connection had been made', async () => {
      proxy.inject({ method: 'PUT', kind: 'reset-before' });
      await rejects(store.putIfAbsent('never', Buffer.from('x')), 'STORE_AMBIGUOUS');
      assert.equal(await direct.head('never'), undefined);
    });

    it('a read that breaks, stalls or ends early is to be tried again', async () => {
      await direct.put('r', noise(500_000));
      proxy.inject({ method: 'GET', kind: 'truncated', afterBytes: 300_000 });
      await rejects(read(store, 'r'), 'STORE_UNAVAILABLE');
      proxy.inject({ method: 'GET', kind: 'truncated', afterBytes: 10 });
      await rejects(read(store, 'r', { start: 5, end: 400_000 }), 'STORE_UNAVAILABLE');
      for (const kind of ['silent', 'reset', 'reset-before'] as const) {
        const patience = kind === 'silent' ? impatient : store;
        proxy.inject({ method: 'GET', kind });
        await rejects(read(patience, 'r'), 'STORE_UNAVAILABLE', kind);
        proxy.inject({ method: 'HEAD', kind });
        await rejects(patience.head('r'), 'STORE_UNAVAILABLE', kind);
      }
      assert.ok((await read(store, 'r')).equals(noise(500_000)));
    });

    it('a read that was changed on the way, with nothing wrong on the wire, is corrupt', async () => {
      await direct.put('c', noise(10_000));
      proxy.inject({ method: 'GET', kind: 'flipped', bit: 77 });
      await rejects(read(store, 'c'), 'STORE_CORRUPT');
      proxy.inject({ method: 'GET', kind: 'short', afterBytes: 9_999 });
      await rejects(read(store, 'c'), 'STORE_CORRUPT');
      proxy.inject({ method: 'GET', kind: 'short', afterBytes: 99 });
      await rejects(read(store, 'c', { start: 0, end: 100 }), 'STORE_CORRUPT');
    });

    it('a part that fails aborts the upload; a completion whose answer is lost does not', async function () {
      this.timeout(60_000);
      proxy.inject({ method: 'PUT', path: /partNumber=3/, kind: 'status', status: 500, code: 'InternalError' });
      await rejects(store.put('parts', patternSource(LONG_BYTES)), 'STORE_UNAVAILABLE');
      assert.deepEqual(await uploadsOf(direct, '', Date.now() + 60_000), []);
      proxy.inject({ method: 'POST', path: /uploadId=/, kind: 'reset' });
      await rejects(store.put('parts', patternSource(LONG_BYTES)), 'STORE_AMBIGUOUS');
      await proxy.idle();
      assert.equal((await direct.head('parts'))?.bytes, LONG_BYTES, 'here it had happened');
    });

    it('an upload that could not be aborted either is found later, and the first error is told', async function () {
      this.timeout(60_000);
      proxy.inject(
        { method: 'PUT', path: /partNumber=2/, kind: 'reset' },
        { method: 'DELETE', path: /uploadId=/, kind: 'reset-before' },
      );
      await rejects(store.put('stranded', patternSource(LONG_BYTES)), 'STORE_UNAVAILABLE');
      const [upload, ...more] = await uploadsOf(direct, 'stranded', Date.now() + 60_000);
      assert.ok(upload !== undefined && more.length === 0);
      await direct.abortUpload(upload);
    });

    it('no error lets out a secret or an object of the SDK', async () => {
      proxy.inject({ method: 'PUT', kind: 'status', status: 403, code: 'SignatureDoesNotMatch' });
      const error = await store.put('k', Buffer.from('payload of somebody')).catch((error: unknown) => error);
      assert.ok(isVarveError(error));
      const text = inspect(error, { depth: 10, showHidden: true });
      for (const secret of [/secret/i, /Signature=/, /payload/, /\$response/, /\$metadata/, /IncomingMessage/]) {
        assert.doesNotMatch(text, secret);
      }
    });
  });
}

describe('the strict server', () => {
  let server: S3Server;
  before(async () => {
    server = await S3Server.start();
  });
  after(() => server[Symbol.asyncDispose]());

  it('takes what the SDK sends by itself: CRC32 in a header, or in the trailer of an aws-chunked body', async () => {
    using client = disposable(plainClient(server));
    const body = noise(300_000);
    const object = { Bucket: 'bucket', Key: 'sdk/trailer' };
    await client.send(new PutObjectCommand({ ...object, Key: 'sdk/header', Body: body }));
    const parts = Readable.from([body.subarray(0, 100_000), body.subarray(100_000)]);
    await client.send(new PutObjectCommand({ ...object, Body: parts, ContentLength: body.byteLength }));
    for (const Key of ['sdk/header', 'sdk/trailer']) assert.ok(server.objects.get(Key)?.body.equals(body), Key);
    const found = await client.send(new GetObjectCommand({ ...object, Key: 'sdk/header', ChecksumMode: 'ENABLED' }));
    assert.ok(body.equals((await found.Body?.transformToByteArray()) ?? Buffer.alloc(0)));
    assert.match(found.ChecksumCRC32 ?? '', /=$/);
  });

  it('refuses what is not signed by the secret, or not what it says', async () => {
    using client = disposable(plainClient(server));
    using thief = disposable(plainClient({ endpoint: server.endpoint, keys: { ...server.keys, secretKey: 'x' } }));
    const object = { Bucket: 'bucket', Key: 'bad', Body: 'x' };
    const wrong = hash('sha256', 'y', 'base64');
    await assert.rejects(thief.send(new PutObjectCommand(object)), { name: 'SignatureDoesNotMatch' });
    await assert.rejects(client.send(new PutObjectCommand({ ...object, ChecksumSHA256: wrong })), {
      name: 'BadDigest',
    });
    await assert.rejects(client.send(new PutObjectCommand({ ...object, ChecksumCRC32: 'AAAAAA==' })), {
      name: 'BadDigest',
    });
    await assert.rejects(client.send(new PutObjectCommand({ ...object, IfNoneMatch: '"etag"' })), {
      name: 'NotImplemented',
    });
    const noMd5 = new DeleteObjectsCommand({ Bucket: 'bucket', Delete: { Objects: [{ Key: 'bad' }] } });
    await assert.rejects(client.send(noMd5), { name: 'InvalidRequest' });
    const unsigned = await fetch(`${server.endpoint}/bucket/bad`, { method: 'PUT', body: 'x' });
    assert.equal(unsigned.status, 403);
    assert.equal(server.objects.has('bad'), false);
  });

  it('refuses a body that is changed under its signature', async () => {
    await using proxy = await FaultProxy.start(server.endpoint);
    using client = disposable(plainClient({ endpoint: proxy.endpoint, keys: server.keys }));
    const command = new PutObjectCommand({ Bucket: 'bucket', Key: 'bad', Body: 'x' });
    command.middlewareStack.add(
      (next) => (args) => {
        (args.request as { body: string }).body = 'y';
        return next(args);
      },
      { step: 'finalizeRequest', name: 'tamper', priority: 'low' },
    );
    await assert.rejects(client.send(command), { name: 'XAmzContentSHA256Mismatch' });
  });

  it('refuses parts that are too small, out of order or others than named', async () => {
    using client = disposable(plainClient(server));
    const object = { Bucket: 'bucket', Key: 'parts' };
    const { UploadId } = await client.send(new CreateMultipartUploadCommand(object));
    const etags: string[] = [];
    for (const PartNumber of [1, 2]) {
      const part = await client.send(
        new UploadPartCommand({ ...object, UploadId, PartNumber, Body: `part ${PartNumber}` }),
      );
      etags.push(part.ETag ?? '');
    }
    const complete = (Parts: { PartNumber: number; ETag: string | undefined }[]) =>
      client.send(new CompleteMultipartUploadCommand({ ...object, UploadId, MultipartUpload: { Parts } }));
    const [one, two] = [
      { PartNumber: 1, ETag: etags[0] },
      { PartNumber: 2, ETag: etags[1] },
    ];
    await assert.rejects(complete([one, two]), { name: 'EntityTooSmall' });
    await assert.rejects(complete([two, one]), { name: 'InvalidPartOrder' });
    await assert.rejects(complete([{ PartNumber: 1, ETag: etags[1] }]), { name: 'InvalidPart' });
    await complete([one]);
    assert.equal(String(server.objects.get('parts')?.body), 'part 1');
  });
});

function disposable<T extends { destroy(): void }>(client: T): T & Disposable {
  return Object.assign(client, { [Symbol.dispose]: () => client.destroy() });
}
