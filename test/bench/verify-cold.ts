/**
 * `varve verify` over cold, against the least that any verification must do: DuckDB's SHA-256 over the payloads of the
 * same files, on all cores. Both read from the page cache; verification also hashes the files and every envelope, and
 * checks chains and segments.
 */

import { availableParallelism } from 'node:os';
import * as path from 'node:path';
import { DuckDb, sqlText } from '../../cold/duckdb.ts';
import { FileStore } from '../../cold/file-store.ts';
import { parquetKey } from '../../cold/table-keys.ts';
import type { Snapshot } from '../../cold/table-log-plan.ts';
import { verifyTable } from '../../cold/verify-table.ts';
import { KIB, MIB } from '../../schemas/limits.ts';
import { notes } from '../support/cold-rows.ts';
import { ColdTable } from '../support/cold-table.ts';
import type { Measurement, Plan } from './support/measurement.ts';
import type { Check, Report, Table } from './support/report.ts';
import { inTurns } from './support/rounds.ts';
import { ratios } from './support/statistics.ts';

const SIZES = [
  { payloadBytes: KIB, bar: 0.2 },
  { payloadBytes: 8 * KIB, bar: 0.4 },
] as const;
const FILES = 8;
const EVENTS = 100;
const TABLE_BYTES = 384 * MIB;
const TABLE_BYTES_QUICK = 96 * MIB;
/** What stands around the text of a note. */
const NOTE_BYTES = 11;

export const verifyCold: Measurement = { name: 'verify-cold', title: 'Verifying the cold tier', run };

async function run(plan: Plan): Promise<Report> {
  const tables: Table[] = [];
  const checks: Check[] = [];
  for (const { payloadBytes, bar } of SIZES) {
    const label = `${payloadBytes / KIB} KiB`;
    const { verified, hashed } = await measure(plan, payloadBytes);
    tables.push({
      title: `payloads of ${label}, MB of payloads a second`,
      columns: [''],
      rows: [
        { label: 'varve verify', cells: [verified] },
        { label: 'sha256(payload) alone', cells: [hashed] },
      ],
    });
    checks.push({
      what: `verify against sha256(payload), ${label}`,
      unit: '×',
      series: ratios(verified, hashed),
      bar: { kind: 'at least', limit: bar },
    });
  }
  return { tables, checks, notes: [`Both on ${availableParallelism()} cores.`] };
}

/** MB/s of both, round by round. */
async function measure(plan: Plan, payloadBytes: number): Promise<{ verified: number[]; hashed: number[] }> {
  const dir = path.join(plan.dir, String(payloadBytes));
  const root = path.join(dir, 'store');
  plan.say(`writing ${FILES} files with payloads of ${payloadBytes} bytes …`);
  const bytes = plan.quick ? TABLE_BYTES_QUICK : TABLE_BYTES;
  const trajectories = Math.ceil(bytes / payloadBytes / EVENTS / FILES);
  const snapshot = await writeTable(root, dir, trajectories, payloadBytes - NOTE_BYTES);
  const megabytes = (FILES * trajectories * EVENTS * payloadBytes) / 1e6;
  const speeds = { verified: [] as number[], hashed: [] as number[] };
  const work = { verified: () => verify(root, dir, snapshot), hashed: () => hashPayloads(root, dir, snapshot) };
  await inTurns(['verified', 'hashed'] as const, plan.rounds, async (name, counts) => {
    const start = performance.now();
    await work[name]();
    if (counts) speeds[name].push(megabytes / ((performance.now() - start) / 1000));
  });
  return speeds;
}

async function writeTable(root: string, dir: string, trajectories: number, chars: number): Promise<Snapshot> {
  await using duck = await DuckDb.open({ tempDir: path.join(dir, 'spill') });
  await using store = await FileStore.open(root);
  const table = await ColdTable.create(store, duck, dir);
  for (let file = 0; file < FILES; file++) {
    const runs = Array.from({ length: trajectories }, (_, i) => notes(file * trajectories + i, EVENTS, chars));
    await table.add(...runs);
  }
  return await table.log.snapshot();
}

async function verify(root: string, dir: string, snapshot: Snapshot): Promise<void> {
  await using store = await FileStore.open(root);
  const options = { scratchDir: path.join(dir, 'verify'), pathOf: (key: string) => path.join(root, key) };
  const { problems } = await verifyTable(store, snapshot, options);
  if (problems.length > 0) throw new Error(`the table is not whole: ${problems[0]?.what}`);
}

async function hashPayloads(root: string, dir: string, snapshot: Snapshot): Promise<void> {
  await using duck = await DuckDb.open({ tempDir: path.join(dir, 'spill'), threads: availableParallelism() });
  const files = [...snapshot.files.values()].map(({ stem }) => sqlText(path.join(root, parquetKey(stem))));
  const source = `read_parquet([${files.join(', ')}], hive_partitioning = false)`;
  await duck.run(`SELECT count(*) FROM ${source} WHERE sha256(payload) = ''`);
}
