import assert from 'node:assert/strict';
import { hash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import * as fc from 'fast-check';
import { asyncBufferFromFile, parquetReadObjects } from 'hyparquet';
import { compressors } from 'hyparquet-compressors';
import { DuckDb } from '../../cold/duckdb.ts';
import { FileStore } from '../../cold/file-store.ts';
import { formatSegments, type Segment, type SegmentList } from '../../cold/segments.ts';
import { partitionFolder } from '../../cold/slug.ts';
import {
  type Add,
  formatCommit,
  type MetaData,
  newTable,
  parseCommit,
  schemaString,
} from '../../cold/table-actions.ts';
import { checkpointKey, commitKey, LAST_CHECKPOINT_KEY, segmentsKey } from '../../cold/table-keys.ts';
import { type CommitOutcome, TableLog, type TableLogOptions } from '../../cold/table-log.ts';
import {
  type CommitIntent,
  findNotLive,
  findOverlap,
  indexSegments,
  type NewFile,
  neighboursOf,
  newFile,
  planCommit,
  replay,
  type Snapshot,
} from '../../cold/table-log-plan.ts';
import { canonicalJson } from '../../schemas/canonical.ts';
import { isVarveError } from '../../schemas/errors.ts';
import { FAILPOINT_VARIABLE, FAILPOINTS } from '../../schemas/failpoint.ts';
import { COLUMNS, PARTITION_COLUMNS } from '../../schemas/parquet.ts';
import { Child } from '../support/child.ts';
import { idAt, notes, PLACE } from '../support/cold-rows.ts';
import type { CommitPlan } from '../support/commit-child.ts';
import { FaultStore } from '../support/fault-store.ts';
import { keysOf, read, rejects } from '../support/object-store-contract.ts';
import { runs } from '../support/property.ts';
import { TempDirectory } from '../support/temp.ts';

type Range = readonly [trajectory: number, first: number, last: number];

const DATE = '2024-12-01';
const NOW = Date.UTC(2025, 0, 1);

/** A data file as the log sees it; only its list of segments exists. */
function fileOf(ranges: readonly Range[], name = ''): NewFile & { readonly stem: string } {
  const segments = ranges.map(
    ([n, first, last]): Segment => ({
      trajectory_id: idAt(n),
      first_sequence_number: first,
      last_sequence_number: last,
      previous_hash: '0'.repeat(64),
      head_hash: 'f'.repeat(64),
      row_groups: [0, 0],
    }),
  );
  const rows = ranges.reduce((sum, [, first, last]) => sum + last - first + 1, 0);
  const sha256 = hash('sha256', `${name} ${JSON.stringify(ranges)}`, 'hex');
  const partition = { ...PLACE, date: DATE };
  const stem = `${partitionFolder(partition)}${sha256}`;
  const list: SegmentList = {
    bytes: 1000,
    file: `${sha256}.parquet`,
    footer_start: 900,
    row_groups: [rows],
    rows,
    segments,
  };
  const ids = [segments[0]?.trajectory_id ?? '', segments.at(-1)?.trajectory_id ?? ''] as const;
  const local = {
    path: '',
    sha256,
    stem,
    partition,
    expected: { rows, min_trajectory_id: ids[0], max_trajectory_id: ids[1], fingerprint: 0n },
    list,
    range: { sequence_number: [1, 9], created_at: ['2024-12-01T00:00:01.000Z', '2024-12-01T00:00:09.123Z'] },
  } as const;
  return { ...newFile(local, NOW), stem };
}

function intentOf(id: string, adds: readonly NewFile[], removes: readonly string[] = [], step = 1): CommitIntent {
  return { run: { id, step }, operation: 'COMPACT', adds, removes };
}

describe('table log', () => {
  let directory: TempDirectory;
  let duck: DuckDb;
  let store: FaultStore;
  let root: string;
  let options: TableLogOptions;
  let clock = NOW;
  let stores = 0;
  before(async () => {
    directory = new TempDirectory('table');
    duck = await DuckDb.open({ tempDir: directory.join('spill') });
    options = { duck, scratchDir: directory.join('scratch'), create: true, now: () => clock++ };
  });
  beforeEach(async () => {
    stores += 1;
    clock = NOW;
    root = directory.join(`store${stores}`);
    store = new FaultStore(await FileStore.open(root));
  });
  after(async () => {
    await duck.close();
    directory[Symbol.dispose]();
  });

  async function add(ranges: readonly Range[], name = ''): Promise<NewFile> {
    const file = fileOf(ranges, name);
    await store.putIfAbsent(segmentsKey(file.stem), formatSegments(file.segments));
    return file;
  }

  /** What a pipeline does with a lost race: again, on the newest snapshot. */
  async function commitUntilDecided(log: TableLog, intent: CommitIntent): Promise<CommitOutcome> {
    for (;;) {
      const outcome = await log.commit(intent);
      if (outcome.kind !== 'lost') return outcome;
    }
  }

  it('begins with a commit that names the protocol and the columns, whoever makes it', async () => {
    await rejects(TableLog.open(store, { ...options, create: false }), 'COLD_NO_TABLE');
    const logs = await Promise.all(Array.from({ length: 5 }, () => TableLog.open(store, options)));
    const ids = await Promise.all(logs.map(async (log) => (await log.snapshot()).metaData.id));
    assert.equal(new Set(ids).size, 1);
    assert.deepEqual(await keysOf(store), [commitKey(0)]);
    const { protocol, metaData } = await (logs[0] as TableLog).snapshot();
    assert.deepEqual(protocol, { minReaderVersion: 1, minWriterVersion: 2 });
    assert.deepEqual(metaData.partitionColumns, PARTITION_COLUMNS);
    const schema = JSON.parse(schemaString()) as { type: string; fields: Record<string, unknown>[] };
    assert.equal(schema.type, 'struct');
    assert.deepEqual(
      schema.fields.map(({ name }) => name),
      COLUMNS.map(({ name }) => name),
    );
    for (const { type, nullable, metadata } of schema.fields) {
      const isArray = JSON.stringify(type) === '{"type":"array","elementType":"string","containsNull":true}';
      assert.ok(isArray || ['string', 'long', 'integer', 'double', 'timestamp', 'date'].includes(type as string));
      assert.equal(nullable, true);
      assert.ok((metadata as { comment: string }).comment.length > 10);
    }
  });

  it('writes commits in a form that stays', () => {
    const table = {
      info: { timestamp: NOW, operation: 'CREATE' },
      actions: newTable('00000000-0000-4000-8000-000000000000', NOW),
    };
    const old = fileOf([[1, 1, 2]], 'old');
    const base = replay(undefined, [
      { version: 0, ...table },
      { version: 1, info: { timestamp: NOW + 1, operation: 'COMPACT' }, actions: [{ add: old.add }] },
    ]);
    const intent = intentOf(
      'run-1',
      [
        fileOf([
          [1, 1, 3],
          [2, 1, 5],
        ]),
      ],
      [old.add.path],
      7,
    );
    const golden: Record<string, Buffer> = {
      table: formatCommit(table),
      commit: planCommit(base, intent, NOW + 5).bytes,
    };
    for (const [name, bytes] of Object.entries(golden)) {
      const path = new URL(`fixtures/${name}.json`, import.meta.url);
      assert.equal(bytes.toString(), readFileSync(path, 'utf8'), name);
      assert.deepEqual(formatCommit(parseCommit(bytes, 3)), bytes);
    }
  });

  it('lets exactly one of twenty racing committers have each version, and all of them in the end', async () => {
    const files = await Promise.all(Array.from({ length: 20 }, (_, n) => add([[n, 1, 10]])));
    await TableLog.open(store, options);
    const wins: number[] = [];
    let lost = 0;
    await Promise.all(
      files.map(async (file, n) => {
        const log = await TableLog.open(await FileStore.open(root), options);
        for (;;) {
          const outcome = await log.commit(intentOf(`run-${n}`, [file]));
          if (outcome.kind === 'lost') lost += 1;
          else {
            assert.ok(outcome.kind === 'committed', outcome.kind);
            wins.push(outcome.version);
            return;
          }
        }
      }),
    );
    assert.deepEqual(
      wins.toSorted((a, b) => a - b),
      Array.from({ length: 20 }, (_, i) => i + 1),
    );
    assert.ok(lost > 0, 'there was a race');
    const { files: live, version, txns } = await (await TableLog.open(store, options)).snapshot();
    assert.equal(version, 20);
    assert.deepEqual([...live.keys()].toSorted(), files.map((file) => file.add.path).toSorted());
    assert.equal(txns.size, 20);
  });

  it('refuses what overlaps a live segment, and takes it where the commit removes that', async () => {
    const log = await TableLog.open(store, options);
    const first = await add([
      [1, 1, 10],
      [5, 1, 3],
    ]);
    assert.equal((await log.commit(intentOf('a', [first]))).kind, 'committed');
    for (const [name, range, kind] of [
      ['the same', [1, 1, 10], 'overlap'],
      ['one event', [5, 3, 9], 'overlap'],
      ['around it', [1, 1, 99], 'overlap'],
      ['behind it', [1, 11, 20], 'committed'],
      ['a trajectory between', [3, 1, 2], 'committed'],
      ['that one again', [3, 2, 2], 'overlap'],
    ] as const) {
      const file = await add([range], name);
      const outcome = await log.commit(intentOf(name, [file]));
      assert.equal(outcome.kind, kind, name);
      if (outcome.kind !== 'overlap') continue;
      assert.equal(outcome.segment.trajectory_id, idAt(range[0]));
      assert.ok((await log.snapshot()).files.has(outcome.path), 'it names the live file');
    }
    const merged = await add(
      [
        [1, 1, 10],
        [5, 1, 3],
      ],
      'merged',
    );
    assert.equal((await log.commit(intentOf('m', [merged]))).kind, 'overlap');
    assert.equal((await log.commit(intentOf('m', [merged], [first.add.path]))).kind, 'committed');
    assert.deepEqual(await log.commit(intentOf('n', [], [first.add.path])), {
      kind: 'not-live',
      paths: [first.add.path],
    });
    await rejects(
      log.commit(intentOf('x', [await add([[9, 1, 2]], 'x'), await add([[9, 2, 3]], 'y')])),
      'COLD_COMMIT_INVALID',
    );
    await rejects(log.commit(intentOf('x', [merged], [merged.add.path])), 'COLD_COMMIT_INVALID');
    await rejects(log.commit(intentOf('x', [])), 'COLD_COMMIT_INVALID');
  });

  it('decides for one of two runs that took the same events, also where they raced', async () => {
    await TableLog.open(store, options);
    const files = [await add([[1, 1, 10]], 'a'), await add([[1, 5, 12]], 'b')];
    const outcomes = await Promise.all(
      files.map(async (file, i) => {
        const log = await TableLog.open(await FileStore.open(root), options);
        return (await commitUntilDecided(log, intentOf(`run-${i}`, [file]))).kind;
      }),
    );
    assert.deepEqual(outcomes.toSorted(), ['committed', 'overlap']);
  });

  it('knows its own success again: the same step, a later one, and after an answer that was lost', async () => {
    const log = await TableLog.open(store, options);
    const intent = intentOf('run', [await add([[1, 1, 10]])], [], 2);
    assert.deepEqual(await log.commit(intent), { kind: 'committed', version: 1 });
    for (const again of [log, await TableLog.open(store, options)]) {
      assert.deepEqual(await again.commit(intent), { kind: 'already' });
      assert.deepEqual(await again.commit({ ...intent, run: { id: 'run', step: 1 } }), { kind: 'already' });
    }
    const next = intentOf('run', [await add([[2, 1, 10]])], [], 3);
    store.inject({ method: 'putIfAbsent', key: /json$/, kind: 'after', code: 'STORE_AMBIGUOUS' });
    assert.deepEqual(await log.commit(next), { kind: 'committed', version: 2 });
    const third = intentOf('run', [await add([[3, 1, 10]])], [], 4);
    store.inject({ method: 'putIfAbsent', key: /json$/, kind: 'before', code: 'STORE_AMBIGUOUS' });
    await rejects(log.commit(third), 'STORE_AMBIGUOUS');
    assert.deepEqual(await log.commit(third), { kind: 'committed', version: 3 });
    // The put had its effect, and nobody could look.
    const fourth = intentOf('run', [await add([[4, 1, 10]])], [], 5);
    store.inject(
      { method: 'putIfAbsent', key: /json$/, kind: 'after', code: 'STORE_AMBIGUOUS' },
      { method: 'get', key: /4\.json$/, kind: 'before', code: 'STORE_UNAVAILABLE' },
    );
    await rejects(log.commit(fourth), 'STORE_AMBIGUOUS');
    assert.deepEqual(await log.commit(fourth), { kind: 'already' });
    assert.equal((await log.snapshot()).version, 4);
  });

  it('shows every version, by number and by time, also where the clock went back', async () => {
    const log = await TableLog.open(store, options);
    const files: NewFile[] = [];
    for (const [n, time] of [
      [1, NOW + 1000],
      [2, NOW + 2000],
      [3, NOW + 1500],
      [4, NOW + 9000],
    ] as const) {
      clock = time;
      files.push(await add([[n, 1, 2]]));
      await log.commit(intentOf(`run-${n}`, [files.at(-1) as NewFile], n === 4 ? [files[0]?.add.path as string] : []));
    }
    const fresh = await TableLog.open(store, options);
    const shown = async (at: Parameters<TableLog['snapshotAt']>[0]) => {
      const { version, files: live } = await fresh.snapshotAt(at);
      return [version, ...[...live.keys()].map((path) => files.findIndex((file) => file.add.path === path) + 1)];
    };
    assert.deepEqual(await shown({ version: 0 }), [0]);
    assert.deepEqual(await shown({ version: 2 }), [2, 1, 2]);
    assert.deepEqual(await shown({ version: 4 }), [4, 2, 3, 4]);
    assert.deepEqual(await shown({ timeMs: NOW + 1000 }), [1, 1]);
    assert.deepEqual(await shown({ timeMs: NOW + 1999 }), [1, 1]);
    assert.deepEqual(await shown({ timeMs: NOW + 2000 }), [2, 1, 2], 'version 3 came later, whatever the clock said');
    assert.deepEqual(await shown({ timeMs: NOW + 2001 }), [3, 1, 2, 3]);
    assert.deepEqual(await shown({ timeMs: NOW * 2 }), [4, 2, 3, 4]);
    for (const at of [{ version: 5 }, { version: -1 }, { version: 0.5 }, { timeMs: NOW - 1 }]) {
      await rejects(fresh.snapshotAt(at), 'COLD_NO_VERSION');
    }
  });

  it('reads only what is new, and from a checkpoint on', async () => {
    const log = await TableLog.open(store, { ...options, checkpointEvery: 5 });
    const removed = await add([[0, 1, 2]]);
    await log.commit(intentOf('run-0', [removed]));
    for (let n = 1; n <= 6; n++) {
      await log.commit(intentOf(`run-${n}`, [await add([[n, 1, 2]])], n === 2 ? [removed.add.path] : []));
      assert.equal(await log.checkpointIfDue(), n === 4 ? 'written' : 'not-due', `after version ${n + 1}`);
    }
    const replayed = await log.snapshot();
    store.calls.length = 0;
    const fresh = await TableLog.open(store, options);
    const gets = store.calls.filter((call) => call.startsWith('get ')).map((call) => call.replace(/.*\//, ''));
    assert.deepEqual(
      gets,
      [LAST_CHECKPOINT_KEY, commitKey(5), checkpointKey(5), commitKey(6), commitKey(7)].map((key) =>
        key.replace(/.*\//, ''),
      ),
    );
    const read = await fresh.snapshot();
    assert.deepEqual(plainOf(read), plainOf(replayed), 'the same files, txns and tombstones');
    assert.deepEqual(
      await fresh.commit(intentOf('run-0', [removed])),
      { kind: 'already' },
      'a txn outlives its commit',
    );
    const [, metaData, ...more] = await parquetReadObjects({
      file: await asyncBufferFromFile(join(root, checkpointKey(5))),
      compressors,
    });
    assert.deepEqual((metaData?.['metaData'] as MetaData | undefined)?.partitionColumns, PARTITION_COLUMNS);
    assert.equal(more.filter((row) => row['add'] !== null).length, 4);
    assert.equal((await fresh.snapshotAt({ version: 3 })).files.size, 2, 'and older versions from the commits');
    await rejects(
      damaged(checkpointKey(5), (bytes) => bytes.fill(0, 100, 110)),
      'COLD_LOG_INVALID',
    );
    await store.put(LAST_CHECKPOINT_KEY, Buffer.from('{"version":'));
    assert.deepEqual(plainOf(await (await TableLog.open(store, options)).snapshot()), plainOf(replayed));
  });

  it('leaves a checkpoint of somebody else alone, and writes the next one', async () => {
    const log = await TableLog.open(store, { ...options, checkpointEvery: 1 });
    await log.commit(intentOf('run-1', [await add([[1, 1, 2]])]));
    await store.put(checkpointKey(1), Buffer.from('other'));
    assert.equal(await log.checkpointIfDue(), 'exists');
    await log.commit(intentOf('run-2', [await add([[2, 1, 2]])]));
    assert.equal(await log.checkpointIfDue(), 'written');
    assert.equal((await TableLog.open(store, options)).constructor, TableLog);
  });

  it('names a commit that is torn, changed, foreign, missing or from the future', async () => {
    const log = await TableLog.open(store, options);
    for (const n of [1, 2, 3]) await log.commit(intentOf(`run-${n}`, [await add([[n, 1, 2]])]));
    const names = (error: unknown) =>
      isVarveError(error, 'COLD_LOG_INVALID') && error.details['version'] === 2 && error.message.includes(commitKey(2));
    const key = commitKey(2);
    const whole = await read(store, key);
    const lineEnd = whole.indexOf('\n', whole.indexOf('\n') + 1) + 1;
    for (const bytes of [0, 1, 100, whole.indexOf('\n') + 1, lineEnd, whole.byteLength - 1]) {
      await assert.rejects(
        damaged(key, (all) => all.subarray(0, bytes)),
        names,
        `cut to ${bytes}`,
      );
    }
    for (let at = 0; at < whole.byteLength; at += 37) {
      const flip = (all: Buffer) => {
        all.writeUInt8(all.readUInt8(at) ^ 1, at);
        return all;
      };
      await assert.rejects(damaged(key, flip), names, `bit ${8 * at}`);
    }
    const foreign = '{"commitInfo":{"timestamp":1,"operation":"OPTIMIZE"}}\n{"add":{"path":"part-0.parquet"}}\n';
    await assert.rejects(
      damaged(key, () => Buffer.from(foreign)),
      names,
      'foreign',
    );
    await store.delete(key);
    await assert.rejects(TableLog.open(store, options), names, 'missing');
    await store.put(key, whole);
    const upgrade = {
      info: { timestamp: NOW * 2, operation: 'UPGRADE' },
      actions: [{ protocol: { minReaderVersion: 3, minWriterVersion: 7 } }],
    };
    await store.put(commitKey(4), formatCommit(upgrade));
    await rejects(TableLog.open(store, options), 'COLD_TABLE_NEWER');
    await rejects(log.commit(intentOf('run-4', [await add([[4, 1, 2]])])), 'COLD_TABLE_NEWER');
  });

  it('does not believe a list of segments that differs from its tags', async () => {
    const log = await TableLog.open(store, options);
    const file = fileOf([[1, 1, 5]]);
    await store.put(
      segmentsKey(file.stem),
      formatSegments({ ...file.segments, rows: 0, row_groups: [], segments: [] }),
    );
    await log.commit(intentOf('run-1', [file]));
    await rejects(log.commit(intentOf('run-2', [await add([[1, 1, 5]], 'other')])), 'COLD_SEGMENTS_INVALID');
  });

  it('never has an event in two live files, whatever is committed', () => {
    const range = fc
      .tuple(fc.nat(3), fc.integer({ min: 1, max: 12 }), fc.nat(4))
      .map(([n, first, more]): Range => [n, first, first + more]);
    const step = fc.record({
      ranges: fc.array(range, { maxLength: 2 }),
      removes: fc.array(fc.nat(9), { maxLength: 2 }),
    });
    const check = fc.property(fc.array(step, { maxLength: 25 }), (steps) => {
      let snapshot = replay(undefined, [
        { version: 0, info: { timestamp: 1, operation: 'CREATE' }, actions: newTable('t', 1) },
      ]);
      const known = new Map<string, NewFile>();
      const held = new Map<string, string>();
      for (const [i, { ranges, removes }] of steps.entries()) {
        const adds = ranges.map((range, k) => fileOf([range], `${i}.${k}`));
        const paths = [...snapshot.files.keys()];
        const intent = intentOf(`run-${i}`, adds, [
          ...new Set(removes.map((n) => paths[n % Math.max(1, paths.length)] ?? 'gone')),
        ]);
        const legal = isLegal(snapshot, intent, known);
        // The model: every event by name.
        const after = new Map([...held].filter(([, path]) => !intent.removes.includes(path)));
        const events = adds.flatMap(({ add, segments }) =>
          eventsOf(segments).map((event) => [event, add.path] as const),
        );
        const isDisjoint =
          new Set([...after.keys(), ...events.map(([event]) => event)]).size === after.size + events.length;
        const removesLive = intent.removes.every((path) => snapshot.files.has(path));
        const isSomething = adds.length + intent.removes.length > 0;
        assert.equal(legal, isDisjoint && removesLive && isSomething);
        if (!legal) continue;
        for (const file of adds) known.set(file.add.path, file);
        for (const path of intent.removes) for (const [event, there] of held) if (there === path) held.delete(event);
        for (const [event, path] of events) held.set(event, path);
        const { commit, bytes } = planCommit(snapshot, intent, 0);
        assert.deepEqual(parseCommit(bytes, commit.version), commit);
        snapshot = replay(snapshot, [commit]);
      }
      assert.deepEqual(new Set(held.values()), new Set(snapshot.files.keys()));
    });
    fc.assert(check, runs(200));
  });

  it('can be killed anywhere and run again, to the same table', async function () {
    this.timeout(60_000);
    const points = FAILPOINTS.filter((name) => name.startsWith('cold.'));
    await Promise.all(
      // Two at a time.
      [0, 1].map(async (half) => {
        for (const name of points.filter((_, i) => i % 2 === half)) {
          const plan: CommitPlan = { directory: directory.join(name), run: 'run-1' };
          await using killed = Child.start('commit-child.ts', plan, { env: { [FAILPOINT_VARIABLE]: name } });
          assert.equal((await killed.exit()).signal, 'SIGKILL', `${name} was not reached: ${killed.stderr}`);
          await using again = Child.start('commit-child.ts', plan);
          const wasCommitted = name === 'cold.commit.after-put' || name.startsWith('cold.checkpoint');
          assert.equal(await again.line('done '), `done ${wasCommitted ? 'already' : 'committed'}`, name);
          assert.equal((await again.exit()).code, 0);
          const rows = await readByLogAlone(join(plan.directory, 'store'));
          assert.deepEqual(
            rows,
            [1, 2, 3].flatMap((n) => notes(n, 20, 50).rows.map((row) => row.cryptographic_hash)),
            name,
          );
          const table = await TableLog.open(await FileStore.open(join(plan.directory, 'store')), options);
          assert.equal((await table.snapshot()).version, 1, 'one commit');
        }
      }),
    );
  });

  /** Hashes of all events, as somebody reads them who knows Delta Lake and Parquet, and nothing of varve. */
  async function readByLogAlone(root: string): Promise<unknown[]> {
    const folder = join(root, 'events');
    const live = new Map<string, Add>();
    for (const name of readdirSync(join(folder, '_delta_log')).toSorted()) {
      if (!/^\d{20}\.json$/.test(name)) continue;
      for (const line of readFileSync(join(folder, '_delta_log', name), 'utf8')
        .trim()
        .split('\n')) {
        const { add, remove } = JSON.parse(line) as { add?: Add; remove?: { path: string } };
        if (add !== undefined) live.set(decodeURIComponent(add.path), add);
        if (remove !== undefined) live.delete(decodeURIComponent(remove.path));
      }
    }
    const hashes: unknown[] = [];
    for (const [path, { size, stats, partitionValues }] of live) {
      const file = await asyncBufferFromFile(join(folder, path));
      assert.equal(file.byteLength, size);
      const rows = await parquetReadObjects({ file, compressors });
      const { numRecords, minValues, maxValues } = JSON.parse(stats) as {
        numRecords: number;
        minValues: Record<string, unknown>;
        maxValues: Record<string, unknown>;
      };
      assert.equal(rows.length, numRecords);
      assert.equal(minValues['trajectory_id'], rows[0]?.['trajectory_id']);
      assert.equal(maxValues['trajectory_id'], rows.at(-1)?.['trajectory_id']);
      for (const row of rows) {
        assert.deepEqual(
          [row['tenant'], row['model_version']],
          [partitionValues.tenant, partitionValues.model_version],
        );
        hashes.push(row['cryptographic_hash']);
      }
    }
    return hashes;
  }

  /** Opens the table over a changed object, which is put back. */
  async function damaged(key: string, change: (bytes: Buffer) => Buffer): Promise<unknown> {
    const whole = await read(store, key);
    await store.put(key, change(Buffer.from(whole)));
    try {
      return await TableLog.open(store, options);
    } finally {
      await store.put(key, whole);
    }
  }
});

function isLegal(snapshot: Snapshot, intent: CommitIntent, known: ReadonlyMap<string, NewFile>): boolean {
  try {
    const index = indexSegments(intent);
    if (findNotLive(snapshot, intent) !== undefined) return false;
    return neighboursOf(snapshot, intent).every(({ add: { path } }) => {
      const live = known.get(path)?.segments.segments ?? [];
      return findOverlap(index, live, path) === undefined;
    });
  } catch (error) {
    if (isVarveError(error, 'COLD_COMMIT_INVALID')) return false;
    throw error;
  }
}

function eventsOf({ segments }: SegmentList): string[] {
  return segments.flatMap(({ trajectory_id, first_sequence_number: first, last_sequence_number: last }) =>
    Array.from({ length: last - first + 1 }, (_, i) => `${trajectory_id} ${first + i}`),
  );
}

/** Order and `dataChange` are of the log, not of the table. */
function plainOf({ version, timestampMs, metaData, files, txns, removed }: Snapshot): unknown {
  const sorted = <T>(map: ReadonlyMap<string, T>) => [...map].toSorted(([a], [b]) => (a < b ? -1 : 1));
  // Fields that are undefined are as good as absent.
  const plain: unknown = JSON.parse(JSON.stringify([sorted(files), sorted(txns), sorted(removed)]));
  const text = canonicalJson(plain);
  return { version, timestampMs, metaData, text: text.replaceAll('"dataChange":true', '"dataChange":false') };
}
