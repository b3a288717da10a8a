/**
 * Events of warm → data files in the store, ready to be committed.
 *
 * Events come as one stream, in the order of the files and of the trajectories in them. Each is made canonical again,
 * proven by the chain from the hash that cold ends with to the head that warm had when the trajectory was claimed, and
 * its long strings leave for blobs, before the file that refers to them is put. Nothing that this makes is visible to
 * anybody until a commit names it; memory is bounded by rows and blobs under way, not by trajectories or files.
 */
import { putDataFile, readBack } from '../cold/data-file.ts';
import { putDerived } from '../cold/derived-file.ts';
import type { DuckDb } from '../cold/duckdb.ts';
import type { ObjectStore } from '../cold/object-store.ts';
import { ParquetWriter } from '../cold/parquet-writer.ts';
import type { Partition } from '../cold/row-check.ts';
import { partitionFolder } from '../cold/slug.ts';
import { type NewFile, newFile } from '../cold/table-log-plan.ts';
import type { JsonObject } from '../schemas/canonical.ts';
import { payloadSha256 } from '../schemas/chain.ts';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { failpoint } from '../schemas/failpoint.ts';
import type { TrajectoryId } from '../schemas/ids.ts';
import { type ColdRow, rowOf } from '../schemas/parquet.ts';
import { type ImportRow, importRowOf, type TrajectoryRow, trajectoryRowOf } from '../schemas/parquet-trajectories.ts';
import { type OffloadedBody, offload } from '../schemas/stubs.ts';
import type { Summary } from '../schemas/summary.ts';
import { type ExportedEvent, exportEvents } from '../warm/export.ts';
import type { WarmPool } from '../warm/pool.ts';
import type { BlobPutter } from './blob-putter.ts';
import type { Member } from './compact-plan.ts';
import { type RetryPolicy, retry } from './retry.ts';

export type FileParts = {
  readonly pool: WarmPool;
  readonly store: ObjectStore;
  readonly duck: DuckDb;
  readonly scratchDir: string;
  /** Longer strings leave their payloads; in bytes. */
  readonly offloadOverBytes: number;
  /** A file is finished at this many bytes of rows. @default as `ParquetWriter` says */
  readonly fileBytes?: number | undefined;
  readonly blobs: BlobPutter;
  readonly signal: AbortSignal;
  readonly policy: RetryPolicy;
  readonly onEvents: (events: number) => void;
};

/** A member, as it was when it was claimed. */
export type ClaimedMember = Member & { readonly head_hash: string; readonly summary: Summary };

export type FileCounts = {
  readonly events: number;
  /** In UTF-8, of the payloads that the files hold: long strings are gone to blobs. */
  readonly payload_bytes: number;
  readonly file_bytes: number;
};

export type MadeFiles = { readonly files: readonly NewFile[]; readonly counts: FileCounts };

/** One trajectory is not what its hashes say: the others can move without it. */
export class BrokenTrajectory extends Error {
  readonly trajectory_id: TrajectoryId;

  constructor(trajectory_id: TrajectoryId, why: string) {
    super(why);
    this.trajectory_id = trajectory_id;
  }
}

const BLOCK_ROWS = 256;
const BLOCK_CHARS = 1024 * 1024;
/**
 * Files of these members, which ascend by id within a partition; those of one partition follow each other.
 * @throws BrokenTrajectory; VarveError as the tiers do
 */
export async function makeFiles(parts: FileParts, members: readonly ClaimedMember[]): Promise<MadeFiles> {
  await using making = new Making(parts);
  let at = -1;
  const ranges = members.map(({ trajectory_id, after, last_sequence_number }) => ({
    trajectory_id,
    after,
    upTo: last_sequence_number,
  }));
  for await (const events of exportEvents(parts.pool, ranges)) {
    if (parts.signal.aborted) throw new VarveError('ABORTED', 'compaction was aborted');
    for (const event of events) {
      while (at < 0 || members[at]?.trajectory_id !== event.trajectory_id) {
        await making.endTrajectory();
        at += 1;
        const member = members[at];
        if (member === undefined) throw new Error(`events of ${event.trajectory_id} came out of order`);
        await making.beginTrajectory(member);
      }
      await making.add(event);
    }
    parts.onEvents(events.length);
  }
  await making.endTrajectory();
  const missing = members[at + 1];
  if (missing !== undefined) throw new BrokenTrajectory(missing.trajectory_id, 'warm has none of its events');
  return await making.finish();
}

