/**
 * `--deep`: what payloads refer to. Bodies that compaction took out are put back, and the payload must then have the
 * hash with which it was appended; `blob_refs` must list the payload's stubs; and every blob must be in the store, with
 * the bytes that its name says. Each blob is read once, or again where many rows put it back.
 *
 * Memory: the bodies of one row, and some that were read last. What is referred to is noted in a scratch file.
 */
import { canonicalJson, type JsonObject } from '../schemas/canonical.ts';
import { payloadSha256 } from '../schemas/chain.ts';
import { isVarveError } from '../schemas/errors.ts';
import { MIB, PAYLOAD_BYTES_MAX } from '../schemas/limits.ts';
import { type BlobRef, putBack, stubsAt, stubsOf } from '../schemas/stubs.ts';
import { blobKey, getBlob } from './blobs.ts';
import { collect } from './body.ts';
import type { DuckDb, DuckRow } from './duckdb.ts';
import type { ColdProblem } from './findings.ts';
import { Ledger } from './ledger.ts';
import type { CallOptions, ObjectStore } from './object-store.ts';
import { sourceOf } from './verify-scan.ts';

type Report = (problem: ColdProblem) => void;

/** Of a reference to a blob. */
type Note = {
  readonly sha256: string;
  /** Its bytes were read and have that hash. */
  readonly is_proven: boolean;
  readonly trajectory_id: string;
  readonly sequence_number: number;
};

/** Bodies that are kept for the next row, in characters. */
const KEPT_CHARS = 16 * MIB;
const TOO_LONG = Symbol('longer than a payload');
const SHA256 = /^[0-9a-f]{64}$/;

export class Bodies {
  readonly #store: ObjectStore;
  readonly #ledger: Ledger<Note>;
  /** By hash; the one asked for last is last. */
  readonly #kept = new Map<string, string>();
  #keptChars = 0;

  /** @param folder for scratch files, empty */
  constructor(store: ObjectStore, folder: string) {
    this.#store = store;
    this.#ledger = new Ledger(folder, 'blobs', ({ sha256 }) => sha256);
  }

  /** All rows of a file. */
  async verifyFile(duck: DuckDb, path: string, key: string, report: Report, options: CallOptions = {}): Promise<void> {
    const sql = `SELECT trajectory_id, sequence_number, payload, payload_sha256, offloaded, blob_refs FROM ${sourceOf(path)}
      WHERE coalesce(len(blob_refs), 0) > 0 OR coalesce(len(offloaded), 0) > 0 OR contains(payload, '"$blob":')`;
    for await (const rows of duck.blocks(sql, options)) {
      for (const row of rows) {
        const what = await this.#flawOf(row, options);
        if (what !== undefined) report({ kind: 'body', key, ...eventOf(row), what });
      }
    }
  }

  /**
   * Every blob that was referred to and is not proven yet.
   * @param guard does the work for the object of a key, and keeps its failure from the others
   * @returns how many blobs there are
   */
  async verifyBlobs(
    report: Report,
    guard: (key: string, work: () => Promise<void>) => Promise<void>,
    options: CallOptions = {},
  ): Promise<number> {
    let blobs = 0;
    let last = '';
    for await (const notes of this.#ledger.sorted(provenFirst, options)) {
      for (const { sha256, is_proven, trajectory_id, sequence_number } of notes) {
        if (sha256 === last) continue;
        last = sha256;
        blobs += 1;
        if (is_proven) continue;
        const key = blobKey(sha256);
        await guard(key, async () => {
          const what = await this.#flawOfBlob(sha256, options);
          if (what !== undefined) report({ kind: 'blob', key, trajectory_id, sequence_number, what });
        });
      }
    }
    return blobs;
  }

