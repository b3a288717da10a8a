/** Rows of one segment, by ranged reads: how many there are, what they prove, and how damage is named. */
import assert from 'node:assert/strict';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { asyncBufferFromFile, parquetMetadataAsync } from 'hyparquet';
import { DuckDb } from '../../cold/duckdb.ts';
import { FileStore } from '../../cold/file-store.ts';
import { type PlacedSegment, segmentsOfTrajectories } from '../../cold/locate.ts';
import type { GetOptions } from '../../cold/object-store.ts';
import { SegmentReader } from '../../cold/segment-reader.ts';
import { parquetKey, segmentsKey } from '../../cold/table-keys.ts';
import { TableLog } from '../../cold/table-log.ts';
import { isVarveError } from '../../schemas/errors.ts';
import type { TrajectoryId } from '../../schemas/ids.ts';
import { MIB } from '../../schemas/limits.ts';
import { idAt, notes } from '../support/cold-rows.ts';
import { ColdTable } from '../support/cold-table.ts';
import { FaultStore } from '../support/fault-store.ts';
import { TempDirectory } from '../support/temp.ts';

/** Counts ranged reads and their bytes. */
class RangeStore extends FaultStore {
  readonly reads: { readonly key: string; readonly bytes: number | undefined }[] = [];

  override async *get(key: string, options: GetOptions = {}) {
    const { range } = options;
    this.reads.push({ key, bytes: range === undefined ? undefined : range.end - range.start });
    yield* super.get(key, options);
  }
}

describe('segment reader', () => {
  let directory: TempDirectory;
  let duck: DuckDb;
  let store: RangeStore;
  let table: ColdTable;
  before(async () => {
    directory = new TempDirectory('segments');
    duck = await DuckDb.open({ tempDir: directory.join('spill') });
    store = new RangeStore(await FileStore.open(directory.join('store')));
    table = await ColdTable.create(store, duck, directory.path);
    await table.add(...Array.from({ length: 40 }, (_, n) => notes(n, 5 + n, 200)));
    // Nine rows a row group, so that a trajectory has several to itself.
    await table.add(...Array.from({ length: 3 }, (_, n) => notes(100 + n, 30, 900_000)));
  });
  after(async () => {
    await duck.close();
    directory[Symbol.dispose]();
  });

  /** As another process would find it, with nothing but the snapshot known. */
  async function fresh(id: TrajectoryId) {
    const log = await TableLog.open(store, { duck, scratchDir: directory.join('scratch') });
    const snapshot = await log.snapshot();
    store.reads.length = 0;
    const [placed] = (await segmentsOfTrajectories(log, snapshot, [id])).get(id) ?? [];
    return { reader: new SegmentReader(store, log), placed: placed as PlacedSegment };
  }

  async function numbers(reader: SegmentReader, placed: PlacedSegment): Promise<number[]> {
    const found: number[] = [];
    for await (const rows of reader.read(placed)) found.push(...rows.map((row) => row.sequence_number));
    return found;
  }

  it('takes three ranged reads from a known snapshot, and no more than the row group', async () => {
    const { reader, placed } = await fresh(idAt(17));
    assert.deepEqual(
      await numbers(reader, placed),
      Array.from({ length: 22 }, (_, i) => i + 1),
    );
    const { stem } = placed.file;
    assert.deepEqual(
      store.reads.map(({ key }) => key),
      [segmentsKey(stem), parquetKey(stem), parquetKey(stem)],
    );
    const { footer_start, bytes } = await reader.log.segmentListOf(placed.file);
    assert.equal(store.reads[1]?.bytes, bytes - footer_start);
    assert.ok((store.reads[2]?.bytes ?? Infinity) < footer_start);
  });

  it('takes one more read for another trajectory of the same file', async () => {
    const { reader, placed } = await fresh(idAt(3));
    await numbers(reader, placed);
    const [other] =
      (await segmentsOfTrajectories(reader.log, await reader.log.snapshot(), [idAt(4)])).get(idAt(4)) ?? [];
    assert.equal((await numbers(reader, other as PlacedSegment)).length, 9);
    assert.equal(store.reads.length, 4);
  });

  it('reads a large segment in spans, each bounded', async () => {
    const { reader, placed } = await fresh(idAt(101));
    assert.equal((await numbers(reader, placed)).length, 30);
    const spans = store.reads.slice(2);
    assert.ok(spans.length > 1);
    for (const { bytes } of spans) assert.ok((bytes ?? Infinity) <= 20 * MIB);
  });

  it('names object, trajectory and event of a flipped byte, behind all that is whole; the rest stays readable', async () => {
    const id = idAt(101);
    const { placed } = await fresh(id);
    const key = parquetKey(placed.file.stem);
    const path = directory.join('store', key);
    const { row_groups } = await parquetMetadataAsync(await asyncBufferFromFile(path));
    // A row group that is all of this trajectory.
    const group = placed.segment.row_groups[1] - 1;
    const before = row_groups.slice(0, group).reduce((sum, { num_rows }) => sum + Number(num_rows), 0) - 30;
    for (const column of ['payload', 'cryptographic_hash', 'sequence_number'] as const) {
      const meta = row_groups[group]?.columns.find(
        ({ meta_data }) => meta_data?.path_in_schema[0] === column,
      )?.meta_data;
      const restore = flip(path, Number(meta?.data_page_offset) + Number(meta?.total_compressed_size) / 2);
      try {
        const { reader, placed } = await fresh(id);
        const seen: number[] = [];
        await assert.rejects(
          async () => {
            for await (const rows of reader.read(placed)) seen.push(...rows.map((row) => row.sequence_number));
          },
          (error: unknown) => {
            assert.ok(isVarveError(error, 'COLD_FILE_DIFFERS'), String(error));
            const { key: object, trajectory_id, sequence_number } = error.details;
            assert.deepEqual([object, trajectory_id, sequence_number], [key, id, seen.length + 1], error.message);
            return true;
          },
        );
        assert.ok(seen.length >= before && seen.length < 30, `${column}: ${seen.length} rows`);
        const other = await fresh(idAt(100));
        assert.equal((await numbers(other.reader, other.placed)).length, 30);
      } finally {
        restore();
      }
    }
  });

  it('names what is missing, too short, or has a footer that lies', async () => {
    const id = idAt(7);
    const { placed } = await fresh(id);
    const path = directory.join('store', parquetKey(placed.file.stem));
    const bytes = readFileSync(path);
    const bent = Buffer.from(bytes);
    bent.fill(0x5a, bent.length - 2000, bent.length - 1000);
    const cases = [
      ['COLD_OBJECT_MISSING', undefined],
      ['STORE_CORRUPT', bytes.subarray(0, -1)],
      ['COLD_FILE_DIFFERS', bent],
    ] as const;
    for (const [code, content] of cases) {
      rmSync(path);
      if (content !== undefined) writeFileSync(path, content);
      const { reader, placed } = await fresh(id);
      await assert.rejects(numbers(reader, placed), (error: unknown) => {
        assert.ok(isVarveError(error, code), String(error));
        assert.deepEqual([error.details['trajectory_id'], error.details['sequence_number']], [id, 1]);
        return true;
      });
      writeFileSync(path, bytes);
    }
  });
});

/** Turns one byte over; what it returns turns it back. */
function flip(path: string, offset: number): () => void {
  const at = Math.floor(offset);
  const turn = () => {
    const bytes = readFileSync(path);
    bytes.writeUInt8(bytes.readUInt8(at) ^ 0x10, at);
    writeFileSync(path, bytes);
  };
  turn();
  return turn;
}
