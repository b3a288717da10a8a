/**
 * The rows of a data file against what its list of segments promises: in which row which event lies, the hash before
 * each first event, the hash of each last one, the partition. Pure: it is given what a scan found, in the order of the
 * file, and holds as much as there are segments.
 *
 * With no list to trust (`list` undefined) the rows are only checked among themselves, and what they form are the
 * segments.
 */
import { chainHash, formatEnvelope, GENESIS_HASH } from '../schemas/chain.ts';
import type { SequenceNumber, TrajectoryId } from '../schemas/ids.ts';
import type { ColdProblem } from './findings.ts';
import type { SegmentList } from './segments.ts';
import type { Part } from './verify-parts.ts';
import type { Flaw, ScannedEvent, ScannedRow } from './verify-scan.ts';

/** What never goes back from one event to the next. */
export type Pace = Pick<ScannedEvent, 'turn' | 'created_at' | 'fencing_token'>;

/** Rows of one trajectory that follow one another, as they were found. */
export type FoundRun = {
  readonly trajectory_id: string;
  readonly first_sequence_number: number;
  readonly first_row: number;
  readonly first_pace: Pace;
  last_sequence_number: number;
  last_pace: Pace;
  head_hash: string;
};

type Event = { readonly trajectory_id: string; readonly sequence_number: number };

const TEXTS: Readonly<Record<Exclude<Flaw, 'partition'>, (row: ScannedRow) => string>> = {
  null: () => 'a column that every event has is null',
  range: () => 'its number, turn or fencing token is none that an event can have',
  payload: () => 'its payload has another SHA-256 than payload_sha256',
  precision: () => 'its time is not whole milliseconds',
  order: (row) => `it stands behind ${row.before?.trajectory_id}`,
  number: (row) => `it follows event ${row.before?.sequence_number}`,
  turn: (row) => `its turn ${row.turn} is below ${row.before?.turn}`,
  time: (row) => `its time ${row.created_at} is before ${row.before?.created_at}`,
  token: (row) => `its fencing token ${row.fencing_token} is below ${row.before?.fencing_token}`,
  chain: () => 'its hash does not cover it and the event before it',
};

export class RowsCheck {
  readonly runs: FoundRun[] = [];
  /** Rows that were looked at. */
  rows = 0;
  /** Rows whose payload is not the one that was appended, and need not be. */
  readonly standIns = { offloaded: 0, redacted: 0 };
  readonly #key: string;
  readonly #list: SegmentList | undefined;
  readonly #report: (problem: ColdProblem) => void;
  /** First row of each segment of the list. */
  readonly #starts: readonly number[];
  #countedFrom = 0;
  /** The last row that was looked at. */
  #previous: (ScannedEvent & { readonly row: number }) | undefined;
  /** First row that is not counted yet. */
  #next = 0;
  #elsewhere = 0;
  #firstElsewhere: Event | undefined;
  #mismatches = 0;
  #firstMismatch: Omit<ColdProblem, 'kind' | 'key'> | undefined;

