/**
 * Soak: every fault test, again and again with large counts and new seeds, for `SOAK_MINUTES` (default 5).
 *
 *   SOAK_MINUTES=60 npm run test:soak
 *   SEED=<n> npm run test:soak                      the seeds of an earlier soak again
 *   FAULT_RUNS=200 npm run test:soak -- kill        one file, once, with that many kills
 *
 * The minutes are divided evenly over the files of test/fault. Each file runs at least once, whole, so a short soak may
 * take longer than it was given. Every run prints its seed; the last lines are the sums of all `[fault]` lines and the
 * runs that failed. The exit code is 1 if any run failed.
 */
import { spawn } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { Random, SEED } from './support/seed.ts';

const ROOT = join(import.meta.dirname, '..');
const minutes = Number(process.env['SOAK_MINUTES'] ?? '5');
if (!(minutes > 0)) throw new Error(`SOAK_MINUTES=${process.env['SOAK_MINUTES']} is not a number of minutes`);

/** Without the config: mocha adds a config's `spec` to the files that are named, and all tests would run. */
const MOCHA_OPTIONS = [
  '--no-config',
  '--node-option',
  'import=tsx',
  '--require',
  'test/support/root.ts',
  '--forbid-only',
  '--timeout',
  '120000',
];

type Run = { readonly file: string; readonly seed: number; readonly ok: boolean };

const wanted = process.argv.slice(2);
const files = readdirSync(join(ROOT, 'test', 'fault'))
  .filter((name) => name.endsWith('.test.ts') && (wanted.length === 0 || wanted.includes(name.slice(0, -8))))
  .toSorted()
  .map((name) => join('test', 'fault', name));
if (files.length === 0) throw new Error(`no fault test is named ${wanted.join(' or ')}`);
/** A main count that was asked for is done once. */
const isCounted = (process.env['FAULT_RUNS'] ?? '') !== '';
const random = new Random(SEED);
const counts = new Map<string, number>();
const runs: Run[] = [];

console.log(`soak: ${minutes} min over ${files.length} files, SEED=${SEED}`);
const started = performance.now();
for (const [i, file] of files.entries()) {
  const end = (minutes * 60_000 * (i + 1)) / files.length;
  for (let isDone = false; !isDone; ) {
    const seed = random.between(0, 0xffff_ffff);
    console.log(`\nsoak: ${file} SEED=${seed}`);
    const ok = await run(file, seed);
    runs.push({ file, seed, ok });
    // A failure that the next seed hides is still a failure; one per file is enough to look at.
    isDone = !ok || isCounted || performance.now() - started >= end;
  }
}

const failed = runs.filter(({ ok }) => !ok);
for (const { file, seed } of failed) {
  console.log(
    `soak: FAILED ${file}, again with: SEED=${seed} FAULT_SCALE=soak npx mocha ${MOCHA_OPTIONS.join(' ')} ${file}`,
  );
}
const sums = Array.from(counts, ([name, count]) => `${name}=${count}`).join(' ');
const took = Math.round((performance.now() - started) / 1000);
console.log(`soak: SEED=${SEED} seconds=${took} runs=${runs.length} failed=${failed.length} ${sums}`);
process.exitCode = failed.length === 0 ? 0 : 1;

function run(file: string, seed: number): Promise<boolean> {
  const mocha = join(ROOT, 'node_modules', 'mocha', 'bin', 'mocha.js');
  const child = spawn(process.execPath, [mocha, ...MOCHA_OPTIONS, file], {
    cwd: ROOT,
    env: { ...process.env, FAULT_SCALE: 'soak', SEED: String(seed) },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let rest = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    process.stdout.write(text);
    const lines = (rest + text).split('\n');
    rest = lines.pop() as string;
    for (const line of lines) count(line);
  });
  return new Promise((resolve) => child.once('close', (code) => resolve(code === 0)));
}

/** Adds the numbers of a `[fault] name=count …` line; a peak is no sum. */
function count(line: string): void {
  const pairs = /^\s*\[fault\] (.*)$/.exec(line)?.[1];
  for (const pair of pairs?.split(' ') ?? []) {
    const [name, value] = pair.split('=') as [string, string];
    const before = counts.get(name) ?? 0;
    counts.set(name, name.includes('_peak_') ? Math.max(before, Number(value)) : before + Number(value));
  }
}
