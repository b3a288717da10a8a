/**
 * The wire of S3, from the server's side: signatures, bodies and XML. Written from the protocol's documents, not from
 * the client that it tests.
 *
 * Signature Version 4: the canonical request is rebuilt from what came; host, every x-amz- and x-goog- header and the
 * hash of the body must be signed. `aws-chunked` bodies are decoded, their trailer is the checksum of the whole body.
 */
import { createHmac, hash, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { crc32 } from 'node:zlib';

/** An answer of S3's own kind: a status and a code. */
export class S3Refusal extends Error {
  readonly status: number;
  readonly code: string;

  constructor(status: number, code: string, message: string = code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

const SKEW_MS_MAX = 15 * 60_000;
const STREAMING_TRAILER = 'STREAMING-UNSIGNED-PAYLOAD-TRAILER';

export type Keys = { readonly accessKey: string; readonly secretKey: string };

/** The two families of words for the same signature. */
const FAMILIES = {
  AWS4: { words: 'x-amz', service: 's3', end: 'aws4_request' },
  GOOG4: { words: 'x-goog', service: 'storage', end: 'goog4_request' },
} as const;

const AUTHORIZATION =
  /^(AWS4|GOOG4)-HMAC-SHA256 Credential=([^/]+)\/(\d{8})\/([^/]+)\/(\w+)\/(\w+), ?SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})$/;
const MUST_BE_SIGNED = /^x-(amz|goog)-|^if-|^content-md5$|^host$/;

/** @throws S3Refusal: the request is not signed by who it says */
export function checkSignature(request: IncomingMessage, url: URL, keys: Keys): void {
  const match = AUTHORIZATION.exec(request.headers.authorization ?? '');
  if (match === null) throw new S3Refusal(403, 'AccessDenied', 'no signature');
  const [, name = '', accessKey, day = '', region = '', service, end, signedHeaders = '', signature = ''] = match;
  const family = FAMILIES[name as keyof typeof FAMILIES];
  if (service !== family.service || end !== family.end) throw new S3Refusal(403, 'AccessDenied', 'another scope');
  if (accessKey !== keys.accessKey) throw new S3Refusal(403, 'InvalidAccessKeyId');
  const date = headerOf(request, `${family.words}-date`);
  const at = Date.parse(date.replace(/^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z$/, '$1-$2-$3T$4:$5:$6Z'));
  if (!(Math.abs(at - Date.now()) < SKEW_MS_MAX)) throw new S3Refusal(403, 'RequestTimeTooSkewed');
  if (!date.startsWith(day)) throw new S3Refusal(403, 'AccessDenied', 'the scope has another day');
  const signed = signedHeaders.split(';');
  const unsigned = Object.keys(request.headers).find((name) => MUST_BE_SIGNED.test(name) && !signed.includes(name));
  if (unsigned !== undefined) throw new S3Refusal(403, 'AccessDenied', `${unsigned} is not signed`);
  const canonical = [
    request.method,
    canonicalPath(url.pathname),
    canonicalQuery(url.searchParams),
    ...signed.map((name) => `${name}:${headerOf(request, name).trim().replaceAll(/ +/g, ' ')}`),
    '',
    signedHeaders,
    headerOf(request, `${family.words}-content-sha256`),
  ].join('\n');
  const scope = `${day}/${region}/${service}/${end}`;
  const text = `${name}-HMAC-SHA256\n${date}\n${scope}\n${hash('sha256', canonical)}`;
  const key = [day, region, service, end].reduce<Buffer | string>(hmac, `${name}${keys.secretKey}`);
  if (!timingSafeEqual(hmac(key, text), Buffer.from(signature, 'hex'))) {
    throw new S3Refusal(403, 'SignatureDoesNotMatch');
  }
}

/** The body as its sender meant it, checked against everything that was said of it. */
export async function readBody(request: IncomingMessage): Promise<Buffer> {
  const parts: Buffer[] = [];
  for await (const chunk of request as AsyncIterable<Buffer>) parts.push(chunk);
  const raw = Buffer.concat(parts);
  const isGoogle = request.headers.authorization?.startsWith('GOOG4') === true;
  const said = headerOf(request, `${isGoogle ? 'x-goog' : 'x-amz'}-content-sha256`);
  const checksums = checksumsOf(request.headers);
  let body: Buffer = raw;
  if (said === STREAMING_TRAILER) {
    const chunked = decodeAwsChunked(raw);
    body = chunked.body;
    if (String(body.byteLength) !== request.headers['x-amz-decoded-content-length']) {
      throw new S3Refusal(400, 'IncompleteBody');
    }
    const announced = headerOf(request, 'x-amz-trailer');
    if (chunked.trailers[announced] === undefined) throw new S3Refusal(400, 'MalformedTrailerError');
    Object.assign(checksums, checksumsOf(chunked.trailers));
  } else if (said.startsWith('STREAMING-')) {
    throw new S3Refusal(501, 'NotImplemented', said);
  } else if (said !== 'UNSIGNED-PAYLOAD' && said !== hash('sha256', body)) {
    throw new S3Refusal(400, 'XAmzContentSHA256Mismatch');
  }
  const md5 = request.headers['content-md5'];
  if (md5 !== undefined && md5 !== hash('md5', body, 'base64')) throw new S3Refusal(400, 'BadDigest');
  for (const [name, value] of Object.entries(checksums)) {
    if (checksumOf(name, body) !== value) throw new S3Refusal(400, 'BadDigest', name);
  }
  return body;
}

/** x-amz-checksum-… of a request or a trailer. */
export function checksumsOf(headers: Readonly<Record<string, unknown>>): Record<string, string> {
  const found = Object.entries(headers).filter(([name]) => /^x-amz-checksum-(?!algorithm$|type$|mode$)/.test(name));
  return Object.fromEntries(found.map(([name, value]) => [name, String(value)]));
}

function checksumOf(name: string, body: Buffer): string {
  if (name === 'x-amz-checksum-sha256') return hash('sha256', body, 'base64');
  if (name !== 'x-amz-checksum-crc32') throw new S3Refusal(501, 'NotImplemented', name);
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(crc32(body));
  return bytes.toString('base64');
}

/** `<hex size>\r\n<bytes>\r\n … 0\r\n<trailer>: <value>\r\n\r\n` */
function decodeAwsChunked(raw: Buffer): { body: Buffer; trailers: Record<string, string> } {
  const parts: Buffer[] = [];
  let at = 0;
  for (;;) {
    const line = lineAt(raw, at);
    if (!/^[0-9a-f]+$/i.test(line)) throw new S3Refusal(400, 'InvalidChunk', 'no chunk size');
    at += line.length + 2;
    const size = Number.parseInt(line, 16);
    if (size === 0) break;
    if (at + size + 2 > raw.byteLength) throw new S3Refusal(400, 'IncompleteBody');
    parts.push(raw.subarray(at, at + size));
    at += size;
    if (lineAt(raw, at) !== '') throw new S3Refusal(400, 'InvalidChunk', 'a chunk has another size');
    at += 2;
  }
  const trailers: Record<string, string> = {};
  for (let line = lineAt(raw, at); line !== ''; line = lineAt(raw, at)) {
    const colon = line.indexOf(':');
    trailers[line.slice(0, colon).trim().toLowerCase()] = line.slice(colon + 1).trim();
    at += line.length + 2;
  }
  return { body: Buffer.concat(parts), trailers };
}

function lineAt(raw: Buffer, at: number): string {
  const end = raw.indexOf('\r\n', at);
  if (end < 0) throw new S3Refusal(400, 'IncompleteBody');
  return raw.toString('latin1', at, end);
}

function hmac(key: Buffer | string, text: string): Buffer {
  return createHmac('sha256', key).update(text).digest();
}

/** S3 encodes a path once: what came must be what strict encoding of the key gives. */
function canonicalPath(path: string): string {
  return path
    .split('/')
    .map((segment) => encodeStrictly(decodeURIComponent(segment)))
    .join('/');
}

function canonicalQuery(query: URLSearchParams): string {
  const pairs = [...query].map(([name, value]) => `${encodeStrictly(name)}=${encodeStrictly(value)}`);
  return pairs.toSorted().join('&');
}

export function encodeStrictly(text: string): string {
  return encodeURIComponent(text).replaceAll(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);
}

export function headerOf(request: IncomingMessage, name: string): string {
  const value = request.headers[name];
  if (value === undefined) throw new S3Refusal(403, 'AccessDenied', `${name} is missing`);
  return String(value);
}

export function xml(name: string, ...content: readonly (string | undefined)[]): string {
  return `<${name}>${content.join('')}</${name}>`;
}

export function escapeXml(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;');
}

/** The texts of every such element of a request's flat XML. */
export function elementsOf(document: string, name: string): string[] {
  const found = document.matchAll(new RegExp(`<${name}>([^<]*)</${name}>`, 'g'));
  return [...found].map(([, text = '']) =>
    text
      .replaceAll(/&#x([0-9a-f]+);/gi, (_, code: string) => String.fromCodePoint(Number.parseInt(code, 16)))
      .replaceAll('&lt;', '<')
      .replaceAll('&gt;', '>')
      .replaceAll('&quot;', '"')
      .replaceAll('&apos;', "'")
      .replaceAll('&amp;', '&'),
  );
}
