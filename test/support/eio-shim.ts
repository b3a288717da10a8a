/** Builds `eio-shim.c` and says how to run a child on a disk that fails. */
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { hasCommand } from './skip.ts';

/** Why the shim cannot work here; undefined: it can. */
export function whyNoShim(): string | undefined {
  if (process.platform !== 'linux') return 'the LD_PRELOAD shim needs Linux';
  if (!hasCommand('cc')) return 'no C compiler (cc) is installed';
  return undefined;
}

/** One failure that the disk will have: see eio-shim.c. */
export type Fault = {
  readonly call: 'write' | 'sync';
  readonly how: 'EIO' | 'ENOSPC' | 'short' | 'lost';
  /** How many calls fail before the disk is well again; 0: it stays ill. */
  readonly count: number;
  /** Part of the path of the file. */
  readonly file: string;
};

export class FailingDisk {
  /** For the child: nothing fails until `arm`. */
  readonly env: Readonly<Record<string, string>>;
  readonly trigger: string;

  /** @param folder for the library and the trigger; not below `under`, whose files fail */
  constructor(folder: string, under: string) {
    const library = `${folder}/eio-shim.so`;
    if (!existsSync(library)) {
      const source = fileURLToPath(new URL('eio-shim.c', import.meta.url));
      const built = spawnSync('cc', ['-shared', '-fPIC', '-O2', '-o', library, source, '-lpthread'], {
        encoding: 'utf8',
      });
      if (built.status !== 0) throw new Error(`the shim does not compile: ${built.stderr}`);
    }
    this.trigger = `${folder}/trigger`;
    this.env = { LD_PRELOAD: library, EIO_UNDER: under, EIO_TRIGGER: this.trigger };
  }

  /** What the trigger holds for a fault; whoever writes it makes it happen from then on. */
  static text({ call, how, count, file }: Fault): string {
    return `${call} ${how} ${count} ${file}`;
  }

  arm(fault: Fault): void {
    writeFileSync(this.trigger, FailingDisk.text(fault));
  }

  /** Calls that failed so far. */
  get hits(): number {
    const path = `${this.trigger}.hits`;
    return existsSync(path) ? readFileSync(path, 'utf8').trimEnd().split('\n').length : 0;
  }
}
