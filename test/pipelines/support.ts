/** What the tests of commands share: a directory with a configuration, a database, and logs that agents have written. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { openStore } from '../../cold/open-store.ts';
import { HotLog } from '../../hot/log.ts';
import type { HotLogOptions } from '../../hot/options.ts';
import { loadConfig } from '../../pipelines/config.ts';
import { Logger } from '../../pipelines/logger.ts';
import { openWarm } from '../../pipelines/open-warm.ts';
import { Sidecar } from '../../pipelines/sidecar.ts';
import { newTrajectoryId, type TrajectoryId } from '../../schemas/ids.ts';
import { event } from '../hot/support/hot.ts';
import { createDatabase, type TestDatabase } from '../support/postgres.ts';
import { TempDirectory } from '../support/temp.ts';

/** A tail, but no ballast. */
export const SERVED = { lockTimeoutMs: 0, budget: { ballastBytes: 0, freeBytes: 1 } } as const satisfies HotLogOptions;

export class Place implements AsyncDisposable {
  readonly temp: TempDirectory;
  readonly database: TestDatabase;
  readonly config: string;

  private constructor(temp: TempDirectory, database: TestDatabase) {
    this.temp = temp;
    this.database = database;
    this.config = temp.join('varve.json');
    const settings = {
      hot: { logs: temp.join('hot') },
      warm: { databaseUrl: database.url, poolSize: 2 },
      cold: { store: `file:${temp.join('cold')}`, scratch: temp.join('scratch') },
      log: { level: 'error' },
    };
    writeFileSync(this.config, JSON.stringify(settings));
  }

  static async make(name: string): Promise<Place> {
    return new Place(new TempDirectory(name), await createDatabase());
  }

  get hot(): string {
    return this.temp.join('hot');
  }

  /** Replicates what the log has, as the user of the configuration. */
  async drain(hot = this.hot): Promise<void> {
    const { config } = await loadConfig({ file: this.config, flags: { 'hot.logs': hot } });
    await using warm = await openWarm(config);
    await using store = await openStore(config.cold.store);
    const sidecar = new Sidecar({ config, pool: warm.pool, store, logger: new Logger('error') });
    assert.equal(await sidecar.drain(AbortSignal.timeout(30_000)), true);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.database[Symbol.asyncDispose]();
    this.temp[Symbol.dispose]();
  }
}

/** One turn with a tool that answered, and one whose tool has not. */
export async function writeAgent(log: HotLog, id = newTrajectoryId()): Promise<TrajectoryId> {
  const call = (tool_call_id: string) => ({ tool_call_id, tool_name: 'shell', arguments: '{"command":"npm test"}' });
  await log.appendAll(id, [
    event('TaskStarted', { task: 'Mend the parser.', agent: 'mender', model: 'm-1' }),
    event('MessageAdded', { role: 'user', content: 'Please.' }),
    event(
      'ModelReplied',
      { content: 'I look.', tool_calls: [call('c1')], usage: { input_tokens: 70, output_tokens: 9 } },
      1,
    ),
    event('Authorized', { tool_call_id: 'c1', decision: 'allow' }, 1),
    event('ToolIntent', { ...call('c1'), idempotency_key: 'k1' }, 1),
    event('ToolResult', { tool_call_id: 'c1', status: 'ok', output: 'é'.repeat(4000), duration_ms: 12 }, 1),
    event('Checkpoint', { record_snapshot_id: 's1' }, 1),
    event('ModelReplied', { content: 'Again.', tool_calls: [call('c2'), call('c3')] }, 2),
    event('ToolIntent', call('c2'), 2),
  ]);
  return id;
}

export async function writeLog(dir: string, agents = 1): Promise<TrajectoryId[]> {
  await using log = await HotLog.open(dir, SERVED);
  const ids: TrajectoryId[] = [];
  for (let i = 0; i < agents; i++) ids.push(await writeAgent(log));
  return ids;
}

/** Turns over a byte in the middle of the largest file of records. */
export function damageLog(hot: string): void {
  const db = join(hot, 'db');
  const sizes = readdirSync(db)
    .filter((name) => name.endsWith('.log') || name.endsWith('.sst'))
    .map((name) => ({ path: join(db, name), size: statSync(join(db, name)).size }));
  const { path } = sizes.toSorted((a, b) => b.size - a.size)[0] as { path: string };
  const bytes = readFileSync(path);
  bytes[bytes.length >> 1] = (bytes[bytes.length >> 1] ?? 0) ^ 0xff;
  writeFileSync(path, bytes);
}
