/**
 * Rows of events from the bytes of a data file: the only place that imports hyparquet.
 *
 * It reads the columns that make up an event and leaves the others alone; they stand first in every file, so those of
 * neighbouring row groups are one range of bytes. Pages are unpacked by our own zstd, off the main thread: the library's
 * costs six times as much (15 MB in 180 ms against 28). Text stays bytes until a row is asked for, so that one trajectory
 * of a row group of ten thousand rows does not pay for all of them.
 *
 * Nothing in a file is trusted: what its footer or pages claim is checked against the list of segments and against
 * limits before memory is taken for it, and what cannot be read is COLD_FILE_DIFFERS.
 */
import { parquetMetadata, parquetSchema } from 'hyparquet';
import { parquetHeader } from 'hyparquet/src/column.js';
import { parquetPlanGroup } from 'hyparquet/src/plan.js';
import { assembleAsync, asyncGroupToRows, readRowGroup } from 'hyparquet/src/rowgroup.js';
import type { AsyncBuffer, FileMetaData, ParquetParsers, RowGroup, SchemaTree } from 'hyparquet/src/types.js';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import type { TrajectoryEvent } from '../schemas/event.ts';
import type { SequenceNumber, TrajectoryId } from '../schemas/ids.ts';
import { MIB } from '../schemas/limits.ts';
import type { ColdRow } from '../schemas/parquet.ts';
import type { ByteRange } from './object-store.ts';
import type { SegmentList } from './segments.ts';
import { unpackFrame } from './zstd.ts';

/** An event as it stands in a file: nothing is proven of it. */
export type StoredRow = Omit<TrajectoryEvent, 'payload'> &
  Pick<ColdRow, 'payload_sha256' | 'offloaded'> & { readonly payload: Buffer };

export type Footer = {
  readonly metadata: FileMetaData;
  readonly tree: SchemaTree;
  readonly list: SegmentList;
  /** For messages. */
  readonly name: string;
};

const READ = [
  'trajectory_id',
  'sequence_number',
  'event_type',
  'turn',
  'created_at',
  'fencing_token',
  'payload',
  'payload_sha256',
  'offloaded',
  'cryptographic_hash',
] as const satisfies readonly (keyof ColdRow)[];

/** Plain bytes of one page: a row group is closed at some 8 MiB, and one page may hold a column of it. */
const PAGE_BYTES_MAX = 128 * MIB;
/** Packed bytes of the columns of one row group. */
const GROUP_BYTES_MAX = 256 * MIB;
const MICROSECONDS = 1000n;

const PARSERS: Partial<ParquetParsers> = {
  // Decoded row by row; the library would also drop a byte order mark.
  stringFromBytes: (bytes) => bytes,
  timestampFromMicroseconds: (micros: bigint) => {
    if (micros % MICROSECONDS !== 0n) throw new Error('created_at has microseconds');
    return new Date(Number(micros / MICROSECONDS));
  },
};

/** @param bytes from `footer_start` to the end of the file. @throws VarveError COLD_FILE_DIFFERS */
export function parseFooter(bytes: Buffer, list: SegmentList, name: string): Footer {
  try {
    const metadata = parquetMetadata(bytes, { parsers: PARSERS, geoparquet: false });
    const groups = metadata.row_groups.map(({ num_rows }) => Number(num_rows));
    if (groups.join() !== list.row_groups.join()) throw new Error('it has other row groups than its list says');
    return { metadata, tree: parquetSchema(metadata), list, name };
  } catch (error) {
    throw differs(name, `its footer cannot be read: ${textOf(error)}`, error);
  }
}

/** The columns of an event, in bytes, of a run of row groups: by where they begin in the file. */
export type Chunks = ReadonlyMap<number, ArrayBuffer>;

/**
 * Takes the chunks out of a range of bytes as it comes; what lies between them is let go.
 *
 * @param at where the range begins in the file
 */
export async function takeChunks(
  footer: Footer,
  [first, last]: readonly [number, number],
  range: AsyncIterable<Uint8Array>,
  at: number,
): Promise<Chunks> {
  const chunks: (ByteRange & { readonly bytes: Uint8Array })[] = [];
  for (let group = first; group <= last; group++) {
    for (const { start, end } of chunksOf(footer, group)) {
      if (end - start > 0) chunks.push({ start, end, bytes: new Uint8Array(new ArrayBuffer(end - start)) });
    }
  }
  let from = at;
  for await (const part of range) {
    const to = from + part.byteLength;
    for (const { start, end, bytes } of chunks) {
      if (end <= from || start >= to) continue;
      bytes.set(part.subarray(Math.max(start - from, 0), Math.min(end, to) - from), Math.max(from - start, 0));
    }
    from = to;
  }
  return new Map(chunks.map(({ start, bytes }) => [start, bytes.buffer as ArrayBuffer]));
}

/** Where the columns of an event lie in a run of row groups, with whatever lies between them. */
export function rangeOfGroups(footer: Footer, first: number, last: number): ByteRange {
  const chunks = [first, last].flatMap((group) => chunksOf(footer, group));
  const start = Math.min(...chunks.map(({ start }) => start));
  const end = Math.max(...chunks.map(({ end }) => end));
  // Comparisons that are also false for what is no number.
  if (start >= 4 && end > start && end <= footer.list.footer_start) return { start, end };
  throw differs(footer.name, `row groups ${first} to ${last} lie outside of it`);
}

/**
 * Rows `from` up to, not including, `to` of one row group.
 *
 * @param chunks of a run of row groups in which this one is
 * @throws VarveError COLD_FILE_DIFFERS
 */
