/**
 * A data file: rows → temporary lines of JSON → DuckDB → Parquet with zstd, in a scratch folder.
 *
 * DuckDB parses the lines faster than it takes rows in any other way, and it holds one row group at a time: rows come
 * in order and leave in order, on one thread, without a sort. So the same rows give the same bytes, however they were
 * handed over (with one version of DuckDB; its name is in the footer), and memory does not grow with the file.
 *
 *   row groups     so many rows as row-groups.ts says, and what is left of the block under way: DuckDB hands over 2,048 rows, or
 *                  fewer where a part of the lines ends, and closes a group at the first block that reaches the size
 *
 * Nothing of a file may be used before `finish` has resolved; what a crash leaves is a scratch folder.
 */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { type FileHandle, mkdtemp, open, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { invariant, VarveError } from '../schemas/errors.ts';
import { KIB, MIB } from '../schemas/limits.ts';
import type { ColdRow } from '../schemas/parquet.ts';
import { refuseAborted } from './body.ts';
import { COLUMN_NAMES, COLUMN_TYPES, lineOf } from './columns.ts';
import { type DuckDb, safeNumber, sqlFile, sqlText } from './duckdb.ts';
import { FILE_MODE, makeFolder, scratchError } from './files.ts';
import type { CallOptions } from './object-store.ts';
import { type Expected, type OpenSegment, type Partition, RowCheck, type Run } from './row-check.ts';
import { RowGroupSizer } from './row-groups.ts';
import { SEGMENTS_MAX, type Segment, type SegmentList } from './segments.ts';
import { partitionFolder } from './slug.ts';

/**
 * Longest line of JSON, in bytes: a payload of 1 MiB whose every byte is escaped, and JSON pointers. It is the least
 * that DuckDB can be told; smaller limits have no effect on it.
 */
const LINE_BYTES_MAX = 16 * MIB;
/** Lines go to several files of at most this, or one line: DuckDB hands over what a file holds, up to 32 MiB, as one. */
const PART_BYTES = 8 * MIB;
const WRITE_BYTES = MIB;
/** −16 % of size for +40 % of CPU against zstd's default of 3; 19 costs 30 times as much. The files stay for years. */
const ZSTD_LEVEL = 9;
/** A file is worth finishing at this many bytes of JSON, or when its segments are half of what it may have. */
const FULL_BYTES = 1024 * MIB;

export const SCRATCH_PREFIX = 'varve-parquet-';

/** A finished file in its scratch folder, and all that is known of it. */
export type LocalFile = {
  readonly path: string;
  /** Hex; its name. */
  readonly sha256: string;
  /** Key of the object relative to the table, without its ending. */
  readonly stem: string;
  readonly partition: Partition;
  readonly expected: Expected;
  readonly list: SegmentList;
  /** Smallest and largest of the columns that the table log has statistics of. */
  readonly range: FileRange;
};

export type FileRange = {
  readonly sequence_number: readonly [number, number];
  readonly created_at: readonly [string, string];
};

export class ParquetWriter implements AsyncDisposable {
  readonly #duck: DuckDb;
  readonly #folder: string;
  readonly #parts: string[] = [];
  #part: FileHandle | undefined;
  #partBytes = 0;
  readonly #check = new RowCheck();
  /** Lines that are not in the part yet: the first `#pendingBytes` of it. */
  #pending: Buffer = Buffer.allocUnsafe(WRITE_BYTES);
  #pendingBytes = 0;
  #bytes = 0;
  readonly #groups = new RowGroupSizer();
  #range: FileRange | undefined;
  #state: 'writing' | 'finished' | 'failed' | 'closed' = 'writing';
  readonly #fullBytes: number;

  private constructor(duck: DuckDb, folder: string, fullBytes: number) {
    this.#duck = duck;
    this.#folder = folder;
    this.#fullBytes = fullBytes;
  }

  /** `scratchDir` needs room for the rows as JSON and for the file. The instance of DuckDB must have one thread. */
  static async open(duck: DuckDb, scratchDir: string, fullBytes = FULL_BYTES): Promise<ParquetWriter> {
    try {
      await makeFolder(scratchDir);
      return new ParquetWriter(duck, await mkdtemp(join(scratchDir, SCRATCH_PREFIX)), fullBytes);
    } catch (error) {
      throw scratchError(error);
    }
  }

  /** Rows so far. */
  get rows(): number {
    return this.#check.rows;
  }

  /** Time to finish this file, and to go on in another one. */
  get isFull(): boolean {
    return this.#bytes >= this.#fullBytes || this.#check.segments.length >= SEGMENTS_MAX / 2;
  }

  /**
   * Takes rows, in order; they are in the scratch folder, or will be.
   * @throws VarveError COLD_ROWS_BROKEN, COLD_ROW_TOO_LARGE; then the file is lost
   */
  async append(run: Run): Promise<void> {
    invariant(this.#state === 'writing', `a file takes no rows when it is ${this.#state}`);
    try {
      this.#check.add(run);
      for (const row of run.rows) {
        const pieces = lineOf(row);
        const bytes = await this.#write(pieces, row);
        this.#groups.add(Buffer.byteLength(row.payload));
        this.#widen(row);
        this.#bytes += bytes;
      }
    } catch (error) {
      this.#state = 'failed';
      throw scratchError(error);
    }
  }

  /** The file, written and named. Needs a row at least: there are no empty files. */
  async finish(options: CallOptions = {}): Promise<LocalFile> {
    invariant(this.#state === 'writing' && this.rows > 0, 'a file is finished once, and has rows');
    this.#state = 'failed';
    try {
      await this.#endPart();
      const path = join(this.#folder, 'rows.parquet');
      await this.#convert(path, options.signal);
      for (const part of this.#parts) await rm(part);
      const file = await this.#describe(path, options.signal);
      this.#state = 'finished';
      return file;
    } catch (error) {
      throw scratchError(error);
    }
  }

  /** Removes the scratch folder, and the finished file with it. Idempotent. */
  async close(): Promise<void> {
    if (this.#state === 'closed') return;
    this.#state = 'closed';
    await this.#part?.close().catch(() => undefined);
    await rm(this.#folder, { recursive: true, force: true });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #nextPart(): Promise<void> {
    await this.#endPart();
    const path = join(this.#folder, `rows-${this.#parts.length}.ndjson`);
    this.#part = await open(path, 'wx', FILE_MODE);
    this.#parts.push(path);
    this.#partBytes = 0;
  }

  async #endPart(): Promise<void> {
    await this.#flush();
    await this.#part?.close();
    this.#part = undefined;
  }

  /** @returns bytes of the line */
  async #write([rest, payload]: readonly [string, string], row: ColdRow): Promise<number> {
    const most = 3 * (rest.length + payload.length);
    const bytes = most > WRITE_BYTES ? Buffer.byteLength(rest) + Buffer.byteLength(payload) : undefined;
    if (bytes !== undefined && bytes > LINE_BYTES_MAX) throw tooLarge(row, bytes);
    const room = bytes ?? most;
    // Where a part ends depends on the rows alone, as the file does.
    if (this.#part === undefined || this.#partBytes + room > PART_BYTES) await this.#nextPart();
    if (this.#pendingBytes + room > this.#pending.length) await this.#flush(room);
    const start = this.#pendingBytes;
    this.#pendingBytes += this.#pending.write(rest, this.#pendingBytes);
    this.#pendingBytes += this.#pending.write(payload, this.#pendingBytes);
    this.#partBytes += this.#pendingBytes - start;
    return this.#pendingBytes - start;
  }

  /** Afterwards there is room for so many bytes. */
  async #flush(room = 0): Promise<void> {
    const full = this.#pending.subarray(0, this.#pendingBytes);
    this.#pendingBytes = 0;
    if (full.length > 0) await this.#part?.writeFile(full);
    // A long line has a buffer of its own, which goes with it.
    if (room > WRITE_BYTES) this.#pending = Buffer.allocUnsafe(room);
    else if (this.#pending.length > WRITE_BYTES) this.#pending = Buffer.allocUnsafe(WRITE_BYTES);
  }

  #widen({ sequence_number, created_at }: ColdRow): void {
    const range = this.#range;
    if (range === undefined) {
      this.#range = { sequence_number: [sequence_number, sequence_number], created_at: [created_at, created_at] };
      return;
    }
    const [low, high] = range.sequence_number;
    const [early, late] = range.created_at;
    // Mostly nothing changes but the end. One form and one length: the order of times as text is their order in time.
    if (sequence_number < low || sequence_number > high) {
      this.#range = { ...range, sequence_number: [Math.min(low, sequence_number), Math.max(high, sequence_number)] };
    }
    if (created_at < early || created_at > late) {
      const created: readonly [string, string] = [
        created_at < early ? created_at : early,
        created_at > late ? created_at : late,
      ];
      this.#range = { ...(this.#range as FileRange), created_at: created };
    }
  }

  async #convert(path: string, signal: AbortSignal | undefined): Promise<void> {
    const source = `read_json([${this.#parts.map(sqlFile).join(', ')}], format = 'newline_delimited',
      auto_detect = false, maximum_object_size = ${LINE_BYTES_MAX}, columns = ${COLUMN_TYPES})`;
    const format = `FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL ${ZSTD_LEVEL}, PARQUET_VERSION v1,
      ROW_GROUP_SIZE ${this.#groups.size}`;
    await this.#duck.run(`COPY (SELECT ${COLUMN_NAMES} FROM ${source}) TO ${sqlText(path)} (${format})`, { signal });
  }

  async #describe(path: string, signal: AbortSignal | undefined): Promise<LocalFile> {
    const { bytes, sha256, footer_start } = await measure(path, signal);
    const groups = await this.#duck.rows(
      `SELECT row_group_num_rows AS rows FROM parquet_metadata(${sqlFile(path)}) WHERE column_id = 0 ORDER BY row_group_id`,
      { signal },
    );
    const row_groups = groups.map(({ rows }) => safeNumber(rows));
    const partition = this.#check.partition;
    invariant(this.#range !== undefined, 'a file has a row at least');
    return {
      path,
      sha256,
      stem: `${partitionFolder(partition)}${sha256}`,
      partition,
      expected: this.#check.expected,
      list: {
        bytes,
        file: `${sha256}.parquet`,
        footer_start,
        row_groups,
        rows: this.rows,
        segments: placeSegments(this.#check.segments, row_groups),
      },
      range: this.#range,
    };
  }
}

/** Segments with the row groups that hold them. Both are in the order of the rows. */
export function placeSegments(segments: readonly OpenSegment[], rowGroups: readonly number[]): Segment[] {
  let group = 0;
  /** First row behind the group. */
  let end = rowGroups[0] ?? 0;
  const seek = (row: number): number => {
    while (row >= end && group < rowGroups.length - 1) {
      group += 1;
      end += rowGroups[group] as number;
    }
    return group;
  };
  return segments.map(({ first_row, ...segment }) => {
    const rows = segment.last_sequence_number - segment.first_sequence_number + 1;
    return { ...segment, row_groups: [seek(first_row), seek(first_row + rows - 1)] as const };
  });
}

type Measured = { readonly bytes: number; readonly sha256: string; readonly footer_start: number };

/** Name, length and footer of a Parquet file. @throws VarveError COLD_FILE_DIFFERS: it does not end as one */
export async function measure(path: string, signal: AbortSignal | undefined): Promise<Measured> {
  const digest = createHash('sha256');
  let bytes = 0;
  let tail = Buffer.alloc(0);
  for await (const chunk of createReadStream(path, { highWaterMark: 256 * KIB }) as AsyncIterable<Buffer>) {
    refuseAborted(signal);
    digest.update(chunk);
    bytes += chunk.byteLength;
    tail = Buffer.concat([tail, chunk]).subarray(-8);
  }
  // The length of the footer, in 4 bytes, and the magic number end the file.
  const footer_start = tail.byteLength === 8 ? bytes - 8 - tail.readUInt32LE(0) : -1;
  if (footer_start < 4 || tail.toString('latin1', 4) !== 'PAR1') {
    throw new VarveError('COLD_FILE_DIFFERS', 'the file does not end as a Parquet file', { bytes });
  }
  return { bytes, sha256: digest.digest('hex'), footer_start };
}

function tooLarge(
  { trajectory_id, sequence_number }: { trajectory_id: string; sequence_number: number },
  bytes: number,
) {
  const message = `event ${sequence_number} of ${trajectory_id} has ${bytes} bytes as a row; ${LINE_BYTES_MAX} is the limit`;
  return new VarveError('COLD_ROW_TOO_LARGE', message, {
    trajectory_id,
    sequence_number,
    bytes,
    limit: LINE_BYTES_MAX,
  });
}