  async #flawOf(row: DuckRow, options: CallOptions): Promise<string | undefined> {
    const offloaded = (row['offloaded'] ?? []) as readonly string[];
    const listed = (row['blob_refs'] ?? []) as readonly string[];
    for (const sha256 of listed) if (SHA256.test(sha256)) this.#note(row, sha256, false);
    let payload: JsonObject;
    let stubs: string[];
    try {
      payload = JSON.parse(row['payload'] as string) as JsonObject;
      stubs = [...new Set(stubsOf(payload).map(({ sha256 }) => sha256))].toSorted();
    } catch {
      return 'its payload is not JSON with whole stubs';
    }
    for (const sha256 of stubs) if (!listed.includes(sha256)) this.#note(row, sha256, false);
    if (stubs.join() !== listed.join()) return 'blob_refs does not list the stubs of its payload';
    if (offloaded.length === 0) return undefined;
    const bodies = new Map<string, string>();
    const replaced = stubsOrUndefined(payload, offloaded);
    if (replaced === undefined) return 'offloaded names a place where there is no stub';
    for (const [pointer, stub] of replaced) {
      const body = await this.#body(row, stub.sha256, options);
      // The blob is named by itself.
      if (body === undefined) return undefined;
      if (body === TOO_LONG) return `the body of ${pointer.slice(0, 200)} is longer than a payload`;
      bodies.set(pointer, body);
    }
    const original = payloadSha256(canonicalJson(putBack(payload, bodies)));
    return original === row['payload_sha256']
      ? undefined
      : 'with its bodies put back it has another hash than was appended';
  }

  #note(row: DuckRow, sha256: string, is_proven: boolean): void {
    this.#ledger.add({ sha256, is_proven, ...eventOf(row) });
  }

  /** undefined where it is missing or damaged. */
  async #body(row: DuckRow, sha256: string, options: CallOptions): Promise<string | typeof TOO_LONG | undefined> {
    const kept = this.#kept.get(sha256);
    if (kept !== undefined) {
      this.#kept.delete(sha256);
      this.#kept.set(sha256, kept);
      return kept;
    }
    try {
      const body = (await collect(getBlob(this.#store, sha256, options), PAYLOAD_BYTES_MAX)).toString();
      this.#note(row, sha256, true);
      this.#keep(sha256, body);
      return body;
    } catch (error) {
      if (isVarveError(error, 'STORE_TOO_LARGE')) return TOO_LONG;
      if (isMissingOrDamaged(error)) return undefined;
      throw error;
    }
  }

  #keep(sha256: string, body: string): void {
    if (this.#kept.has(sha256)) return;
    this.#kept.set(sha256, body);
    this.#keptChars += body.length;
    for (const [oldest, { length }] of this.#kept) {
      if (this.#keptChars <= KEPT_CHARS) break;
      this.#kept.delete(oldest);
      this.#keptChars -= length;
    }
  }

  /** The place where a blob whose expiry is on record will be told from one that is missing. */
  async #flawOfBlob(sha256: string, options: CallOptions): Promise<string | undefined> {
    let what = '';
    // Twice: a transfer that went wrong is no damage.
    for (let tries = 0; tries < 2; tries++) {
      try {
        for await (const _ of getBlob(this.#store, sha256, options));
        return undefined;
      } catch (error) {
        if (!isMissingOrDamaged(error)) throw error;
        what = error.code === 'STORE_MISSING' ? 'the blob is missing' : 'the blob has other bytes than its name says';
      }
    }
    return what;
  }
}

/** The first of a blob's notes says whether any of them proves it, and else which event is the first. */
function provenFirst(a: Note, b: Note): number {
  if (a.sha256 !== b.sha256) return a.sha256 < b.sha256 ? -1 : 1;
  if (a.is_proven !== b.is_proven) return a.is_proven ? -1 : 1;
  if (a.trajectory_id !== b.trajectory_id) return a.trajectory_id < b.trajectory_id ? -1 : 1;
  return a.sequence_number - b.sequence_number;
}

function isMissingOrDamaged(error: unknown): error is Error & { readonly code: string } {
  return isVarveError(error, 'STORE_MISSING') || isVarveError(error, 'STORE_CORRUPT');
}

function eventOf(row: DuckRow): { trajectory_id: string; sequence_number: number } {
  // A row without them is named by the scan of all rows.
  const { trajectory_id, sequence_number } = row;
  return { trajectory_id: (trajectory_id ?? '') as string, sequence_number: Number(sequence_number ?? 0) };
}

/** undefined: something else stands at one of the pointers. */
function stubsOrUndefined(payload: JsonObject, pointers: readonly string[]): Map<string, BlobRef> | undefined {
  try {
    return stubsAt(payload, pointers);
  } catch (error) {
    if (isVarveError(error, 'STUB_MALFORMED')) return undefined;
    throw error;
  }
}
