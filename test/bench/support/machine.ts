/** Facts about the machine, without which a figure says nothing. */
import * as fs from 'node:fs';
import * as os from 'node:os';
import { measureDisk } from '../../../hot/disk.ts';

export type MachineFacts = {
  readonly node: string;
  readonly kernel: string;
  readonly cpu: string;
  readonly cores: number;
  readonly memoryGiB: number;
  /** One minute's load average before the run: above 0 somebody else was working too. */
  readonly loadBefore: number;
  readonly fileSystem: string;
  readonly fileSystemWarning?: string;
  /** Of 1 KiB written and synced, in microseconds. */
  readonly fdatasyncP50Us: number;
  readonly fdatasyncP99Us: number;
  readonly uvThreadpoolSize: string;
};

export async function machineFacts(dir: string): Promise<MachineFacts> {
  const disk = await measureDisk(dir);
  const sync = disk.interfaces.find(({ name }) => name === 'write + fdatasync');
  const { type, warning } = disk.fileSystem;
  return {
    node: process.version,
    kernel: `${os.type()} ${os.release()}`,
    cpu: os.cpus()[0]?.model ?? 'unknown',
    cores: os.availableParallelism(),
    memoryGiB: Math.round(os.totalmem() / 2 ** 30),
    loadBefore: loadAverage(),
    fileSystem: type,
    ...(warning === undefined ? {} : { fileSystemWarning: warning }),
    fdatasyncP50Us: sync?.latency.p50Us ?? Number.NaN,
    fdatasyncP99Us: sync?.latency.p99Us ?? Number.NaN,
    uvThreadpoolSize: process.env['UV_THREADPOOL_SIZE'] ?? '4 (default)',
  };
}

function loadAverage(): number {
  return os.loadavg()[0] ?? Number.NaN;
}

/** Bytes that this process has made the kernel write to disks, page cache included (proc(5)). Linux only. */
export function bytesWritten(): number {
  const match = /^write_bytes: (\d+)$/m.exec(fs.readFileSync('/proc/self/io', 'utf8'));
  if (match === null) throw new Error('/proc/self/io has no write_bytes');
  return Number(match[1]);
}
