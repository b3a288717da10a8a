/** What tries at a batch that were undone have taught about single events; the next try plans with it. */
import type { Refusal } from './place.ts';

/** Other rows stand in the place of these events. */
export class Conflict extends Error {
  readonly lsns: readonly number[];
  readonly rows: readonly number[];

  constructor({ lsns = [], rows = [] }: { lsns?: readonly number[]; rows?: readonly number[] }) {
    super('other rows stand in the place of these events');
    this.lsns = lsns;
    this.rows = rows;
  }
}

/** What earlier tries have taught: of events of the batch by LSN, of waiting ones by the id of their row. */
export class Learnt {
  readonly refused: Map<number, Refusal>;
  readonly conflicting = new Set<number>();
  readonly refusedRows = new Map<number, Refusal>();
  readonly conflictingRows = new Set<number>();

  constructor(refused: Map<number, Refusal>) {
    this.refused = refused;
  }

  conflict({ lsns, rows }: Conflict): void {
    for (const lsn of lsns) this.conflicting.add(lsn);
    for (const row of rows) this.conflictingRows.add(row);
  }
}
