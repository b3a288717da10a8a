/** Leases in SQL: who may write a trajectory, and that no token is ever given twice. */
import assert from 'node:assert/strict';
import * as fc from 'fast-check';
import { isVarveError } from '../../schemas/errors.ts';
import { newTrajectoryId } from '../../schemas/ids.ts';
import { Ingest } from '../../warm/ingest.ts';
import { openPool, statement, type WarmPool } from '../../warm/pool.ts';
import { createDatabase, type TestDatabase } from '../support/postgres.ts';
import { runs } from '../support/property.ts';
import { Chain, Feed, idAt, ScriptLog } from '../support/sidecar-script.ts';
import { exec, heldLines, selectOne, warmRows } from '../support/sidecar-warm.ts';

type Claim = {
  readonly granted: boolean;
  readonly fencing_token: number;
  readonly expires_at: string | null;
  readonly reason: string | null;
};

const CLAIM = statement<Claim>(
  'test.claim',
  `SELECT granted, fencing_token, expires_at, reason FROM lease_claim($1, $2, $3::interval, $4, decode($5, 'hex'))`,
);
const RENEW = statement<{ expires_at: string }>(
  'test.renew',
  `SELECT expires_at FROM lease_renew($1, $2, $3, $4::interval)`,
);
const RELEASE = statement<{ released: boolean }>('test.release', `SELECT lease_release($1, $2, $3) AS released`);
const CLOCK_MS = Date.UTC(2026, 0, 1);
const GENESIS = '0'.repeat(64);

