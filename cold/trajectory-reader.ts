/**
 * A trajectory out of the cold tier: its segments in order, each proven by itself, joined by number and hash, with the
 * strings that compaction replaced put back. So every payload again has the hash under which it was appended; an erased
 * one passes as the stub that it is. Stubs that were there at append stay stubs.
 *
 * Bodies are fetched for some rows at once, and kept for a while, because the same text often stands in many events.
 */
import { canonicalJson, type JsonObject } from '../schemas/canonical.ts';
import { payloadSha256 } from '../schemas/chain.ts';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { LazyEvent, type ProvenEvent } from '../schemas/event.ts';
import { MIB, PAYLOAD_BYTES_MAX } from '../schemas/limits.ts';
import { type BlobRef, putBack, stubsAt } from '../schemas/stubs.ts';
import { blobKey, getBlob } from './blobs.ts';
import { collect } from './body.ts';
import { followsOn, type PlacedSegment } from './locate.ts';
import type { CallOptions, ObjectStore } from './object-store.ts';
import type { StoredRow } from './parquet-rows.ts';
import type { SegmentReader } from './segment-reader.ts';
import { parquetKey } from './table-keys.ts';

export type ReadColdOptions = CallOptions & {
  /** First event that is handed out. @default the first of the first segment */
  readonly from?: number | undefined;
};

/** Rows whose bodies are fetched together: at most, and bytes of payloads and bodies. */
const WINDOW_ROWS = 64;
const WINDOW_BYTES = 4 * MIB;
/** Requests at once. */
const FETCHES = 16;
/** Bodies that are kept for later events. */
const KEPT_BYTES_MAX = 8 * MIB;

/**
 * Events of these segments in order, streamed.
 *
 * @param placed all segments of one trajectory, as `segmentsOfTrajectories` gives them
 * @throws VarveError COLD_FILE_DIFFERS, COLD_SEGMENTS_INVALID, COLD_OBJECT_MISSING, STORE_*; `details` name the key, the
 * trajectory and the event
 */
export async function* readColdTrajectory(
  reader: SegmentReader,
  placed: readonly PlacedSegment[],
  options: ReadColdOptions = {},
): AsyncGenerator<ProvenEvent> {
  const { from = 1, signal } = options;
  const bodies = new Bodies(reader.store);
  let before: PlacedSegment | undefined;
  for (const next of placed) {
    if (before !== undefined && !followsOn(before.segment, next.segment)) throw disjoint(before, next);
    before = next;
    if (next.segment.last_sequence_number < from) continue;
    for await (const rows of reader.read(next, { signal })) {
      const wanted = rows.filter(({ sequence_number }) => sequence_number >= from);
      yield* restored(bodies, wanted, parquetKey(next.file.stem), { signal });
    }
  }
}

type Opened = {
  readonly row: StoredRow;
  /** What compaction replaced; undefined: nothing. */
  readonly offloaded: { readonly payload: JsonObject; readonly stubs: ReadonlyMap<string, BlobRef> } | undefined;
  /** Of the payload and the bodies. */
  readonly bytes: number;
};

async function* restored(
  bodies: Bodies,
  rows: readonly StoredRow[],
  key: string,
  options: CallOptions,
): AsyncGenerator<ProvenEvent> {
  let window: Opened[] = [];
  let bytes = 0;
  for (const row of rows) {
    const opened = open(row, key);
    if (opened instanceof VarveError) {
      yield* bodies.restore(window, key, options);
      throw opened;
    }
    window.push(opened);
    bytes += opened.bytes;
    if (bytes < WINDOW_BYTES && window.length < WINDOW_ROWS) continue;
    yield* bodies.restore(window, key, options);
    window = [];
    bytes = 0;
  }
  yield* bodies.restore(window, key, options);
}

function open(row: StoredRow, key: string): Opened | VarveError {
  const { byteLength } = row.payload;
  if (row.offloaded === null) return { row, offloaded: undefined, bytes: byteLength };
  try {
    const payload = JSON.parse(row.payload.toString('utf8')) as JsonObject;
    const stubs = stubsAt(payload, row.offloaded);
    const bodies = [...stubs.values()].reduce((sum, { bytes }) => sum + bytes, 0);
    if (bodies <= PAYLOAD_BYTES_MAX) return { row, offloaded: { payload, stubs }, bytes: byteLength + bodies };
    return broken(row, key, `its bodies have ${bodies} bytes, which no payload had`);
  } catch (error) {
    return broken(row, key, 'its payload cannot be put together again', error);
  }
}

