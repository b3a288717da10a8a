/**
 * Reads of a log that is open: by trajectory, by LSN, and what a missing LSN means.
 *
 * Only durable records are handed out. Records of one trajectory are found by the LSNs that its head lists, those
 * before them by walking back-pointers; they are read a few at a time, so a trajectory of any length takes the memory
 * of a few events.
 */
import { VarveError } from '../schemas/errors.ts';
import type { TrajectoryId } from '../schemas/ids.ts';
import { KIB } from '../schemas/limits.ts';
import type { Tip } from './commit.ts';
import { Appended, type Head, type Heads } from './heads.ts';
import { decodeIndexBlock, type IndexBlock, TRIM } from './index-block.ts';
import type { TailItem, Trimmed } from './read-check.ts';
import {
  decodeRecord,
  HASH_AT,
  HEAD_AT,
  indexKey,
  isIndexKey,
  keyLsn,
  type LogRecord,
  recordKey,
  type StoredEvent,
} from './record.ts';
import type { Rocks, Row } from './rocks.ts';

const READ_AHEAD = 4;
const INDEX_PAGE_BYTES = 64 * KIB;
const LOG_PAGE_BYTES = 512 * KIB;

export class Lookup {
  readonly #db: Rocks;
  readonly #heads: Heads;
  readonly #durable: () => Tip;
  readonly #floor: () => Tip;

  constructor(db: Rocks, heads: Heads, durable: () => Tip, floor: () => Tip) {
    this.#db = db;
    this.#heads = heads;
    this.#durable = durable;
    this.#floor = floor;
  }

  /** Events of a trajectory from a sequence number to the last one that was durable when the reading began. */
  async *events(id: TrajectoryId, from: number): AsyncGenerator<StoredEvent> {
    const head = this.#heads.get(id);
    if (head === undefined) {
      throw new VarveError('HOT_UNKNOWN_TRAJECTORY', `this log has nothing of ${id}`, { trajectory_id: id });
    }
    if (!Number.isSafeInteger(from) || from < 1) {
      throw new VarveError('INVALID_OPTION', `a trajectory is read from a sequence number from 1, not ${from}`, {});
    }
    const lsns = await this.#lsnsFrom(head, from);
    const reads: Promise<LogRecord>[] = [];
    for (let next = 0; next < lsns.length || reads.length > 0; ) {
      while (reads.length < READ_AHEAD && next < lsns.length) {
        const read = this.record(lsns[next++] as number);
        // Awaited in order below; meanwhile a later one that fails must not count as unhandled.
        read.catch(() => {});
        reads.push(read);
      }
      const record = await (reads.shift() as Promise<LogRecord>);
      if (record.kind === 'event') yield record.event;
    }
  }

  async eventAt(head: Head, sequence: number): Promise<{ event: StoredEvent; receipt: Appended }> {
    for await (const event of this.events(head.id, sequence)) {
      const { trajectory_id, sequence_number, lsn, created_at, cryptographic_hash } = event;
      const hash = Buffer.from(cryptographic_hash, 'hex').toString('latin1');
      return { event, receipt: new Appended(trajectory_id, sequence_number, Number(lsn), created_at, hash) };
    }
    throw new VarveError('SEQUENCE_AHEAD', `event ${sequence} of ${head.id} is not durable`, {});
  }

  /** The trajectory that a record belongs to; undefined where it is trimmed. */
  async trajectoryOf(lsn: number): Promise<TrajectoryId | undefined> {
    const value = await this.#db.get(recordKey(lsn));
    const record = value === undefined ? undefined : decodeRecord(lsn, value);
    return record?.kind === 'event' ? record.event.trajectory_id : record?.position.trajectory_id;
  }

  /** @throws VarveError HOT_DAMAGED where the log holds no such record, or a torn one */
  async record(lsn: number): Promise<LogRecord> {
    const value = await this.#db.get(recordKey(lsn));
    const record = value === undefined ? undefined : decodeRecord(lsn, value);
    if (record !== undefined) return record;
    const what = value === undefined ? 'is missing' : 'contradicts itself';
    throw new VarveError('HOT_DAMAGED', `the record at LSN ${lsn} ${what}: run verify`, { lsn });
  }

