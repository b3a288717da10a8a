/**
 * Reads a log in order and believes nothing: LSNs are dense, every record is what its index entry says, every hash
 * covers its payload, its envelope and the event before it. It rebuilds the heads on the way.
 *
 * A record may be absent only where a trim mark of its trajectory covers its LSN. Records and their index block are one
 * atomic batch, so anything else is damage, never a torn tail: RocksDB has dropped that before we look. The first
 * damage ends the scan; everything before it stands verified.
 */
import type { JsonObject } from '../schemas/canonical.ts';
import { VarveError } from '../schemas/errors.ts';
import { kindCode } from '../schemas/kinds.ts';
import { MIB } from '../schemas/limits.ts';
import { stubsOf } from '../schemas/stubs.ts';
import type { Tip } from './commit.ts';
import { advance, type Head, Heads } from './heads.ts';
import { ANCHOR, callTag, decodeIndexBlock, hasTag, type IndexEntry, TRIM } from './index-block.ts';
import type { Meta } from './meta.ts';
import { decodeRecord, isIndexKey, keyLsn, type LogRecord, linksTo, recordKey, type StoredEvent } from './record.ts';
import { isRocksError, type Rocks, type Row } from './rocks.ts';

export type Damage = {
  /** First LSN that cannot be trusted. */
  readonly lsn: number;
  readonly reason: string;
};

const LAST_KEY = Buffer.from('f');

export class Scan {
  readonly heads: Heads;
  damage: Damage | undefined;
  /** Events that were read and verified. */
  events = 0;
  /** Called behind every verified block. */
  onBlock: ((tip: Tip) => void) | undefined;
  readonly #meta: Meta;
  #tip: Tip;
  readonly #pending = new Map<number, Buffer>();
  #verified: LogRecord[] = [];

  constructor(meta: Meta, from: { readonly heads: Heads; readonly tip: Tip }) {
    this.#meta = meta;
    this.#tip = from.tip;
    this.heads = from.heads;
  }

  /** End of what is verified. */
  get tip(): Tip {
    return this.#tip;
  }

  /** Reads to the end of the log, or to the first damage. */
  async run(db: Rocks, signal?: AbortSignal): Promise<Damage | undefined> {
    for await (const records of this.records(db, signal)) void records;
    return this.damage;
  }

  /** Verified records, page by page; look at `damage` when it ends. */
  async *records(db: Rocks, signal?: AbortSignal): AsyncGenerator<readonly LogRecord[]> {
    const range = { gte: recordKey(this.#tip.lsn + 1), lte: LAST_KEY, pageBytes: MIB };
    for await (const rows of this.#pages(db.pages(range))) {
      if (signal?.aborted)
        throw new VarveError('ABORTED', 'the reading of the log was aborted', { lsn: this.#tip.lsn });
      for (const row of rows) this.#row(row);
      const verified = this.#verified;
      this.#verified = [];
      if (verified.length > 0) yield verified;
      if (this.damage !== undefined) return;
    }
    const stray = this.#pending.keys().next();
    if (stray.done !== true) this.#refuse(stray.value, 'the record belongs to no batch');
  }

  /** A page that RocksDB itself cannot read ends the scan as any other damage does. */
  async *#pages(pages: AsyncGenerator<Row[]>): AsyncGenerator<Row[]> {
    try {
      yield* pages;
    } catch (error) {
      if (!isRocksError(error)) throw error;
      this.#pending.clear();
      this.#refuse(this.#tip.lsn + 1, error.message);
    }
  }

  #row([key, value]: Row): void {
    if (this.damage !== undefined) return;
    const lsn = keyLsn(key);
    if (!isIndexKey(key)) {
      this.#pending.set(lsn, value);
      return;
    }
    const block = decodeIndexBlock(lsn, value);
    if (block === undefined) {
      this.#refuse(lsn, 'the index block has no valid form');
      return;
    }
    const expected = this.#tip.lsn + 1;
    if (block.firstLsn !== expected) {
      this.#refuse(expected, `records ${expected} to ${block.firstLsn - 1} are missing`);
      return;
    }
    for (const entry of block.entries) {
      if (!this.#entry(entry)) return;
    }
    const stray = this.#pending.keys().next();
    if (stray.done !== true) {
      this.#refuse(stray.value, 'the record is in no index block');
      return;
    }
    const last = block.entries.at(-1) as IndexEntry;
    this.#tip = { lsn, hash: Buffer.from(last.hash, 'latin1').toString('hex'), bytes: block.bytes };
    this.onBlock?.(this.#tip);
  }

  /** false: damage. */
  #entry(entry: IndexEntry): boolean {
    const value = this.#pending.get(entry.lsn);
    if (value === undefined) {
      const mark = this.#meta.marks.get(entry.id);
      if (entry.code === TRIM || mark === undefined || mark.through_lsn < entry.lsn) {
        return this.#refuse(entry.lsn, 'the record is missing and no trim mark covers it');
      }
      const head = this.#headOf(entry);
      if (entry.code !== ANCHOR && head.sequence !== 0 && !follows(head, entry)) {
        return this.#refuse(entry.lsn, 'the trimmed record does not follow');
      }
      advance(head, entry);
      return true;
    }
    this.#pending.delete(entry.lsn);
    const record = decodeRecord(entry.lsn, value);
    if (record === undefined) return this.#refuse(entry.lsn, 'the record contradicts itself');
    if (record.hash !== Buffer.from(entry.hash, 'latin1').toString('hex')) {
      return this.#refuse(entry.lsn, 'the record is not the one in the index block');
    }
    if (record.kind === 'event') {
      const head = this.#headOf(entry, record);
      const { event } = record;
      if (!isIndexed(event, entry)) return this.#refuse(entry.lsn, 'the event is not the one in the index block');
      const isKnown = head.sequence !== 0 || entry.sequence === 1;
      if (isKnown || !this.#isBelowMark(entry)) {
        if (!follows(head, entry)) {
          return this.#refuse(entry.lsn, `event ${entry.sequence} follows event ${head.sequence} of ${head.id}`);
        }
        if (!linksTo(value, Buffer.from(head.hash, 'latin1'))) {
          return this.#refuse(
            entry.lsn,
            `the hash of event ${entry.sequence} of ${head.id} does not cover the one before`,
          );
        }
      }
      advance(head, entry);
      this.events += 1;
    } else if (record.kind === 'anchor') {
      advance(this.heads.at(entry.id), entry);
    }
    this.#verified.push(record);
    return true;
  }

  #isBelowMark(entry: IndexEntry): boolean {
    const mark = this.#meta.marks.get(entry.id);
    return mark !== undefined && mark.through_lsn >= entry.lsn;
  }

  /** The head an entry goes on from; where the log itself no longer says, its trim mark does. */
  #headOf(entry: IndexEntry, record?: LogRecord & { kind: 'event' }): Head {
    const head = this.heads.at(entry.id, record?.event.trajectory_id);
    if (head.sequence === 0 && !this.#isBelowMark(entry)) startFromMark(head, this.#meta, entry.lsn - 1);
    return head;
  }

  #refuse(lsn: number, reason: string): false {
    this.damage = { lsn, reason };
    return false;
  }
}