type Body = { readonly bytes: number } & ({ readonly text: string } | { readonly error: unknown });

/** Texts that stand for stubs. */
class Bodies {
  readonly #store: ObjectStore;
  /** By hash. */
  readonly #bodies = new Map<string, Body>();
  #bytes = 0;

  constructor(store: ObjectStore) {
    this.#store = store;
  }

  /** The events of these rows, as they were appended. */
  async *restore(rows: readonly Opened[], key: string, options: CallOptions): AsyncGenerator<ProvenEvent> {
    await this.#fetch(rows, options);
    for (const { row, offloaded } of rows) {
      if (offloaded === undefined) {
        yield new LazyEvent(row, row.payload);
        continue;
      }
      const { payload, stubs } = offloaded;
      const texts = Array.from(stubs, ([pointer, ref]) => [pointer, this.#textOf(row, pointer, ref)] as const);
      const original = Buffer.from(canonicalJson(putBack(payload, new Map(texts))));
      if (payloadSha256(original) !== row.payload_sha256) {
        throw broken(row, key, 'its payload has another hash with what was offloaded put back');
      }
      yield new LazyEvent(row, original);
    }
  }

  async #fetch(rows: readonly Opened[], options: CallOptions): Promise<void> {
    const refs = new Map(
      rows.flatMap(({ offloaded }) => Array.from(offloaded?.stubs.values() ?? [], (ref) => [ref.sha256, ref.bytes])),
    );
    this.#makeRoom(refs);
    const missing = [...refs].filter(([sha256]) => !this.#bodies.has(sha256));
    for (let at = 0; at < missing.length; at += FETCHES) {
      await Promise.all(missing.slice(at, at + FETCHES).map(([sha256, bytes]) => this.#load(sha256, bytes, options)));
    }
  }

  async #load(sha256: string, bytes: number, options: CallOptions): Promise<void> {
    try {
      const body = await collect(getBlob(this.#store, sha256, options), bytes);
      this.#bodies.set(sha256, { bytes, text: body.toString('utf8') });
      this.#bytes += bytes;
    } catch (error) {
      // The event that needs it says so, behind those that do not.
      this.#bodies.set(sha256, { bytes: 0, error });
    }
  }

  /** Keeps what is needed now, and others while there is room; errors are not kept. */
  #makeRoom(needed: ReadonlyMap<string, unknown>): void {
    for (const [sha256, body] of this.#bodies) {
      const mayStay = 'text' in body && (needed.has(sha256) || this.#bytes <= KEPT_BYTES_MAX);
      if (mayStay) continue;
      this.#bytes -= body.bytes;
      this.#bodies.delete(sha256);
    }
  }

  #textOf({ trajectory_id, sequence_number }: StoredRow, pointer: string, { sha256 }: BlobRef): string {
    const body = this.#bodies.get(sha256);
    if (body !== undefined && 'text' in body) return body.text;
    const error = body?.error;
    if (!isVarveError(error) || error.code === 'ABORTED') throw error;
    const key = blobKey(sha256);
    const code = error.code === 'STORE_MISSING' ? 'COLD_OBJECT_MISSING' : error.code;
    const message = `event ${sequence_number} of ${trajectory_id} needs ${key} at ${pointer.slice(0, 200)}: ${error.message}`;
    throw new VarveError(code, message, { key, trajectory_id, sequence_number, pointer }, error);
  }
}

function broken(row: StoredRow, key: string, what: string, cause?: unknown): VarveError {
  const { trajectory_id, sequence_number } = row;
  const message = `event ${sequence_number} of ${trajectory_id} in ${key}: ${what}`;
  return new VarveError('COLD_FILE_DIFFERS', message, { key, trajectory_id, sequence_number }, cause);
}

function disjoint(before: PlacedSegment, next: PlacedSegment): VarveError {
  const { trajectory_id, last_sequence_number } = before.segment;
  const key = parquetKey(next.file.stem);
  const message = `${key} has ${trajectory_id} from event ${next.segment.first_sequence_number} on, which does not follow event ${last_sequence_number} of ${before.file.add.path}`;
  const details = { key, trajectory_id, sequence_number: last_sequence_number + 1 };
  return new VarveError('COLD_SEGMENTS_INVALID', message, details);
}
