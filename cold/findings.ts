/**
 * What a verification of the cold tier found wrong. Everything is counted; of each kind the first hundred are kept, and
 * the first bad event of all is known whatever was kept: the smallest by trajectory, then by sequence number.
 *
 *   file       a data file is missing, has another length or hash than its name says, or a part of it cannot be read
 *   segments   its list of segments is missing, or is not the one that the table log names
 *   event      a row that its hashes do not cover, or that goes back in number, turn, time or token
 *   rows       the rows are not those that the list of segments promises
 *   partition  a row, or a trajectory, that lies in another partition than the table log says
 *   derived    a file of derived rows is missing or damaged, or says something else than the segments
 *   chain      segments of one trajectory overlap, leave a gap, or do not continue one another
 *   body       a payload that is not what was appended once its bodies are put back, or whose blobs are not listed
 *   blob       a blob is missing or damaged
 */

export const PROBLEM_KINDS = [
  'file',
  'segments',
  'event',
  'rows',
  'partition',
  'derived',
  'chain',
  'body',
  'blob',
] as const;

export type ProblemKind = (typeof PROBLEM_KINDS)[number];

export type ColdProblem = {
  readonly kind: ProblemKind;
  /** Of the object in which it is, relative to the store's root. */
  readonly key: string;
  /** The first event that it concerns, where one is known. */
  readonly trajectory_id?: string | undefined;
  readonly sequence_number?: number | undefined;
  readonly what: string;
};

/** Problems of one kind that are named. */
export const NAMED_MAX = 100;

export class Findings {
  readonly #named = new Map<ProblemKind, ColdProblem[]>();
  readonly #counts = new Map<ProblemKind, number>();
  #first: ColdProblem | undefined;

  add(problem: ColdProblem): void {
    const { kind } = problem;
    this.#counts.set(kind, (this.#counts.get(kind) ?? 0) + 1);
    const named = this.#named.get(kind) ?? [];
    if (named.length < NAMED_MAX) named.push(problem);
    this.#named.set(kind, named);
    if (problem.trajectory_id !== undefined && isBefore(problem, this.#first)) this.#first = problem;
  }

  /** All of another verification. What it counted without naming stays counted. */
  addAll(other: Findings): void {
    for (const [kind, problems] of other.#named) {
      for (const problem of problems) this.add(problem);
      const unnamed = (other.#counts.get(kind) ?? 0) - problems.length;
      this.#counts.set(kind, (this.#counts.get(kind) ?? 0) + unnamed);
    }
    if (other.#first !== undefined && isBefore(other.#first, this.#first)) this.#first = other.#first;
  }

  get isEmpty(): boolean {
    return this.#counts.size === 0;
  }

  /** At most a hundred of each kind, by kind, trajectory, sequence number and key. */
  get named(): readonly ColdProblem[] {
    return PROBLEM_KINDS.flatMap((kind) => (this.#named.get(kind) ?? []).toSorted(byEvent));
  }

  /** How many of each kind there are. */
  get counts(): Readonly<Partial<Record<ProblemKind, number>>> {
    return Object.fromEntries(
      PROBLEM_KINDS.flatMap((kind) => (this.#counts.has(kind) ? [[kind, this.#counts.get(kind)]] : [])),
    );
  }

  /** The problem of the smallest event, where any problem has an event. */
  get first(): ColdProblem | undefined {
    return this.#first;
  }
}

function byEvent(a: ColdProblem, b: ColdProblem): number {
  if (isBefore(a, b)) return -1;
  if (isBefore(b, a)) return 1;
  return a.key < b.key ? -1 : Number(a.key > b.key);
}

function isBefore(problem: ColdProblem, first: ColdProblem | undefined): boolean {
  if (first === undefined) return true;
  const [id, firstId] = [problem.trajectory_id ?? '', first.trajectory_id ?? ''];
  if (id !== firstId) return id < firstId;
  return (problem.sequence_number ?? 0) < (first.sequence_number ?? 0);
}
