/**
 * The databases that varve is compared with live in `test/bench/package.json` with a lockfile of their own, so that the
 * product itself installs without a compiler. They are loaded at run time and typed by hand, each in its own file: the
 * product type-checks whether they are there or not.
 */
import { spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';

const FOLDER = new URL('../', import.meta.url);
const require = createRequire(new URL('package.json', FOLDER));

/** Loads a peer. Whoever calls says what its type is. */
export function loadPeer(name: string): unknown {
  return require(name);
}

/** Version that is installed. */
export function peerVersion(name: string): string {
  const file = new URL(`node_modules/${name}/package.json`, FOLDER);
  return (JSON.parse(fs.readFileSync(file, 'utf8')) as { version: string }).version;
}

/** `npm ci` in the peers' folder unless what is there is what the lockfile says. Returns why it failed, if it did. */
export function installPeers(say: (text: string) => void): string | undefined {
  const lockfile = fileURLToPath(new URL('package-lock.json', FOLDER));
  const installed = fileURLToPath(new URL('node_modules/.package-lock.json', FOLDER));
  // npm writes this file last, so it stands for a whole installation.
  if (fs.existsSync(installed) && fs.statSync(installed).mtimeMs >= fs.statSync(lockfile).mtimeMs) return undefined;
  say('installing the databases to compare with (npm ci in test/bench; compiling may take a minute) …');
  const npm = spawnSync('npm', ['ci', '--no-fund', '--no-audit'], { cwd: fileURLToPath(FOLDER), encoding: 'utf8' });
  if (npm.status === 0) return undefined;
  return npm.error?.message ?? `npm ci: ${npm.stderr.trim().split('\n').slice(0, 5).join('; ')}`;
}
