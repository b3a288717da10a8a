import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { FileStore } from '../../cold/file-store.ts';
import { openStore, parseStoreUrl } from '../../cold/open-store.ts';
import { S3Store } from '../../cold/s3-store.ts';
import { isVarveError } from '../../schemas/errors.ts';
import { rejects } from '../support/object-store-contract.ts';
import { openBucket, withKeys } from '../support/s3-place.ts';
import { S3Server } from '../support/s3-server.ts';
import { TempDirectory } from '../support/temp.ts';

describe('store URLs', () => {
  it('name a folder or a bucket', () => {
    const cases: [string, ReturnType<typeof parseStoreUrl>][] = [
      ['file:///srv/a%20b', { kind: 'file', path: '/srv/a b' }],
      ['file:/srv/a%20b', { kind: 'file', path: '/srv/a%20b' }],
      ['file:cold', { kind: 'file', path: 'cold' }],
      ['file:./cold/x', { kind: 'file', path: './cold/x' }],
      ['s3://bucket', { kind: 's3', bucket: 'bucket', root: undefined }],
      ['s3://bucket/', { kind: 's3', bucket: 'bucket', root: undefined }],
      ['s3://my.bucket-1/a/b c', { kind: 's3', bucket: 'my.bucket-1', root: 'a/b c' }],
      ['s3://bucket/a/', { kind: 's3', bucket: 'bucket', root: 'a' }],
    ];
    for (const [url, address] of cases) assert.deepEqual(parseStoreUrl(url), address, url);
  });

  it('that name neither are refused, and are not repeated: there may be a secret in them', () => {
    for (const url of [
      '',
      'file:',
      'cold',
      '/cold',
      's3:bucket',
      's3://',
      's3://UPPER',
      's3://key:secret@bucket',
      'https://x/y',
      'file://host/x',
    ]) {
      assert.throws(
        () => parseStoreUrl(url),
        (error) => isVarveError(error, 'INVALID_OPTION') && !error.message.includes('secret'),
        url,
      );
    }
  });

  it('of what is only read make and try nothing: a right to read is enough', async () => {
    using directory = new TempDirectory('open-store');
    await using server = await S3Server.start();
    await using files = await openStore(`file:${directory.join('none')}`, { readOnly: true });
    assert.equal(await files.head('a'), undefined);
    assert.deepEqual(readdirSync(directory.path), []);
    const { endpoint } = server;
    await using bucket = await withKeys(server.keys, () => openStore('s3://bucket', { endpoint, readOnly: true }));
    assert.deepEqual(server.log, []);
    await withKeys(server.keys, async () => assert.equal(await bucket.head('a'), undefined));
  });

  it('open what they name', async () => {
    using directory = new TempDirectory('open');
    await using server = await S3Server.start();
    await using files = await openStore(`file:${directory.join('root')}`);
    assert.ok(files instanceof FileStore);
    const { endpoint } = server;
    await using bucket = await withKeys(server.keys, () => openStore('s3://bucket/in/here', { endpoint }));
    assert.ok(bucket instanceof S3Store);
    assert.equal(bucket.url, 's3://bucket/in/here/');
    await rejects(openStore('s3://bucket/a//b', { endpoint }), 'STORE_KEY_INVALID');
    await rejects(openStore(`file:${directory.join('other')}`, { signal: AbortSignal.abort() }), 'ABORTED');
    await using again = await openBucket(server, 'in');
    assert.equal(again.url, 's3://bucket/in/');
  });
});
