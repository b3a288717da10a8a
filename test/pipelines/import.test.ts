/** `varve import` and `varve show --format jsonl`: what goes in comes out, byte for byte, and nothing is made worse. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { HotLog } from '../../hot/log.ts';
import type { JsonObject } from '../../schemas/canonical.ts';
import { formatEventLine, type TrajectoryEvent } from '../../schemas/event.ts';
import { newTrajectoryId, type TrajectoryId } from '../../schemas/ids.ts';
import { KIB } from '../../schemas/limits.ts';
import { event, SMALL } from '../hot/support/hot.ts';
import { runVarve, startVarve, varve } from '../support/cli.ts';
import { chained } from '../support/events.ts';
import { TempDirectory } from '../support/temp.ts';

type Report = {
  readonly appended: number;
  readonly to_append: number;
  readonly already_there: number;
  readonly bad_lines: number;
  readonly behind_bad_lines: number;
  readonly contradicted: readonly { readonly trajectory_id: string; readonly why: string }[];
  readonly bad: readonly { readonly file: string; readonly line: number; readonly why: string }[];
};

function notes(count: number, id = newTrajectoryId(), text = 'n'): TrajectoryEvent[] {
  return chained(
    Array.from({ length: count }, (_, i) => ({ event_type: 'Noted', payload: { note: `${text} ${i} \u0000 é` } })),
    id,
  );
}

function lines(events: readonly TrajectoryEvent[]): string {
  return events.map((one) => `${formatEventLine(one)}\n`).join('');
}

describe('varve import', () => {
  let temp: TempDirectory;
  beforeEach(() => {
    temp = new TempDirectory('import');
  });
  afterEach(() => temp[Symbol.dispose]());

  function file(name: string, text: string): string {
    writeFileSync(temp.join(name), text);
    return temp.join(name);
  }

  async function run(paths: readonly string[], ...flags: string[]): Promise<Report & { code: number }> {
    const { stdout, code, stderr } = await varve('import', ...paths, '--hot', temp.join('log'), '--json', ...flags);
    assert.notEqual(stdout, '', stderr);
    return { ...(JSON.parse(stdout) as Report), code };
  }

  async function stored(id: TrajectoryId): Promise<string> {
    return (await varve('show', id, '--hot', temp.join('log'), '--format', 'jsonl')).stdout;
  }

  it('reproduces every event and hash, and a second run appends nothing', async () => {
    const [a, b] = [notes(300), notes(5)];
    const mixed = a.flatMap((one, i) => (b[i] === undefined ? [one] : [one, b[i]]));
    const path = file('events.jsonl', lines(mixed));
    const first = await run([path]);
    assert.deepEqual([first.code, first.appended, first.already_there], [0, 305, 0]);
    assert.equal(await stored(a[0]?.trajectory_id as TrajectoryId), lines(a));
    const second = await run([path]);
    assert.deepEqual([second.code, second.appended, second.already_there], [0, 0, 305]);
  });

  it('goes on where a trajectory has grown, also when the same events come in several files', async () => {
    const events = notes(20);
    await run([file('a.jsonl', lines(events.slice(0, 8)))]);
    const grown = await run([file('b.jsonl', lines(events.slice(4, 15))), file('c.jsonl', lines(events))]);
    assert.deepEqual([grown.code, grown.appended], [0, 12]);
    assert.equal(await stored(events[0]?.trajectory_id as TrajectoryId), lines(events));
  });

  it('appends nothing of a trajectory that contradicts what is there, by name, and all of the others', async () => {
    const id = newTrajectoryId();
    const [there, other, good] = [notes(3, id), notes(9, id, 'other'), notes(4)];
    await run([file('a.jsonl', lines(there))]);
    const report = await run([
      file('b.jsonl', lines(notes(9, id).slice(3))),
      file('c.jsonl', lines([...other, ...good])),
    ]);
    assert.equal(report.code, 3);
    assert.deepEqual(
      report.contradicted.map(({ trajectory_id }) => trajectory_id),
      [id],
    );
    assert.equal(report.appended, 4);
    assert.equal(await stored(id), lines(there));
  });

  it('names bad lines by file and number, imports the rest, and ends with 3', async () => {
    const [a, b] = [notes(6), notes(3)];
    const broken = lines(a).split('\n');
    broken[3] = broken[3]?.replace('"turn":0', '"turn":1') ?? '';
    const path = file('events.jsonl', `not json\n${broken.join('\n')}\n${'x'.repeat(5 * 1024 * KIB)}\n${lines(b)}`);
    const report = await run([path]);
    assert.deepEqual([report.code, report.appended, report.bad_lines, report.behind_bad_lines], [3, 6, 3, 2]);
    assert.deepEqual(
      report.bad.map(({ line }) => line),
      [1, 5, 9],
    );
    assert.match(report.bad[1]?.why ?? '', /hash/);
    assert.match(report.bad[2]?.why ?? '', /bytes/);
    assert.equal(await stored(a[0]?.trajectory_id as TrajectoryId), lines(a.slice(0, 3)));
  });

  it('refuses an event whose predecessor is nowhere, and one whose content is not what its hash covers', async () => {
    const events = notes(4);
    const forged = { ...(events[0] as TrajectoryEvent), payload: { note: 'forged' } as JsonObject };
    assert.equal((await run([file('a.jsonl', lines(events.slice(1)))])).appended, 0);
    assert.equal((await run([file('b.jsonl', lines([forged]))])).bad_lines, 1);
  });

  it('a dry run checks everything and makes not even the log; a report lists it all', async () => {
    const path = file('events.jsonl', `${lines(notes(7))}{}\n`);
    const report = await run([path], '--dry-run', '--report', temp.join('report.json'));
    assert.deepEqual([report.code, report.to_append, report.appended], [3, 7, 0]);
    assert.throws(() => readFileSync(temp.join('log', 'log.json')));
    assert.equal((JSON.parse(readFileSync(temp.join('report.json'), 'utf8')) as Report).bad[0]?.line, 8);
  });

  it('brings offloaded bodies along from another log, and refuses the event without them', async () => {
    const id = newTrajectoryId();
    const body = 'long '.repeat(40_000);
    {
      await using log = await HotLog.open(temp.join('from'), SMALL);
      await log.append(id, event('ToolResult', { tool_call_id: 'c', output: body }));
      await log.append(id, event('Noted', { note: 'behind' }));
    }
    const { stdout } = await varve('show', id, '--hot', temp.join('from'), '--format', 'jsonl');
    const path = file('events.jsonl', stdout);
    const without = await run([path]);
    assert.deepEqual([without.code, without.appended], [3, 0]);
    assert.match(without.bad[0]?.why ?? '', /body/);
    assert.deepEqual((await run([path], '--blobs', temp.join('from'))).appended, 2);
    const verified = await varve('verify', '--hot', temp.join('log'), '--deep', '--json');
    assert.equal(verified.code, 0, verified.stdout);
    assert.match(verified.stdout, /"blobs":1/);
  });

  it('is refused by name while a worker has the log, for another format, and for a glob', async () => {
    const path = file('events.jsonl', lines(notes(1)));
    mkdirSync(temp.join('log'));
    {
      await using _log = await HotLog.open(temp.join('log'), { ...SMALL });
      assert.match((await varve('import', path, '--hot', temp.join('log'))).stderr, /HOT_LOCKED/);
    }
    const other = await varve('import', path, '--hot', temp.join('log'), '--format', 'openai');
    assert.deepEqual([other.code, /openai/.test(other.stderr)], [2, true]);
    assert.equal((await varve('import', path, '--hot', temp.join('*'))).code, 2);
  });

  it('goes on after kill -9, and ends with every event once', async () => {
    const events = notes(6000);
    const path = file('events.jsonl', lines(events));
    const child = startVarve(['import', path, '--hot', 'log'], { cwd: temp.path });
    const ended = once(child, 'close');
    while (!existsSync(temp.join('log', 'writer.json')) && child.exitCode === null) await sleep(5);
    await sleep(250);
    child.kill('SIGKILL');
    await ended;
    const { code, appended, already_there } = await run([path]);
    assert.deepEqual([code, appended + already_there], [0, 6000]);
    assert.equal(await stored(events[0]?.trajectory_id as TrajectoryId), lines(events));
  });

  it('takes standard input, and its exit code is that of the process', async () => {
    const events = notes(3);
    const ran = await runVarve(['import', '-', '--hot', 'log'], { cwd: temp.path, input: `${lines(events)}bad\n` });
    assert.equal(ran.code, 3, ran.stderr);
    assert.match(ran.stdout, /3 appended.*\n {2}-:4: /);
    assert.equal(await stored(events[0]?.trajectory_id as TrajectoryId), lines(events));
  });
});
