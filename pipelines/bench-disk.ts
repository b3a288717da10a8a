/** `varve bench disk`: prints what `hot/disk.ts` measured. */
import { type DiskReport, type Latency, measureDisk } from '../hot/disk.ts';

export type BenchDiskOptions = {
  readonly dir: string;
  readonly rounds?: number;
  readonly bytes?: number;
  readonly json?: boolean;
};

export async function benchDisk(options: BenchDiskOptions, signal: AbortSignal): Promise<void> {
  const { dir, rounds, bytes, json } = options;
  const report = await measureDisk(dir, {
    signal,
    ...(rounds === undefined ? {} : { rounds }),
    ...(bytes === undefined ? {} : { bytes }),
  });
  process.stdout.write(json === true ? `${JSON.stringify(report)}\n` : formatDiskReport(report));
}

export function formatDiskReport(report: DiskReport): string {
  const { directory, fileSystem, bytes, rounds, interfaces, groups } = report;
  const lines = [`${directory}: ${fileSystem.type}, ${bytes} bytes an event, ${rounds} rounds, microseconds`, ''];
  if (fileSystem.warning !== undefined) lines.push(`WARNING: no place for a log: ${fileSystem.warning}`, '');
  lines.push(row('one event', 'p50', 'p99'));
  for (const { name, latency } of interfaces) lines.push(row(name, ...figures(latency)));
  lines.push('', row('group commit (writev + fdatasync)', 'p50', 'p99', 'per event', 'predicted (eq. 3)'));
  for (const { events, total, perEventUs, predictedPerEventUs } of groups) {
    lines.push(row(`${events} events`, ...figures(total), perEventUs.toFixed(1), predictedPerEventUs.toFixed(1)));
  }
  return `${lines.join('\n')}\n`;
}

function figures({ p50Us, p99Us }: Latency): [string, string] {
  return [p50Us.toFixed(0), p99Us.toFixed(0)];
}

function row(name: string, ...cells: string[]): string {
  return `  ${name.padEnd(36)}${cells.map((cell) => cell.padStart(12)).join('')}`;
}
