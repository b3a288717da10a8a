/**
 * Rows for people: a grid where it fits the width, else cells that go on in the next line, else every row as a list of
 * its columns. Nothing is left out. The first rows decide which; columns of a grid become wider where later rows need it
 * and there is room. So memory does not grow with the number of rows.
 *
 * NULL is NULL without quotes; the empty text and the text NULL have quotes. Control characters and those that turn the
 * direction of writing are shown as escapes: payloads must not steer a terminal. A line break in a text is one.
 */

export type GridCell = { readonly text: string | null; readonly isNumber: boolean };

const GAP = '  ';
const COLUMN_MIN = 12;
const VALUE_MIN = 24;
const CONTROL = /(?!\n)[\p{Cc}\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/gu;
const WIDE =
  /[\u1100-\u115f\u2e80-\u303e\u3041-\u33ff\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u;
const ZERO = /^[\p{Mn}\p{Me}\p{Cf}]$/u;

type Layout =
  | { readonly kind: 'grid'; readonly natural: readonly number[]; readonly isRight: readonly boolean[] }
  | { readonly kind: 'records'; readonly nameWidth: number };

export class TextGrid {
  readonly #names: readonly string[];
  readonly #width: number;
  #layout: Layout | undefined;
  #rows = 0;

  /** @param width columns of the terminal */
  constructor(names: readonly string[], width: number) {
    this.#names = names.map(escaped);
    this.#width = width;
  }

  /** The text of these rows; with the first ones, also without any, that of the header. */
  format(rows: readonly (readonly GridCell[])[]): string {
    const shown = rows.map((row) => row.map(shownCell));
    const isFirst = this.#layout === undefined;
    const layout = layoutOf(this.#names, rows, shown, this.#width, this.#layout);
    this.#layout = layout;
    const before = this.#rows;
    this.#rows += rows.length;
    if (layout.kind === 'records') {
      return shown.map((row, i) => record(this.#names, row, before + i + 1, layout.nameWidth, this.#width)).join('');
    }
    const { natural, isRight } = layout;
    const widths = fitted(natural, roomOf(natural, this.#width));
    const header = [...line(this.#names, widths, isRight), widths.map((width) => '─'.repeat(width)).join(GAP)];
    const lines = shown.flatMap((row) => line(row, widths, isRight));
    return [...(isFirst ? header : []), ...lines].map((text) => `${text.trimEnd()}\n`).join('');
  }
}

function layoutOf(
  names: readonly string[],
  rows: readonly (readonly GridCell[])[],
  shown: readonly (readonly string[])[],
  width: number,
  before: Layout | undefined,
): Layout {
  if (before?.kind === 'records') return before;
  const least = before?.natural ?? names.map(widest);
  const natural = least.map((column, i) => Math.max(column, ...shown.map((row) => widest(row[i] ?? ''))));
  if (before !== undefined) return { ...before, natural };
  const isTooWide = sum(natural.map((column) => Math.min(column, COLUMN_MIN))) > roomOf(natural, width);
  if (isTooWide) return { kind: 'records', nameWidth: Math.max(...names.map(widest)) };
  const isRight = names.map((_, i) => rows.length > 0 && rows.every((row) => row[i]?.isNumber === true));
  return { kind: 'grid', natural, isRight };
}

function roomOf({ length }: readonly unknown[], width: number): number {
  return width - GAP.length * (length - 1);
}

/** The widest columns give way until all fit. */
function fitted(natural: readonly number[], room: number): number[] {
  let cap = Math.max(...natural);
  while (cap > COLUMN_MIN && sum(natural.map((column) => Math.min(column, cap))) > room) cap -= 1;
  return natural.map((column) => Math.max(1, Math.min(column, cap)));
}

function line(cells: readonly string[], widths: readonly number[], isRight: readonly boolean[]): string[] {
  const wrapped = cells.map((cell, i) => wrap(cell, widths[i] as number));
  const height = Math.max(...wrapped.map(({ length }) => length));
  return Array.from({ length: height }, (_, at) =>
    wrapped
      .map((lines, i) => {
        const text = lines[at] ?? '';
        const pad = ' '.repeat(Math.max(0, (widths[i] as number) - widthOf(text)));
        return isRight[i] === true ? pad + text : text + pad;
      })
      .join(GAP),
  );
}

function record(
  names: readonly string[],
  row: readonly string[],
  number: number,
  nameWidth: number,
  width: number,
): string {
  const room = Math.max(VALUE_MIN, width - nameWidth - GAP.length);
  const lines = row.flatMap((cell, i) =>
    wrap(cell, room).map((text, at) => {
      const name = at === 0 ? (names[i] as string) : '';
      return `${name}${' '.repeat(nameWidth - widthOf(name))}${GAP}${text}`.trimEnd();
    }),
  );
  return `${[`── ${number} ──`, ...lines].join('\n')}\n`;
}

function shownCell({ text }: GridCell): string {
  if (text === null) return 'NULL';
  return text === '' || text === 'NULL' ? `"${text}"` : escaped(text);
}

function escaped(text: string): string {
  return text.replaceAll('\r\n', '\\r\n').replaceAll(CONTROL, escapeOf);
}

function escapeOf(character: string): string {
  if (character === '\t') return '\\t';
  if (character === '\r') return '\\r';
  return `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`;
}

/** Lines of at most that width; a character that is wider stands alone. */
function wrap(text: string, width: number): string[] {
  return text.split('\n').flatMap((whole) => {
    if (whole.length * 2 <= width || widthOf(whole) <= width) return [whole];
    const lines: string[] = [];
    let [from, at, used] = [0, 0, 0];
    for (const character of whole) {
      const more = characterWidth(character);
      if (used + more > width && at > from) {
        lines.push(whole.slice(from, at));
        [from, used] = [at, 0];
      }
      at += character.length;
      used += more;
    }
    return [...lines, whole.slice(from)];
  });
}

function widest(text: string): number {
  return Math.max(...text.split('\n').map(widthOf));
}

function widthOf(text: string): number {
  let width = 0;
  for (const character of text) width += characterWidth(character);
  return width;
}

function characterWidth(character: string): number {
  if (character < '\u0300') return 1;
  if (ZERO.test(character)) return 0;
  return WIDE.test(character) ? 2 : 1;
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
