/**
 * The rows of a query as text: table, JSON, JSON lines, CSV. Written as they come; memory does not grow with them.
 *
 *   json, jsonl   objects; integers and decimals have all their digits; NULL is null
 *   csv           RFC 4180 with a header, lines end in \n; NULL is nothing, the empty text is ""
 *   table         for people (text-grid.ts)
 *
 * With a limit the rest is counted, up to a bound, and what was left out is said.
 */
import type { CellBlock } from '../cold/duckdb.ts';
import { type Cell, jsonOf, Literal } from '../cold/duckdb-cells.ts';
import { MIB } from '../schemas/limits.ts';
import { type GridCell, TextGrid } from './text-grid.ts';

export type TextFormat = 'table' | 'json' | 'jsonl' | 'csv';

export type Written = {
  readonly rows: number;
  /** All rows of the result, if more than were written. */
  readonly of: number | undefined;
  /** It has more than `of`. */
  readonly isMore: boolean;
};

type Write = (text: string) => Promise<void>;

/** How rows are written down. */
type Form = {
  readonly begin: string;
  readonly rows: (rows: readonly (readonly Cell[])[], before: number) => string;
  readonly end: string;
};

/** What is written at once: so many rows, or fewer that have so many characters. */
const GATHER_ROWS = 1000;
const GATHER_CHARS = MIB;
/** Rows behind the limit that are counted, at most. */
const COUNTED_MAX = 1_000_000;

/**
 * Everything is handed to `write` when it resolves.
 * @param limit rows that are written; 0: all
 * @param width columns of the terminal, for tables
 */
export async function writeRows(
  blocks: AsyncIterable<CellBlock>,
  format: TextFormat,
  limit: number,
  width: number,
  write: Write,
): Promise<Written> {
  let form: Form | undefined;
  let [rows, behind, chars] = [0, 0, 0];
  let gathered: Cell[][] = [];
  const flush = async (into: Form) => {
    const text = into.rows(gathered, rows - gathered.length);
    gathered = [];
    chars = 0;
    await write(text);
  };
  for await (const block of blocks) {
    if (form === undefined) {
      form = formOf(format, block, width);
      await write(form.begin);
    }
    const room = limit === 0 ? block.rows : Math.min(block.rows, limit - rows);
    behind += block.rows - room;
    if (behind > COUNTED_MAX) break;
    let taken = 0;
    for (const cells of room === 0 ? [] : block.cells()) {
      gathered.push(cells);
      chars += cells.reduce((sum, cell) => sum + lengthOf(cell), 0);
      rows += 1;
      taken += 1;
      if (gathered.length >= GATHER_ROWS || chars >= GATHER_CHARS) await flush(form);
      if (taken === room) break;
    }
  }
  if (form === undefined) return { rows: 0, of: undefined, isMore: false };
  await flush(form);
  await write(form.end);
  if (behind === 0) return { rows, of: undefined, isMore: false };
  return { rows, of: rows + Math.min(behind, COUNTED_MAX), isMore: behind > COUNTED_MAX };
}

function formOf(format: TextFormat, { columns }: CellBlock, width: number): Form {
  const names = columns.map(({ name }) => name);
  switch (format) {
    case 'table': {
      const grid = new TextGrid(names, width);
      return { begin: '', rows: (rows) => grid.format(rows.map((row) => row.map(gridCell))), end: '' };
    }
    case 'csv':
      return { begin: csvLine(names), rows: (rows) => rows.map(csvLine).join(''), end: '' };
    case 'jsonl': {
      const object = objectWriter(names);
      return { begin: '', rows: (rows) => rows.map((row) => `${object(row)}\n`).join(''), end: '' };
    }
    case 'json': {
      const object = objectWriter(names);
      const separated = (rows: readonly (readonly Cell[])[], before: number) =>
        rows.map((row, i) => `${before + i === 0 ? '\n' : ',\n'}${object(row)}`).join('');
      return { begin: '[', rows: separated, end: '\n]\n' };
    }
  }
}

function objectWriter(names: readonly string[]): (row: readonly Cell[]) => string {
  const keys = names.map((name) => `${JSON.stringify(name)}:`);
  return (row) => `{${row.map((cell, i) => `${keys[i]}${jsonOf(cell)}`).join(',')}}`;
}

function csvLine(row: readonly Cell[]): string {
  return `${row.map(csvField).join(',')}\n`;
}

function csvField(cell: Cell): string {
  if (cell === null) return '';
  const text = cell instanceof Literal ? cell.text : cell;
  return text === '' || /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function gridCell(cell: Cell): GridCell {
  if (cell instanceof Literal) return { text: cell.text, isNumber: cell.isNumber };
  // NULL stands among numbers as one of them.
  return { text: cell, isNumber: cell === null };
}

function lengthOf(cell: Cell): number {
  if (cell === null) return 4;
  return cell instanceof Literal ? cell.text.length : cell.length;
}
