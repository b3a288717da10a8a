/**
 * Compaction end to end, from PostgreSQL to files that were read back, beside DuckDB converting the same rows from a
 * file of JSON: CPU of the job's own process, not the server's. Then what the files and blobs weigh, beside `zstd -3` of
 * the same events as JSON lines, on text that comes once.
 */
import { spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import * as path from 'node:path';
import { DuckDb, sqlText } from '../../cold/duckdb.ts';
import { pack } from '../../cold/zstd.ts';
import { canonicalJson } from '../../schemas/canonical.ts';
import { Ingest } from '../../warm/ingest.ts';
import type { WarmPool } from '../../warm/pool.ts';
import { idAt } from '../support/cold-rows.ts';
import { compile } from '../support/compiled.ts';
import { Chain, Feed, ScriptLog } from '../support/sidecar-script.ts';
import type { ConvertArgument, ConvertResult } from './children/convert-rows.ts';
import { AgentText } from './support/agent-text.ts';
import { childResult } from './support/child-result.ts';
import type { Measurement, Plan } from './support/measurement.ts';
import type { Report } from './support/report.ts';
import { inTurns } from './support/rounds.ts';
import { ratios } from './support/statistics.ts';
import { WarmPlace } from './support/warm.ts';
import { remove } from './support/workspace.ts';

export const compact: Measurement = { name: 'compact', title: 'Compaction: from PostgreSQL to Parquet', run };

const BYTES = 200_000_000;
const BYTES_QUICK = 40_000_000;
const DAY = Date.UTC(2024, 10, 20);
const TURNS = 33;
/** Characters of texts, from the smallest to the largest. */
const MIX = [300, 8000] as const;
const TRUNCATE = 'TRUNCATE compaction_claims, compaction_runs, cold_tables, cold_segments';

async function run(plan: Plan): Promise<Report> {
  const text = AgentText.load();
  await using place = await WarmPlace.start(plan.dir);
  const script = compile('compact-child.ts', path.join(plan.dir, 'compact-child'));
  await using pool = await place.database();
  plan.say(`filling the warm tier with ${plan.quick ? BYTES_QUICK / 1e6 : BYTES / 1e6} MB of events …`);
  const lines = path.join(plan.dir, 'events.jsonl');
  const megabytes = (await fill(pool, text, plan.quick ? BYTES_QUICK : BYTES, lines)) / 1e6;
  remove(lines);
  const store = path.join(plan.dir, 'cold');
  const rows = path.join(plan.dir, 'rows.ndjson');
  await once(pool, script, store, plan.dir);
  await writeRows(store, rows, plan.dir);
  const mbPerCpuSecond: Record<'compact' | 'duckdb', number[]> = { compact: [], duckdb: [] };
  const peaks: number[] = [];
  await inTurns(['compact', 'duckdb'] as const, plan.rounds, async (one, counts) => {
    let cpuSeconds: number;
    if (one === 'compact') {
      remove(store);
      await pool.lend((session) => session.exec(TRUNCATE));
      const result = await once(pool, script, store, plan.dir);
      cpuSeconds = result.cpuSeconds;
      if (counts) peaks.push(result.peakBytes / 1e6);
    } else {
      const argument: ConvertArgument = { from: rows, to: path.join(plan.dir, 'x.parquet'), tempDir: plan.dir };
      cpuSeconds = (await childResult<ConvertResult>('convert-rows.ts', argument)).cpuSeconds;
    }
    if (counts) mbPerCpuSecond[one].push(megabytes / cpuSeconds);
  });
  remove(store);
  const size = await weigh(place, script, plan);
  return {
    tables: [
      {
        title: `MB of event JSON per CPU second, ${Math.round(megabytes)} MB, texts of ${MIX[0]} to ${MIX[1]} characters`,
        columns: [''],
        rows: [
          { label: 'varve compact, whole process', cells: [mbPerCpuSecond.compact] },
          { label: 'DuckDB, the conversion alone', cells: [mbPerCpuSecond.duckdb] },
          { label: 'peak memory of compact, MB', cells: [peaks] },
        ],
      },
      {
        title: `bytes, MB, of ${(size.json / 1e6).toFixed(1)} MB of event JSON`,
        columns: [''],
        rows: [
          { label: 'Parquet files and blobs', cells: [[size.files / 1e6]] },
          { label: 'zstd -3 of the same lines', cells: [[size.zstd / 1e6]] },
        ],
      },
    ],
    checks: [
      {
        what: 'compact against DuckDB converting the same rows, MB per CPU second',
        unit: '×',
        series: ratios(mbPerCpuSecond.compact, mbPerCpuSecond.duckdb),
        bar: { kind: 'at least', limit: 0.4 },
      },
      {
        what: 'files and blobs against zstd -3 of the event JSON',
        unit: '×',
        series: [size.files / size.zstd],
        bar: { kind: 'at most', limit: 1 },
      },
    ],
    notes: [
      `Text: ${text.source}. The server's CPU is not counted; the conversion's start is not counted, compact's is.`,
    ],
  };
}

/** @returns bytes of the events as JSON, which are also written to `lines` */
async function fill(pool: WarmPool, text: AgentText, most: number, lines: string): Promise<number> {
  const log = new ScriptLog();
  const feed = new Feed(log, (await Ingest.open(pool, log.identity)).ingest);
  const out = fs.openSync(lines, 'w');
  let bytes = 0;
  for (let n = 0; bytes < most; n++) {
    const chain = trajectory(n, text);
    // With both hashes, as the files have them.
    for (const { payload_bytes: _, ...event } of chain.events) bytes += fs.writeSync(out, `${canonicalJson(event)}\n`);
    log.add(...chain.events);
    await feed.apply();
  }
  fs.closeSync(out);
  return bytes;
}

function trajectory(n: number, text: AgentText): Chain {
  const chain = new Chain(idAt(n, DAY));
  const [low, high] = MIX;
  const size = (i: number) => Math.round(low * (high / low) ** (((i * 29) % 64) / 63));
  chain.add({ event_type: 'TaskStarted', payload: { tenant: 'acme', model_version: 'm-1' } });
  for (let turn = 1; turn <= TURNS; turn++) {
    const tool_call_id = `call_${n}_${turn}`;
    const usage = { input_tokens: 1000 * turn, output_tokens: 320 };
    const add = (event_type: string, payload: Record<string, string | object>) =>
      chain.add({ event_type, turn, payload: payload as never });
    add('ModelReplied', { content: text.take(size(4 * turn)), served_model_version: 'm-1', usage });
    add('ToolIntent', { tool_call_id, tool_name: 'shell', arguments: text.take(size(4 * turn + 1) / 4) });
    add('ToolResult', { tool_call_id, status: 'ok', output: text.take(size(4 * turn + 2)) });
  }
  chain.add({ event_type: 'TaskFinished', payload: { status: 'completed' } });
  return chain;
}

type Once = { readonly cpuSeconds: number; readonly peakBytes: number };

async function once(pool: { readonly url: string }, script: string, store: string, dir: string): Promise<Once> {
  const env = {
    ...process.env,
    DATABASE_URL: pool.url,
    VARVE_COLD_STORE: `file:${store}`,
    VARVE_COLD_SCRATCH: path.join(dir, 'scratch'),
  };
  const ran = spawnSync(process.execPath, [script], { env, encoding: 'utf8' });
  if (ran.status !== 0) throw new Error(`compact ended with ${ran.status}: ${ran.stderr}`);
  const [, , , , peak, cpu] = (ran.stdout.trim().split('\n').at(-1) as string).split(' ').map(Number);
  return { cpuSeconds: (cpu as number) / 1e6, peakBytes: peak as number };
}

async function writeRows(store: string, to: string, dir: string): Promise<void> {
  await using duck = await DuckDb.open({ tempDir: path.join(dir, 'spill'), memoryLimitBytes: 2 ** 30 });
  const files = dataFiles(store).map(sqlText).join(', ');
  await duck.run(
    `COPY (SELECT * FROM read_parquet([${files}], hive_partitioning = false)) TO ${sqlText(to)} (FORMAT json)`,
  );
}

async function weigh(place: WarmPlace, script: string, plan: Plan) {
  const text = AgentText.load();
  await using pool = await place.database();
  const lines = path.join(plan.dir, 'once.jsonl');
  const json = await fill(pool, text, Math.min(text.length, BYTES), lines);
  const store = path.join(plan.dir, 'once');
  await once(pool, script, store, plan.dir);
  let zstd = 0;
  for await (const frame of pack(fs.createReadStream(lines))) zstd += frame.byteLength;
  const sizeOf = (file: string) => fs.statSync(file).size;
  const blobs = filesBelow(path.join(store, 'blobs'));
  const files = [...dataFiles(store), ...blobs].reduce((sum, file) => sum + sizeOf(file), 0);
  return { json, files, zstd };
}

function dataFiles(store: string): string[] {
  return filesBelow(path.join(store, 'events')).filter((file) => file.endsWith('.parquet'));
}

function filesBelow(folder: string): string[] {
  if (!fs.existsSync(folder)) return [];
  return fs
    .readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => path.join(entry.parentPath, entry.name));
}
