/**
 * Object store in a bucket: `s3:`, of AWS or of whoever speaks its protocol.
 *
 * An object is put with one PutObject, which S3 makes visible whole or not at all; long ones by `put` with a multipart
 * upload, which CompleteMultipartUpload publishes. `putIfAbsent` never takes the second way: no server that was tried
 * keeps a condition there.
 *
 * The condition is a dialect, found at open by trying: `If-None-Match: *`, or Google's `x-goog-if-generation-match: 0`.
 *
 * Integrity is end to end and does not depend on what a server knows of checksums: every body's SHA-256 is in the signed
 * header x-amz-content-sha256, which the server checks before it stores, and in the object's metadata
 * (`varve-sha256`), against which a whole read is checked. For that, a source whose hash is not known is read twice.
 * Ranges are checked by length and place. A conditional put to Google carries no metadata; such objects are checked by length.
 *
 * The SDK's retries are off. Credentials come from its usual chain: environment, shared files, SSO, container, instance.
 */
import { hash } from 'node:crypto';
import type { Readable } from 'node:stream';
import type * as Sdk from '@aws-sdk/client-s3';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { type Body, bytesOf, chunksOf, piecesOf, refuseAborted, sha256Of } from './body.ts';
import { type SignableRequest, signForGoogle } from './google-signature.ts';
import { checkKey, checkPrefix, compareKeys, KEY_BYTES_MAX } from './keys.ts';
import {
  type CallOptions,
  checkRange,
  type GetOptions,
  type ListOptions,
  type ObjectEntry,
  type ObjectHead,
  type ObjectStore,
  type PutOutcome,
  type Upload,
} from './object-store.ts';
import { keepsCondition } from './probe.ts';
import { checkedBytes, corrupt, relativeKey } from './s3-answers.ts';
import { sendBody } from './s3-body.ts';
import { codeOfName, type Effect, s3Error } from './s3-errors.ts';
import {
  DELETE_KEYS_MAX,
  LOOK_FIRST_OVER_BYTES,
  PARTS_OVER_BYTES,
  PUT_BYTES_MAX,
  partBytesOf,
  tooLarge,
} from './s3-limits.ts';

export type S3Options = {
  readonly bucket: string;
  /** Folder in the bucket under which all keys are, without slashes at its ends. @default the whole bucket */
  readonly root?: string | undefined;
  /** URL of the server. @default AWS, or what its usual configuration names */
  readonly endpoint?: string | undefined;
  /** @default the usual chain of AWS; with an endpoint us-east-1 */
  readonly region?: string | undefined;
  /** Bucket in the path instead of the host name. @default true with an endpoint: few servers of one's own have DNS */
  readonly pathStyle?: boolean | undefined;
  /** Longest silence of the server, in milliseconds; then the request counts as lost. @default 60,000 */
  readonly timeoutMs?: number | undefined;
  /** Nothing will be put, so nothing is tried at start: credentials that may only read are enough. @default false */
  readonly readOnly?: boolean | undefined;
};

const CONNECT_MS = 10_000;
const HASH_METADATA = 'varve-sha256';

/** The SDK warns on the console of errors that it also throws. */
const SILENT = { debug: ignore, info: ignore, warn: ignore, error: ignore };

type Dialect = 'if-none-match' | 'goog-generation';

export class S3Store implements ObjectStore {
  readonly url: string;
  readonly putIfAbsentBytesMax = PUT_BYTES_MAX;
  readonly #sdk: typeof Sdk;
  readonly #client: Sdk.S3Client;
  readonly #bucket: string;
  /** Empty, or with a slash at its end. */
  readonly #root: string;
  #dialect: Dialect = 'if-none-match';

  private constructor(sdk: typeof Sdk, client: Sdk.S3Client, bucket: string, root: string) {
    this.#sdk = sdk;
    this.#client = client;
    this.#bucket = bucket;
    this.#root = root;
    this.url = `s3://${bucket}/${root}`;
  }

