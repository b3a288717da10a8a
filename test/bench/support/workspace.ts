/**
 * Where the benchmark writes: a directory of its own under `.varve/bench` of the repository, so that what is measured is
 * the disk that people work on and never a tmpfs. It is gone afterwards, also after Ctrl-C.
 */
import * as fs from 'node:fs';
import * as path from 'node:path';
import { fileURLToPath } from 'node:url';

/** Short: a Unix socket below it may have at most 107 bytes of path. */
const ROOT = fileURLToPath(new URL('../../../.varve/bench', import.meta.url));

export class Workspace implements Disposable {
  readonly dir: string;

  constructor() {
    fs.mkdirSync(ROOT, { recursive: true });
    this.dir = fs.mkdtempSync(path.join(ROOT, 'run-'));
    process.once('exit', () => this[Symbol.dispose]());
    for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => process.exit(130));
  }

  /** A new, empty directory for one measurement. */
  folder(name: string): string {
    return fs.mkdtempSync(path.join(this.dir, `${name}-`));
  }

  [Symbol.dispose](): void {
    remove(this.dir);
  }
}

export function remove(dir: string): void {
  fs.rmSync(dir, { recursive: true, force: true, maxRetries: 3 });
}
