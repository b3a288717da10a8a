/** Tables and JSON for people and scripts, on standard output. */
import { once } from 'node:events';

export type Cell = string | number | null | undefined;

/** Rows as aligned columns, numbers to the right. */
export function table(header: readonly string[], rows: readonly (readonly Cell[])[]): string {
  const texts = rows.map((row) => row.map((cell) => String(cell ?? '')));
  const widths = header.map((name, i) => Math.max(name.length, ...texts.map((row) => row[i]?.length ?? 0)));
  const isNumber = header.map((_, i) => rows.length > 0 && rows.every((row) => typeof row[i] === 'number'));
  const line = (cells: readonly string[]) =>
    cells
      .map((cell, i) => (isNumber[i] === true ? cell.padStart(widths[i] ?? 0) : cell.padEnd(widths[i] ?? 0)))
      .join('  ')
      .trimEnd();
  return `${[line(header), ...texts.map(line)].join('\n')}\n`;
}

export function printJson(value: unknown): void {
  print(`${JSON.stringify(value, (_, member: unknown) => (typeof member === 'bigint' ? Number(member) : member))}\n`);
}

export function print(text: string): void {
  process.stdout.write(text);
}

/** For output of any length: resolves when there is room for more, so that a slow reader fills no memory. */
export async function printFlowing(text: string | Uint8Array): Promise<void> {
  if (!process.stdout.write(text)) await once(process.stdout, 'drain');
}

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'] as const;

/** A number of bytes for people. */
export function bytesText(bytes: number): string {
  const step = bytes < 1 ? 0 : Math.min(UNITS.length - 1, Math.floor(Math.log2(bytes) / 10));
  const value = bytes / 1024 ** step;
  return `${step === 0 ? value : value.toFixed(1)} ${UNITS[step] as string}`;
}