class Making implements AsyncDisposable {
  readonly #parts: FileParts;
  readonly #files: NewFile[] = [];
  readonly #counts = { events: 0, payload_bytes: 0, file_bytes: 0 };
  /** Bodies that the file under way refers to. */
  #bodies = new Set<Promise<void>>();
  #writer: ParquetWriter | undefined;
  #partition: Partition | undefined;
  #trajectories: TrajectoryRow[] = [];
  #imports: ImportRow[] = [];
  #member: ClaimedMember | undefined;
  /** Of the member: the last event that was taken, its hash, and the first one in the file under way. */
  #sequence = 0;
  #hash = '';
  #firstInFile = 0;
  #block: ColdRow[] = [];
  #blockChars = 0;

  constructor(parts: FileParts) {
    this.#parts = parts;
  }

  async beginTrajectory(member: ClaimedMember): Promise<void> {
    const isOther = this.#partition !== undefined && !isSame(this.#partition, member.partition);
    if (isOther || this.#writer?.isFull === true) await this.#endFile();
    this.#member = member;
    this.#sequence = member.after;
    this.#hash = member.previous_hash;
    this.#firstInFile = member.after + 1;
    this.#partition = member.partition;
  }

  async add(event: ExportedEvent): Promise<void> {
    const member = this.#member as ClaimedMember;
    // A trajectory may be larger than a file: it goes on in the next one, as another segment. Only with an event that is
    // there: the row of a trajectory that ends belongs to the file that has its last one.
    if (this.#writer?.isFull === true && this.#block.length === 0) {
      await this.#endFile(member.trajectory_id);
      this.#firstInFile = this.#sequence + 1;
    }
    const { row, bodies } = toRow(event, member, this.#parts.offloadOverBytes);
    for (const body of bodies) await this.#putBody(body);
    if (event.sequence_number === 1) {
      const imported = importRowOf(event.trajectory_id, member.partition, JSON.parse(row.payload) as JsonObject);
      if (imported !== undefined) this.#imports.push(imported);
    }
    this.#block.push(row);
    this.#blockChars += row.payload.length;
    this.#counts.payload_bytes += Buffer.byteLength(row.payload);
    if (this.#block.length >= BLOCK_ROWS || this.#blockChars >= BLOCK_CHARS) await this.#flush();
  }

  async endTrajectory(): Promise<void> {
    const member = this.#member;
    if (member === undefined) return;
    await this.#flush();
    if (this.#sequence !== member.last_sequence_number || this.#hash !== member.head_hash) {
      const why = `warm's events end with ${this.#sequence}, and its row says ${member.last_sequence_number}`;
      throw new BrokenTrajectory(member.trajectory_id, why);
    }
    const segment = { first_sequence_number: this.#firstInFile, head_hash: member.head_hash };
    this.#trajectories.push(trajectoryRowOf(member.trajectory_id, member.partition, member.summary, segment));
    this.#member = undefined;
  }

  async finish(): Promise<MadeFiles> {
    await this.#endFile();
    return { files: this.#files, counts: this.#counts };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.allSettled(this.#bodies);
    await this.#writer?.close();
  }

  async #flush(): Promise<void> {
    const rows = this.#block;
    const last = rows.at(-1);
    if (last === undefined) return;
    this.#block = [];
    this.#blockChars = 0;
    this.#writer ??= await ParquetWriter.open(this.#parts.duck, this.#parts.scratchDir, this.#parts.fileBytes);
    try {
      await this.#writer.append({ previous_hash: this.#hash, rows });
    } catch (error) {
      if (!isVarveError(error, 'COLD_ROWS_BROKEN') && !isVarveError(error, 'COLD_ROW_TOO_LARGE')) throw error;
      throw new BrokenTrajectory(last.trajectory_id, error.message);
    }
    this.#sequence = last.sequence_number;
    this.#hash = last.cryptographic_hash;
    this.#counts.events += rows.length;
  }

  async #putBody(body: OffloadedBody): Promise<void> {
    const { durable } = await this.#parts.blobs.begin(body);
    // Awaited before the file is put; until then its failure must not count as unhandled.
    durable.catch(() => {});
    this.#bodies.add(durable);
  }

  /** @param cut the trajectory that goes on in the next file */
  async #endFile(cut?: TrajectoryId): Promise<void> {
    const writer = this.#writer;
    if (writer === undefined) return;
    this.#writer = undefined;
    await using _ = writer;
    const { duck, store, scratchDir, signal, policy } = this.#parts;
    const file = await writer.finish({ signal });
    // Bodies first: a row must not be visible before what it refers to.
    await Promise.all(this.#bodies);
    this.#bodies.clear();
    await retry((signal) => putDataFile(store, file, { signal }), signal, policy);
    const rows = { trajectories: this.#trajectories, imports: this.#imports };
    const folder = partitionFolder(file.partition);
    const derived = await retry(
      (signal) => putDerived(store, duck, folder, rows, scratchDir, { signal }),
      signal,
      policy,
    );
    failpoint('compact.derived.after-put');
    await readBackSurely(this.#parts, file);
    failpoint('compact.file.read-back');
    this.#trajectories = [];
    this.#imports = [];
    this.#files.push(newFile(file, Date.now(), cut === undefined ? derived : { ...derived, cut }));
    this.#counts.file_bytes += file.list.bytes;
  }
}

/** What a bad connection gave is looked at once more; what the store gives twice is what it has. */
async function readBackSurely(
  { store, duck, scratchDir, signal, policy }: FileParts,
  file: Parameters<typeof readBack>[2],
) {
  const read = () => retry((signal) => readBack(store, duck, file, scratchDir, { signal }), signal, policy);
  try {
    await read();
  } catch (error) {
    if (!isVarveError(error, 'STORE_CORRUPT') && !isVarveError(error, 'COLD_FILE_DIFFERS')) throw error;
    await read();
  }
}

function toRow(
  event: ExportedEvent,
  { partition, trajectory_id }: ClaimedMember,
  offloadOverBytes: number,
): { readonly row: ColdRow; readonly bodies: readonly OffloadedBody[] } {
  const { payload_text, isExact: _, ...rest } = event;
  const payload = JSON.parse(payload_text) as JsonObject;
  const { payload_sha256 } = event;
  // The hash is that of the database; whoever writes the row checks it against the payload.
  const row = rowOf({ ...rest, payload }, partition, { payload_sha256, offloaded: null });
  // No string of it can be longer.
  if (row.payload.length * 3 <= offloadOverBytes) return { row, bodies: [] };
  const bytes = Buffer.byteLength(row.payload);
  if (bytes <= offloadOverBytes) return { row, bodies: [] };
  const { payload: short, bodies } = offload(payload, bytes, offloadOverBytes, Number.POSITIVE_INFINITY);
  if (bodies.length === 0) return { row, bodies };
  if (payloadSha256(row.payload) !== payload_sha256) {
    throw new BrokenTrajectory(trajectory_id, `event ${event.sequence_number}: its payload has another hash`);
  }
  const offloaded = bodies.map(({ pointer }) => pointer).toSorted();
  return { row: rowOf({ ...rest, payload: short }, partition, { payload_sha256, offloaded }), bodies };
}

function isSame(a: Partition, b: Partition): boolean {
  return a.tenant === b.tenant && a.date === b.date && a.model_version === b.model_version;
}