  /** Records behind an LSN in order, to the end of what is durable when the reading gets there. */
  async *log(afterLsn: number): AsyncGenerator<readonly TailItem[]> {
    let last = afterLsn;
    for (let tip = this.#durable().lsn; last < tip; tip = this.#durable().lsn) {
      const before = last;
      for await (const rows of this.rows(last + 1, tip, LOG_PAGE_BYTES)) {
        const records: TailItem[] = [];
        for (const [key, value] of rows) {
          if (isIndexKey(key)) continue;
          const lsn = keyLsn(key);
          if (lsn > last + 1) {
            const trimmed = await this.trimmed(last + 1, lsn - 1);
            records.push(trimmed);
            last = trimmed.to_lsn;
          }
          if (lsn <= last) continue;
          const record = decodeRecord(lsn, value);
          if (record === undefined)
            throw new VarveError('HOT_DAMAGED', `the record at LSN ${lsn} contradicts itself`, { lsn });
          records.push(record);
          last = lsn;
        }
        if (records.length > 0) yield records;
      }
      if (last < tip) {
        const trimmed = await this.trimmed(last + 1, tip);
        yield [trimmed];
        last = trimmed.to_lsn;
      }
      if (last === before) return;
    }
  }

  /**
   * LSNs without a record, which trim marks must account for. Below the floor nothing more is known of them: there they
   * reach up to the floor, past what is asked for.
   *
   * @throws VarveError HOT_DAMAGED where no trim took them
   */
  async trimmed(from_lsn: number, to_lsn: number): Promise<Trimmed> {
    const floor = this.#floor();
    if (to_lsn <= floor.lsn) return { kind: 'trimmed', from_lsn, to_lsn: floor.lsn, hash: floor.hash };
    const hash = await this.hashAt(to_lsn);
    if (hash !== undefined && (await this.#isTrimmed(from_lsn, to_lsn))) {
      return { kind: 'trimmed', from_lsn, to_lsn, hash };
    }
    // A trim that is under way may have raised it meanwhile.
    if (this.#floor().lsn > floor.lsn) return this.trimmed(from_lsn, to_lsn);
    const message = `records between LSN ${from_lsn} and ${to_lsn} are missing and no trim took them: run verify`;
    throw new VarveError('HOT_DAMAGED', message, { from_lsn, to_lsn });
  }

  rows(fromLsn: number, toLsn: number, pageBytes: number): AsyncGenerator<Row[]> {
    return this.#db.pages({ gte: recordKey(fromLsn), lte: recordKey(toLsn), pageBytes });
  }

  /** Hex hash at an LSN: of the record, or of its index entry where the record is trimmed. */
  async hashAt(lsn: number): Promise<string | undefined> {
    const value = await this.#db.get(recordKey(lsn));
    if (value !== undefined && value.length >= HEAD_AT) return value.toString('hex', HASH_AT, HEAD_AT);
    const floor = this.#floor();
    if (lsn === floor.lsn && lsn > 0) return floor.hash;
    const hash = (await this.#blockOf(lsn))?.entries.find((entry) => entry.lsn === lsn)?.hash;
    return hash === undefined ? undefined : Buffer.from(hash, 'latin1').toString('hex');
  }

  /** Do trim marks account for every one of these LSNs? */
  async #isTrimmed(fromLsn: number, toLsn: number): Promise<boolean> {
    let lsn = Math.max(fromLsn, this.#floor().lsn + 1);
    while (lsn <= toLsn) {
      const block = await this.#blockOf(lsn);
      if (block === undefined) return false;
      for (const entry of block.entries) {
        if (entry.lsn < lsn || entry.lsn > toLsn) continue;
        const trimmed = this.#heads.at(entry.id).trimmed;
        if (entry.code === TRIM || trimmed === undefined || trimmed.lsn < entry.lsn) return false;
      }
      lsn = block.lastLsn + 1;
    }
    return true;
  }

  /** Index blocks from the end of the log back to its floor. */
  async *blocksBackwards(): AsyncGenerator<IndexBlock> {
    for (let lsn = this.#durable().lsn; lsn > this.#floor().lsn; ) {
      const value = await this.#db.get(indexKey(lsn));
      const block = value === undefined ? undefined : decodeIndexBlock(lsn, value);
      if (block === undefined)
        throw new VarveError('HOT_DAMAGED', `the index block at LSN ${lsn} is missing or torn`, { lsn });
      yield block;
      lsn = block.firstLsn - 1;
    }
  }

  /** Index blocks from behind an LSN onwards. */
  async *blocksForwards(afterLsn: number): AsyncGenerator<IndexBlock> {
    const range = { gte: recordKey(afterLsn + 1), lte: indexKey(this.#durable().lsn) };
    for await (const rows of this.#db.pages(range)) {
      for (const [key, value] of rows) {
        const block = isIndexKey(key) ? decodeIndexBlock(keyLsn(key), value) : undefined;
        if (block !== undefined) yield block;
      }
    }
  }

  async #blockOf(lsn: number): Promise<IndexBlock | undefined> {
    const range = { gte: recordKey(lsn), lte: indexKey(this.#durable().lsn), pageBytes: INDEX_PAGE_BYTES };
    for await (const rows of this.#db.pages(range)) {
      for (const [key, value] of rows) {
        if (!isIndexKey(key)) continue;
        const block = decodeIndexBlock(keyLsn(key), value);
        return block !== undefined && block.firstLsn <= lsn ? block : undefined;
      }
    }
    return undefined;
  }

  /** LSNs of a trajectory's durable events from a sequence number on, ascending. */
  async #lsnsFrom(head: Head, from: number): Promise<number[]> {
    const durable = this.#durable().lsn;
    if (head.trimmed !== undefined && from <= head.trimmed.sequence)
      throw notHere(head, from, head.trimmed.sequence, 'trimmed');
    if (head.durable === undefined) return [];
    const listed = head.lsns.slice(Math.max(0, from - head.listedFrom)).filter((lsn) => lsn <= durable);
    if (from >= head.listedFrom) return listed;
    const first = head.lsns[0];
    // A head runs ahead of the disk: what it has last may not be there yet.
    const isThere = first !== undefined && first <= durable;
    const last = isThere ? await this.#previousLsn(first) : Number(head.durable?.lsn ?? 0n);
    return [...(await this.#walk(head, last, from)), ...listed];
  }

  async #previousLsn(lsn: number): Promise<number> {
    const record = await this.record(lsn);
    return record.kind === 'event' ? Number(record.event.previous_lsn) : 0;
  }

  /** LSNs from a record back to a sequence number, ascending. */
  async #walk(head: Head, fromLsn: number, downTo: number): Promise<number[]> {
    const lsns: number[] = [];
    // Behind an anchor, only the event that it stands for goes on; others are of a suffix that was set aside.
    let wanted: { sequence: number; hash: string } | undefined;
    for (let lsn = fromLsn; lsn > 0; ) {
      const value = await this.#db.get(recordKey(lsn));
      if (value === undefined) break;
      const record = decodeRecord(lsn, value);
      if (record === undefined)
        throw new VarveError('HOT_DAMAGED', `the record at LSN ${lsn} contradicts itself`, { lsn });
      lsn = Number(value.readBigUInt64BE(0));
      if (record.kind === 'anchor') {
        const { sequence_number, cryptographic_hash } = record.position;
        // An older anchor belongs to what was set aside, or stands for the same event.
        if (wanted !== undefined) continue;
        if (sequence_number < downTo) break;
        wanted = { sequence: sequence_number, hash: cryptographic_hash };
      } else if (record.kind === 'event') {
        const { sequence_number, cryptographic_hash } = record.event;
        if (wanted !== undefined && (sequence_number !== wanted.sequence || cryptographic_hash !== wanted.hash))
          continue;
        wanted = undefined;
        if (sequence_number >= downTo) lsns.push(Number(record.lsn));
        if (sequence_number <= downTo) return lsns.toReversed();
      }
    }
    if (wanted !== undefined || lsns.length === 0)
      throw notHere(head, downTo, wanted?.sequence ?? head.sequence, 'adopted');
    throw notHere(head, downTo, downTo, 'trimmed');
  }
}

function notHere(head: Head, from: number, through: number, why: 'trimmed' | 'adopted'): VarveError {
  const how =
    why === 'trimmed' ? 'were trimmed' : 'were written elsewhere: this log adopted the trajectory behind them';
  const message = `events ${from} to ${through} of ${head.id} are not in the hot tier, they ${how}; warm or cold hold them`;
  const details = { trajectory_id: head.id, first_available: through + 1, tier: 'warm' };
  return new VarveError('HOT_TRIMMED', message, details);
}
