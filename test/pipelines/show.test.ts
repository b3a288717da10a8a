/** `varve show` and `varve tail`: what an agent did, from either tier and as it happens. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { HotLog } from '../../hot/log.ts';
import { TailReader } from '../../hot/tail-reader.ts';
import { parseEventLine } from '../../schemas/event.ts';
import { event } from '../hot/support/hot.ts';
import { startVarve, varve } from '../support/cli.ts';
import { damageLog, Place, SERVED, writeLog } from './support.ts';

type Shown = {
  readonly from: string;
  readonly totals: { readonly status: string; readonly events: number; readonly in_doubt: number };
  readonly turns: readonly {
    readonly turn: number;
    readonly entries: readonly {
      readonly sequence_number: number;
      readonly state?: string;
      readonly calls?: readonly { readonly tool_call_id: string; readonly state?: string }[];
      readonly texts: readonly {
        readonly name: string;
        readonly text?: string;
        readonly bytes: number;
        readonly cut?: true;
      }[];
    }[];
  }[];
};

describe('varve show', () => {
  let place: Place;
  beforeEach(async () => {
    place = await Place.make('show');
  });
  afterEach(() => place[Symbol.asyncDispose]());

  async function show(id: string, ...flags: string[]): Promise<Shown> {
    const { stdout, stderr, code } = await varve('show', id, '--json', '--config', place.config, ...flags);
    assert.equal(code, 0, stderr);
    return JSON.parse(stdout) as Shown;
  }

  it('shows turns in order, with the state of every intent and open call', async () => {
    const [id] = await writeLog(place.hot);
    const { turns, totals, from } = await show(id as string, '--hot');
    assert.equal(from, place.hot);
    assert.deepEqual(
      turns.map(({ turn, entries }) => [turn, entries.map((entry) => entry.sequence_number)]),
      [
        [0, [1, 2]],
        [1, [3, 4, 5, 6, 7]],
        [2, [8, 9]],
      ],
    );
    assert.deepEqual([totals.status, totals.events, totals.in_doubt], ['waiting_result', 9, 1]);
    const entries = turns.flatMap((turn) => turn.entries);
    assert.deepEqual([entries[4]?.state, entries[8]?.state], ['settled', 'in_doubt']);
    const calls = entries[7]?.calls?.map(({ tool_call_id, state }) => [tool_call_id, state]);
    assert.deepEqual(calls, [
      ['c2', 'in_doubt'],
      ['c3', 'not_sent'],
    ]);
  });

  it('concludes from warm only what warm can know: a call without an intent is in doubt', async () => {
    const [id] = await writeLog(place.hot);
    await place.drain();
    const { turns, from } = await show(id as string);
    assert.equal(from, 'warm');
    assert.equal(turns.at(-1)?.entries[0]?.calls?.[1]?.state, 'in_doubt');
  });

  it('shows the same events from both tiers, and looks in hot for what warm does not have', async () => {
    const [id] = await writeLog(place.hot);
    const before = await varve('show', id as string, '--format', 'jsonl', '--config', place.config);
    await place.drain();
    const after = await varve('show', id as string, '--format', 'jsonl', '--warm', '--config', place.config);
    assert.equal(before.stdout, after.stdout);
    assert.equal(after.stdout.split('\n').length, 10);
  });

  it('cuts long texts between code points, says how long they are, and shows all when asked', async () => {
    const [id] = await writeLog(place.hot);
    const output = (shown: Shown) => shown.turns[1]?.entries[3]?.texts[0];
    const cut = output(await show(id as string, '--hot'));
    assert.deepEqual([cut?.cut, cut?.bytes, cut?.text], [true, 8000, 'é'.repeat(1024)]);
    assert.equal(output(await show(id as string, '--hot', '--full'))?.text, 'é'.repeat(4000));
    const { stdout } = await varve('show', id as string, '--hot', place.hot);
    assert.match(stdout, /output \(the beginning of 8000 bytes; --full shows all\)/);
    assert.match(stdout, /\*\*IN DOUBT\*\*/);
    assert.match(stdout, /70 tokens in/);
  });

  it('shows what is whole of a damaged log, then names the damage and ends with 5', async () => {
    const [id] = await writeLog(place.hot, 40);
    damageLog(place.hot);
    const { code, stdout, stderr } = await varve('show', id as string, '--hot', place.hot, '--json');
    assert.equal(code, 5);
    assert.match(stderr, /is damaged at LSN/);
    assert.ok((JSON.parse(stdout) as Shown).turns.length > 0);
  });

  it('takes the beginning of an id where only one begins so, and names them where several do', async () => {
    const ids = await writeLog(place.hot, 2);
    const common = (ids[0] as string).split('').findIndex((char, i) => char !== ids[1]?.[i]);
    assert.equal((await show((ids[1] as string).slice(0, common + 1), '--hot')).totals.events, 9);
    for (const where of [['--hot'], []]) {
      const { code, stderr } = await varve(
        'show',
        (ids[0] as string).slice(0, common),
        '--config',
        place.config,
        ...where,
      );
      assert.deepEqual([code, stderr.includes(ids[0] as string) && stderr.includes(ids[1] as string)], [2, true]);
      await place.drain();
    }
    assert.equal((await varve('show', 'ffff', '--config', place.config)).code, 2);
  });
});

describe('varve tail', () => {
  let place: Place;
  beforeEach(async () => {
    place = await Place.make('tail');
  });
  afterEach(() => place[Symbol.asyncDispose]());

  it('prints each event once, beside a sidecar, over a change of writers, and ends on SIGINT', async () => {
    const [first] = await writeLog(place.hot);
    const child = startVarve(['tail', place.hot, '--from', '3', '--json'], { cwd: place.temp.path });
    let out = '';
    child.stdout.setEncoding('utf8').on('data', (text: string) => (out += text));
    const printed = () =>
      out
        .split('\n')
        .slice(0, -1)
        .map((line) => parseEventLine(line));
    const until = async (count: number) => {
      for (let waits = 0; printed().length < count && waits < 400; waits++)
        await new Promise((done) => setTimeout(done, 25));
      assert.equal(printed().length, count);
    };
    await until(7);
    {
      await using log = await HotLog.open(place.hot, SERVED);
      const sidecar = await TailReader.connect(place.hot);
      await log.append(first as never, event('Noted', { note: 'one' }, 2));
      await until(8);
      await sidecar.close();
    }
    {
      await using log = await HotLog.open(place.hot, SERVED);
      await log.append(first as never, event('Noted', { note: 'two' }, 2));
      await until(9);
      child.kill('SIGINT');
      const [code] = (await once(child, 'close')) as [number];
      assert.equal(code, 130);
    }
    assert.deepEqual(
      printed().map(({ sequence_number }) => sequence_number),
      [3, 4, 5, 6, 7, 8, 9, 10, 11],
    );
  });

  it('refuses what is no log', async () => {
    const { code, stderr } = await varve('tail', place.temp.path);
    assert.deepEqual([code, /HOT_NOT_A_LOG/.test(stderr)], [2, true]);
  });
});
