/**
 * What every reader of a log checks, however it got the records.
 *
 * LSNs are dense but for those named as trimmed, and within a trajectory each hash covers the one before, from the
 * first event of it that this reader has seen. A record has passed `decodeRecord` already, so its payload, envelope and
 * hash agree. Memory is bounded: of the trajectories not seen for longest the link is taken up again at their next
 * event.
 */
import { chainHash, formatEnvelope } from '../schemas/chain.ts';
import { VarveError } from '../schemas/errors.ts';
import type { LogRecord, StoredEvent } from './record.ts';
import { type Cursor, START } from './tail-protocol.ts';

/** LSNs whose records a trim took. */
export type Trimmed = {
  readonly kind: 'trimmed';
  readonly from_lsn: number;
  readonly to_lsn: number;
  /** Hex hash of the record that was at `to_lsn`: the log is taken up again behind it. */
  readonly hash: string;
};

export type TailItem = LogRecord | Trimmed;

export type TailBatch = {
  /** In LSN order. */
  readonly records: readonly TailItem[];
  /** Where the log is taken up again after this batch. */
  readonly cursor: Cursor;
};

const REMEMBERED_MAX = 100_000;

export class ReadCheck {
  #cursor: Cursor;
  /** Trajectory → sequence number and hash (hex) of its last event. */
  readonly #last = new Map<string, { sequence: number; hash: string }>();
  /** Every event since the log began went through here, so an unknown trajectory starts at 1. */
  #whole: boolean;

  constructor(cursor: Cursor) {
    this.#cursor = cursor;
    this.#whole = cursor.lsn === 0;
  }

  get cursor(): Cursor {
    return this.#cursor;
  }

  /** Passes an item on, or throws VarveError TAIL_GAP or HOT_DAMAGED. */
  take<Item extends TailItem>(item: Item): Item {
    const first = item.kind === 'trimmed' ? item.from_lsn : Number(item.lsn);
    const expected = this.#cursor.lsn + 1;
    if (first !== expected || (item.kind === 'trimmed' && item.to_lsn < first)) {
      const message = `LSN ${first} came where ${expected} was expected`;
      throw new VarveError('TAIL_GAP', message, { expected, got: first });
    }
    switch (item.kind) {
      case 'trimmed':
        // What the trimmed events were followed by cannot be known.
        this.#whole = false;
        this.#last.clear();
        this.#cursor = { lsn: item.to_lsn, hash: item.hash };
        return item;
      case 'event':
        this.#event(item.event);
        break;
      case 'anchor':
        this.#remember(item.position.trajectory_id, item.position.sequence_number, item.hash);
        break;
      case 'trim':
        break;
    }
    this.#cursor = { lsn: first, hash: item.hash };
    return item;
  }

  #event(event: StoredEvent): void {
    const { trajectory_id, sequence_number, cryptographic_hash, lsn } = event;
    const last = this.#last.get(trajectory_id);
    if (last !== undefined || this.#whole || sequence_number === 1) {
      const before = last ?? { sequence: 0, hash: START.hash };
      const follows = sequence_number === before.sequence + 1;
      const hash = chainHash(Buffer.from(before.hash, 'hex'), formatEnvelope(event)).toString('hex');
      if (!follows || hash !== cryptographic_hash) {
        const message = `event ${sequence_number} of ${trajectory_id} at LSN ${lsn} does not follow event ${before.sequence}`;
        throw new VarveError('HOT_DAMAGED', message, { lsn: Number(lsn), trajectory_id });
      }
    }
    this.#remember(trajectory_id, sequence_number, cryptographic_hash);
  }

  #remember(trajectory_id: string, sequence: number, hash: string): void {
    // Delete first: a map keeps the order of insertion, so its first key is the one not seen for longest.
    this.#last.delete(trajectory_id);
    this.#last.set(trajectory_id, { sequence, hash });
    if (this.#last.size <= REMEMBERED_MAX) return;
    this.#whole = false;
    const [oldest] = this.#last.keys();
    if (oldest !== undefined) this.#last.delete(oldest);
  }
}
