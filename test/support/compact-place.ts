/**
 * A warm tier with closed trajectories, a store, and `varve compact` as a process: what the tests of compaction share.
 *
 * Events are real (chained, hashed, taken in by the ingest that sidecars use); what must be in cold is known from them.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { hash } from 'node:crypto';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { getBlob } from '../../cold/blobs.ts';
import { collect } from '../../cold/body.ts';
import { DuckDb, sqlText } from '../../cold/duckdb.ts';
import { FileStore } from '../../cold/file-store.ts';
import type { ObjectStore } from '../../cold/object-store.ts';
import { parquetKey } from '../../cold/table-keys.ts';
import { TableLog } from '../../cold/table-log.ts';
import type { Snapshot } from '../../cold/table-log-plan.ts';
import { payloadSha256 } from '../../schemas/chain.ts';
import { FAILPOINT_VARIABLE } from '../../schemas/failpoint.ts';
import type { TrajectoryId } from '../../schemas/ids.ts';
import { Ingest } from '../../warm/ingest.ts';
import type { WarmEvent } from '../../warm/ingest-plan.ts';
import { varve } from './cli.ts';
import { createDatabase, type TestDatabase } from './postgres.ts';
import { Chain, Feed, ScriptLog } from './sidecar-script.ts';
import { TempDirectory } from './temp.ts';

const MAIN = fileURLToPath(new URL('../../pipelines/main.ts', import.meta.url));
const TSX = import.meta.resolve('tsx');

export type Ended = {
  readonly code: number | null;
  readonly signal: string | null;
  readonly out: string;
  readonly err: string;
};

export type Started = TrajectoryStart & { readonly turns?: number; readonly textBytes?: number };
export type TrajectoryStart = { readonly tenant?: string; readonly model_version?: string | null };

export class CompactPlace implements AsyncDisposable {
  database: TestDatabase;
  readonly temp: TempDirectory;
  /** Every chain that warm was given, by id. */
  readonly chains = new Map<TrajectoryId, Chain>();
  readonly #log = new ScriptLog();
  #feed: Feed | undefined;
  #duck: DuckDb | undefined;

  private constructor(database: TestDatabase, temp: TempDirectory) {
    this.database = database;
    this.temp = temp;
  }

  static async create(name: string): Promise<CompactPlace> {
    return new CompactPlace(await createDatabase(), new TempDirectory(name));
  }

  get storeRoot(): string {
    return this.temp.join('cold');
  }

  /** Takes events of chains in, in one batch each. */
  async ingest(...chains: readonly { readonly chain: Chain; readonly from: number }[]): Promise<void> {
    const { pool } = this.database;
    this.#feed ??= new Feed(this.#log, (await Ingest.open(pool, this.#log.identity)).ingest);
    for (const { chain, from } of chains) {
      this.chains.set(chain.id, chain);
      this.#log.add(...chain.part(from));
      await this.#feed.apply();
    }
  }

  /** A finished trajectory of so many turns, in warm. */
  async finished(id: TrajectoryId, how: Started = {}): Promise<Chain> {
    const chain = new Chain(id);
    const { tenant = 'acme', model_version = 'm-1', turns = 3, textBytes = 40 } = how;
    chain.add({
      event_type: 'TaskStarted',
      payload: { tenant, agent: 'a', ...(model_version === null ? {} : { model_version }) },
    });
    for (let turn = 1; turn <= turns; turn++) addTurn(chain, turn, textBytes);
    chain.add({ event_type: 'TaskFinished', payload: { status: 'completed', outcome: { reward: 0.5 } } });
    await this.ingest({ chain, from: 1 });
    return chain;
  }

  /** More turns of one that is in warm, closed again. */
  async grow(chain: Chain, turns: number): Promise<void> {
    const from = chain.length + 1;
    const last = chain.at(chain.length).turn;
    for (let turn = last + 1; turn <= last + turns; turn++) addTurn(chain, turn, 40);
    chain.add({ event_type: 'TaskFinished', payload: { status: 'completed' } });
    await this.ingest({ chain, from });
  }

  /** Settings that every command gets, such as those of another store. */
  settings: Readonly<Record<string, string>> = {};

  environment(more: Readonly<Record<string, string>> = {}): Record<string, string> {
    return {
      DATABASE_URL: this.database.url,
      VARVE_COLD_STORE: `file:${this.storeRoot}`,
      VARVE_COLD_SCRATCH: this.temp.join('scratch'),
      VARVE_LOG_LEVEL: 'error',
      ...this.settings,
      ...more,
    };
  }

  /** `varve <args>` as a process, until it ends; `onStart` gets a way to signal it. */
  async varve(
    args: readonly string[],
    options: {
      readonly env?: Readonly<Record<string, string>>;
      readonly onStart?: (kill: (signal: NodeJS.Signals) => void) => void;
    } = {},
  ): Promise<Ended> {
    const env = { ...process.env, ...this.environment(options.env) };
    const child = spawn(process.execPath, ['--import', TSX, MAIN, ...args], { cwd: this.temp.path, env });
    const stop = () => child.kill('SIGKILL');
    process.once('exit', stop);
    let [out, err] = ['', ''];
    child.stdout.setEncoding('utf8').on('data', (text: string) => (out += text));
    child.stderr.setEncoding('utf8').on('data', (text: string) => (err += text));
    options.onStart?.((signal) => child.kill(signal));
    const [code, signal] = (await once(child, 'close')) as [number | null, string | null];
    process.off('exit', stop);
    return { code, signal, out, err };
  }

  /** `varve <args>` in this process: starting one takes longer than most of what it does. */
  async run(...args: readonly string[]): Promise<Ended> {
    const before = { ...process.env };
    Object.assign(process.env, this.environment());
    try {
      const { code, stdout, stderr } = await varve(...args);
      return { code, signal: null, out: stdout, err: stderr };
    } finally {
      for (const name of Object.keys(process.env)) if (!(name in before)) delete process.env[name];
      Object.assign(process.env, before);
    }
  }

  async compact(...args: readonly string[]): Promise<Ended> {
    return await this.run('compact', '--older-than', '0', ...args);
  }

  async compactUntil(failpoint: string): Promise<Ended> {
    return await this.varve(['compact', '--older-than', '0'], { env: { [FAILPOINT_VARIABLE]: failpoint } });
  }

  /** The store that the commands use, without the faults on their way. */
  openStore: () => Promise<ObjectStore> = () => FileStore.open(this.storeRoot);

  async openLog(): Promise<TableLog> {
    this.#duck ??= await DuckDb.open({ tempDir: this.temp.join('duck') });
    return await TableLog.open(await this.openStore(), { duck: this.#duck, scratchDir: this.temp.join('reading') });
  }

  /** Files of the newest snapshot by the events that they hold; without a table there are none. */
  async files(): Promise<Map<string, string>> {
    const log = await this.openLog().catch(() => undefined);
    const files = new Map<string, string>();
    if (log === undefined) return files;
    for (const file of (await log.snapshot()).files.values()) {
      const segments = await log.segmentsOf(file);
      const members = segments.map((s) => `${s.trajectory_id} ${s.first_sequence_number}-${s.last_sequence_number}`);
      files.set(members.join('\n'), file.stem);
    }
    return files;
  }

  /** Every row of a snapshot, in order. */
  async rows(snapshot: Snapshot): Promise<readonly Record<string, unknown>[]> {
    const duck = this.#duck as DuckDb;
    const store = await this.openStore();
    const paths: string[] = [];
    for (const { stem } of snapshot.files.values()) {
      const path = this.temp.join(`${hash('sha256', stem)}.parquet`);
      writeFileSync(path, await collect(store.get(parquetKey(stem)), 1024 * 1024 * 1024));
      paths.push(sqlText(path));
    }
    if (paths.length === 0) return [];
    return await duck.rows(
      `SELECT *, epoch_ms(created_at) AS ms FROM read_parquet([${paths.join(', ')}], hive_partitioning = false)
       ORDER BY trajectory_id, sequence_number`,
    );
  }

  /**
   * What is in cold is exactly the beginning of each chain, once, in order, byte for byte, with all bodies there;
   * `whole`: all of every chain. @returns events in cold
   */
  async assertCold(whole: readonly Chain[] = []): Promise<number> {
    const log = await this.openLog();
    const store = await this.openStore();
    const next = new Map<string, number>();
    const rows = await this.rows(await log.snapshot());
    for (const row of rows) {
      const id = String(row['trajectory_id']) as TrajectoryId;
      const expected = next.get(id) ?? 1;
      assert.equal(Number(row['sequence_number']), expected, `the next event of ${id}, once`);
      next.set(id, expected + 1);
      const event = this.chains.get(id)?.at(expected);
      assert.ok(event !== undefined, `nobody appended event ${expected} of ${id}`);
      await assertRow(store, row, event);
    }
    for (const chain of whole)
      assert.equal((next.get(chain.id) ?? 1) - 1, chain.length, `events of ${chain.id} in cold`);
    return rows.length;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#duck?.close();
    await this.database[Symbol.asyncDispose]();
    this.temp[Symbol.dispose]();
  }
}

function addTurn(chain: Chain, turn: number, textBytes: number): void {
  const id = `call-${turn}`;
  const text = `${chain.id} ${turn} `.repeat(Math.ceil(textBytes / 40)).slice(0, textBytes);
  chain.add({ event_type: 'ModelReplied', turn, payload: { content: `${text}\u0000 "9007199254740993"`, n: turn } });
  chain.add({
    event_type: 'ToolIntent',
    turn,
    payload: { tool_call_id: id, tool_name: 'bash', arguments: '{"a":1.10}' },
  });
  chain.add({
    event_type: 'ToolResult',
    turn,
    payload: { tool_call_id: id, tool_name: 'bash', status: 'ok', output: text },
  });
  chain.add({ event_type: 'Custom.kind', turn, payload: { __proto: turn, ['$x']: ['é', '\\u0000', null] } });
}

async function assertRow(store: ObjectStore, row: Record<string, unknown>, event: WarmEvent): Promise<void> {
  const name = `event ${event.sequence_number} of ${event.trajectory_id}`;
  assert.deepEqual(
    [row['event_type'], row['turn'], Number(row['fencing_token']), Number(row['ms']), row['payload_sha256']],
    [event.event_type, event.turn, event.fencing_token, Date.parse(event.created_at), event.payload_sha256],
    name,
  );
  assert.equal(row['cryptographic_hash'], event.cryptographic_hash, name);
  const payload = String(row['payload']);
  if (row['offloaded'] === null) assert.equal(payload, Buffer.from(event.payload_bytes).toString('utf8'), name);
  else assert.equal(payloadSha256(payload) === event.payload_sha256, false, `${name} has lost a body`);
  for (const sha256 of row['blob_refs'] as string[]) {
    const body = await collect(getBlob(store, sha256), 1024 * 1024);
    const original = Object.values(event.payload).filter((value) => typeof value === 'string');
    assert.ok(original.includes(body.toString('utf8')), `${name}: blob ${sha256} is a string of it`);
  }
}