describe('warm/leases', () => {
  let database: TestDatabase;
  let pool: WarmPool;

  beforeEach(async () => {
    database = await createDatabase();
    pool = database.pool;
    await clockAt('2026-01-01 00:00:00+00');
  });
  afterEach(async () => await database[Symbol.asyncDispose]());

  async function clockAt(time: string, on: WarmPool = pool): Promise<void> {
    await exec(
      on,
      `CREATE OR REPLACE FUNCTION varve_now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT '${time}'::timestamptz $$`,
    );
  }

  async function claim(id: string, holder: string, sequence = 0, hash = GENESIS, on: WarmPool = pool): Promise<Claim> {
    const [row] = await on.lend((session) => session.query(CLAIM, [id, holder, '1 minute', sequence, hash]));
    return row as Claim;
  }

  async function renew(id: string, holder: string, token: number): Promise<string | undefined> {
    const rows = await pool.lend((session) => session.query(RENEW, [id, holder, token, '1 minute']));
    return rows[0]?.expires_at;
  }

  async function release(id: string, holder: string, token: number): Promise<boolean | undefined> {
    const rows = await pool.lend((session) => session.query(RELEASE, [id, holder, token]));
    return rows[0]?.released;
  }

  it('are held by one until they expire, are renewed by who holds them, and released', async () => {
    const id = newTrajectoryId();
    const first = await claim(id, 'a');
    assert.deepEqual(first, {
      granted: true,
      fencing_token: Date.UTC(2026, 0, 1),
      expires_at: '2026-01-01T00:01:00.000Z',
      reason: null,
    });
    const held = await claim(id, 'b');
    assert.deepEqual(held, { ...first, granted: false, reason: 'held' });
    await clockAt('2026-01-01 00:00:50+00');
    assert.equal(await renew(id, 'b', first.fencing_token), undefined);
    assert.equal(await renew(id, 'a', first.fencing_token + 1), undefined);
    assert.equal(await renew(id, 'a', first.fencing_token), '2026-01-01T00:01:50.000Z');
    await clockAt('2026-01-01 00:01:50+00');
    assert.equal(await renew(id, 'a', first.fencing_token), undefined);
    const second = await claim(id, 'b');
    assert.deepEqual([second.granted, second.fencing_token > first.fencing_token], [true, true]);
    assert.equal(await release(id, 'a', first.fencing_token), false);
    assert.equal(await release(id, 'b', second.fencing_token), true);
    const third = await claim(id, 'a');
    assert.deepEqual([third.granted, third.fencing_token > second.fencing_token], [true, true]);
  });

  it('are refused to who has less than warm, or something else, and granted to who has more', async () => {
    const chain = new Chain(idAt(CLOCK_MS)).grow(5);
    const other = chain.fork(4).grow(1, { payload: { other: true } });
    const log = new ScriptLog().add(...chain.events);
    const { ingest } = await Ingest.open(pool, log.identity);
    await new Feed(log, ingest).apply();
    const at = (n: number, of = chain) => claim(chain.id, 'w', n, of.at(Math.min(n, of.length)).cryptographic_hash);
    assert.deepEqual([(await at(4)).reason, (await at(5, other)).reason], ['behind', 'behind']);
    assert.equal((await at(5)).granted, true);
    assert.equal((await at(6)).granted, true);
  });

  it('are refused where the claim leaves out what it must state', async () => {
    const id = newTrajectoryId();
    for (const args of [
      [null, '1 minute', 0, GENESIS],
      ['a', null, 0, GENESIS],
      ['a', '1 minute', null, GENESIS],
      ['a', '1 minute', 0, null],
    ]) {
      const claiming = pool.lend((session) => session.query(CLAIM, [id, ...args]));
      await assert.rejects(claiming, (error) => isVarveError(error, 'WARM_REFUSED_DATA'));
    }
  });

  it('of 20 that claim at once are granted to one', async () => {
    const id = newTrajectoryId();
    await using many = await openPool(database.url, { max: 20 });
    const claims = await Promise.all(Array.from({ length: 20 }, (_, i) => claim(id, `w${i}`, 0, GENESIS, many)));
    const granted = claims.filter((one) => one.granted);
    assert.equal(granted.length, 1);
    for (const one of claims) assert.equal(one.fencing_token, granted[0]?.fencing_token);
  });

  it('have tokens that only grow, whatever the clock does, whoever claims, renews and releases', async () => {
    const anyStep = fc.record({
      holder: fc.constantFrom('a', 'b', 'c'),
      what: fc.constantFrom('claim', 'claim', 'renew', 'release'),
      clock: fc.integer({ min: -120, max: 120 }),
    });
    const property = fc.asyncProperty(fc.array(anyStep, { minLength: 3, maxLength: 12 }), async (steps) => {
      const id = newTrajectoryId();
      const tokens: number[] = [];
      let seconds = 1_800_000_000;
      for (const { holder, what, clock } of steps) {
        seconds += clock;
        await clockAt(new Date(seconds * 1000).toISOString());
        const token = tokens.at(-1) ?? 0;
        if (what === 'renew') await renew(id, holder, token);
        else if (what === 'release') await release(id, holder, token);
        else {
          const { granted, fencing_token } = await claim(id, holder);
          if (granted) tokens.push(fencing_token);
        }
      }
      for (const [i, token] of tokens.entries()) assert.ok(i === 0 || token > (tokens[i - 1] as number), tokens.join());
    });
    await fc.assert(property, runs(12));
  });

  it('have tokens that a database restored from a backup does not give again', async () => {
    const id = newTrajectoryId();
    await claim(id, 'a');
    const name = `${database.name}_old`;
    const admin = await openPool(urlOf('postgres'), { max: 1 });
    try {
      await pool.close();
      await exec(admin, `CREATE DATABASE ${name} TEMPLATE ${database.name}`);
      await using here = await openPool(database.url, { max: 1 });
      await using restored = await openPool(urlOf(name), { max: 1 });
      const given: number[] = [];
      for (let second = 1; second <= 5; second++) {
        await clockAt(`2026-01-01 00:0${second}:00+00`, here);
        given.push((await claim(id, `w${second}`, 0, GENESIS, here)).fencing_token);
      }
      await clockAt('2026-01-01 00:06:00+00', restored);
      const { granted, fencing_token } = await claim(id, 'x', 0, GENESIS, restored);
      assert.equal(granted, true);
      assert.ok(fencing_token > Math.max(...given), `${fencing_token} after ${given.join()}`);
    } finally {
      await exec(admin, `DROP DATABASE IF EXISTS ${name} WITH (FORCE)`);
      await admin.close();
    }
  });

  function urlOf(name: string): string {
    const url = new URL(database.url);
    url.pathname = `/${name}`;
    return url.href;
  }

  it('fence lower tokens behind the stated head and nothing else, over several claims, in any order of arrival', async () => {
    for (const order of [
      [0, 1, 2],
      [2, 1, 0],
      [1, 0, 2],
    ]) {
      const shared = new Chain(idAt(CLOCK_MS)).grow(3);
      const origin = new ScriptLog().add(...shared.events);
      const first = await open(origin);
      await first.apply(2);
      await clockAt('2026-01-01 00:00:00+00');
      const one = await claim(shared.id, 'w1', 3, shared.at(3).cryptographic_hash);
      await clockAt('2026-01-01 01:00:00+00');
      const held = shared.fork(3);
      held.add({ fencing_token: one.fencing_token });
      held.grow(2);
      const two = await claim(shared.id, 'w2', 6, held.at(6).cryptographic_hash);
      const next = held.fork(6);
      next.add({ fencing_token: two.fencing_token });
      const stale = shared.fork(3).grow(4, { payload: { stale: true } });
      origin.add(...stale.part(4));
      const feeds = [
        first,
        await open(new ScriptLog().anchor(shared.at(3)).add(...held.part(4))),
        await open(new ScriptLog().anchor(held.at(6)).add(...next.part(7))),
      ];
      for (const i of order) await feeds[i]?.apply();
      const rows = await warmRows(pool, [shared.id]);
      assert.deepEqual(
        rows.map((row) => row.cryptographic_hash),
        next.events.map((event) => event.cryptographic_hash),
      );
      assert.deepEqual(
        (await heldLines(pool)).filter((line) => line.startsWith(shared.id)),
        [4, 5, 6, 7].map((n) => `${shared.id} ${n} fenced`),
      );
      const { n } = await selectOne<{ n: number }>(
        pool,
        `SELECT count(*) AS n FROM fences WHERE trajectory_id = '${shared.id}'`,
      );
      assert.equal(n, 2);
    }
  });

  it('fence a log in the midst of being followed, with the very next batch', async () => {
    const chain = new Chain(idAt(CLOCK_MS)).grow(12);
    const other = new Chain(idAt(CLOCK_MS)).grow(12);
    const log = new ScriptLog();
    for (let n = 1; n <= 12; n++) log.add(chain.at(n), other.at(n));
    const feed = await open(log);
    await feed.apply(4);
    await feed.apply(4);
    const prepared = log.batch(feed.ingest, 8, 12);
    assert.equal((await claim(chain.id, 'w', 5, chain.at(5).cryptographic_hash)).granted, true);
    assert.equal((await feed.ingest.apply(prepared)).kind, 'applied');
    feed.lsn = 12;
    await feed.apply();
    assert.equal((await warmRows(pool, [chain.id])).length, 5);
    assert.equal((await warmRows(pool, [other.id])).length, 12);
    assert.deepEqual(
      await heldLines(pool),
      [6, 7, 8, 9, 10, 11, 12].map((n) => `${chain.id} ${n} fenced`),
    );
  });

  it('of a trajectory that is claimed again and again keep a bounded number of fences', async () => {
    const chain = new Chain(idAt(CLOCK_MS));
    const log = new ScriptLog();
    const feed = await open(log);
    let token = 0;
    for (let i = 1; i <= 50; i++) {
      log.add(chain.add({ fencing_token: token }));
      await feed.apply();
      token = (await claim(chain.id, 'w', i, chain.at(i).cryptographic_hash)).fencing_token;
    }
    const { fences, newest } = await selectOne<{ fences: number; newest: number }>(
      pool,
      'SELECT count(*) AS fences, max(fencing_token) AS newest FROM fences',
    );
    assert.deepEqual([fences > 20, fences <= 33, newest], [true, true, token]);
    assert.deepEqual(await heldLines(pool), []);
  });

  async function open(log: ScriptLog): Promise<Feed> {
    const { ingest, cursor } = await Ingest.open(pool, log.identity);
    return new Feed(log, ingest, cursor.lsn);
  }
});