  /** @throws VarveError STORE_UNCONDITIONAL: the server overwrites what a conditional put must not */
  static async open(options: S3Options, call: CallOptions = {}): Promise<S3Store> {
    const { bucket, root, endpoint, timeoutMs = 60_000 } = options;
    if (root !== undefined) checkKey(root);
    const region = options.region ?? (endpoint === undefined ? undefined : 'us-east-1');
    // Loaded where a bucket is used: it takes 10 MB and a tenth of a second.
    const sdk = await import('@aws-sdk/client-s3');
    const client = new sdk.S3Client({
      ...(endpoint === undefined ? {} : { endpoint }),
      ...(region === undefined ? {} : { region }),
      forcePathStyle: options.pathStyle ?? endpoint !== undefined,
      maxAttempts: 1,
      requestChecksumCalculation: 'WHEN_REQUIRED',
      responseChecksumValidation: 'WHEN_REQUIRED',
      // Not every server answers to it, and then it delays a body by six seconds.
      expectContinueHeader: false,
      requestHandler: { connectionTimeout: Math.min(CONNECT_MS, timeoutMs), socketTimeout: timeoutMs },
      customUserAgent: 'varve',
      logger: SILENT,
    });
    const store = new S3Store(sdk, client, bucket, root === undefined ? '' : `${root}/`);
    if (options.readOnly === true) return store;
    try {
      for (const dialect of ['if-none-match', 'goog-generation'] as const) {
        store.#dialect = dialect;
        if (await store.#understands(call.signal)) return store;
      }
      const text = `${store.url} overwrites what a conditional put must not, so two writers could undo each other's commits; use another store`;
      throw new VarveError('STORE_UNCONDITIONAL', text, { url: store.url });
    } catch (error) {
      await store.close();
      throw error;
    }
  }

  async putIfAbsent(key: string, body: Body, options: CallOptions = {}): Promise<PutOutcome> {
    const Key = this.#keyOf(key);
    const { signal } = options;
    refuseAborted(signal);
    const bytes = bytesOf(body);
    if (bytes > PUT_BYTES_MAX) throw tooLarge(key, bytes, PUT_BYTES_MAX);
    if (bytes > LOOK_FIRST_OVER_BYTES && (await this.head(key, options)) !== undefined) return 'exists';
    try {
      await this.#putObject(Key, body, true, signal);
      return 'created';
    } catch (error) {
      if (!isVarveError(error)) throw error;
      const { status, s3_code } = error.details;
      if (status === 412) return 'exists';
      if (s3_code !== 'NotImplemented') throw error;
      throw new VarveError('STORE_UNCONDITIONAL', `${this.url} knows no conditional put`, error.details, error);
    }
  }

  async put(key: string, body: Body, options: CallOptions = {}): Promise<void> {
    const Key = this.#keyOf(key);
    refuseAborted(options.signal);
    if (bytesOf(body) > PARTS_OVER_BYTES) await this.#putParts(Key, body, options.signal);
    else await this.#putObject(Key, body, false, options.signal);
  }

  async *get(key: string, options: GetOptions = {}): AsyncGenerator<Uint8Array, void, void> {
    const { range, signal } = options;
    checkRange(range);
    const Range = range === undefined ? undefined : `bytes=${range.start}-${range.end - 1}`;
    const input = { Bucket: this.#bucket, Key: this.#keyOf(key), Range };
    const sent = sendOptions(options);
    const answer = await this.#ask('none', 'get', key, () =>
      this.#client.send(new this.#sdk.GetObjectCommand(input), sent),
    );
    const body = answer.Body as Readable;
    const { ContentLength: bytes, ContentRange: place, Metadata } = answer;
    try {
      yield* checkedBytes(key, range, { bytes, place, sha256: Metadata?.[HASH_METADATA] }, body, signal);
    } catch (error) {
      refuseAborted(signal);
      throw s3Error(error, 'none', `get ${key}`, { key });
    } finally {
      body.destroy();
    }
  }

  async head(key: string, options: CallOptions = {}): Promise<ObjectHead | undefined> {
    const input = { Bucket: this.#bucket, Key: this.#keyOf(key) };
    const sent = sendOptions(options);
    try {
      const found = await this.#ask('none', 'head', key, () =>
        this.#client.send(new this.#sdk.HeadObjectCommand(input), sent),
      );
      if (found.ContentLength === undefined) throw corrupt(key, 'the server does not say how long it is');
      return { bytes: found.ContentLength, modifiedMs: found.LastModified?.getTime() ?? 0, etag: found.ETag };
    } catch (error) {
      if (isVarveError(error, 'STORE_MISSING')) return undefined;
      throw error;
    }
  }

  async *list(prefix: string, options: ListOptions = {}): AsyncGenerator<ObjectEntry, void, void> {
    checkPrefix(prefix);
    const StartAfter = options.startAfter === undefined ? undefined : this.#root + options.startAfter;
    const input = { Bucket: this.#bucket, Prefix: this.#root + prefix, EncodingType: 'url', StartAfter } as const;
    let last = '';
    let ContinuationToken: string | undefined;
    do {
      const command = new this.#sdk.ListObjectsV2Command({ ...input, ContinuationToken });
      const sent = sendOptions(options);
      const page = await this.#ask('none', 'list', prefix, () => this.#client.send(command, sent));
      for (const { Key, Size, LastModified } of page.Contents ?? []) {
        const key = relativeKey(this.#root, Key, page.EncodingType);
        if (compareKeys(key, last) <= 0) throw outOfOrder(this.url, key, last);
        last = key;
        yield { key, bytes: Size ?? 0, modifiedMs: LastModified?.getTime() ?? 0 };
      }
      ContinuationToken = page.IsTruncated === true ? page.NextContinuationToken : undefined;
      if (page.IsTruncated === true && ContinuationToken === undefined) {
        throw new VarveError('STORE_REFUSED', `${this.url} breaks off its list of ${prefix}`, { prefix });
      }
    } while (ContinuationToken !== undefined);
  }

  async delete(key: string, options: CallOptions = {}): Promise<void> {
    const input = { Bucket: this.#bucket, Key: this.#keyOf(key) };
    refuseAborted(options.signal);
    try {
      // A delete that happened twice is a delete: nothing about it is ambiguous.
      await this.#ask('none', 'delete', key, () => this.#client.send(new this.#sdk.DeleteObjectCommand(input)));
    } catch (error) {
      if (!isVarveError(error, 'STORE_MISSING')) throw error;
    }
  }

  async deleteMany(keys: readonly string[], options: CallOptions = {}): Promise<void> {
    const full = keys.map((key) => this.#keyOf(key));
    const failed: { key: string; name: string }[] = [];
    for (let at = 0; at < full.length; at += DELETE_KEYS_MAX) {
      refuseAborted(options.signal);
      const batch = full.slice(at, at + DELETE_KEYS_MAX);
      try {
        for (const { Key = '', Code = 'unknown' } of await this.#deleteBatch(batch)) {
          if (Code !== 'NoSuchKey') failed.push({ key: Key.slice(this.#root.length), name: Code });
        }
      } catch (error) {
        if (!isVarveError(error) || ![405, 501].includes(Number(error.details['status']))) throw error;
        // Not every server knows requests for many keys.
        for (const key of batch) await this.delete(key.slice(this.#root.length), options);
      }
    }
    const first = failed[0];
    if (first === undefined) return;
    throw new VarveError(
      codeOfName(first.name),
      `${failed.length} of ${keys.length} keys were not deleted, the first: ${first.key} (${first.name})`,
      { failed: failed.map(({ key }) => key) },
    );
  }

  async *listUploads(
    prefix: string,
    startedBeforeMs: number,
    options: CallOptions = {},
  ): AsyncGenerator<Upload, void, void> {
    checkPrefix(prefix);
    // Unencoded: Ceph's gateway encodes these keys and does not say so. Legal keys have nothing that XML has not.
    const input = { Bucket: this.#bucket, Prefix: this.#root + prefix };
    let from: { KeyMarker?: string | undefined; UploadIdMarker?: string | undefined } | undefined = {};
    while (from !== undefined) {
      const command: Sdk.ListMultipartUploadsCommand = new this.#sdk.ListMultipartUploadsCommand({ ...input, ...from });
      const sent = sendOptions(options);
      const page = await this.#ask('none', 'list uploads', prefix, () => this.#client.send(command, sent));
      for (const { Key, UploadId = '', Initiated } of page.Uploads ?? []) {
        const key = relativeKey(this.#root, Key, undefined);
        const startedMs = Initiated?.getTime() ?? Number.POSITIVE_INFINITY;
        if (startedMs < startedBeforeMs && key.startsWith(prefix)) yield { key, id: UploadId, startedMs };
      }
      const { NextKeyMarker: KeyMarker, NextUploadIdMarker: UploadIdMarker } = page;
      from = page.IsTruncated === true ? { KeyMarker, UploadIdMarker } : undefined;
    }
  }

  async abortUpload(upload: Upload, options: CallOptions = {}): Promise<void> {
    const input = { Bucket: this.#bucket, Key: this.#keyOf(upload.key), UploadId: upload.id };
    refuseAborted(options.signal);
    try {
      await this.#ask('none', 'abort the upload of', upload.key, () =>
        this.#client.send(new this.#sdk.AbortMultipartUploadCommand(input)),
      );
    } catch (error) {
      if (!isVarveError(error, 'STORE_MISSING')) throw error;
    }
  }

  async close(): Promise<void> {
    this.#client.destroy();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #understands(signal: AbortSignal | undefined): Promise<boolean> {
    try {
      return await keepsCondition(this, signal);
    } catch (error) {
      if (isVarveError(error, 'STORE_UNCONDITIONAL')) return false;
      throw error;
    }
  }

  async #putObject(Key: string, body: Body, ifAbsent: boolean, signal: AbortSignal | undefined): Promise<void> {
    const sha256 = await sha256Of(body, signal);
    const input: Sdk.PutObjectCommandInput = { Bucket: this.#bucket, Key, ContentLength: bytesOf(body) };
    const isGoogle = ifAbsent && this.#dialect === 'goog-generation';
    if (!isGoogle) {
      input.Metadata = { [HASH_METADATA]: sha256 };
      input.ChecksumSHA256 = Buffer.from(sha256, 'hex').toString('base64');
      if (ifAbsent) input.IfNoneMatch = '*';
    }
    await sendBody(body, signal, (Body, abortSignal) => {
      const command = new this.#sdk.PutObjectCommand({ ...input, Body });
      withHeaders(command, { 'x-amz-content-sha256': sha256 });
      if (isGoogle) this.#inWordsOfGoogle(command);
      return this.#ask('write', 'put', Key, () => this.#client.send(command, { abortSignal }));
    });
  }

  #inWordsOfGoogle(command: Sdk.PutObjectCommand): void {
    command.middlewareStack.add(
      (next) => async (args) => {
        const request = args.request as SignableRequest;
        request.headers['x-goog-if-generation-match'] = '0';
        signForGoogle(request, await this.#client.config.credentials(), new Date());
        return await next(args);
      },
      // After AWS's signature, which it replaces.
      { step: 'finalizeRequest', name: 'varveGoogle', priority: 'low' },
    );
  }

  async #putParts(Key: string, body: Body, signal: AbortSignal | undefined): Promise<void> {
    const partBytes = partBytesOf(Key, bytesOf(body));
    const Metadata = { [HASH_METADATA]: await sha256Of(body, signal) };
    const object = { Bucket: this.#bucket, Key };
    const { UploadId } = await this.#ask('none', 'begin the upload of', Key, () =>
      this.#client.send(new this.#sdk.CreateMultipartUploadCommand({ ...object, Metadata })),
    );
    const Parts: { PartNumber: number; ETag: string | undefined }[] = [];
    try {
      for await (const Body of piecesOf(chunksOf(body, signal), partBytes)) {
        const PartNumber = Parts.length + 1;
        const command = new this.#sdk.UploadPartCommand({ ...object, UploadId, PartNumber, Body });
        withHeaders(command, { 'x-amz-content-sha256': hash('sha256', Body, 'hex') });
        const part = await this.#ask('none', `upload part ${PartNumber} of`, Key, () => this.#client.send(command));
        Parts.push({ PartNumber, ETag: part.ETag });
      }
      // COMMIT POINT. Parts that nobody sees before, the object after.
      const command = new this.#sdk.CompleteMultipartUploadCommand({ ...object, UploadId, MultipartUpload: { Parts } });
      await this.#ask('write', 'complete the upload of', Key, () => this.#client.send(command));
    } catch (error) {
      // After an ambiguous completion there may be nothing to abort; whatever is left, a sweep finds.
      if (!isVarveError(error, 'STORE_AMBIGUOUS')) await this.#tryAbort(Key, UploadId);
      throw error;
    }
  }

  /** A failure is not the caller's: it has a worse one already, and the sweep of old uploads comes by. */
  async #tryAbort(Key: string, UploadId: string | undefined): Promise<void> {
    const command = new this.#sdk.AbortMultipartUploadCommand({ Bucket: this.#bucket, Key, UploadId });
    await this.#client.send(command).catch(() => {});
  }

  async #deleteBatch(keys: readonly string[]): Promise<{ Key?: string; Code?: string }[]> {
    const Delete = { Quiet: true, Objects: keys.map((Key) => ({ Key })) };
    const command = new this.#sdk.DeleteObjectsCommand({ Bucket: this.#bucket, Delete });
    // Servers older than the SDK's checksums insist on Content-MD5.
    command.middlewareStack.add(
      (next) => (args) => {
        const request = args.request as SignableRequest & { readonly body: string };
        request.headers['content-md5'] = hash('md5', request.body, 'base64');
        return next(args);
      },
      { step: 'build', name: 'varveContentMd5', priority: 'low' },
    );
    const answer = await this.#ask('none', 'delete', `${keys.length} keys`, () => this.#client.send(command));
    return (answer.Errors ?? []) as { Key?: string; Code?: string }[];
  }

  async #ask<T>(effect: Effect, verb: string, key: string, send: () => Promise<T>): Promise<T> {
    try {
      return await send();
    } catch (error) {
      throw s3Error(error, effect, `${verb} ${key} in ${this.url}`, { key });
    }
  }

  /** @throws VarveError STORE_KEY_INVALID */
  #keyOf(key: string): string {
    checkKey(key);
    const full = this.#root + key;
    if (Buffer.byteLength(full) <= KEY_BYTES_MAX) return full;
    throw new VarveError('STORE_KEY_INVALID', `with the root a key has over ${KEY_BYTES_MAX} bytes`, { key });
  }
}

/** Headers that the SDK has no parameter for; they are signed like its own. */
function withHeaders(
  command: Sdk.PutObjectCommand | Sdk.UploadPartCommand,
  headers: Readonly<Record<string, string>>,
): void {
  (command as Sdk.PutObjectCommand).middlewareStack.add(
    (next) => (args) => {
      Object.assign((args.request as SignableRequest).headers, headers);
      return next(args);
    },
    { step: 'build', name: 'varveHeaders' },
  );
}

function sendOptions({ signal }: CallOptions): { abortSignal?: AbortSignal } {
  refuseAborted(signal);
  return signal === undefined ? {} : { abortSignal: signal };
}

function outOfOrder(url: string, key: string, last: string): VarveError {
  const text = `${url} does not list in the order of keys: ${key} after ${last}`;
  return new VarveError('STORE_REFUSED', text, { key, last });
}

function ignore(): void {}
