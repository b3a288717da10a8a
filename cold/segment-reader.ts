/**
 * Events of one segment, out of a data file by ranged reads: its footer, and the bytes of the row groups that hold the
 * segment. With the list of segments before that, it is three reads from a known snapshot to the events. Segments whose
 * row groups have more than SPAN_BYTES come span by span, one read each; memory is bounded by one span and one row group.
 *
 * What is handed out is proven: the rows are those that the list of segments promises, each payload has its hash (unless
 * compaction or an erasure replaced it), each event's hash covers it and the event before, and the first and the last
 * are those of the segment. Damage ends it, behind all that is whole, with an error that names object and event.
 */
import { payloadSha256 } from '../schemas/chain.ts';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { isRedacted, type Link, linkBefore, verifyLink } from '../schemas/event.ts';
import { dropped } from '../schemas/garbage.ts';
import { MIB } from '../schemas/limits.ts';
import { collect } from './body.ts';
import type { PlacedSegment } from './locate.ts';
import type { ByteRange, CallOptions, ObjectStore } from './object-store.ts';
import { type Footer, parseFooter, rangeOfGroups, readRows, type StoredRow, takeChunks } from './parquet-rows.ts';
import type { Segment, SegmentList } from './segments.ts';
import { parquetKey } from './table-keys.ts';
import type { TableLog } from './table-log.ts';
import type { LiveFile } from './table-log-plan.ts';

/** Row groups that are fetched by one read have at most this, or are one. */
const SPAN_BYTES = 8 * MIB;
/** Some thousand columns of some hundred row groups. */
const FOOTER_BYTES_MAX = 64 * MIB;
/** Footers that are kept: many trajectories of one file are read one after the other. */
const FOOTERS_MAX = 8;

/** A cold table to read trajectories from. */
export class SegmentReader {
  readonly store: ObjectStore;
  readonly log: TableLog;
  /** By path; the one asked for last is last. */
  readonly #footers = new Map<string, Footer>();

  constructor(store: ObjectStore, log: TableLog) {
    this.store = store;
    this.log = log;
  }

  /**
   * Rows of a segment in order, some at a time.
   *
   * @throws VarveError COLD_FILE_DIFFERS, COLD_SEGMENTS_INVALID, COLD_OBJECT_MISSING, STORE_*; `details` name the key, the
   * trajectory and the event
   */
  async *read({ segment, file }: PlacedSegment, options: CallOptions = {}): AsyncGenerator<readonly StoredRow[]> {
    const key = parquetKey(file.stem);
    let link = linkBefore(segment.trajectory_id, segment.first_sequence_number, segment.previous_hash);
    try {
      const footer = await this.#footerOf(file, key, options);
      const place = placeOf(segment, footer.list);
      let plainBytes = 0;
      for (const span of spansOf(footer, segment)) {
        dropped(plainBytes);
        plainBytes = 0;
        const range = rangeOfGroups(footer, span[0], span[1]);
        const chunks = await takeChunks(footer, span, this.store.get(key, { ...options, range }), range.start);
        for (let group = span[0]; group <= span[1]; group++) {
          const rows = await readRows(footer, group, chunks, place(group));
          const { whole, broken } = prove(rows, link);
          link = whole.at(-1) ?? link;
          if (whole.length > 0) yield whole;
          if (broken !== undefined) throw broken;
          plainBytes += plainBytesOf(rows);
        }
      }
      if (link.sequence_number !== segment.last_sequence_number || link.cryptographic_hash !== segment.head_hash) {
        throw new VarveError('COLD_FILE_DIFFERS', 'the segment ends with another event than its list says');
      }
    } catch (error) {
      throw named(error, key, link);
    }
  }

  async #footerOf(file: LiveFile, key: string, options: CallOptions): Promise<Footer> {
    const { path } = file.add;
    const known = this.#footers.get(path);
    const footer = known ?? (await this.#loadFooter(file, key, options));
    this.#footers.delete(path);
    this.#footers.set(path, footer);
    for (const oldest of this.#footers.keys()) {
      if (this.#footers.size <= FOOTERS_MAX) break;
      this.#footers.delete(oldest);
    }
    return footer;
  }

  async #loadFooter(file: LiveFile, key: string, options: CallOptions): Promise<Footer> {
    const list = await this.log.segmentListOf(file, options);
    const range: ByteRange = { start: list.footer_start, end: list.bytes };
    return parseFooter(await collect(this.store.get(key, { ...options, range }), FOOTER_BYTES_MAX), list, key);
  }
}

/** Rows of the segment in each of its row groups, as a range within the group. */
function placeOf(segment: Segment, list: SegmentList): (group: number) => readonly [number, number] {
  let first = 0;
  for (const { trajectory_id, first_sequence_number, last_sequence_number } of list.segments) {
    if (trajectory_id === segment.trajectory_id) break;
    first += last_sequence_number - first_sequence_number + 1;
  }
  const end = first + segment.last_sequence_number - segment.first_sequence_number + 1;
  return (group) => {
    const start = list.row_groups.slice(0, group).reduce((sum, rows) => sum + rows, 0);
    const rows = list.row_groups[group] ?? 0;
    return [Math.max(first - start, 0), Math.min(end - start, rows)];
  };
}

/** First and last row group of each read. */
function spansOf(footer: Footer, { row_groups: [first, last] }: Segment): (readonly [number, number])[] {
  const spans: (readonly [number, number])[] = [];
  let from = first;
  for (let group = first; group <= last; group++) {
    const { start, end } = rangeOfGroups(footer, from, group);
    if (group === from || end - start <= SPAN_BYTES) continue;
    spans.push([from, group - 1]);
    from = group;
  }
  spans.push([from, last]);
  return spans;
}

function plainBytesOf(rows: readonly StoredRow[]): number {
  return rows.reduce((sum, { payload }) => sum + payload.byteLength, 0);
}

type Proven = { readonly whole: readonly StoredRow[]; readonly broken: unknown };

/** The rows that are whole, and why the next one is not. */
function prove(rows: readonly StoredRow[], before: Link): Proven {
  let link = before;
  for (const [i, row] of rows.entries()) {
    try {
      const isOriginal = row.offloaded === null && !isRedacted(row.payload);
      if (isOriginal && payloadSha256(row.payload) !== row.payload_sha256) {
        throw new VarveError('COLD_FILE_DIFFERS', 'the payload has another hash');
      }
      verifyLink(link, row, row.payload_sha256);
    } catch (broken) {
      return { whole: rows.slice(0, i), broken };
    }
    link = row;
  }
  return { whole: rows, broken: undefined };
}

/** With the object and the first event that could not be read. */
function named(error: unknown, key: string, { trajectory_id, sequence_number }: Link): unknown {
  if (!isVarveError(error) || error.code === 'ABORTED') return error;
  const next = sequence_number + 1;
  const details = { ...error.details, key, trajectory_id, sequence_number: next };
  const codes = { STORE_MISSING: 'COLD_OBJECT_MISSING', CHAIN_BROKEN: 'COLD_FILE_DIFFERS' } as const;
  const wentBack = error.code.endsWith('_WENT_BACK') ? 'COLD_FILE_DIFFERS' : error.code;
  const code = error.code in codes ? codes[error.code as keyof typeof codes] : wentBack;
  const message = `event ${next} of ${trajectory_id} cannot be read from ${key}: ${error.message}`;
  return new VarveError(code, message, details, error);
}