  constructor(key: string, list: SegmentList | undefined, report: (problem: ColdProblem) => void) {
    this.#key = key;
    this.#list = list;
    this.#report = report;
    let row = 0;
    this.#starts = (list?.segments ?? []).map(({ first_sequence_number, last_sequence_number }) => {
      row += last_sequence_number - first_sequence_number + 1;
      return row - (last_sequence_number - first_sequence_number + 1);
    });
  }

  add(part: Part): void {
    if (part.kind === 'rows') {
      for (const row of part.rows) this.#addRow(row);
      return;
    }
    const { range, group, columns } = part;
    const [from, to] = [this.eventAt(range.first), this.eventAt(range.last)];
    const rows =
      from === undefined ? `rows ${range.first} to ${range.last}` : `events ${nameOf(from)} to ${nameOf(to ?? from)}`;
    const what = `row group ${group}: ${columns.join(', ') || 'something'} of ${rows} cannot be read`;
    this.#report({ kind: 'file', key: this.#key, ...from, what });
    // Where only payloads cannot be read, their rows come next; they do not count as looked at.
    this.#countedFrom = range.last + 1;
  }

  /** Says what only the whole file shows. @param rows of the file, as its footer says */
  finish(rows: number): void {
    this.#endAt(this.#previous);
    if (this.#elsewhere > 0) {
      const what = `${this.#elsewhere} rows have another tenant, date or model_version than the table log says`;
      this.#report({ kind: 'partition', key: this.#key, ...this.#firstElsewhere, what });
    }
    if (this.#list !== undefined && rows !== this.#list.rows) {
      this.#mismatch(this.eventAt(rows), `it has ${rows} rows and should have ${this.#list.rows}`);
    }
    if (this.#firstMismatch === undefined) return;
    const more = this.#mismatches > 1 ? `, and ${this.#mismatches - 1} more places differ` : '';
    this.#report({ kind: 'rows', key: this.#key, ...this.#firstMismatch, what: `${this.#firstMismatch.what}${more}` });
  }

  /** The event that should lie in a row. */
  eventAt(row: number): Event | undefined {
    const index = this.#indexAt(row);
    const segment = this.#list?.segments[index];
    if (segment === undefined || row >= (this.#list?.rows ?? 0)) return undefined;
    const sequence_number = segment.first_sequence_number + row - (this.#starts[index] as number);
    return { trajectory_id: segment.trajectory_id, sequence_number };
  }

  #addRow(row: ScannedRow): void {
    const { before } = row;
    // Rows between two that are reported are whole, and of one trajectory.
    const previous = before === undefined ? this.#previous : { ...before, row: row.row - 1 };
    if (previous?.trajectory_id !== row.trajectory_id || previous.row !== row.row - 1) {
      this.#endAt(previous);
      this.#begin(row);
    } else if (before === undefined) this.#checkLink(row, previous);
    this.#checkFlaws(row);
    if (row.stands_for !== undefined) this.standIns[row.stands_for] += 1;
    if (before === undefined) this.#next = row.row;
    this.rows += Math.max(0, row.row + 1 - Math.max(this.#next, this.#countedFrom));
    this.#next = row.row + 1;
    this.#previous = row;
  }

  #begin(row: ScannedRow): void {
    const { trajectory_id, sequence_number, cryptographic_hash } = row;
    if (trajectory_id === null || sequence_number === null) return;
    this.runs.push({
      trajectory_id,
      first_sequence_number: sequence_number,
      first_row: row.row,
      first_pace: paceOf(row),
      last_sequence_number: sequence_number,
      last_pace: paceOf(row),
      head_hash: cryptographic_hash ?? '',
    });
    const expected = this.eventAt(row.row);
    if (
      this.#list !== undefined &&
      (expected?.trajectory_id !== trajectory_id || expected.sequence_number !== sequence_number)
    ) {
      const should = expected === undefined ? 'none should be there' : `${nameOf(expected)} should`;
      this.#mismatch(
        expected ?? { trajectory_id, sequence_number },
        `row ${row.row} is event ${nameOf({ trajectory_id, sequence_number })}, where ${should}`,
      );
      return;
    }
    const previous_hash = this.#hashBefore(row.row, sequence_number);
    if (previous_hash === undefined || coversAfter(row, previous_hash)) return;
    this.#event(row, 'its hash does not cover it and the hash that its segment names before it');
  }

  /** What stands before a row that begins a segment. */
  #hashBefore(row: number, sequence_number: number): string | undefined {
    if (this.#list === undefined) return sequence_number === 1 ? Buffer.from(GENESIS_HASH).toString('hex') : undefined;
    const index = this.#starts[this.#indexAt(row)] === row ? this.#indexAt(row) : -1;
    return this.#list.segments[index]?.previous_hash;
  }

  /** A trajectory that goes on from one range of rows to the next. */
  #checkLink(row: ScannedRow, previous: ScannedEvent): void {
    const linked = { ...row, before: previous };
    const broken: Exclude<Flaw, 'partition'>[] = [];
    if (row.sequence_number !== (previous.sequence_number ?? 0) + 1) broken.push('number');
    broken.push(...goesBack(previous, row));
    if (!coversAfter(row, previous.cryptographic_hash ?? '')) broken.push('chain');
    for (const flaw of broken) this.#event(row, TEXTS[flaw](linked));
  }

  #checkFlaws(row: ScannedRow): void {
    const texts: string[] = [];
    for (const flaw of row.flaws) {
      if (flaw === 'partition') {
        this.#elsewhere += 1;
        this.#firstElsewhere ??= this.#nameOfRow(row);
      } else texts.push(TEXTS[flaw](row));
    }
    if (texts.length > 0) this.#event(row, texts.join('; '));
  }

  /** The run that is open ends with that row. */
  #endAt(last: (ScannedEvent & { readonly row: number }) | undefined): void {
    const run = this.runs.at(-1);
    if (run === undefined || last?.trajectory_id !== run.trajectory_id) return;
    run.last_sequence_number = last.sequence_number ?? run.last_sequence_number;
    run.last_pace = paceOf(last);
    run.head_hash = last.cryptographic_hash ?? '';
    const segment = this.#list?.segments[this.#indexAt(last.row)];
    if (segment?.trajectory_id !== run.trajectory_id || segment.last_sequence_number !== run.last_sequence_number)
      return;
    if (segment.head_hash === run.head_hash) return;
    const { trajectory_id, last_sequence_number: sequence_number } = run;
    this.#mismatch(
      { trajectory_id, sequence_number },
      `event ${nameOf({ trajectory_id, sequence_number })} has not the hash with which its segment ends`,
    );
  }

  #event(row: ScannedRow, what: string): void {
    this.#report({ kind: 'event', key: this.#key, ...this.#nameOfRow(row), what });
  }

  /** By what the row says; where it says nothing, by what should be there. */
  #nameOfRow({ row, trajectory_id, sequence_number }: ScannedRow): Event | undefined {
    if (trajectory_id !== null && sequence_number !== null) return { trajectory_id, sequence_number };
    return this.eventAt(row);
  }

  #mismatch(event: Event | undefined, what: string): void {
    this.#mismatches += 1;
    this.#firstMismatch ??= { ...event, what };
  }

  /** The segment in which a row lies. */
  #indexAt(row: number): number {
    let [low, high] = [0, this.#starts.length - 1];
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if ((this.#starts[middle] as number) <= row) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}

function paceOf({ turn, created_at, fencing_token }: Pace): Pace {
  return { turn, created_at, fencing_token };
}

/** What goes back from one event to a later one of its trajectory. */
export function goesBack(before: Pace, after: Pace): ('turn' | 'time' | 'token')[] {
  const back: ('turn' | 'time' | 'token')[] = [];
  if ((after.turn ?? 0) < (before.turn ?? 0)) back.push('turn');
  if ((after.created_at ?? '') < (before.created_at ?? '')) back.push('time');
  if ((after.fencing_token ?? 0) < (before.fencing_token ?? 0)) back.push('token');
  return back;
}

export function nameOf({ trajectory_id, sequence_number }: Event): string {
  return `${sequence_number} of ${trajectory_id}`;
}

function coversAfter(row: ScannedRow, previous_hash: string): boolean {
  const { trajectory_id, sequence_number, event_type, turn, created_at, fencing_token, payload_sha256 } = row;
  const isWhole =
    trajectory_id !== null &&
    sequence_number !== null &&
    event_type !== null &&
    turn !== null &&
    created_at !== null &&
    fencing_token !== null &&
    payload_sha256 !== null;
  if (!isWhole) return false;
  const envelope = formatEnvelope({
    created_at,
    event_type,
    fencing_token,
    payload_sha256,
    sequence_number: sequence_number as SequenceNumber,
    trajectory_id: trajectory_id as TrajectoryId,
    turn,
  });
  return (
    chainHash(Buffer.from(previous_hash, 'hex').subarray(0, 32), envelope).toString('hex') === row.cryptographic_hash
  );
}
