/**
 * Segments over all files: those of one trajectory form a chain. The first begins at event 1 with the zero hash, each
 * other one right behind the one before it and with its head hash; nothing overlaps, nothing is missing, nothing goes
 * back, and all lie in one partition.
 *
 * `judge` decides from two neighbours; the ledger brings all segments into their order, whatever their number.
 */
import { GENESIS_HASH } from '../schemas/chain.ts';
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

/** Without the file itself: its index. What is undefined is not written, and comes back as undefined. */
type Note = FileSegment & { readonly file: number };

export class Chains {
  readonly #files: readonly LiveFile[];
  readonly #ledger: Ledger<Note>;

  /** @param folder for scratch files, empty */
  constructor(folder: string, files: readonly LiveFile[]) {
    this.#files = files;
    this.#ledger = new Ledger(folder, 'segments', ({ trajectory_id }) => trajectory_id);
  }

  get segments(): number {
    return this.#ledger.notes;
  }

  /** @param file index of the file that holds them */
  add(file: number, segments: readonly FileSegment[]): void {
    for (const { trajectory_id, first_sequence_number, last_sequence_number, previous_hash, ...rest } of segments) {
      const { head_hash, first, last } = rest;
      const numbers = { trajectory_id, first_sequence_number, last_sequence_number };
      this.#ledger.add({ ...numbers, previous_hash, head_hash, first, last, file });
    }
  }

  /** Judges all that was added. @returns the number of trajectories */
  async judgeAll(report: (problem: ColdProblem) => void, options: CallOptions = {}): Promise<number> {
    let trajectories = 0;
    let before: PlacedSegment | undefined;
    for await (const notes of this.#ledger.sorted(inOrder, options)) {
      for (const { file, ...segment } of notes) {
        const placed: PlacedSegment = { ...segment, file: this.#files[file] as LiveFile };
        const isSame = before?.trajectory_id === placed.trajectory_id;
        if (!isSame) trajectories += 1;
        for (const problem of judge(isSame ? before : undefined, placed)) report(problem);
        if (!isSame || placed.last_sequence_number > (before?.last_sequence_number ?? 0)) before = placed;
      }
    }
    return trajectories;
  }
}

function inOrder(a: Note, b: Note): number {
  if (a.trajectory_id !== b.trajectory_id) return a.trajectory_id < b.trajectory_id ? -1 : 1;
  return (
    a.first_sequence_number - b.first_sequence_number ||
    a.last_sequence_number - b.last_sequence_number ||
    a.file - b.file
  );
}
