/** Reading a trajectory over all tiers while it moves: every event once, in order, or an error that says what is wrong. */
import assert from 'node:assert/strict';
import { rmSync } from 'node:fs';
import { parquetKey } from '../../cold/table-keys.ts';
import { HotLog } from '../../hot/log.ts';
import { loadConfig } from '../../pipelines/config.ts';
import { TrajectoryReading } from '../../pipelines/read-trajectory.ts';
import { type Tier, Tiers } from '../../pipelines/tiers.ts';
import { isVarveError } from '../../schemas/errors.ts';
import { formatEventLine, type TrajectoryEvent } from '../../schemas/event.ts';
import { newTrajectoryId, type TrajectoryId } from '../../schemas/ids.ts';
import { KIB } from '../../schemas/limits.ts';
import { event } from '../hot/support/hot.ts';
import { ColdPlace } from '../support/cold-place.ts';
import { offloadedRun, textOf } from '../support/cold-rows.ts';
import { Random } from '../support/seed.ts';
import { exec } from '../support/sidecar-warm.ts';
import { Place, SERVED } from './support.ts';

const SIGNAL = new AbortController().signal;

describe('reading a trajectory', () => {
  let place: Place;
  let cold: ColdPlace;
  beforeEach(async () => {
    place = await Place.make('read');
    cold = await ColdPlace.open(place.temp.join('cold'), place.temp.join('scratch'));
  });
  afterEach(async () => {
    await cold[Symbol.asyncDispose]();
    await place[Symbol.asyncDispose]();
  });

  /** Appends notes to a log, and gives back all that it has of the trajectory. */
  async function write(
    id: TrajectoryId,
    notes: number,
    hot = place.hot,
    isFinished = false,
  ): Promise<TrajectoryEvent[]> {
    await using log = await HotLog.open(hot, SERVED);
    const next = (log.head(id)?.sequence_number ?? 0) + 1;
    for (let i = next; i < next + notes; i++) {
      const text = i % 10 === 0 ? textOf(20_000, i) : `note ${i}`;
      await log.append(id, event('Noted', { note: text, ['__proto__']: i }, i));
    }
    if (isFinished) await log.append(id, event('TaskFinished', { status: 'completed' }, next + notes));
    const events: TrajectoryEvent[] = [];
    for await (const one of log.read(id)) events.push(one);
    return events;
  }

  async function dropWarm(id: TrajectoryId, upTo = Number.MAX_SAFE_INTEGER): Promise<void> {
    const sql = `DELETE FROM trajectory_events WHERE trajectory_id = '${id}' AND sequence_number <= ${upTo}`;
    await exec(place.database.pool, sql);
  }

  /** @param meanwhile is called before each event is read on */
  async function read(
    id: TrajectoryId,
    options: { only?: Tier; logs?: string; meanwhile?: (seen: number) => Promise<void> } = {},
  ) {
    const { config } = await loadConfig({
      file: place.config,
      flags: options.logs === undefined ? {} : { 'hot.logs': options.logs },
    });
    await using tiers = await Tiers.open(config, options.only, SIGNAL);
    await tiers.resolve([id], SIGNAL);
    const reading = new TrajectoryReading(tiers, id, SIGNAL);
    const lines: string[] = [];
    let error: unknown;
    try {
      for await (const one of reading) {
        lines.push(formatEventLine(one));
        await options.meanwhile?.(lines.length);
      }
    } catch (thrown) {
      error = thrown;
    }
    const parts = reading.parts.map(({ tier, first, last }) => `${tier} ${first}-${last}`);
    return { lines, parts, losses: reading.losses, error };
  }

  function assertSame(lines: readonly string[], events: readonly TrajectoryEvent[]): void {
    const wanted = events.map(formatEventLine);
    assert.deepEqual(
      lines.map((_, i) => i).filter((i) => lines[i] !== wanted[i]),
      [],
      'other events',
    );
    assert.equal(lines.length, wanted.length);
  }

  it('takes what is in cold, then warm, then hot, as one chain, byte for byte', async () => {
    const id = newTrajectoryId();
    await write(id, 80);
    await place.drain();
    const events = await write(id, 40);
    await cold.keep(events, 1, 30);
    await cold.keep(events, 31, 50);
    const { lines, parts, losses, error } = await read(id);
    assert.ifError(error);
    assertSame(lines, events);
    assert.deepEqual([parts, losses], [['cold 1-50', 'warm 51-80', 'hot 81-120'], []]);
    for (const [only, first, last] of [
      ['cold', 1, 50],
      ['warm', 1, 80],
      ['hot', 1, 120],
    ] as const) {
      const one = await read(id, { only });
      assert.deepEqual(one.parts, [`${only} ${first}-${last}`]);
      assertSame(one.lines, events.slice(0, last));
    }
  });

  it('goes on in cold where its rows vanish from warm between two pages', async () => {
    const id = newTrajectoryId();
    const events = await write(id, 200);
    await place.drain();
    const meanwhile = async (seen: number) => {
      if (seen !== 70) return;
      await cold.keep(events);
      await dropWarm(id);
    };
    const { lines, parts, losses, error } = await read(id, { meanwhile, logs: place.temp.join('none') });
    assert.ifError(error);
    assertSame(lines, events);
    assert.deepEqual([parts, losses], [['warm 1-128', 'cold 129-200'], []]);
  });

  it('finds its events again where the files of its snapshot are rewritten under it', async () => {
    const id = newTrajectoryId();
    const events = await write(id, 40);
    await cold.keep(events, 1, 25);
    await cold.keep(events, 26, 40);
    const { run } = offloadedRun(events, 16 * KIB);
    const meanwhile = async (seen: number) => {
      if (seen === 10) await cold.rewrite(run);
    };
    const { lines, parts, error } = await read(id, { meanwhile, only: 'cold' });
    assert.ifError(error);
    assertSame(lines, events);
    assert.deepEqual(parts, ['cold 1-40']);
    const [file] = (await cold.table.log.snapshot()).files.values();
    rmSync(place.temp.join('cold', parquetKey(file?.stem ?? '')));
    const missing = await read(id, { only: 'cold' });
    assert.ok(isVarveError(missing.error, 'COLD_OBJECT_MISSING'), String(missing.error));
  });

  it('goes on in warm where hot trims what it was about to read', async () => {
    const id = newTrajectoryId();
    await write(id, 50);
    await place.drain();
    const events = await write(id, 30, place.hot, true);
    const meanwhile = async (seen: number) => {
      if (seen !== 20) return;
      await place.drain();
      await using log = await HotLog.open(place.hot, { ...SERVED, retention: { trimAfterMs: 0 } });
      if (log.acked !== undefined) await log.acknowledge(log.acked);
      assert.ok((await log.trim()).events > 0);
    };
    const { lines, parts, error } = await read(id, { meanwhile });
    assert.ifError(error);
    assertSame(lines, events);
    assert.deepEqual(parts, ['warm 1-81']);
  });

  it('reads the same events whatever moves meanwhile', async () => {
    for (let seed = 1; seed <= 4; seed++) {
      const random = new Random(seed);
      const id = newTrajectoryId();
      const events = await write(id, 150);
      let inCold = 0;
      let inWarm = 0;
      const move = async () => {
        const what = random.between(0, 2);
        if (what === 0) {
          await place.drain();
          inWarm = events.length;
        } else if (what === 1 && inWarm > inCold) {
          const upTo = random.between(inCold + 1, inWarm);
          await cold.keep(events, inCold + 1, upTo);
          inCold = upTo;
        } else if (inCold > 0) await dropWarm(id, inCold);
      };
      await move();
      const meanwhile = async (seen: number) => {
        if (seen % 23 === 0) await move();
      };
      const { lines, losses, error } = await read(id, { meanwhile });
      assert.ifError(error);
      assertSame(lines, events);
      assert.deepEqual(losses, []);
    }
  });

  it('names the events that no tier has, and never passes over them in silence', async () => {
    const id = newTrajectoryId();
    const events = await write(id, 40);
    await place.drain();
    const none = { logs: place.temp.join('none') };
    await exec(place.database.pool, `DELETE FROM trajectory_events WHERE sequence_number BETWEEN 11 AND 20`);
    const gap = await read(id, none);
    assert.ok(isVarveError(gap.error, 'TRAJECTORY_GAP'), String(gap.error));
    assert.deepEqual([gap.error.details['first'], gap.error.details['last']], [11, 20]);
    assertSame(gap.lines, events.slice(0, 10));
    await dropWarm(id, 10);
    const start = await read(id, none);
    assert.ifError(start.error);
    assertSame(start.lines, events.slice(20));
    assert.match(start.losses.join(), /events 1 to 20/);
    // The log still has them.
    const whole = await read(id, { logs: place.hot, only: 'hot' });
    assertSame(whole.lines, events);
  });

  it('names tier and event where warm has other bytes than were appended', async () => {
    const id = newTrajectoryId();
    await write(id, 9);
    await place.drain();
    await exec(
      place.database.pool,
      `UPDATE trajectory_events SET payload = '{"note":"bent"}' WHERE sequence_number = 5`,
    );
    const { lines, error } = await read(id);
    assert.ok(isVarveError(error, 'TRAJECTORY_BROKEN'), String(error));
    assert.deepEqual([lines.length, error.details['sequence_number'], error.details['where']], [4, 5, 'warm']);
  });

  it('sets a log aside that went another way, aloud, and takes no side between two logs', async () => {
    const id = newTrajectoryId();
    const other = place.temp.join('hot-b');
    const first = await write(id, 5);
    {
      await using log = await HotLog.open(other, SERVED);
      await log.appendRecorded(id, first);
    }
    const events = await write(id, 5);
    await write(id, 9, other);
    const logs = place.temp.join('hot*');
    const undecided = await read(id, { logs });
    assert.ok(isVarveError(undecided.error, 'TRAJECTORY_FORK'), String(undecided.error));
    await place.drain();
    const decided = await read(id, { logs });
    assert.ifError(decided.error);
    assertSame(decided.lines, events);
    assert.match(decided.losses.join(), /hot-b has events up to 14 that do not belong to it/);
  });

  it('knows no trajectory that is nowhere', async () => {
    await write(newTrajectoryId(), 1);
    const { error } = await read(newTrajectoryId());
    assert.ok(isVarveError(error, 'INVALID_OPTION'));
  });
});
