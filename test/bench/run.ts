/**
 * `npm run bench -- [names…]`: measures varve against the bars that it promises, beside the limits of the disk and of
 * the binding and beside other databases, all in one run and in turns. Prints a table per measurement and writes every
 * round to a JSON file. A missed bar is a result, not a failure, unless `--strict`.
 */
import * as fs from 'node:fs';
import * as path from 'node:path';
import { fileURLToPath } from 'node:url';
import { Command, InvalidArgumentError } from 'commander';
import { appendBeside } from './append-beside.ts';
import { appendOne } from './append-one.ts';
import { catchUp } from './catch-up.ts';
import { compact } from './compact.ts';
import { fleet } from './fleet.ts';
import { open } from './open.ts';
import { pool } from './pool.ts';
import { query } from './query.ts';
import { restore } from './restore.ts';
import { sidecarCost } from './sidecar-cost.ts';
import { peerVersion } from './stores/peer-package.ts';
import { loadPeers } from './stores/peers.ts';
import { type MachineFacts, machineFacts } from './support/machine.ts';
import type { Measurement, Plan } from './support/measurement.ts';
import { formatChecks, formatNumber, formatTable, type Report, verdictOf } from './support/report.ts';
import { median } from './support/statistics.ts';
import { remove, Workspace } from './support/workspace.ts';
import { tail } from './tail.ts';
import { throughput } from './throughput.ts';
import { verifyCold } from './verify-cold.ts';
import { visible } from './visible.ts';
import { writeAmplification } from './write-amplification.ts';

const MEASUREMENTS: readonly Measurement[] = [
  appendOne,
  throughput,
  writeAmplification,
  tail,
  pool,
  open,
  visible,
  catchUp,
  sidecarCost,
  appendBeside,
  fleet,
  compact,
  query,
  restore,
  verifyCold,
];
const ROUNDS = 10;
const ROUNDS_QUICK = 3;

type Options = { rounds?: number; quick: boolean; strict: boolean; out?: string };
type Result = Report & { readonly name: string; readonly title: string; readonly seconds: number };

const program = new Command('npm run bench --')
  .description('Measures varve against its bars, beside raw disk, bare binding and other databases.')
  .argument('[names...]', `which measurements: ${MEASUREMENTS.map(({ name }) => name).join(', ')} (default: all)`)
  .option('--rounds <n>', `rounds of each measurement (default: ${ROUNDS}, with --quick ${ROUNDS_QUICK})`, parseRounds)
  .option('--quick', 'a first look in about two minutes; not for quoting', false)
  .option('--strict', 'exit with 1 if a bar is missed', false)
  .option('--out <file>', 'where the JSON goes (default: test/bench/results/<date>.json)')
  .action(main);

await program.parseAsync();

async function main(names: readonly string[], options: Options): Promise<void> {
  const chosen = choose(names);
  using workspace = new Workspace();
  const machine = await machineFacts(workspace.dir);
  console.log(formatMachine(machine));
  const peers = loadPeers(console.log);
  const results: Result[] = [];
  for (const measurement of chosen) {
    const dir = workspace.folder(measurement.name);
    const rounds = options.rounds ?? (options.quick ? ROUNDS_QUICK : ROUNDS);
    const result = await carryOut(measurement, { rounds, quick: options.quick, dir, peers, say });
    remove(dir);
    results.push(result);
    print(result);
  }
  const file = options.out ?? defaultFile();
  const versions = Object.fromEntries(peers.map(({ name }) => [name, peerVersion(name)]));
  write(file, { at: new Date().toISOString(), quick: options.quick, machine, peers: versions, results });
  console.log(`\nevery round: ${path.relative(process.cwd(), file)}`);
  const missed = results.flatMap(({ checks }) => checks).filter((check) => verdictOf(check) === 'miss');
  for (const { what, series, unit } of missed) console.log(`MISSED ${what}: ${formatNumber(median(series))} ${unit}`);
  if (options.strict && missed.length > 0) process.exitCode = 1;
}

function choose(names: readonly string[]): readonly Measurement[] {
  const known = new Map(MEASUREMENTS.map((measurement) => [measurement.name, measurement]));
  const unknown = names.filter((name) => !known.has(name));
  if (unknown.length > 0) program.error(`no measurement is called ${unknown.join(', ')}`);
  return names.length === 0 ? MEASUREMENTS : MEASUREMENTS.filter(({ name }) => names.includes(name));
}

async function carryOut(measurement: Measurement, plan: Plan): Promise<Result> {
  const { name, title } = measurement;
  console.log(`\n${title} (${name})`);
  const start = performance.now();
  const report = await measurement.run(plan);
  return { name, title, seconds: (performance.now() - start) / 1000, ...report };
}

function print({ tables, checks, notes, seconds }: Result): void {
  for (const table of tables) console.log(`\n${formatTable(table)}`);
  if (checks.length > 0) console.log(`\n${formatChecks(checks)}`);
  for (const note of notes) console.log(`  ${note}`);
  console.log(`  ${seconds.toFixed(0)} s`);
}

/** The JSON has each check's median and verdict beside its rounds. */
function write(file: string, run: { readonly results: readonly Result[] } & Record<string, unknown>): void {
  const results = run.results.map((result) => ({
    ...result,
    checks: result.checks.map((check) => ({ ...check, median: median(check.series), verdict: verdictOf(check) })),
  }));
  fs.mkdirSync(path.dirname(file), { recursive: true });
  fs.writeFileSync(file, `${JSON.stringify({ ...run, results }, null, 2)}\n`);
}

function formatMachine(machine: MachineFacts): string {
  const { node, kernel, cpu, cores, memoryGiB, fileSystem, fileSystemWarning, loadBefore } = machine;
  const disk = `fdatasync p50 ${formatNumber(machine.fdatasyncP50Us)} µs, p99 ${formatNumber(machine.fdatasyncP99Us)} µs`;
  const warning = fileSystemWarning === undefined ? '' : `\nWARNING: ${fileSystem}: ${fileSystemWarning}`;
  const facts = [`Node ${node}`, kernel, `${cores} cores (${cpu})`, `${memoryGiB} GiB`, fileSystem, disk];
  return `${facts.join(', ')}, load ${formatNumber(loadBefore)}${warning}`;
}

function defaultFile(): string {
  const date = new Date().toISOString().slice(0, 19).replaceAll(':', '-');
  return fileURLToPath(new URL(`results/${date}.json`, import.meta.url));
}

function parseRounds(text: string): number {
  const rounds = Number(text);
  if (Number.isInteger(rounds) && rounds >= 1 && rounds <= 1000) return rounds;
  throw new InvalidArgumentError('it must be an integer from 1 to 1000');
}

function say(text: string): void {
  console.log(`  ${text}`);
}
