/**
 * Directories that are gone after the test, also when it failed or the process was interrupted. `KEEP_TEMP=1` keeps
 * them and prints where they are: a log that a fault test broke is evidence.
 *
 * They lie under `os.tmpdir()`, with short names: a Unix socket's path has at most 107 bytes.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const keep = process.env['KEEP_TEMP'] === '1';
const live = new Set<TempDirectory>();

export class TempDirectory implements Disposable {
  readonly path: string;

  constructor(name: string) {
    this.path = mkdtempSync(join(tmpdir(), `varve-${name}-`));
    live.add(this);
  }

  join(...names: string[]): string {
    return join(this.path, ...names);
  }

  [Symbol.dispose](): void {
    if (!live.delete(this)) return;
    if (keep) console.log(`    kept ${this.path}`);
    else rmSync(this.path, { recursive: true, force: true, maxRetries: 3 });
  }
}

process.on('exit', () => {
  for (const directory of live) directory[Symbol.dispose]();
});

// Without a handler SIGTERM ends the process and 'exit' is not emitted: directories, mounts and children would stay.
process.once('SIGTERM', () => process.exit(143));
