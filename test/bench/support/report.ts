/**
 * What a measurement hands back, and how a person reads it: tables of figures, each a median over rounds, and checks
 * with their bars. The JSON file keeps every round, so that nobody has to trust a median.
 */
import { median, type Series } from './statistics.ts';

/** A table of medians; a cell without samples stays empty. */
export type Table = {
  readonly title: string;
  readonly columns: readonly string[];
  readonly rows: readonly { readonly label: string; readonly cells: readonly (Series | undefined)[] }[];
};

export type Bar = {
  readonly kind: 'at most' | 'at least';
  readonly limit: number;
  /** Better than the limit, and what the work aims at. */
  readonly aim?: number;
};

/** A figure that somebody promised; without a bar it is only reported. */
export type Check = {
  readonly what: string;
  readonly unit: string;
  readonly series: Series;
  readonly bar?: Bar;
};

export type Report = {
  readonly tables: readonly Table[];
  readonly checks: readonly Check[];
  /** What must be known to read the figures: what was left out, and why. */
  readonly notes: readonly string[];
};

export type Verdict = 'pass' | 'miss' | 'reported';

export function verdictOf(check: Check): Verdict {
  if (check.bar === undefined) return 'reported';
  const value = median(check.series);
  const meets = check.bar.kind === 'at most' ? value <= check.bar.limit : value >= check.bar.limit;
  return meets ? 'pass' : 'miss';
}

export function formatTable(table: Table): string {
  const header = ['', ...table.columns];
  const rows = table.rows.map(({ label, cells }) => [
    label,
    ...cells.map((cell) => (cell === undefined ? '' : formatNumber(median(cell)))),
  ]);
  return `${table.title}\n${align([header, ...rows])}`;
}

export function formatChecks(checks: readonly Check[]): string {
  const header = ['', 'median', 'min – max', 'bar', ''];
  const rows = checks.map((check) => {
    const { what, unit, series } = check;
    const range = `${formatNumber(Math.min(...series))} – ${formatNumber(Math.max(...series))}`;
    return [what, `${formatNumber(median(series))} ${unit}`, range, formatBar(check.bar), verdictOf(check)];
  });
  return align([header, ...rows]);
}

function formatBar(bar: Bar | undefined): string {
  if (bar === undefined) return '–';
  const aim = bar.aim === undefined ? '' : `, aim ${bar.aim}`;
  return `${bar.kind === 'at most' ? '≤' : '≥'} ${bar.limit}${aim}`;
}

/** Three significant digits, no exponent. */
export function formatNumber(value: number): string {
  if (!Number.isFinite(value)) return '–';
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString('en-US');
  return Number(value.toPrecision(3)).toString();
}

/** The first column to the left, the others to the right. */
function align(rows: readonly (readonly string[])[]): string {
  const columns = Math.max(...rows.map((row) => row.length));
  const widths = Array.from({ length: columns }, (_, i) => Math.max(...rows.map((row) => (row[i] ?? '').length)));
  return rows
    .map((row) =>
      row
        .map((cell, i) => (i === 0 ? cell.padEnd(widths[i] as number) : cell.padStart(widths[i] as number)))
        .join('  '),
    )
    .map((line) => `  ${line.trimEnd()}`)
    .join('\n');
}
