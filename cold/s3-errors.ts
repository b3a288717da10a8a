/**
 * What an S3 server or the way to it said, in the terms of the port. Pure: knows shapes, not the SDK.
 *
 * The question that decides is whether a write may have happened. It did not where the server refused the request (4xx)
 * or asked to slow down, or where no connection came about. It may have where the connection broke, the server fell
 * silent, or it failed (5xx) after the request went out.
 */
import { type ErrorCode, isVarveError, VarveError } from '../schemas/errors.ts';

/** What the failed request would have done. */
export type Effect = 'none' | 'write';

type Failure = {
  readonly name: string;
  readonly status: number | undefined;
  readonly errno: string | undefined;
  readonly requestId: string | undefined;
  readonly message: string;
  readonly hasResponse: boolean;
};

/** Nothing went out. */
const NOT_SENT = new Set([
  'ECONNREFUSED',
  'ENOTFOUND',
  'EAI_AGAIN',
  'EAI_FAIL',
  'ENETUNREACH',
  'EHOSTUNREACH',
  'ENETDOWN',
  'EADDRNOTAVAIL',
]);
const SLOW_DOWN = new Set(['SlowDown', 'Throttling', 'ThrottlingException', 'TooManyRequests', 'RequestLimitExceeded']);
const NO_CREDENTIALS = new Set(['CredentialsProviderError', 'TokenProviderError']);

/** Codes of S3 that say more than their status. */
const BY_NAME: Readonly<Record<string, ErrorCode>> = {
  NoSuchBucket: 'STORE_REFUSED',
  InvalidBucketName: 'STORE_REFUSED',
  BadDigest: 'STORE_BODY_MISMATCH',
  InvalidDigest: 'STORE_BODY_MISMATCH',
  XAmzContentSHA256Mismatch: 'STORE_BODY_MISMATCH',
  XAmzContentChecksumMismatch: 'STORE_BODY_MISMATCH',
  IncompleteBody: 'STORE_BODY_MISMATCH',
  // The server waited for the rest of the body in vain: nothing was stored, and the next try may be quicker.
  RequestTimeout: 'STORE_UNAVAILABLE',
  KeyTooLongError: 'STORE_KEY_INVALID',
  EntityTooLarge: 'STORE_TOO_LARGE',
  QuotaExceeded: 'STORE_FULL',
  AccessDenied: 'STORE_DENIED',
};

/** @param what the operation and its key, for people */
export function s3Error(error: unknown, effect: Effect, what: string, details: Record<string, unknown>): VarveError {
  if (isVarveError(error)) return error;
  const failure = failureOf(error);
  const { name, status, errno, requestId } = failure;
  const code = codeOf(failure, effect);
  const said = [status, name, errno].filter((word) => word !== undefined && word !== 'Error').join(' ');
  const facts = { ...details, status, s3_code: name, errno, request_id: requestId };
  // Not the SDK's own object: it drags along the response, its socket and its headers.
  return new VarveError(code, `${what}: ${said}${hintOf(code)}`, facts, new Error(`${name}: ${failure.message}`));
}

/** The code of one key's error in the answer to a request for many. */
export function codeOfName(name: string): ErrorCode {
  if (SLOW_DOWN.has(name)) return 'STORE_THROTTLED';
  if (name === 'InternalError' || name === 'ServiceUnavailable') return 'STORE_UNAVAILABLE';
  return BY_NAME[name] ?? 'STORE_REFUSED';
}

function codeOf({ name, status, errno, hasResponse }: Failure, effect: Effect): ErrorCode {
  const unsure = effect === 'write' ? 'STORE_AMBIGUOUS' : 'STORE_UNAVAILABLE';
  if (name === 'AbortError') return 'ABORTED';
  if (NO_CREDENTIALS.has(name)) return 'STORE_DENIED';
  if (status === undefined) {
    if (errno !== undefined && NOT_SENT.has(errno)) return 'STORE_UNAVAILABLE';
    if (errno !== undefined && /CERT|TLS|SELF_SIGNED|ISSUER/.test(errno)) return 'STORE_REFUSED';
    // Without any of these the request was never made: the region is missing, or the like.
    return errno !== undefined || name === 'TimeoutError' || hasResponse ? unsure : 'STORE_REFUSED';
  }
  return BY_NAME[name] ?? (SLOW_DOWN.has(name) ? 'STORE_THROTTLED' : codeOfStatus(status, unsure));
}

function codeOfStatus(status: number, unsure: ErrorCode): ErrorCode {
  if (status === 401 || status === 403) return 'STORE_DENIED';
  if (status === 404) return 'STORE_MISSING';
  if (status === 409) return 'STORE_CONFLICT';
  if (status === 416) return 'STORE_CORRUPT';
  if (status === 429) return 'STORE_THROTTLED';
  if (status === 507) return 'STORE_FULL';
  // An answer that could not be understood says nothing about what happened.
  if (status < 300) return unsure;
  return status >= 500 && status !== 501 ? unsure : 'STORE_REFUSED';
}

function hintOf(code: ErrorCode): string {
  if (code === 'STORE_DENIED') return '; look at the credentials (the usual chain of AWS) and at what they may do';
  if (code === 'STORE_AMBIGUOUS') return '; it may have happened';
  return '';
}

function failureOf(error: unknown): Failure {
  const { name, message, code, $metadata, $response } = (error ?? {}) as {
    name?: unknown;
    message?: unknown;
    code?: unknown;
    $metadata?: { httpStatusCode?: number; requestId?: string };
    $response?: { statusCode?: number };
  };
  return {
    name: String(name),
    message: String(message),
    errno: typeof code === 'string' ? code : undefined,
    status: $metadata?.httpStatusCode ?? $response?.statusCode,
    requestId: $metadata?.requestId,
    hasResponse: $response !== undefined,
  };
}
