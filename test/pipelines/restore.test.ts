/** `varve restore`: what comes out is what was appended, byte for byte, or the command says what is not. */
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { asyncBufferFromFile, parquetMetadataAsync } from 'hyparquet';
import { blobKey } from '../../cold/blobs.ts';
import { parquetKey } from '../../cold/table-keys.ts';
import { HotLog } from '../../hot/log.ts';
import { formatEventLine, type TrajectoryEvent } from '../../schemas/event.ts';
import { newTrajectoryId, type TrajectoryId } from '../../schemas/ids.ts';
import { KIB, MIB } from '../../schemas/limits.ts';
import { rowOf } from '../../schemas/parquet.ts';
import { stubsOf } from '../../schemas/stubs.ts';
import { event } from '../hot/support/hot.ts';
import { Child } from '../support/child.ts';
import { runVarve, varve } from '../support/cli.ts';
import { ColdPlace } from '../support/cold-place.ts';
import { chain, GENESIS, idAt, PLACE, textOf } from '../support/cold-rows.ts';
import { compile } from '../support/compiled.ts';
import type { RestorePlan } from '../support/restore-child.ts';
import { modestOrSoak, summarize } from '../support/scale.ts';
import { exec } from '../support/sidecar-warm.ts';
import { skipAloud } from '../support/skip.ts';
import { Place, SERVED } from './support.ts';

type Report = {
  readonly restored: readonly {
    readonly trajectory_id: string;
    readonly events: number;
    readonly from: readonly { readonly tier: string; readonly first: number; readonly last: number }[];
    readonly losses: readonly string[];
    readonly erased: number;
  }[];
  readonly failed: readonly { readonly trajectory_id: string; readonly code: string; readonly message: string }[];
};

