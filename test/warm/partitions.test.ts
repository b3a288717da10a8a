/** Partitions by the day in a trajectory's id: whatever the id and the clock, a legal event finds its place. */
import assert from 'node:assert/strict';
import * as fc from 'fast-check';
import { ensureDaysAhead, ensurePartition } from '../../warm/event-rows.ts';
import { Ingest } from '../../warm/ingest.ts';
import { openPool, transaction, type WarmPool } from '../../warm/pool.ts';
import { createDatabase, type TestDatabase } from '../support/postgres.ts';
import { runs } from '../support/property.ts';
import { Chain, Feed, idAt, ScriptLog } from '../support/sidecar-script.ts';
import { assertHolds, exec, heldLines, select, selectOne, warmRows } from '../support/sidecar-warm.ts';

const DAY_MS = 86_400_000;
const TODAY_MS = Date.UTC(2026, 2, 10);

type Partition = { readonly name: string; readonly lower_id: string; readonly upper_id: string };

describe('warm/partitions', () => {
  let database: TestDatabase;
  let pool: WarmPool;

  beforeEach(async () => {
    database = await createDatabase();
    pool = database.pool;
    // As a database that was made that day.
    await clockAt(TODAY_MS + DAY_MS / 2);
    for (const { name } of await partitions()) if (name !== 'trajectory_events_early') await drop(name);
    await transaction(pool, (tx) => ensureDaysAhead(tx, 2));
  });
  afterEach(async () => await database[Symbol.asyncDispose]());

  async function clockAt(ms: number): Promise<void> {
    const time = new Date(ms).toISOString();
    await exec(
      pool,
      `CREATE OR REPLACE FUNCTION varve_now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT '${time}'::timestamptz $$`,
    );
  }

  function partitions(): Promise<Partition[]> {
    return select(pool, 'SELECT name, lower_id, upper_id FROM event_partitions ORDER BY lower_id');
  }

  async function drop(name: string): Promise<void> {
    await exec(
      pool,
      `ALTER TABLE trajectory_events DETACH PARTITION ${name}; DROP TABLE ${name};
       DELETE FROM event_partitions WHERE name = '${name}'`,
    );
  }

  /** What the catalogue says is what is attached, and nothing overlaps. */
  async function assertConsistent(): Promise<void> {
    const known = await partitions();
    for (const [i, { lower_id }] of known.entries()) {
      assert.ok(i === 0 || lower_id >= (known[i - 1] as Partition).upper_id, known.map(({ name }) => name).join());
    }
    const attached = await select<{ name: string }>(
      pool,
      `SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhparent = 'trajectory_events'::regclass`,
    );
    assert.deepEqual(attached.map(({ name }) => name).toSorted(), known.map(({ name }) => name).toSorted());
  }

  async function ingest(...chains: readonly Chain[]): Promise<Feed> {
    const log = new ScriptLog().add(...chains.flatMap(({ events }) => events));
    const { ingest } = await Ingest.open(pool, log.identity);
    const feed = new Feed(log, ingest);
    await feed.apply();
    return feed;
  }

  it('take ids from 1970, from 2015, from any month since, from today and the next hours', async () => {
    const times = [
      0,
      1,
      Date.UTC(1999, 11, 31, 23, 59, 59, 999),
      Date.UTC(2014, 11, 31, 23, 59, 59, 999),
      Date.UTC(2015, 0, 1),
      Date.UTC(2015, 0, 1) + 1,
      Date.UTC(2024, 1, 29, 12),
      Date.UTC(2024, 1, 29, 23, 59, 59, 999),
      Date.UTC(2024, 2, 1),
      TODAY_MS - DAY_MS - 1,
      TODAY_MS - DAY_MS,
      TODAY_MS - 1,
      TODAY_MS,
      TODAY_MS + DAY_MS / 2 + 3_600_000,
      TODAY_MS + DAY_MS,
      TODAY_MS + 1.5 * DAY_MS,
    ];
    const chains = times.map((ms) => new Chain(idAt(ms)).grow(2));
    await ingest(...chains);
    await assertHolds(
      pool,
      chains.flatMap(({ events }) => events),
    );
    assert.deepEqual(await heldLines(pool), []);
    await assertConsistent();
  });

  it('are not made for ids over a day ahead: those are poison, and nothing else of the batch', async () => {
    const ahead = [TODAY_MS + 1.5 * DAY_MS + 1, Date.UTC(2100, 0, 1), 2 ** 48 - 1].map((ms) =>
      new Chain(idAt(ms)).grow(2),
    );
    const good = new Chain(idAt(TODAY_MS)).grow(2);
    const before = await partitions();
    await ingest(...ahead, good);
    await assertHolds(pool, good.events);
    const held = ahead.flatMap(({ events }) =>
      events.map((event) => `${event.trajectory_id} ${event.sequence_number} poison`),
    );
    assert.deepEqual((await heldLines(pool)).toSorted(), held.toSorted());
    assert.deepEqual(await partitions(), before);
  });

  it('are the same however ids, days and makers come: nothing overlaps, nothing is left without a place', async () => {
    const anyStep = fc.oneof(
      {
        weight: 4,
        arbitrary: fc.integer({ min: 0, max: TODAY_MS + DAY_MS }).map((ms) => ({ kind: 'id', ms }) as const),
      },
      {
        weight: 6,
        arbitrary: fc
          .integer({ min: -70 * 24, max: 24 })
          .map((hours) => ({ kind: 'id', ms: TODAY_MS + hours * 3_600_000 }) as const),
      },
      { weight: 1, arbitrary: fc.integer({ min: -40, max: 40 }).map((days) => ({ kind: 'clock', days }) as const) },
      { weight: 1, arbitrary: fc.nat(30).map((n) => ({ kind: 'drop', n }) as const) },
    );
    const property = fc.asyncProperty(fc.array(anyStep, { minLength: 2, maxLength: 14 }), async (steps) => {
      let now = TODAY_MS + DAY_MS / 2;
      for (const step of steps) {
        switch (step.kind) {
          case 'id': {
            const id = idAt(Math.min(step.ms, now + DAY_MS));
            const name = await transaction(pool, (tx) => ensurePartition(tx, id));
            const known = (await partitions()).find((partition) => partition.lower_id <= id && id < partition.upper_id);
            assert.equal(known?.name, name);
            break;
          }
          case 'clock':
            now = TODAY_MS + DAY_MS / 2 + step.days * DAY_MS;
            await clockAt(now);
            await transaction(pool, (tx) => ensureDaysAhead(tx, 3));
            break;
          case 'drop': {
            const all = await partitions();
            await drop((all[step.n % all.length] as Partition).name);
            break;
          }
        }
        await assertConsistent();
      }
    });
    await fc.assert(property, runs(8));
  });

  it('are made once by many that want them at once, while events of that day arrive', async () => {
    await using many = await openPool(database.url, { max: 6 });
    const midnight = TODAY_MS + 3 * DAY_MS;
    await clockAt(midnight - 5);
    const chains = Array.from({ length: 12 }, (_, i) => new Chain(idAt(midnight - 6 + i)).grow(3));
    const logs = chains.map((chain) => new ScriptLog().add(...chain.events));
    const feeds = await Promise.all(
      logs.map(async (log) => new Feed(log, (await Ingest.open(many, log.identity)).ingest)),
    );
    const makers = Array.from({ length: 4 }, () => transaction(many, (tx) => ensureDaysAhead(tx, 3)));
    const first = feeds.map((feed) => feed.apply(1));
    await clockAt(midnight + 5);
    await Promise.all([...makers, ...first]);
    await Promise.all(feeds.map((feed) => feed.apply()));
    await assertHolds(
      pool,
      chains.flatMap(({ events }) => events),
    );
    await assertConsistent();
  });

  it('that were dropped are made again, empty, for a late event of their day', async () => {
    const [early, old] = [
      new Chain(idAt(Date.UTC(2013, 4, 1))).grow(3),
      new Chain(idAt(TODAY_MS - 40 * DAY_MS)).grow(3),
    ];
    const today = new Chain(idAt(TODAY_MS)).grow(3);
    const feed = await ingest(early, old, today);
    const late = [idAt(Date.UTC(2013, 4, 1, 1)), idAt(TODAY_MS - 40 * DAY_MS + 1), idAt(TODAY_MS + 1)].map((id) =>
      new Chain(id).grow(2),
    );
    for (const { name } of await partitions()) await drop(name);
    // The same process, which knows of partitions that are gone: new trajectories, and old ones that go on.
    feed.log.add(...late.flatMap(({ events }) => events));
    for (const chain of [early, old, today]) feed.log.add(chain.add());
    await feed.apply(3);
    await feed.apply();
    const expected = [...late.flatMap(({ events }) => events), early.at(4), old.at(4), today.at(4)];
    const rows = await warmRows(pool);
    assert.deepEqual(
      rows.map((row) => row.cryptographic_hash).toSorted(),
      expected.map((event) => event.cryptographic_hash).toSorted(),
    );
    await assertConsistent();
  });

  it('of the next days are there ahead of time, and counted', async () => {
    for (const days of [2, 7, 7, 3]) {
      const ahead = await transaction(pool, (tx) => ensureDaysAhead(tx, days));
      assert.equal(ahead, Math.max(days, (await partitions()).length - 2));
    }
    await clockAt(TODAY_MS + 8 * DAY_MS);
    assert.equal(await transaction(pool, (tx) => ensureDaysAhead(tx, 2)), 2);
    await assertConsistent();
  });

  it('prune: a query by id or by day looks at one of them', async () => {
    const chain = new Chain(idAt(TODAY_MS)).grow(1);
    await ingest(chain, new Chain(idAt(TODAY_MS - 40 * DAY_MS)).grow(1));
    for (const where of [
      `trajectory_id = '${chain.id}'`,
      `trajectory_id >= varve_uuid_floor('2026-03-10') AND trajectory_id < varve_uuid_floor('2026-03-11')`,
    ]) {
      const lines = await select<{ 'QUERY PLAN': string }>(
        pool,
        `EXPLAIN SELECT * FROM trajectory_events WHERE ${where}`,
      );
      const scanned = new Set(
        lines.flatMap((line) => /trajectory_events_\w*\d{8}\b|_early\b/.exec(line['QUERY PLAN']) ?? []),
      );
      assert.equal(scanned.size, 1, lines.map((line) => line['QUERY PLAN']).join('\n'));
    }
    const time = await selectOne(pool, `SELECT varve_uuid_time('${chain.id}') AS time`);
    assert.deepEqual(time, { time: new Date(TODAY_MS).toISOString() });
  });
});
