/**
 * The port to object storage: what the cold tier, the blob layer and the sweeps may ask of a store.
 *
 * A store maps keys to immutable bodies. An object is there as a whole or not at all: no reader sees half of one, also
 * after a crash or a power cut. When a put or a delete resolves, its effect is durable and visible to every reader.
 *
 *   putIfAbsent   the one commit primitive: of all who race for a key, one gets 'created', the others 'exists'
 *   put           overwrites; for derived files, for the one mutable pointer, and for bodies named by their hash
 *   get           whole or an exact range; ends with an error where bytes are missing or differ from what was put
 *   head, list    what is there now; absence is reported only when the store itself said so
 *   delete        idempotent
 *   listUploads   what a put that was killed left behind and nobody will finish; abortUpload removes it
 *
 * Keys: see keys.ts; they are relative to the root that the store was opened at, and nothing outside it can be named.
 * No key may be a folder of another one (`a` beside `a/b`): a file system cannot hold both, so nobody relies on it.
 *
 * Errors are VarveErrors with codes STORE_*, INVALID_OPTION and ABORTED; what the caller's own body throws passes
 * through. No operation is tried twice in here: pipelines retry (`pipelines/retry.ts`), and they can, since each is
 * idempotent or conditional. STORE_AMBIGUOUS says that the effect may have happened: a timeout or a broken connection
 * after the request went out. After an ambiguous `putIfAbsent` an 'exists' may be one's own doing; only the bytes tell.
 *
 * An AbortSignal starts nothing new and cuts reads and bodies under way. A put that was cut while its body was being
 * sent had no effect; a request that has been sent whole is waited for.
 */
import { VarveError } from '../schemas/errors.ts';
import type { Body } from './body.ts';

export interface ObjectStore extends AsyncDisposable {
  /** Where it is, for messages. Holds no secrets. */
  readonly url: string;
  /** Longest body of a `putIfAbsent`, in bytes: what the store takes in one request. */
  readonly putIfAbsentBytesMax: number;

  /**
   * Puts unless there is something under the key, whatever it is. Durable when it resolves, in both cases.
   * @throws VarveError STORE_BODY_MISMATCH: the body has not its length or hash. STORE_TOO_LARGE: over the limit
   */
  putIfAbsent(key: string, body: Body, options?: CallOptions): Promise<PutOutcome>;

  /** Puts, over what was there. Long bodies go in parts; a failed put aborts them. Durable when it resolves. */
  put(key: string, body: Body, options?: CallOptions): Promise<void>;

  /**
   * The object's bytes, in order, at the consumer's pace; the request is made at the first read. It ends normally only
   * if every byte came and, read whole, they have the hash that the store keeps of them, where it keeps one.
   * @throws VarveError STORE_MISSING, at the first read. STORE_CORRUPT: shorter than the range asks for, or changed
   */
  get(key: string, options?: GetOptions): AsyncGenerator<Uint8Array, void, void>;

  /** undefined only where the store said that there is no such object. */
  head(key: string, options?: CallOptions): Promise<ObjectHead | undefined>;

  /** Objects whose key begins with the prefix (any string, not only a folder), ordered by the UTF-8 bytes of the key. */
  list(prefix: string, options?: ListOptions): AsyncGenerator<ObjectEntry, void, void>;

  /** Resolves also where there was nothing. */
  delete(key: string, options?: CallOptions): Promise<void>;

  /**
   * Deletes many keys. Keys that the store refused to delete are in `details.failed` of the error, which has the first
   * refusal's code; all others are gone.
   */
  deleteMany(keys: readonly string[], options?: CallOptions): Promise<void>;

  /** Unfinished puts under the prefix that began before that time. Those of live writers are among them if it is late. */
  listUploads(prefix: string, startedBeforeMs: number, options?: CallOptions): AsyncGenerator<Upload, void, void>;

  /** Resolves also where there is no such upload any more. */
  abortUpload(upload: Upload, options?: CallOptions): Promise<void>;

  /** Idempotent. Gives up connections; operations under way may fail. */
  close(): Promise<void>;
}

export type PutOutcome = 'created' | 'exists';

export type CallOptions = { readonly signal?: AbortSignal | undefined };

/** Bytes `start` up to, not including, `end`. All of them must exist. */
export type ByteRange = { readonly start: number; readonly end: number };

export type GetOptions = CallOptions & {
  /** @default the whole object */
  readonly range?: ByteRange | undefined;
};

export type ListOptions = CallOptions & {
  /** Only keys after this one. @default from the first */
  readonly startAfter?: string | undefined;
};

export type ObjectHead = {
  readonly bytes: number;
  /** When it was put, by the store's clock, in milliseconds since the epoch. */
  readonly modifiedMs: number;
  /** The store's tag of this version of the object, where it has one. */
  readonly etag: string | undefined;
};

export type ObjectEntry = { readonly key: string; readonly bytes: number; readonly modifiedMs: number };

export type Upload = {
  readonly key: string;
  /** The store's name for it. */
  readonly id: string;
  readonly startedMs: number;
};

/** @throws VarveError INVALID_OPTION */
export function checkRange(range: ByteRange | undefined): void {
  if (range === undefined) return;
  const { start, end } = range;
  if (Number.isSafeInteger(start) && Number.isSafeInteger(end) && start >= 0 && end > start) return;
  throw new VarveError('INVALID_OPTION', `not a range of bytes: ${start} up to ${end}`, { start, end });
}