describe('varve restore', () => {
  let place: Place;
  let cold: ColdPlace;
  beforeEach(async () => {
    place = await Place.make('restore');
    cold = await ColdPlace.open(place.temp.join('cold'), place.temp.join('scratch'));
  });
  afterEach(async () => {
    await cold[Symbol.asyncDispose]();
    await place[Symbol.asyncDispose]();
  });

  /** Notes, some of them long, every seventh with a body that became a blob when it was appended. */
  async function write(notes: number, id = newTrajectoryId()): Promise<TrajectoryEvent[]> {
    await using log = await HotLog.open(place.hot, SERVED);
    const next = (log.head(id)?.sequence_number ?? 0) + 1;
    for (let i = next; i < next + notes; i++) {
      const chars = i % 7 === 0 ? 70 * KIB : i % 3 === 0 ? 20 * KIB : 30;
      await log.append(id, event('Noted', { note: textOf(chars, i), ['__proto__']: '9007199254740993\u0000' }, i));
    }
    const events: TrajectoryEvent[] = [];
    for await (const one of log.read(id)) events.push(one);
    return events;
  }

  /** One trajectory in cold, warm and hot at once. */
  async function spread(): Promise<{ id: TrajectoryId; events: TrajectoryEvent[] }> {
    const [first] = await write(30);
    const id = first?.trajectory_id as TrajectoryId;
    await place.drain();
    const events = await write(12, id);
    await cold.keep(events, 1, 20);
    await exec(place.database.pool, `DELETE FROM trajectory_events WHERE sequence_number <= 20`);
    return { id, events };
  }

  async function run(...args: string[]) {
    const { stdout, stderr, code } = await varve('restore', ...args, '--config', place.config, '--json');
    return { code, stderr, report: (stdout === '' ? {} : JSON.parse(stdout)) as Report };
  }

  const lines = (events: readonly TrajectoryEvent[]) => events.map((one) => `${formatEventLine(one)}\n`).join('');
  const at = (name: string) => place.temp.join(name);

  it('writes event JSONL that an import takes again, with bodies beside it', async () => {
    const { id, events } = await spread();
    const { code, report } = await run(id, '--out', at('out/events.jsonl'), '--blobs', at('bodies'));
    assert.deepEqual([code, report.failed], [0, []]);
    assert.deepEqual(
      report.restored[0]?.from.map(({ tier, first, last }) => [tier, first, last]),
      [
        ['cold', 1, 20],
        ['warm', 21, 30],
        ['hot', 31, 42],
      ],
    );
    assert.equal(readFileSync(at('out/events.jsonl'), 'utf8'), lines(events));
    assert.deepEqual(readdirSync(at('out')), ['events.jsonl']);
    const imported = await varve('import', at('out/events.jsonl'), '--hot', at('again'), '--blobs', at('bodies'));
    assert.equal(imported.code, 0, imported.stdout);
    const shown = await varve('show', id, '--hot', at('again'), '--format', 'jsonl');
    assert.equal(shown.stdout, lines(events));
    assert.equal((await varve('verify', '--hot', at('again'), '--deep')).code, 0);
  });

  it('takes beginnings of ids, many of them, and lists; prints, or writes a file for each', async () => {
    const some = [await write(3), await write(4), await write(5)];
    const ids = some.map(([first]) => first?.trajectory_id as TrajectoryId);
    await place.drain();
    writeFileSync(at('ids.txt'), `# two of them\n${ids[1]}\n\n${ids[2]}\n`);
    const printed = await varve('restore', ids[0] as string, '--out', '-', '--config', place.config);
    assert.deepEqual([printed.code, printed.stdout], [0, lines(some[0] ?? [])]);
    assert.match(printed.stderr, /3 events, 1 to 3/);
    mkdirSync(at('each'));
    const each = await run(ids[0] as string, '--from-file', at('ids.txt'), '--out', at('each'));
    assert.equal(each.code, 0);
    for (const [i, id] of ids.entries())
      assert.equal(readFileSync(at(`each/${id}.jsonl`), 'utf8'), lines(some[i] ?? []));
    const one = await run('--from-file', at('ids.txt'), '--out', at('one.jsonl'));
    assert.equal(one.code, 0);
    assert.equal(readFileSync(at('one.jsonl'), 'utf8'), lines([...(some[1] ?? []), ...(some[2] ?? [])]));
    const input = `${ids[2]}\n`;
    const args = ['restore', '--from-file', '-', '--out', '-', '--config', place.config];
    const piped = await runVarve(args, { cwd: place.temp.path, input });
    assert.deepEqual([piped.code, piped.stdout], [0, lines(some[2] ?? [])]);
    assert.equal((await run('ffff', '--out', at('none.jsonl'))).code, 2);
    assert.equal((await run(newTrajectoryId(), '--out', at('none.jsonl'))).code, 2);
    assert.ok(!existsSync(at('none.jsonl')));
  });

  it('replaces no file unless it is told to', async () => {
    const [first] = await write(2);
    const id = first?.trajectory_id as TrajectoryId;
    writeFileSync(at('mine.jsonl'), 'mine');
    const refused = await varve('restore', id, '--out', at('mine.jsonl'), '--config', place.config);
    assert.equal(refused.code, 2);
    assert.equal(readFileSync(at('mine.jsonl'), 'utf8'), 'mine');
    assert.equal((await run(id, '--out', at('mine.jsonl'), '--force')).code, 0);
    assert.equal(readFileSync(at('mine.jsonl'), 'utf8').split('\n').length, 3);
    assert.deepEqual(
      readdirSync(place.temp.path).filter((name) => name.endsWith('.tmp')),
      [],
    );
  });

  it('says which tier has what, and writes nothing, on a dry run', async () => {
    const { id } = await spread();
    const { code, stdout } = await varve('restore', id, '--dry-run', '--json', '--config', place.config);
    const [{ parts }] = (JSON.parse(stdout) as { trajectories: [{ parts: Report['restored'][0]['from'] }] })
      .trajectories;
    assert.equal(code, 0);
    assert.deepEqual(
      parts.map(({ tier, first, last }) => [tier, first, last]),
      [
        ['cold', 1, 20],
        ['warm', 21, 30],
        ['hot', 1, 42],
      ],
    );
    assert.match((await varve('restore', id, '--dry-run', '--config', place.config)).stdout, /cold +1 +20/);
  });

  it('builds a hot log with the same events and all bodies; again it changes nothing; it spoils no other log', async () => {
    const { id, events } = await spread();
    for (let i = 0; i < 2; i++) {
      const { code, report } = await run(id, '--into', at('fresh'));
      assert.deepEqual([code, report.failed], [0, []]);
      const shown = await varve('show', id, '--hot', at('fresh'), '--format', 'jsonl');
      assert.equal(shown.stdout, lines(events));
      const verified = await varve('verify', '--hot', at('fresh'), '--deep');
      assert.equal(verified.code, 0, verified.stdout);
    }
    {
      await using log = await HotLog.open(at('fresh'), SERVED);
      await log.append(id, event('Noted', { note: 'it goes on' }, 99));
    }
    const longer = await run(id, '--into', at('fresh'));
    assert.deepEqual([longer.code, /more than were found/.test(longer.report.failed[0]?.message ?? '')], [2, true]);
    const [other] = await write(3);
    const refused = await varve(
      'restore',
      other?.trajectory_id as string,
      '--into',
      at('fresh'),
      '--config',
      place.config,
    );
    assert.deepEqual([refused.code, /is another log: it has/.test(refused.stderr)], [2, true]);
    assert.equal((await varve('show', id, '--hot', at('fresh'), '--format', 'jsonl')).stdout.split('\n').length, 44);
    mkdirSync(at('folder'));
    writeFileSync(at('folder/letter.txt'), 'dear');
    const noLog = await varve('restore', id, '--into', at('folder'), '--config', place.config);
    assert.equal(noLog.code, 2, noLog.stderr);
  });

  it('finishes in a second run what a kill -9 cut off, wherever it hit', async function () {
    this.timeout(120_000);
    const { id, events } = await spread();
    const plan: RestorePlan = { config: place.config, names: [id], options: { into: at('fresh') } };
    let killed = 0;
    for (const failpoint of [
      'hot.open.after-create',
      'hot.blob.before-rename:3',
      'hot.commit.after-write:1',
      'hot.blob.after-rename:3',
      'hot.close.before-snapshot',
    ]) {
      await using child = Child.start('restore-child.ts', plan, { env: { VARVE_FAILPOINT: failpoint } });
      const { signal } = await child.exit();
      killed += Number(signal === 'SIGKILL');
    }
    assert.ok(killed >= 4, `${killed} kills`);
    assert.equal((await run(id, '--into', at('fresh'))).code, 0);
    assert.equal((await varve('show', id, '--hot', at('fresh'), '--format', 'jsonl')).stdout, lines(events));
    assert.equal((await varve('verify', '--hot', at('fresh'), '--deep')).code, 0);
  });

  it('restores the others where one trajectory is damaged, names what is, and ends with 5', async () => {
    const all = [1, 2, 3].map((n) => chain(idAt(n), [{ event_type: 'Noted', payload: { note: textOf(900, n) } }]));
    for (const events of all) await cold.keep(events);
    const snapshot = await cold.table.log.snapshot();
    const bad = [...snapshot.files.values()].find((file) => file.min_trajectory_id === idAt(2));
    const path = at(`cold/${parquetKey(bad?.stem ?? '')}`);
    const { row_groups } = await parquetMetadataAsync(await asyncBufferFromFile(path));
    const payload = row_groups[0]?.columns.find(
      ({ meta_data }) => meta_data?.path_in_schema[0] === 'payload',
    )?.meta_data;
    const bytes = readFileSync(path);
    const spot = Number(payload?.data_page_offset) + Math.floor(Number(payload?.total_compressed_size) / 2);
    bytes.writeUInt8(bytes.readUInt8(spot) ^ 1, spot);
    writeFileSync(path, bytes);
    const names = [1, 2, 3].map((n) => idAt(n));
    const { code, report } = await run(...names, '--out', at('all.jsonl'));
    assert.equal(code, 5);
    assert.deepEqual(
      report.failed.map(({ trajectory_id, code }) => [trajectory_id, code]),
      [[idAt(2), 'COLD_FILE_DIFFERS']],
    );
    assert.match(report.failed[0]?.message ?? '', new RegExp(`event 1 of ${idAt(2)} cannot be read from events/`));
    assert.equal(readFileSync(at('all.jsonl'), 'utf8'), lines([...(all[0] ?? []), ...(all[2] ?? [])]));
    rmSync(path);
    const missing = await run(...names, '--out', at('folder/'));
    assert.deepEqual([missing.code, missing.report.failed[0]?.code], [5, 'COLD_OBJECT_MISSING']);
    assert.deepEqual(readdirSync(at('folder')).toSorted(), [`${idAt(1)}.jsonl`, `${idAt(3)}.jsonl`]);
  });

  it('tells of a body that is nowhere: a loss beside JSONL, no log without it', async () => {
    const events = await write(8);
    const id = events[0]?.trajectory_id as TrajectoryId;
    await place.drain();
    const sha256 = stubsOf(events[6]?.payload ?? {})[0]?.sha256 as string;
    rmSync(at(`cold/${blobKey(sha256)}`));
    rmSync(at('hot'), { recursive: true });
    const beside = await run(id, '--out', at('a.jsonl'), '--blobs', at('bodies'));
    assert.equal(beside.code, 3);
    assert.match(beside.report.restored[0]?.losses.join() ?? '', new RegExp(`event 7.*${sha256}`));
    assert.equal(readFileSync(at('a.jsonl'), 'utf8'), lines(events));
    const into = await run(id, '--into', at('fresh'));
    assert.equal(into.code, 5);
    assert.match(into.report.failed[0]?.message ?? '', new RegExp(sha256));
  });

  it('passes an erased payload to JSONL as it is, and puts none into a log', async () => {
    const events = chain(
      idAt(1),
      [1, 2, 3].map((i) => ({ event_type: 'Noted', payload: { note: `note ${i}` } })),
    );
    const rows = events.map((one) => rowOf(one, PLACE));
    const erased = { ...(events[1] as TrajectoryEvent), payload: { $redacted: { run: 'r' } } };
    rows[1] = rowOf(erased, PLACE, { payload_sha256: rows[1]?.payload_sha256 ?? '', offloaded: null });
    await cold.table.add({ previous_hash: GENESIS, rows });
    const written = await run(idAt(1), '--out', at('a.jsonl'));
    assert.deepEqual([written.code, written.report.restored[0]?.erased], [0, 1]);
    assert.equal(readFileSync(at('a.jsonl'), 'utf8'), lines([events[0], erased, events[2]] as TrajectoryEvent[]));
    const into = await run(idAt(1), '--into', at('fresh'));
    assert.deepEqual([into.code, into.report.failed[0]?.code], [2, 'REDACTED_AT_DOOR']);
  });

  it('restores a trajectory far larger than memory within 300 MB', async function () {
    if (process.platform !== 'linux') skipAloud(this, 'the peak is read from /proc/self/status');
    this.timeout(modestOrSoak(180_000, 900_000));
    const count = modestOrSoak(130, 550);
    const parts = (i: number, chars: number) =>
      Array.from({ length: Math.floor(900_000 / chars) }, (_, n) => textOf(chars, i * 100 + n));
    const events = chain(
      idAt(1),
      // Some are rows of 900 KB, and of some the texts are blobs.
      Array.from({ length: count }, (_, i) => ({
        event_type: 'x.Large',
        payload: { parts: parts(i, i % 4 === 0 ? 60_000 : 10_000) },
      })),
    );
    await cold.keep(events);
    const wanted = events.map((one) => formatEventLine(one).length + 1).reduce((sum, length) => sum + length, 0);
    const script = compile('restore-child.ts', at('js'));
    const config = at('cold.json');
    writeFileSync(
      config,
      JSON.stringify({
        cold: { store: `file:${at('cold')}` },
        hot: { logs: at('no-log') },
        warm: { directory: at('no-warm') },
      }),
    );
    const peaks: Record<string, number> = { restore_mb: Math.round(wanted / 1e6) };
    for (const options of [{ out: at('large.jsonl') }, { into: at('fresh') }]) {
      const plan: RestorePlan = { config, names: [idAt(1)], options };
      await using child = Child.start(script, plan);
      const { code } = await child.exit(modestOrSoak(90_000, 400_000));
      assert.equal(code, 0, child.stderr);
      const [, exit, peak] = (child.lines.at(-1) ?? '').split(' ');
      assert.equal(exit, '0', child.lines.join('\n'));
      peaks[`restore_${'out' in options ? 'jsonl' : 'log'}_peak_mib`] = Math.round(Number(peak) / MIB);
      assert.ok(Number(peak) < 300_000_000, `${Math.round(Number(peak) / MIB)} MiB at its peak`);
    }
    assert.equal(readFileSync(at('large.jsonl')).byteLength, wanted);
    summarize(peaks);
  });
});
