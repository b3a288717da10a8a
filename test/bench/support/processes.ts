/** What other processes cost, as Linux counts it: proc(5). */
import * as fs from 'node:fs';

/** CPU that a process and its live threads have taken, in microseconds. */
export function cpuUsOf(pid: number): number {
  let ns = 0;
  for (const thread of fs.readdirSync(`/proc/${pid}/task`)) {
    try {
      ns += Number(fs.readFileSync(`/proc/${pid}/task/${thread}/schedstat`, 'utf8').split(' ')[0]);
    } catch {
      // It has ended since the folder was read.
    }
  }
  return ns / 1000;
}

/** CPU of a server: the process and its children, those that live now. */
export function cpuUsOfFamily(pid: number): number {
  const children = fs.readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim();
  const pids = children === '' ? [] : children.split(' ').map(Number);
  return [pid, ...pids].reduce((sum, one) => sum + cpuUsIfThere(one), 0);
}

function cpuUsIfThere(pid: number): number {
  return fs.existsSync(`/proc/${pid}/task`) ? cpuUsOf(pid) : 0;
}

/** Most memory that a process ever had resident, in MB of a million bytes. */
export function peakMemoryMb(pid: number): number {
  const match = /^VmHWM:\s+(\d+) kB$/m.exec(fs.readFileSync(`/proc/${pid}/status`, 'utf8'));
  if (match === null) throw new Error(`/proc/${pid}/status has no VmHWM`);
  return (Number(match[1]) * 1024) / 1e6;
}
