/**
 * A small, strict S3 server for tests, in memory. What a real one would refuse, it refuses: bodies that differ from
 * their hash or checksum, requests that are not signed by the right secret, parts that are too small or out of order,
 * a conditional put over an object. What it does not know it answers with 501, so that nothing passes by chance.
 *
 * Its vices are switches: servers are out there that ignore the condition, refuse requests for many keys, answer 403
 * for what is missing, or fail single keys of a delete.
 */
import { hash, randomUUID } from 'node:crypto';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import {
  checkSignature,
  checksumsOf,
  elementsOf,
  encodeStrictly,
  escapeXml,
  headerOf,
  type Keys,
  readBody,
  S3Refusal,
  xml,
} from './s3-wire.ts';

export type S3Vices = {
  /** What a condition does. @default 'if-none-match' */
  conditions?: 'if-none-match' | 'goog-generation' | 'ignored' | 'refused';
  /** Keys in a page of a list. @default 1000 */
  pageKeys?: number;
  /** 403 for a missing object, as without the right to list. @default false */
  missingIsDenied?: boolean;
  /** 501 for DeleteObjects. @default false */
  refusesDeleteObjects?: boolean;
  /** Keys that DeleteObjects fails, with that code. @default none */
  undeletable?: { readonly key: RegExp; readonly code: string };
  /** CompleteMultipartUpload answers 200 and an error in its body, as S3 may. @default false */
  failsCompletion?: boolean;
  /** Lists newest first, as directory buckets list in no order. @default false */
  listsBackwards?: boolean;
};

type Stored = {
  body: Buffer;
  readonly etag: string;
  readonly modified: Date;
  readonly metadata: Readonly<Record<string, string>>;
  readonly checksums: Readonly<Record<string, string>>;
};

type PendingUpload = {
  readonly key: string;
  readonly started: Date;
  readonly metadata: Readonly<Record<string, string>>;
  readonly parts: Map<number, Buffer>;
};

type Request = {
  readonly message: IncomingMessage;
  readonly method: string;
  readonly key: string;
  readonly query: URLSearchParams;
  readonly body: Buffer;
};

type Answer = {
  readonly status: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: Buffer | string;
};

const PART_BYTES_MIN = 5 * 1024 * 1024;
const PARTS_MAX = 10_000;
const KEY_BYTES_MAX = 1024;

export class S3Server implements AsyncDisposable {
  readonly bucket = 'bucket';
  readonly keys: Keys = { accessKey: 'AKIATEST', secretKey: 'secret/of+the=test' };
  readonly vices: S3Vices = {};
  readonly objects = new Map<string, Stored>();
  readonly uploads = new Map<string, PendingUpload>();
  /** Requests that were answered, as `method key?query`. */
  readonly log: string[] = [];
  readonly #http: Server;

  private constructor() {
    this.#http = createServer((message, response) => void this.#serve(message, response));
  }

  static async start(): Promise<S3Server> {
    const server = new S3Server();
    await new Promise<void>((resolve) => {
      server.#http.listen(0, '127.0.0.1', resolve);
    });
    return server;
  }

  get endpoint(): string {
    return `http://127.0.0.1:${(this.#http.address() as AddressInfo).port}`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#http.closeAllConnections();
    await new Promise((resolve) => {
      this.#http.close(resolve);
    });
  }

