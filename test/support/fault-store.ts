/**
 * Any object store, with faults: each is used up by the next call that it matches. What happened is what the store
 * underneath holds; the caller hears what the fault says.
 *
 *   before      the call fails with that code and has no effect
 *   after       the call has its effect and fails with that code, as a timeout of the answer does
 *   ignored     a conditional put overwrites and says 'created', as servers do that do not know the condition
 *   cut         a get ends, with that code or as if that were all, after so many bytes
 *   flipped     one bit of what a get gives is another
 */
import { collect } from '../../cold/body.ts';
import type { ObjectStore } from '../../cold/object-store.ts';
import { type ErrorCode, VarveError } from '../../schemas/errors.ts';
import { MIB } from '../../schemas/limits.ts';

export type StoreMethod = 'putIfAbsent' | 'put' | 'get' | 'head' | 'list' | 'delete' | 'deleteMany';

export type StoreFault = { readonly method: StoreMethod; readonly key?: RegExp } & (
  | { readonly kind: 'before' | 'after'; readonly code: ErrorCode }
  | { readonly kind: 'ignored' }
  | { readonly kind: 'cut'; readonly afterBytes: number; readonly code?: ErrorCode }
  | { readonly kind: 'flipped'; readonly bit: number }
);

export class FaultStore implements ObjectStore {
  readonly #inner: ObjectStore;
  readonly #faults: StoreFault[] = [];
  /** Every call, in order, as `method key`. */
  readonly calls: string[] = [];

  constructor(inner: ObjectStore) {
    this.#inner = inner;
  }

  get url(): string {
    return this.#inner.url;
  }

  get putIfAbsentBytesMax(): number {
    return this.#inner.putIfAbsentBytesMax;
  }

  /** The faults of the calls to come, in order for each method. */
  inject(...faults: readonly StoreFault[]): void {
    this.#faults.push(...faults);
  }

  /** Faults that no call has met yet. */
  get pending(): number {
    return this.#faults.length;
  }

  putIfAbsent: ObjectStore['putIfAbsent'] = async (key, body, options) => {
    const fault = this.#meet('putIfAbsent', key);
    if (fault?.kind !== 'ignored') return await this.#call(fault, () => this.#inner.putIfAbsent(key, body, options));
    await this.#inner.put(key, body, options);
    return 'created';
  };

  put: ObjectStore['put'] = (key, body, options) =>
    this.#call(this.#meet('put', key), () => this.#inner.put(key, body, options));

  head: ObjectStore['head'] = (key, options) =>
    this.#call(this.#meet('head', key), () => this.#inner.head(key, options));

  delete: ObjectStore['delete'] = (key, options) =>
    this.#call(this.#meet('delete', key), () => this.#inner.delete(key, options));

  deleteMany: ObjectStore['deleteMany'] = (keys, options) =>
    this.#call(this.#meet('deleteMany', keys[0] ?? ''), () => this.#inner.deleteMany(keys, options));

  listUploads: ObjectStore['listUploads'] = (prefix, before, options) =>
    this.#inner.listUploads(prefix, before, options);

  abortUpload: ObjectStore['abortUpload'] = (upload, options) => this.#inner.abortUpload(upload, options);

  async *get(...[key, options]: Parameters<ObjectStore['get']>): ReturnType<ObjectStore['get']> {
    const fault = this.#meet('get', key);
    if (fault?.kind === 'before') throw raised(fault.code, key);
    if (fault?.kind !== 'cut' && fault?.kind !== 'flipped') {
      yield* this.#inner.get(key, options);
      return;
    }
    const body = await collect(this.#inner.get(key, options), 256 * MIB);
    if (fault.kind === 'flipped') {
      const at = Math.floor(fault.bit / 8) % body.byteLength;
      body.writeUInt8(body.readUInt8(at) ^ (1 << (fault.bit % 8)), at);
      yield body;
      return;
    }
    yield body.subarray(0, fault.afterBytes);
    if (fault.code !== undefined) throw raised(fault.code, key);
  }

  async *list(...[prefix, options]: Parameters<ObjectStore['list']>): ReturnType<ObjectStore['list']> {
    const fault = this.#meet('list', prefix);
    if (fault?.kind === 'before') throw raised(fault.code, prefix);
    yield* this.#inner.list(prefix, options);
    if (fault?.kind === 'after') throw raised(fault.code, prefix);
  }

  /** Closes the store underneath as well. */
  async close(): Promise<void> {
    await this.#inner.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #meet(method: StoreMethod, key: string): StoreFault | undefined {
    this.calls.push(`${method} ${key}`);
    const at = this.#faults.findIndex((fault) => fault.method === method && (fault.key?.test(key) ?? true));
    return at < 0 ? undefined : this.#faults.splice(at, 1)[0];
  }

  async #call<T>(fault: StoreFault | undefined, work: () => Promise<T>): Promise<T> {
    if (fault?.kind === 'before') throw raised(fault.code, fault.method);
    const answer = await work();
    if (fault?.kind === 'after') throw raised(fault.code, fault.method);
    return answer;
  }
}

function raised(code: ErrorCode, what: string): VarveError {
  return new VarveError(code, `injected into ${what}`);
}
