/** A bucket for tests: on the strict server in this process, or on a real one that the environment names. */
import { randomBytes } from 'node:crypto';
import { CreateBucketCommand, CreateMultipartUploadCommand, S3Client, UploadPartCommand } from '@aws-sdk/client-s3';
import type { ObjectStore } from '../../cold/object-store.ts';
import { type S3Options, S3Store } from '../../cold/s3-store.ts';
import type { StorePlace } from './object-store-contract.ts';
import type { Keys } from './s3-wire.ts';

export type Bucket = { readonly endpoint: string; readonly bucket: string; readonly keys: Keys };

/** `VARVE_TEST_S3=http://<access key>:<secret>@<host>:<port>/<bucket>`; the bucket is made where it is missing. */
export function bucketOfEnvironment(): Bucket | undefined {
  const text = process.env['VARVE_TEST_S3'];
  if (text === undefined || text === '') return undefined;
  const url = new URL(text);
  const keys = { accessKey: decodeURIComponent(url.username), secretKey: decodeURIComponent(url.password) };
  return { endpoint: url.origin, bucket: url.pathname.slice(1), keys };
}

/** The usual chain of credentials starts with these. */
export async function withKeys<T>(keys: Keys, work: () => Promise<T>): Promise<T> {
  const before = { ...process.env };
  process.env['AWS_ACCESS_KEY_ID'] = keys.accessKey;
  process.env['AWS_SECRET_ACCESS_KEY'] = keys.secretKey;
  delete process.env['AWS_SESSION_TOKEN'];
  try {
    return await work();
  } finally {
    for (const name of ['AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY', 'AWS_SESSION_TOKEN']) {
      if (before[name] === undefined) delete process.env[name];
      else process.env[name] = before[name];
    }
  }
}

export async function openBucket(of: Bucket, root?: string, options: Partial<S3Options> = {}): Promise<S3Store> {
  const { endpoint, bucket } = of;
  return await withKeys(of.keys, () => S3Store.open({ endpoint, bucket, root, ...options }));
}

/** The SDK as it comes: its own checksums and all. */
export function plainClient({ endpoint, keys }: Pick<Bucket, 'endpoint' | 'keys'>): S3Client {
  const credentials = { accessKeyId: keys.accessKey, secretAccessKey: keys.secretKey };
  return new S3Client({ endpoint, region: 'us-east-1', forcePathStyle: true, maxAttempts: 1, credentials });
}

export async function placeInBucket(of: Bucket, dispose: () => Promise<void>): Promise<StorePlace> {
  const run = randomBytes(4).toString('hex');
  const client = plainClient(of);
  return {
    open: (folder): Promise<ObjectStore> => openBucket(of, `${run}/${folder}`),
    leaveUpload: async (folder, key) => {
      const object = { Bucket: of.bucket, Key: `${run}/${folder}/${key}` };
      const { UploadId } = await client.send(new CreateMultipartUploadCommand(object));
      await client.send(new UploadPartCommand({ ...object, UploadId, PartNumber: 1, Body: Buffer.from('half') }));
    },
    dispose: async () => {
      client.destroy();
      await dispose();
    },
  };
}

export async function makeBucket(of: Bucket): Promise<void> {
  const client = plainClient(of);
  try {
    await client.send(new CreateBucketCommand({ Bucket: of.bucket }));
  } catch (error) {
    if (!(error instanceof Error) || !/^Bucket(AlreadyOwnedByYou|AlreadyExists)$/.test(error.name)) throw error;
  } finally {
    client.destroy();
  }
}