/** Does the entry say of the event what it says itself? Heads are made of entries alone. */
function isIndexed(event: StoredEvent, entry: IndexEntry): boolean {
  const { code, tag, blobs } = entry;
  return (
    event.sequence_number === entry.sequence &&
    Number(event.previous_lsn) === entry.previousLsn &&
    event.turn === entry.turn &&
    event.fencing_token === entry.token &&
    Date.parse(event.created_at) === entry.createdMs &&
    kindCode(event.event_type) === code &&
    (!hasTag(code) || callTag(payloadOf(event)['tool_call_id'] as string) === tag) &&
    nameSame(event, blobs)
  );
}

/** Not `event.payload`, which would keep what it parsed as long as the page is held. */
function payloadOf(event: StoredEvent): JsonObject {
  return JSON.parse(event.payload_text) as JsonObject;
}

/** The blobs of an entry are those of its event's stubs, each once. */
function nameSame(event: StoredEvent, blobs: readonly string[]): boolean {
  if (blobs.length === 0 && !event.payload_bytes.includes('$blob":')) return true;
  const refs = new Set(stubsOf(payloadOf(event)).map(({ sha256 }) => sha256));
  return refs.size === blobs.length && blobs.every((sha256) => refs.has(sha256));
}

function follows(head: Head, entry: IndexEntry): boolean {
  return (
    entry.sequence === head.sequence + 1 &&
    entry.previousLsn === head.lsn &&
    entry.turn >= head.turn &&
    entry.token >= head.token &&
    entry.createdMs >= head.createdMs
  );
}

/** Sets a head to what the trim mark of its trajectory says, if it covers no more than an LSN. */
function startFromMark(head: Head, meta: Meta, upToLsn: number): void {
  const from = meta.marks.get(head.idBytes);
  if (from === undefined || from.through_lsn > upToLsn) return;
  head.sequence = from.sequence_number;
  head.lsn = from.through_lsn;
  head.hash = Buffer.from(from.cryptographic_hash, 'hex').toString('latin1');
  head.turn = from.turn;
  head.token = from.fencing_token;
  head.createdMs = Date.parse(from.created_at);
  head.listedFrom = head.sequence + 1;
}

/** Heads of a log whose records up to the floor are gone: what trim marks say. */
export function headsAtFloor(meta: Meta): Heads {
  const heads = new Heads();
  for (const [idBytes, mark] of meta.marks) {
    if (mark.through_lsn <= meta.floor.lsn) startFromMark(heads.at(idBytes), meta, meta.floor.lsn);
  }
  return heads;
}