export async function readRows(
  footer: Footer,
  group: number,
  chunks: Chunks,
  [from, to]: readonly [number, number],
): Promise<StoredRow[]> {
  const { metadata, tree, name } = footer;
  const rowGroup = metadata.row_groups[group] as RowGroup;
  try {
    const pages = new Map<ArrayBufferLike, Map<number, Uint8Array>>();
    for (const { start, column, codec } of chunksOf(footer, group)) {
      const chunk = chunks.get(start);
      if (chunk === undefined) throw new Error(`${column} has no bytes`);
      pages.set(chunk, await unpackPages(chunk, column, codec));
    }
    const file: AsyncBuffer = { byteLength: footer.list.bytes, slice: (start) => chunks.get(start) as ArrayBuffer };
    const compressors = { ZSTD: (input: Uint8Array) => pages.get(input.buffer)?.get(input.byteOffset) as Uint8Array };
    const options = { file, metadata, compressors, parsers: PARSERS, columns: [...READ] };
    const plan = parquetPlanGroup({
      rowGroup,
      groupStart: 0,
      groupRows: Number(rowGroup.num_rows),
      ranges: [[from, to]],
      columns: [...READ],
    });
    const [wanted] = plan.groups;
    if (wanted === undefined) throw new Error('it has no such rows');
    const columns = assembleAsync(readRowGroup(options, { ...plan, metadata, rowStart: from }, wanted), tree, PARSERS);
    const rows = await asyncGroupToRows(columns, from, to, [...READ], 'object');
    return rows.map(rowFrom);
  } catch (error) {
    if (isVarveError(error)) throw error;
    throw differs(name, `row group ${group} cannot be read: ${textOf(error)}`, error, { row_group: group });
  }
}

type Chunk = ByteRange & { readonly column: string; readonly codec: string };

function chunksOf({ metadata, name }: Footer, group: number): Chunk[] {
  const columns = metadata.row_groups[group]?.columns ?? [];
  const chunks = READ.map((wanted): Chunk => {
    const meta = columns.find(({ meta_data }) => meta_data?.path_in_schema[0] === wanted)?.meta_data;
    if (meta === undefined) throw differs(name, `row group ${group} has no column ${wanted}`);
    const start = Number(meta.dictionary_page_offset || meta.data_page_offset);
    return { column: wanted, codec: meta.codec, start, end: start + Number(meta.total_compressed_size) };
  });
  const bytes = chunks.reduce((sum, { start, end }) => sum + end - start, 0);
  if (bytes >= 0 && bytes <= GROUP_BYTES_MAX) return chunks;
  throw differs(name, `row group ${group} has ${bytes} bytes; ${GROUP_BYTES_MAX} is the limit`);
}

/** Plain pages of a column, by where their packed bytes begin. */
async function unpackPages(chunk: ArrayBuffer, column: string, codec: string): Promise<Map<number, Uint8Array>> {
  if (codec !== 'ZSTD' && codec !== 'UNCOMPRESSED') throw new Error(`${column} is packed by ${codec}`);
  const reader = { view: new DataView(chunk), offset: 0 };
  const pages: [number, Promise<Uint8Array>][] = [];
  while (codec === 'ZSTD' && reader.offset < chunk.byteLength) {
    const { compressed_page_size: packed, uncompressed_page_size: plain } = parquetHeader(reader);
    const { offset } = reader;
    if (!(packed >= 0 && offset + packed <= chunk.byteLength && plain >= 0 && plain <= PAGE_BYTES_MAX)) {
      throw new Error(`a page of ${column} has ${packed} and ${plain} bytes`);
    }
    pages.push([offset, unpackPage(new Uint8Array(chunk, offset, packed), plain, column)]);
    reader.offset += packed;
  }
  const plain = await Promise.allSettled(pages.map(([, page]) => page));
  return new Map(
    plain.map((page, i) => {
      if (page.status === 'rejected') throw page.reason;
      return [pages[i]?.[0] as number, page.value];
    }),
  );
}

async function unpackPage(packed: Uint8Array, plainBytes: number, column: string): Promise<Uint8Array> {
  const plain = await unpackFrame(packed).catch((error: unknown) => {
    throw new Error(`a page of ${column} does not unpack`, { cause: error });
  });
  if (plain.byteLength === plainBytes) return plain;
  throw new Error(`a page of ${column} has ${plain.byteLength} bytes, not ${plainBytes}`);
}

function rowFrom(row: Readonly<Record<string, unknown>>): StoredRow {
  const text = (column: string) => bytesOf(row[column]).toString('utf8');
  const offloaded = row['offloaded'] as readonly Uint8Array[] | null | undefined;
  return {
    trajectory_id: text('trajectory_id') as TrajectoryId,
    sequence_number: Number(row['sequence_number']) as SequenceNumber,
    event_type: text('event_type'),
    turn: Number(row['turn']),
    created_at: (row['created_at'] as Date).toISOString(),
    fencing_token: Number(row['fencing_token']),
    payload: bytesOf(row['payload']),
    payload_sha256: text('payload_sha256'),
    offloaded: offloaded?.map((pointer) => bytesOf(pointer).toString('utf8')) ?? null,
    cryptographic_hash: text('cryptographic_hash'),
  };
}

function bytesOf(value: unknown): Buffer {
  if (!(value instanceof Uint8Array)) throw new Error('a value that must be there is null');
  return Buffer.from(value.buffer, value.byteOffset, value.byteLength);
}

function textOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

function differs(name: string, text: string, cause?: unknown, details: Record<string, unknown> = {}): VarveError {
  return new VarveError('COLD_FILE_DIFFERS', `${name}: ${text}`, { name, ...details }, cause);
}
