/**
 * Small file systems for tests that need one of their own: ext4 on a loop device, and copies of what its "disk" holds.
 *
 * The image of a mounted loop device holds what reached the disk; data that was written and not synced is still in the
 * page cache of the upper file system. A copy of the image, taken while nothing is under way, is therefore what a power
 * cut would leave. Mounts and devices are given up in every case: on dispose, and when the process ends.
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, rmdirSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { hasCommand, isRoot } from './skip.ts';

const mounted = new Set<Mount>();
process.on('exit', () => {
  for (const mount of mounted) mount.unmount();
});

/** Why there can be no loop-mounted file system here; undefined: there can. */
export function whyNoLoopDisk(): string | undefined {
  if (process.platform !== 'linux') return 'loop devices need Linux';
  if (!isRoot()) return 'mounting a loop device needs root';
  const missing = ['mkfs.ext4', 'mount', 'umount', 'losetup'].filter((name) => !hasCommand(name));
  if (missing.length > 0) return `not installed: ${missing.join(', ')}`;
  if (spawnSync('losetup', ['--find'], { stdio: 'ignore' }).status !== 0) return 'no loop device is free';
  return undefined;
}

/** An empty ext4 image of that many bytes. */
export function makeImage(image: string, bytes: number): void {
  execFileSync('truncate', ['-s', String(bytes), image]);
  execFileSync('mkfs.ext4', ['-q', '-F', '-m', '0', image]);
}

/** A copy that keeps holes. */
export function copyImage(from: string, to: string): void {
  execFileSync('cp', ['--sparse=always', from, to]);
}

export class Mount implements Disposable {
  readonly at: string;

  /**
   * `commit=300`: the journal is committed by syncs alone, not by the clock, so that the image stands still while the
   * writer does.
   */
  constructor(image: string, at: string) {
    mkdirSync(at, { recursive: true });
    execFileSync('mount', ['-o', 'loop,commit=300', image, at]);
    this.at = at;
    mounted.add(this);
  }

  unmount(): void {
    if (!mounted.delete(this)) return;
    // A process that was just killed may hold a file for a moment; lazily it goes when the last one is closed.
    const busy = spawnSync('umount', [this.at], { stdio: 'ignore' }).status !== 0;
    if (busy) execFileSync('umount', ['-l', this.at]);
    rmdirSync(this.at);
  }

  [Symbol.dispose](): void {
    this.unmount();
  }
}

/**
 * Resolves when every thread of a process that was sent SIGSTOP stands still: a thread inside fdatasync stops only when
 * that has returned.
 */
export async function standsStill(pid: number, timeoutMs = 10_000): Promise<void> {
  const deadline = Date.now() + timeoutMs;
  for (;;) {
    const states = readdirSync(`/proc/${pid}/task`).map((task) => {
      const stat = readFileSync(`/proc/${pid}/task/${task}/stat`, 'latin1');
      return stat.slice(stat.lastIndexOf(')') + 2, stat.lastIndexOf(')') + 3);
    });
    if (states.every((state) => state === 'T' || state === 't')) return;
    if (Date.now() > deadline) throw new Error(`process ${pid} does not stop: ${states.join('')}`);
    await sleep(2);
  }
}
