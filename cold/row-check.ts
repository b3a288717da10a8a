/**
 * What rows must be before they are written: events of one partition, ascending by (trajectory_id, sequence_number),
 * each trajectory without gaps, chained from the hash that its run names, with the payloads that their hashes say.
 * Keeps the segments that they form. Nothing that passes here can be a fork or a gap inside one file.
 */
import { chainHash, formatEnvelope, GENESIS_HASH, payloadSha256 } from '../schemas/chain.ts';
import { invariant, VarveError } from '../schemas/errors.ts';
import type { ColdRow } from '../schemas/parquet.ts';
import { fingerprintOf } from './columns.ts';
import { SEGMENTS_MAX, type Segment } from './segments.ts';

/** Rows of one trajectory that follow each other. A long trajectory comes in several. */
export type Run = {
  /** Hash of the event before the first row, hex; zeros before event 1. */
  readonly previous_hash: string;
  readonly rows: readonly ColdRow[];
};

export type OpenSegment = Omit<Segment, 'row_groups'> & { readonly first_row: number };

export type Partition = Pick<ColdRow, 'tenant' | 'date' | 'model_version'>;

/** What is known of rows without the rows; a file that was read back must agree with all of it. */
export type Expected = {
  readonly rows: number;
  readonly min_trajectory_id: string;
  readonly max_trajectory_id: string;
  readonly fingerprint: bigint;
};

const GENESIS = Buffer.from(GENESIS_HASH).toString('hex');
const REDACTED = '{"$redacted":';

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

export class RowCheck {
  readonly #segments: Mutable<OpenSegment>[] = [];
  #partition: Partition | undefined;
  #rows = 0;
  #fingerprint = 0n;

  get rows(): number {
    return this.#rows;
  }

  get segments(): readonly OpenSegment[] {
    return this.#segments;
  }

  /** @throws what the lack of any row is: a bug */
  get partition(): Partition {
    invariant(this.#partition !== undefined, 'a file has a row at least');
    return this.#partition;
  }

  get expected(): Expected {
    const first = this.#segments[0];
    const last = this.#segments.at(-1);
    invariant(first !== undefined && last !== undefined, 'a file has a row at least');
    const [min_trajectory_id, max_trajectory_id] = [first.trajectory_id, last.trajectory_id];
    return { rows: this.#rows, min_trajectory_id, max_trajectory_id, fingerprint: this.#fingerprint };
  }

  /** @throws VarveError COLD_ROWS_BROKEN; then nothing of what was added may be used */
  add(run: Run): void {
    const [first] = run.rows;
    if (first === undefined) return;
    let segment = this.#segments.at(-1);
    if (segment?.trajectory_id === first.trajectory_id) {
      if (run.previous_hash !== segment.head_hash) throw broken(first, 'its run begins with another previous hash');
    } else {
      segment = this.#begin(run, first, segment?.trajectory_id ?? '');
    }
    let previous: Buffer = Buffer.from(segment.head_hash, 'hex');
    for (const row of run.rows) previous = this.#addRow(segment, row, previous);
  }

  #begin(run: Run, first: ColdRow, lastId: string): Mutable<OpenSegment> {
    invariant(this.#segments.length < SEGMENTS_MAX, `a file has at most ${SEGMENTS_MAX} segments`);
    if (first.trajectory_id <= lastId) throw broken(first, `it comes after ${lastId}`);
    if (
      !/^[0-9a-f]{64}$/.test(run.previous_hash) ||
      (first.sequence_number === 1) !== (run.previous_hash === GENESIS)
    ) {
      throw broken(first, 'the previous hash of its run cannot stand before it');
    }
    const segment = {
      trajectory_id: first.trajectory_id,
      first_sequence_number: first.sequence_number,
      last_sequence_number: first.sequence_number - 1,
      previous_hash: run.previous_hash,
      head_hash: run.previous_hash,
      first_row: this.#rows,
    };
    this.#segments.push(segment);
    return segment;
  }

  #addRow(segment: Mutable<OpenSegment>, row: ColdRow, previous: Buffer): Buffer {
    if (row.trajectory_id !== segment.trajectory_id || row.sequence_number !== segment.last_sequence_number + 1) {
      throw broken(row, `event ${segment.last_sequence_number + 1} of ${segment.trajectory_id} was expected`);
    }
    this.#checkPartition(row);
    const stored = payloadSha256(row.payload);
    const isOriginal = row.offloaded === null && !row.payload.startsWith(REDACTED);
    if (isOriginal && stored !== row.payload_sha256) throw broken(row, 'its payload has another hash');
    const hash = chainHash(previous, formatEnvelope(row));
    if (hash.toString('hex') !== row.cryptographic_hash) throw broken(row, 'its hash does not cover it');
    this.#fingerprint ^= fingerprintOf(row, this.#rows, stored);
    this.#rows += 1;
    segment.last_sequence_number = row.sequence_number;
    segment.head_hash = row.cryptographic_hash;
    return hash;
  }

  #checkPartition(row: ColdRow): void {
    this.#partition ??= { tenant: row.tenant, date: row.date, model_version: row.model_version };
    const { tenant, date, model_version } = this.#partition;
    if (row.tenant === tenant && row.date === date && row.model_version === model_version) return;
    throw broken(row, 'it belongs to another partition than the rows before it');
  }
}

function broken({ trajectory_id, sequence_number }: ColdRow, text: string): VarveError {
  const message = `event ${sequence_number} of ${trajectory_id}: ${text}; nothing of this file was kept`;
  return new VarveError('COLD_ROWS_BROKEN', message, { trajectory_id, sequence_number });
}