  async #serve(message: IncomingMessage, response: ServerResponse): Promise<void> {
    const answer = await this.#answer(message).catch(refusal);
    const { status, headers = {}, body = '' } = answer;
    response.writeHead(status, {
      'content-length': Buffer.byteLength(body),
      'x-amz-request-id': randomUUID(),
      ...headers,
    });
    response.end(message.method === 'HEAD' ? '' : body);
  }

  async #answer(message: IncomingMessage): Promise<Answer> {
    const url = new URL(message.url ?? '/', this.endpoint);
    // A body is read also where the request is refused: the connection stays in step.
    const body = await readBody(message).catch((error: unknown) => error);
    checkSignature(message, url, this.keys);
    if (!(body instanceof Buffer)) throw body;
    const [, bucket, key] = /^\/([^/]*)(?:\/(.*))?$/s.exec(url.pathname) ?? [];
    if (bucket !== this.bucket) throw new S3Refusal(404, 'NoSuchBucket');
    const decoded = decodeURIComponent(key ?? '');
    if (Buffer.byteLength(decoded) > KEY_BYTES_MAX) throw new S3Refusal(400, 'KeyTooLongError');
    const request = { message, method: message.method ?? '', key: decoded, query: url.searchParams, body };
    this.log.push(`${request.method} ${decoded}${url.search}`);
    return decoded === '' ? this.#ofBucket(request) : this.#ofObject(request);
  }

  #ofBucket(request: Request): Answer {
    const { method, query } = request;
    if (method === 'GET' && query.get('list-type') === '2') return this.#list(query);
    if (method === 'GET' && query.has('uploads')) return this.#listUploads(query);
    if (method === 'POST' && query.has('delete')) return this.#deleteObjects(request);
    throw new S3Refusal(501, 'NotImplemented');
  }

  #ofObject(request: Request): Answer {
    const { method, query } = request;
    const operation = `${method}${query.has('uploads') ? ' uploads' : query.has('uploadId') ? ' uploadId' : ''}`;
    switch (operation) {
      case 'PUT':
        return this.#put(request);
      case 'GET':
      case 'HEAD':
        return this.#get(request);
      case 'DELETE':
        this.objects.delete(request.key);
        return { status: 204 };
      case 'POST uploads':
        return this.#createUpload(request);
      case 'PUT uploadId':
        return this.#putPart(request);
      case 'POST uploadId':
        return this.#completeUpload(request);
      case 'DELETE uploadId':
        this.#uploadOf(request);
        this.uploads.delete(query.get('uploadId') ?? '');
        return { status: 204 };
      default:
        throw new S3Refusal(501, 'NotImplemented', operation);
    }
  }

  #put({ message, key, body }: Request): Answer {
    const { conditions = 'if-none-match' } = this.vices;
    const ifNoneMatch = message.headers['if-none-match'];
    const generation = message.headers['x-goog-if-generation-match'];
    if (conditions === 'refused' && ifNoneMatch !== undefined) throw new S3Refusal(501, 'NotImplemented');
    if (conditions === 'if-none-match' && ifNoneMatch !== undefined) {
      if (ifNoneMatch !== '*') throw new S3Refusal(501, 'NotImplemented', 'If-None-Match takes only *');
      if (this.objects.has(key)) throw new S3Refusal(412, 'PreconditionFailed');
    }
    if (conditions === 'goog-generation' && generation !== undefined) {
      if (Object.keys(message.headers).some((name) => name.startsWith('x-amz-'))) {
        throw new S3Refusal(400, 'ExcessHeaderValues', 'Requests cannot specify both x-amz and x-goog headers');
      }
      if (generation === '0' && this.objects.has(key)) throw new S3Refusal(412, 'PreconditionFailed');
    }
    const etag = `"${hash('md5', body)}"`;
    const checksums = checksumsOf(message.headers);
    this.objects.set(key, { body, etag, modified: new Date(), metadata: metadataOf(message), checksums });
    return { status: 200, headers: { etag, ...checksums } };
  }

  #get({ message, method, key }: Request): Answer {
    const found = this.objects.get(key);
    if (found === undefined) {
      throw this.vices.missingIsDenied === true
        ? new S3Refusal(403, 'AccessDenied')
        : new S3Refusal(404, method === 'HEAD' ? 'NotFound' : 'NoSuchKey');
    }
    const { body, etag, modified, metadata, checksums } = found;
    const withChecksums = message.headers['x-amz-checksum-mode'] === 'ENABLED' ? checksums : {};
    const headers = { etag, 'last-modified': modified.toUTCString(), 'accept-ranges': 'bytes', ...metadata };
    const range = message.headers.range;
    const size = { 'content-length': String(body.byteLength) };
    if (range === undefined) return { status: 200, headers: { ...headers, ...withChecksums, ...size }, body };
    const [, first = '', last = ''] = /^bytes=(\d+)-(\d+)$/.exec(range) ?? [];
    if (first === '') throw new S3Refusal(501, 'NotImplemented', range);
    const start = Number(first);
    const end = Math.min(Number(last) + 1, body.byteLength);
    if (start >= end) throw new S3Refusal(416, 'InvalidRange');
    const place = `bytes ${start}-${end - 1}/${body.byteLength}`;
    return { status: 206, headers: { ...headers, 'content-range': place }, body: body.subarray(start, end) };
  }

  #list(query: URLSearchParams): Answer {
    const prefix = query.get('prefix') ?? '';
    const after = tokenOf(query) ?? query.get('start-after') ?? '';
    const encode = encoderOf(query);
    const keys = [...this.objects.keys()].filter((key) => key.startsWith(prefix) && compare(key, after) > 0);
    keys.sort(compare);
    if (this.vices.listsBackwards === true) keys.reverse();
    const page = keys.slice(0, this.vices.pageKeys ?? 1000);
    const isTruncated = page.length < keys.length;
    const contents = page.map((key) => {
      const { body, etag, modified } = this.objects.get(key) as Stored;
      const time = xml('LastModified', modified.toISOString());
      return xml(
        'Contents',
        xml('Key', encode(key)),
        time,
        xml('ETag', escapeXml(etag)),
        xml('Size', String(body.byteLength)),
      );
    });
    const next = isTruncated ? xml('NextContinuationToken', Buffer.from(page.at(-1) ?? '').toString('base64')) : '';
    const head = [xml('Name', this.bucket), xml('IsTruncated', String(isTruncated)), encodingOf(query), next];
    return document('ListBucketResult', ...head, ...contents);
  }

  #listUploads(query: URLSearchParams): Answer {
    const prefix = query.get('prefix') ?? '';
    const encode = encoderOf(query);
    const marker = [query.get('key-marker') ?? '', query.get('upload-id-marker') ?? ''] as const;
    const all = [...this.uploads].filter(([id, { key }]) => {
      const order = compare(key, marker[0]) || (marker[1] === '' ? -1 : compare(id, marker[1]));
      return key.startsWith(prefix) && order > 0;
    });
    all.sort(([idA, a], [idB, b]) => compare(a.key, b.key) || compare(idA, idB));
    const page = all.slice(0, this.vices.pageKeys ?? 1000);
    const uploads = page.map(([id, { key, started }]) =>
      xml('Upload', xml('Key', encode(key)), xml('UploadId', id), xml('Initiated', started.toISOString())),
    );
    const [lastId = '', last] = page.at(-1) ?? [];
    const isTruncated = page.length < all.length;
    const next = [xml('NextKeyMarker', encode(last?.key ?? '')), xml('NextUploadIdMarker', lastId)];
    const head = [xml('Bucket', this.bucket), xml('IsTruncated', String(isTruncated)), encodingOf(query)];
    return document('ListMultipartUploadsResult', ...head, ...(isTruncated ? next : []), ...uploads);
  }

  #deleteObjects({ message, body }: Request): Answer {
    if (this.vices.refusesDeleteObjects === true) throw new S3Refusal(501, 'NotImplemented');
    if (message.headers['content-md5'] === undefined) throw new S3Refusal(400, 'InvalidRequest', 'no Content-MD5');
    const keys = elementsOf(body.toString(), 'Key');
    if (keys.length === 0 || keys.length > 1000) throw new S3Refusal(400, 'MalformedXML');
    const { undeletable } = this.vices;
    const errors = keys.flatMap((key) => {
      if (undeletable?.key.test(key) !== true) {
        this.objects.delete(key);
        return [];
      }
      return [xml('Error', xml('Key', escapeXml(key)), xml('Code', undeletable.code), xml('Message', 'no'))];
    });
    return document('DeleteResult', ...errors);
  }

  #createUpload({ message, key }: Request): Answer {
    const id = randomUUID();
    this.uploads.set(id, { key, started: new Date(), metadata: metadataOf(message), parts: new Map() });
    const names = [xml('Bucket', this.bucket), xml('Key', escapeXml(key)), xml('UploadId', id)];
    return document('InitiateMultipartUploadResult', ...names);
  }

  #uploadOf({ key, query }: Request): PendingUpload {
    const upload = this.uploads.get(query.get('uploadId') ?? '');
    if (upload === undefined || upload.key !== key) throw new S3Refusal(404, 'NoSuchUpload');
    return upload;
  }

  #putPart(request: Request): Answer {
    const upload = this.#uploadOf(request);
    const number = Number(request.query.get('partNumber'));
    if (!Number.isInteger(number) || number < 1 || number > PARTS_MAX) throw new S3Refusal(400, 'InvalidArgument');
    upload.parts.set(number, request.body);
    return { status: 200, headers: { etag: `"${hash('md5', request.body)}"` } };
  }

  /** If-None-Match has no effect here, as on every server that was tried. */
  #completeUpload(request: Request): Answer {
    const upload = this.#uploadOf(request);
    const numbers = elementsOf(request.body.toString(), 'PartNumber').map(Number);
    const etags = elementsOf(request.body.toString(), 'ETag');
    if (numbers.length === 0) throw new S3Refusal(400, 'MalformedXML');
    const isOrdered = numbers.every((number, i) => i === 0 || number > (numbers[i - 1] as number));
    if (!isOrdered) throw new S3Refusal(400, 'InvalidPartOrder');
    const parts = numbers.map((number, i) => {
      const part = upload.parts.get(number);
      if (part === undefined || etags[i] !== `"${hash('md5', part)}"`) throw new S3Refusal(400, 'InvalidPart');
      if (i < numbers.length - 1 && part.byteLength < PART_BYTES_MIN) throw new S3Refusal(400, 'EntityTooSmall');
      return part;
    });
    if (this.vices.failsCompletion === true) return { status: 200, body: errorDocument('InternalError', 'try again') };
    const etag = `"${hash('md5', Buffer.concat(parts.map((part) => hash('md5', part, 'buffer'))))}-${parts.length}"`;
    const { metadata } = upload;
    this.objects.set(request.key, { body: Buffer.concat(parts), etag, modified: new Date(), metadata, checksums: {} });
    this.uploads.delete(request.query.get('uploadId') ?? '');
    return document('CompleteMultipartUploadResult', xml('Key', escapeXml(request.key)), xml('ETag', escapeXml(etag)));
  }
}

