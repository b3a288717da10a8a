/**
 * Runs a child as users run us: compiled, without a loader. tsx takes 40 MB of its own, which no worker has.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const ROOT = join(import.meta.dirname, '..', '..');

/** Compiles a file of this folder, with what it imports, into `folder`; returns the path of the JavaScript. */
export function compile(script: string, folder: string): string {
  const tsc = join(ROOT, 'node_modules', 'typescript', 'bin', 'tsc');
  // Types were checked by whoever runs `npm run check`.
  const options = [
    '--ignoreConfig',
    '--noCheck',
    '--rootDir',
    ROOT,
    '--outDir',
    folder,
    '--target',
    'es2022',
    '--module',
    'nodenext',
  ];
  const more = ['--rewriteRelativeImportExtensions', '--types', 'node', join(ROOT, 'test', 'support', script)];
  const built = spawnSync(process.execPath, [tsc, ...options, ...more], { encoding: 'utf8' });
  if (built.status !== 0) throw new Error(`${script} does not compile: ${built.stdout}${built.stderr}`);
  writeFileSync(join(folder, 'package.json'), '{"type":"module"}');
  symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'));
  const sql = join(folder, 'schemas', 'sql');
  if (!existsSync(sql)) symlinkSync(join(ROOT, 'schemas', 'sql'), sql);
  return join(folder, 'test', 'support', script.replace(/\.ts$/, '.js'));
}
