/**
 * Segments over all files: those of one trajectory form a chain. The first begins at event 1 with the zero hash, each
 * other one right behind the one before it and with its head hash; nothing overlaps, nothing is missing, nothing goes
 * back, and all lie in one partition.
 *
 * `judge` decides from two neighbours; the ledger brings all segments into their order, whatever their number.
 */
import { GENESIS_HASH } from '../schemas/chain.ts';
import { type DuckDb, type DuckRow, safeNumber } from './duckdb.ts';
import type { ColdProblem } from './findings.ts';
import { Ledger } from './ledger.ts';
import type { CallOptions } from './object-store.ts';
import { parquetKey } from './table-keys.ts';
import type { LiveFile } from './table-log-plan.ts';
import type { FileSegment } from './verify-file.ts';
import { goesBack } from './verify-rows.ts';

/** A segment and the file that holds it. */
export type PlacedSegment = FileSegment & { readonly file: LiveFile };

const ZEROS = Buffer.from(GENESIS_HASH).toString('hex');
const BACK = { turn: 'turn', time: 'time', token: 'fencing token' } as const;

/**
 * What is wrong with a segment behind the one before it, in order of trajectory and first number. Pure.
 * @param before of the same trajectory, the one that reaches farthest; undefined: this one is its first
 */
export function judge(before: PlacedSegment | undefined, segment: PlacedSegment): ColdProblem[] {
  const { trajectory_id, first_sequence_number: first, last_sequence_number: last, previous_hash } = segment;
  const key = parquetKey(segment.file.stem);
  const chain = (sequence_number: number, what: string): ColdProblem[] => [
    { kind: 'chain', key, trajectory_id, sequence_number, what },
  ];
  const reached = before?.last_sequence_number ?? 0;
  if (first > reached + 1)
    return chain(reached + 1, `${eventsOf(reached + 1, first - 1)} in no live file that can be read`);
  if (before === undefined) {
    if (previous_hash === undefined || previous_hash === ZEROS) return [];
    return chain(first, 'its segment names a hash before event 1, where there is none');
  }
  const other = parquetKey(before.file.stem);
  if (first <= reached) return chain(first, `${eventsOf(first, Math.min(last, reached))} also in ${other}`);
  const problems: ColdProblem[] = [];
  if (previous_hash !== undefined && previous_hash !== before.head_hash) {
    problems.push(...chain(first, `it does not follow event ${reached} in ${other}: that has another hash`));
  }
  if (before.last !== undefined && segment.first !== undefined) {
    for (const back of goesBack(before.last, segment.first)) {
      problems.push(...chain(first, `its ${BACK[back]} goes back behind event ${reached} in ${other}`));
    }
  }
  if (partitionOf(before.file) !== partitionOf(segment.file)) {
    const what = `it lies in another partition than the events before it in ${other}`;
    problems.push({ kind: 'partition', key, trajectory_id, sequence_number: first, what });
  }
  return problems;
}

function eventsOf(first: number, last: number): string {
  return first === last ? `event ${first} is` : `events ${first} to ${last} are`;
}

function partitionOf({ add }: LiveFile): string {
  const { tenant, date, model_version } = add.partitionValues;
  return JSON.stringify([tenant, date, model_version]);
}

type Line = {
  readonly trajectory_id: string;
  readonly first: number;
  readonly last: number;
  readonly previous_hash: string | null;
  readonly head_hash: string;
  /** Index of the file. */
  readonly file: number;
  readonly first_pace: string | null;
  readonly last_pace: string | null;
};

const TYPES = {
  trajectory_id: 'VARCHAR',
  first: 'BIGINT',
  last: 'BIGINT',
  previous_hash: 'VARCHAR',
  head_hash: 'VARCHAR',
  file: 'INTEGER',
  first_pace: 'VARCHAR',
  last_pace: 'VARCHAR',
} as const satisfies Record<keyof Line, string>;

export class Chains {
  readonly #files: readonly LiveFile[];
  readonly #ledger: Ledger<Line>;

  /** @param path of a scratch file that does not exist */
  constructor(path: string, files: readonly LiveFile[]) {
    this.#files = files;
    this.#ledger = new Ledger(path, TYPES);
  }

  get segments(): number {
    return this.#ledger.lines;
  }

  /** @param file index of the file that holds them */
  add(file: number, segments: readonly FileSegment[]): void {
    for (const { trajectory_id, previous_hash = null, head_hash, first, last, ...numbers } of segments) {
      this.#ledger.add({
        trajectory_id,
        first: numbers.first_sequence_number,
        last: numbers.last_sequence_number,
        previous_hash,
        head_hash,
        file,
        first_pace: paceText(first),
        last_pace: paceText(last),
      });
    }
  }

  /** Judges all that was added. @returns the number of trajectories */
  async judgeAll(duck: DuckDb, report: (problem: ColdProblem) => void, options: CallOptions = {}): Promise<number> {
    let trajectories = 0;
    let before: PlacedSegment | undefined;
    for await (const rows of this.#ledger.sorted(duck, 'trajectory_id, first, last, file', options)) {
      for (const row of rows) {
        const segment = this.#segmentOf(row);
        const isSame = before?.trajectory_id === segment.trajectory_id;
        if (!isSame) trajectories += 1;
        for (const problem of judge(isSame ? before : undefined, segment)) report(problem);
        if (!isSame || segment.last_sequence_number > (before?.last_sequence_number ?? 0)) before = segment;
      }
    }
    return trajectories;
  }

  #segmentOf(row: DuckRow): PlacedSegment {
    const file = this.#files[safeNumber(row['file'])] as LiveFile;
    return {
      trajectory_id: row['trajectory_id'] as string,
      first_sequence_number: safeNumber(row['first']),
      last_sequence_number: safeNumber(row['last']),
      previous_hash: (row['previous_hash'] as string | null) ?? undefined,
      head_hash: row['head_hash'] as string,
      file,
      first: paceOf(row['first_pace']),
      last: paceOf(row['last_pace']),
    };
  }
}

function paceText(pace: FileSegment['first']): string | null {
  return pace === undefined ? null : JSON.stringify([pace.turn, pace.created_at, pace.fencing_token]);
}

function paceOf(text: unknown): FileSegment['first'] {
  if (typeof text !== 'string') return undefined;
  const [turn, created_at, fencing_token] = JSON.parse(text) as [number | null, string | null, number | null];
  return { turn, created_at, fencing_token };
}