function refusal(error: unknown): Answer {
  if (!(error instanceof S3Refusal)) return { status: 500, body: errorDocument('InternalError', String(error)) };
  return { status: error.status, body: errorDocument(error.code, error.message) };
}

function errorDocument(code: string, message: string): string {
  return `<?xml version="1.0"?>${xml('Error', xml('Code', code), xml('Message', escapeXml(message)))}`;
}

function document(name: string, ...content: readonly (string | undefined)[]): Answer {
  const body = `<?xml version="1.0"?>${xml(name, ...content)}`;
  return { status: 200, headers: { 'content-type': 'application/xml' }, body };
}

function metadataOf(message: IncomingMessage): Record<string, string> {
  const found = Object.entries(message.headers).filter(([name]) => name.startsWith('x-amz-meta-'));
  return Object.fromEntries(found.map(([name]) => [name, headerOf(message, name)]));
}

/** S3 encodes listed keys like a form, but for the slash; without being asked it only escapes XML. */
function encoderOf(query: URLSearchParams): (key: string) => string {
  if (query.get('encoding-type') !== 'url') return escapeXml;
  return (key) => key.split('/').map(encodeStrictly).join('/').replaceAll('%20', '+');
}

function encodingOf(query: URLSearchParams): string {
  return query.get('encoding-type') === 'url' ? xml('EncodingType', 'url') : '';
}

function tokenOf(query: URLSearchParams): string | undefined {
  const token = query.get('continuation-token');
  return token === null ? undefined : Buffer.from(token, 'base64').toString();
}

function compare(a: string, b: string): number {
  return Buffer.compare(Buffer.from(a), Buffer.from(b));
}
