/** Batches against a real database: all of a batch or nothing, once, in order, byte for byte. */
import assert from 'node:assert/strict';
import * as fc from 'fast-check';
import type { Json, JsonObject } from '../../schemas/canonical.ts';
import { isVarveError, VarveError } from '../../schemas/errors.ts';
import { INITIAL_SUMMARY, step } from '../../schemas/summary.ts';
import { Ingest } from '../../warm/ingest.ts';
import type { WarmEvent } from '../../warm/ingest-plan.ts';
import { openPool, type WarmPool } from '../../warm/pool.ts';
import { anyObject } from '../support/events.ts';
import { createDatabase, type TestDatabase } from '../support/postgres.ts';
import { runs } from '../support/property.ts';
import { Chain, Feed, ScriptLog } from '../support/sidecar-script.ts';
import {
  assertHolds,
  exec,
  heldLines,
  quarantined,
  select,
  selectOne,
  textOf,
  warmRows,
} from '../support/sidecar-warm.ts';

const SECRET = 'hunter2';

describe('warm/ingest', () => {
  let database: TestDatabase;
  let pool: WarmPool;

  before(async () => {
    database = await createDatabase();
    pool = database.pool;
  });
  after(async () => await database[Symbol.asyncDispose]());
  afterEach(async () => {
    await exec(
      pool,
      `DROP TRIGGER IF EXISTS refuse ON trajectory_events; DROP FUNCTION IF EXISTS refuse;
       TRUNCATE trajectory_events, trajectories, cursors, quarantine, blocks, anchors, blob_refs, missing_records,
         leases, fences, cold_segments`,
    );
  });

  async function open(log: ScriptLog, on: WarmPool = pool): Promise<Feed> {
    const { ingest, cursor } = await Ingest.open(on, log.identity);
    return new Feed(log, ingest, cursor.lsn);
  }

  /** What PostgreSQL does before an event goes in. */
  async function beforeInsert(body: string): Promise<void> {
    await exec(
      pool,
      `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN ${body} RETURN NEW; END $$;
       CREATE TRIGGER refuse BEFORE INSERT ON trajectory_events FOR EACH ROW EXECUTE FUNCTION refuse()`,
    );
  }

  describe('a batch', () => {
    it('goes in whole, with heads, summaries and cursor, on the long way and on the short one', async () => {
      const chain = new Chain().grow(30);
      const other = new Chain().grow(30);
      const log = new ScriptLog();
      for (let n = 1; n <= 30; n++) log.add(chain.at(n), other.at(n));
      const feed = await open(log);
      for (const count of [3, 1, 17, 60]) await feed.apply(count);
      await assertHolds(pool, [...chain.events, ...other.events]);
      const cursor = await selectOne<{ lsn: number; hash: string; durable_lsn: number }>(
        pool,
        `SELECT lsn, encode(hash, 'hex') AS hash, durable_lsn FROM cursors`,
      );
      assert.deepEqual(cursor, { ...log.cursorAt(60), durable_lsn: 60 });
      const row = await selectOne<{ summary: unknown }>(
        pool,
        `SELECT summary FROM trajectories WHERE trajectory_id = '${chain.id}'`,
      );
      assert.deepEqual(row.summary, step(INITIAL_SUMMARY, chain.events));
    });

    it('sent twice changes nothing, and tells where the log goes on', async () => {
      const chain = new Chain().grow(9);
      const log = new ScriptLog().add(...chain.events);
      const feed = await open(log);
      const batch = log.batch(feed.ingest, 0);
      assert.equal((await feed.ingest.apply(batch)).kind, 'applied');
      assert.deepEqual(await feed.ingest.apply(batch), { kind: 'moved', cursor: log.cursorAt(9) });
      await assertHolds(pool, chain.events);
    });

    it('from two processes at once goes in once', async () => {
      const chains = Array.from({ length: 8 }, () => new Chain().grow(25));
      const log = new ScriptLog();
      for (let n = 1; n <= 25; n++) log.add(...chains.map((chain) => chain.at(n)));
      await using other = await openPool(database.url, { max: 2 });
      let applied = 0;
      await Promise.all(
        [pool, other].map(async (on) => {
          const { ingest } = await open(log, on);
          for (let at = 0; at < log.lsn; ) {
            const outcome = await ingest.apply(log.batch(ingest, at, Math.min(log.lsn, at + 10)));
            if (outcome.kind === 'applied') applied += 1;
            at = outcome.kind === 'applied' ? at + 10 : outcome.cursor.lsn;
          }
        }),
      );
      assert.equal(applied, log.lsn / 10);
      await assertHolds(
        pool,
        chains.flatMap(({ events }) => events),
      );
    });

    it('whose connection dies in the middle leaves nothing, and goes in at the next try', async () => {
      const chain = new Chain().grow(40);
      const log = new ScriptLog().add(...chain.events);
      const feed = await open(log);
      for (const at of [7, 22]) {
        await beforeInsert(
          `IF NEW.sequence_number = ${at} THEN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); END IF;`,
        );
        const before = feed.lsn;
        await assert.rejects(feed.apply(at), (error) => isVarveError(error, 'WARM_UNAVAILABLE'));
        assert.equal((await warmRows(pool)).length, before);
        await exec(pool, 'DROP TRIGGER refuse ON trajectory_events; DROP FUNCTION refuse');
        await feed.apply(at - before);
        assert.equal((await warmRows(pool)).length, at);
      }
      await feed.apply();
      await assertHolds(pool, chain.events);
    });

    it('whose commit has an unknown outcome is found where it took place, and goes in where it did not', async () => {
      const chain = new Chain().grow(6);
      const log = new ScriptLog().add(...chain.events);
      const feed = await open(log);
      await exec(
        pool,
        `CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER die AFTER UPDATE ON cursors DEFERRABLE INITIALLY DEFERRED
           FOR EACH ROW EXECUTE FUNCTION die()`,
      );
      for (const count of [2, 3]) {
        await assert.rejects(feed.apply(count), (error) => isVarveError(error) && error.retry);
      }
      await exec(pool, 'DROP TRIGGER die ON cursors; DROP FUNCTION die');
      assert.equal((await warmRows(pool)).length, 0);
      const batch = log.batch(feed.ingest, 0, 4);
      assert.equal((await feed.ingest.apply(batch)).kind, 'applied');
      // As if the answer had been lost: the same batch again.
      assert.deepEqual(await feed.ingest.apply(batch), { kind: 'moved', cursor: log.cursorAt(4) });
      feed.lsn = 4;
      await feed.apply();
      await assertHolds(pool, chain.events);
    });

    it('of which PostgreSQL silently drops a row is not taken for replicated', async () => {
      const chain = new Chain().grow(5);
      const log = new ScriptLog().add(...chain.events);
      const feed = await open(log);
      await feed.apply(1);
      await beforeInsert('IF NEW.sequence_number = 3 THEN RETURN NULL; END IF;');
      await assert.rejects(feed.apply(), (error) => isVarveError(error, 'WARM_CONFLICT'));
      await exec(pool, 'DROP TRIGGER refuse ON trajectory_events');
      await feed.apply();
      await assertHolds(pool, chain.events);
    });

    for (const [sqlstate, code] of [
      ['40001', 'WARM_CONFLICT'],
      ['40P01', 'WARM_CONFLICT'],
      ['57P01', 'WARM_UNAVAILABLE'],
      ['53100', 'WARM_DISK_FULL'],
      ['53300', 'WARM_OVERLOADED'],
      ['55P03', 'WARM_LOCKED'],
    ] as const) {
      it(`that fails with ${sqlstate} is reported as ${code} and leaves nothing`, async () => {
        const chain = new Chain().grow(4, { payload: { password: SECRET } });
        const log = new ScriptLog().add(...chain.events);
        const feed = await open(log);
        for (const done of [0, 2]) {
          await beforeInsert(`RAISE EXCEPTION 'row % refused', NEW.payload::text USING ERRCODE = '${sqlstate}';`);
          await assert.rejects(feed.apply(2), (error) => {
            assert.ok(error instanceof VarveError);
            assert.deepEqual([error.code, error.retry], [code, true]);
            return true;
          });
          assert.equal((await warmRows(pool)).length, done);
          await exec(pool, 'DROP TRIGGER refuse ON trajectory_events; DROP FUNCTION refuse');
          await feed.apply(2);
        }
        await assertHolds(pool, chain.events);
      });
    }

    it('finds its trajectories moved by another log since it was prepared, and is planned again', async () => {
      const chain = new Chain().grow(12);
      const a = new ScriptLog()
        .add(...chain.part(1, 4))
        .anchor(chain.at(8))
        .add(...chain.part(9));
      const b = new ScriptLog().anchor(chain.at(4)).add(...chain.part(5, 8));
      const feed = await open(a);
      const other = await open(b);
      await feed.apply(2);
      const first = a.batch(feed.ingest, 2, 4);
      const second = a.batch(feed.ingest, 4, 7);
      assert.equal((await feed.ingest.apply(first)).kind, 'applied');
      await other.apply(3);
      assert.equal((await feed.ingest.apply(second)).kind, 'applied');
      await other.apply();
      feed.lsn = 7;
      await feed.apply();
      await assertHolds(pool, chain.events);
      assert.deepEqual(await heldLines(pool), []);
    });

    it('of logs that share trajectories goes in whole and in order, whatever the interleaving', async () => {
      const anyPlan = fc.record({
        stays: fc.array(fc.integer({ min: 1, max: 5 }), { minLength: 2, maxLength: 6 }),
        sizes: fc.array(fc.integer({ min: 1, max: 4 }), { minLength: 3, maxLength: 3 }),
      });
      const property = fc.asyncProperty(fc.array(anyPlan, { minLength: 1, maxLength: 3 }), async (plans) => {
        const logs = [new ScriptLog(), new ScriptLog(), new ScriptLog()];
        const chains = plans.map(({ stays }, p) => {
          const chain = new Chain();
          for (const [i, length] of stays.entries()) {
            const log = logs[(p + i) % 3] as ScriptLog;
            if (i > 0) log.anchor(chain.at(chain.length));
            log.add(...chain.grow(length).part(chain.length - length + 1));
          }
          return chain;
        });
        // Three sidecars at once: who is first is up to the machine.
        await Promise.all(
          logs.map(async (log, l) => {
            const feed = await open(log);
            while (feed.lsn < log.lsn) await again(() => feed.apply(plans[0]?.sizes[l] ?? 1));
          }),
        );
        for (const { id, events } of chains) {
          const rows = await warmRows(pool, [id]);
          assert.deepEqual(
            rows.map((row) => row.cryptographic_hash),
            events.map((event) => event.cryptographic_hash),
          );
        }
        assert.deepEqual(await heldLines(pool), []);
      });
      await fc.assert(property, runs(12));
    });
  });

  /** As a pipeline would. */
  async function again<T>(work: () => Promise<T>): Promise<T> {
    for (;;) {
      try {
        return await work();
      } catch (error) {
        if (!isVarveError(error) || !error.retry) throw error;
      }
    }
  }

  describe('quarantine', () => {
    it('takes the second log of a fork from the other event on, in order, and lets everything else go on', async () => {
      const first = new Chain().grow(9);
      const second = first.fork(6);
      second.add({ payload: { other: true } });
      second.grow(3);
      const elsewhere = new Chain().grow(4);
      const a = await open(new ScriptLog().add(...first.events));
      const b = await open(new ScriptLog().add(...second.part(1, 8), ...elsewhere.events, ...second.part(9)));
      await a.apply();
      const counts = await b.apply(5);
      assert.equal(counts.duplicates, 5);
      await b.apply(2);
      await b.apply();
      await assertHolds(pool, [...first.events, ...elsewhere.events]);
      const rows = await quarantined(pool);
      assert.deepEqual(
        rows.map((row) => [row.sequence_number, row.reason, row.state, row.cryptographic_hash, row.payload.toString()]),
        second
          .part(7)
          .map((event) => [
            event.sequence_number,
            'fork',
            'held',
            event.cryptographic_hash,
            Buffer.from(event.payload_bytes).toString(),
          ]),
      );
      // The first log goes on.
      a.log.add(...first.grow(2).part(10));
      await a.apply();
      await assertHolds(pool, [...first.events, ...elsewhere.events]);
    });

    it('takes what PostgreSQL refuses and all behind it in order, and nothing else of the batch', async () => {
      const good = new Chain().grow(20);
      const bad = new Chain().grow(20, { payload: { password: SECRET } });
      const log = new ScriptLog();
      for (let n = 1; n <= 20; n++) log.add(good.at(n), bad.at(n));
      const feed = await open(log);
      await beforeInsert(
        `IF NEW.trajectory_id = '${bad.id}' AND NEW.sequence_number IN (8, 11) THEN
           RAISE EXCEPTION 'no %', NEW.payload::text USING ERRCODE = '22P05'; END IF;`,
      );
      await feed.apply(6);
      await feed.apply();
      await assertHolds(pool, [...good.events, ...bad.part(1, 7)]);
      const rows = await quarantined(pool);
      assert.deepEqual(
        rows.map((row) => [row.sequence_number, row.reason]),
        bad.part(8).map((event) => [event.sequence_number, 'poison']),
      );
      assert.equal(rows[0]?.sqlstate, '22P05');
      assert.ok(rows.every(({ detail }) => !detail.includes(SECRET)));
    });

    it('takes events whose bodies are missing, also where they wait for a predecessor', async () => {
      const chain = new Chain().grow(4);
      const moved = new Chain().grow(4);
      const log = new ScriptLog()
        .add(...chain.events)
        .anchor(moved.at(2))
        .add(...moved.part(3));
      const feed = await open(log);
      await feed.apply(log.lsn, new Map([3, 6].map((lsn) => [lsn, 'no body'])));
      await (await open(new ScriptLog().add(...moved.part(1, 2)))).apply();
      await assertHolds(pool, [...chain.part(1, 2), ...moved.part(1, 2)]);
      const rows = await quarantined(pool);
      assert.deepEqual(
        rows.map(({ lsn, reason, sqlstate }) => [lsn, reason, sqlstate]),
        [3, 4, 6, 7].map((lsn) => [lsn, 'poison', null]),
      );
      assert.equal(rows[0]?.detail, 'no body');
    });

    it('of a waiting event that PostgreSQL refuses holds up neither the log that brings the predecessor nor others', async () => {
      const chain = new Chain().grow(8);
      const a = await open(new ScriptLog().anchor(chain.at(4)).add(...chain.part(5)));
      const b = await open(new ScriptLog().add(...chain.part(1, 4)));
      await a.apply();
      await beforeInsert(`IF NEW.sequence_number = 6 THEN RAISE EXCEPTION 'no' USING ERRCODE = '22P05'; END IF;`);
      await b.apply();
      await assertHolds(pool, chain.part(1, 5));
      assert.deepEqual(
        await heldLines(pool),
        [6, 7, 8].map((n) => `${chain.id} ${n} poison`),
      );
      a.log.add(...chain.grow(1).part(9));
      await a.apply();
      assert.equal((await heldLines(pool)).at(-1), `${chain.id} 9 poison`);
    });

    it('of a gap is held in order until what is missing has come', async () => {
      const chain = new Chain().grow(6);
      const log = new ScriptLog().add(...chain.part(1, 2), ...chain.part(4));
      const feed = await open(log);
      await feed.apply(3);
      await feed.apply();
      assert.deepEqual(
        await heldLines(pool),
        [4, 5, 6].map((n) => `${chain.id} ${n} gap`),
      );
      await assertHolds(pool, chain.part(1, 2));
      const { events } = (await feed.ingest.held())[0] ?? {};
      assert.equal(events, 3);
    });

    it('names what a log had trimmed before this database had it', async () => {
      const chain = new Chain().grow(5);
      const other = new Chain().grow(2);
      const log = new ScriptLog()
        .add(...chain.part(1, 2))
        .missing(2, chain.at(4).cryptographic_hash)
        .add(chain.at(5), ...other.events);
      const feed = await open(log);
      assert.equal((await feed.apply()).missing, 2);
      const missing = await selectOne(pool, 'SELECT from_lsn, to_lsn FROM missing_records');
      assert.deepEqual(missing, { from_lsn: 3, to_lsn: 4 });
      await assertHolds(pool, [...chain.part(1, 2), ...other.events]);
      assert.deepEqual(await heldLines(pool), [`${chain.id} 5 gap`]);
    });

    it('a trajectory of which everything waits has no time, and becomes like any other', async () => {
      const chain = new Chain().grow(4);
      const a = await open(new ScriptLog().anchor(chain.at(2)).add(...chain.part(3)));
      await a.apply();
      const times = 'SELECT created_at, started_at IS NOT NULL AS started FROM trajectories';
      assert.deepEqual(await selectOne(pool, times), { created_at: null, started: true });
      await (await open(new ScriptLog().add(...chain.part(1, 2)))).apply();
      await assertHolds(pool, chain.events);
      assert.deepEqual(await selectOne(pool, times), { created_at: chain.at(4).created_at, started: true });
    });

    it('of a stale worker does not stop the one that holds the lease, whoever arrives first', async () => {
      for (const isFirst of [true, false]) {
        const shared = new Chain().grow(5);
        const stale = shared.fork(5);
        stale.add({ event_type: 'ToolIntent', payload: { tool_call_id: 'pay', tool_name: 'pay', arguments: '{}' } });
        stale.grow(2);
        const a = await open(new ScriptLog().add(...stale.events));
        await a.apply(5);
        const claim = await selectOne<{ granted: boolean; fencing_token: number }>(
          pool,
          `SELECT granted, fencing_token FROM lease_claim('${shared.id}', 'w2', '1 minute', 5, decode('${shared.at(5).cryptographic_hash}', 'hex'))`,
        );
        assert.equal(claim.granted, true);
        const holder = shared.fork(5);
        holder.add({ fencing_token: claim.fencing_token });
        holder.grow(2);
        const b = await open(new ScriptLog().anchor(shared.at(5)).add(...holder.part(6)));
        for (const feed of isFirst ? [a, b] : [b, a]) await feed.apply();
        const rows = await warmRows(pool, [shared.id]);
        assert.deepEqual(
          rows.map((row) => row.cryptographic_hash),
          holder.events.map((event) => event.cryptographic_hash),
        );
        const held = await heldLines(pool);
        assert.deepEqual(
          held.filter((line) => line.startsWith(shared.id)),
          [6, 7, 8].map((n) => `${shared.id} ${n} fenced`),
        );
        const doubt = await selectOne(
          pool,
          `SELECT tool_call_id, origin FROM in_doubt WHERE trajectory_id = '${shared.id}'`,
        );
        assert.deepEqual(doubt, { tool_call_id: 'pay', origin: 'fenced' });
      }
    });
  });

  describe('events that warm had before', () => {
    it('1,200 of them, sent by another log after their partition was dropped, go in no second time', async () => {
      const chain = new Chain().grow(1200);
      const feed = await open(new ScriptLog().add(...chain.events));
      await feed.apply(700);
      await feed.apply();
      const { name } = await selectOne<{ name: string }>(
        pool,
        `SELECT name FROM event_partitions WHERE lower_id <= '${chain.id}' AND '${chain.id}' < upper_id`,
      );
      await exec(
        pool,
        `ALTER TABLE trajectory_events DETACH PARTITION ${name}; DROP TABLE ${name};
         DELETE FROM event_partitions WHERE name = '${name}'`,
      );
      const again = await open(new ScriptLog().add(...chain.events));
      for (let i = 0; i < 4; i++) await again.apply(280);
      assert.equal((await heldLines(pool)).length, 1120);
      await again.apply();
      assert.deepEqual(await heldLines(pool), []);
      assert.equal((await warmRows(pool)).length, 0);
      // It goes on where it was, in a partition that is made again.
      again.log.add(...chain.grow(1).part(1201));
      await again.apply();
      const rows = await warmRows(pool);
      assert.deepEqual(
        rows.map((row) => row.cryptographic_hash),
        [chain.at(1201).cryptographic_hash],
      );
    });

    it('are decided for by a later one, unless the log has adopted the trajectory in between', async () => {
      for (const size of [1, 5]) {
        const chain = new Chain().grow(6);
        await (await open(new ScriptLog().add(...chain.events))).apply();
        await exec(pool, `DELETE FROM trajectory_events WHERE trajectory_id = '${chain.id}' AND sequence_number < 6`);
        const other = new Chain(chain.id).grow(3, { payload: { other: true } });
        const log = new ScriptLog()
          .add(...other.events)
          .anchor(chain.at(5))
          .add(chain.at(6));
        const feed = await open(log);
        while (feed.lsn < log.lsn) await feed.apply(size);
        const held = await heldLines(pool);
        assert.deepEqual(
          held.filter((line) => line.startsWith(chain.id)),
          [1, 2, 3].map((n) => `${chain.id} ${n} unproven`),
        );
      }
    });

    it('are known by the hash at the end of a cold segment', async () => {
      const chain = new Chain().grow(9);
      const feed = await open(new ScriptLog().add(...chain.events));
      await feed.apply();
      await exec(
        pool,
        `DELETE FROM trajectory_events WHERE sequence_number <= 6;
         INSERT INTO cold_segments SELECT trajectory_id, 1, 6, decode(repeat('00', 32), 'hex'),
           decode('${chain.at(6).cryptographic_hash}', 'hex') FROM trajectories`,
      );
      const again = await open(new ScriptLog().add(...chain.events));
      await again.apply(5);
      assert.equal((await heldLines(pool)).length, 5);
      await again.apply(1);
      assert.deepEqual(await heldLines(pool), []);
      const other = new Chain(chain.id).grow(6, { payload: { other: true } });
      const forged = await open(new ScriptLog().add(...other.events));
      await forged.apply(3);
      await forged.apply();
      assert.deepEqual(
        await heldLines(pool),
        [1, 2, 3, 4, 5, 6].map((n) => `${chain.id} ${n} fork`),
      );
    });

    it('are as good as new where the row of their trajectory went back', async () => {
      const chain = new Chain().grow(6);
      const log = new ScriptLog().add(...chain.events);
      const feed = await open(log);
      await feed.apply(3);
      const before = `UPDATE trajectories SET last_sequence_number = 3, head_hash = decode('${chain.at(3).cryptographic_hash}', 'hex')`;
      await feed.apply();
      await exec(pool, `${before}; UPDATE cursors SET lsn = 3, hash = decode('${log.cursorAt(3).hash}', 'hex')`);
      const again = await open(log);
      assert.equal(again.lsn, 3);
      await again.apply();
      await assertHolds(pool, chain.events);
    });

    it('in the place of which another row stands are a fork, also where they waited', async () => {
      const chain = new Chain().grow(6);
      const other = chain.fork(3).grow(3, { payload: { other: true } });
      const feed = await open(new ScriptLog().add(...other.events));
      await feed.apply();
      // A row of the trajectory that knows nothing of the last ones: it was restored by hand.
      const back = `UPDATE trajectories SET last_sequence_number = 3, head_hash = decode('${chain.at(3).cryptographic_hash}', 'hex')`;
      await exec(pool, back);
      const b = await open(new ScriptLog().anchor(chain.at(3)).add(...chain.part(4)));
      await b.apply();
      assert.deepEqual(
        await heldLines(pool),
        [4, 5, 6].map((n) => `${chain.id} ${n} fork`),
      );
      assert.deepEqual(
        (await warmRows(pool)).map((row) => row.cryptographic_hash),
        other.events.map((event) => event.cryptographic_hash),
      );
    });
  });

  describe('payloads', () => {
    const hostile: readonly [string, JsonObject][] = [
      ['U+0000 as value, beside its literal escape', { a: '\u0000', b: '\\u0000', c: '\\\u0000', d: '\\\\u0000' }],
      ['U+0000 as key', { 'a\u0000b': 1, 'a\\u0000b': 2 }],
      ['only the literal escape', { text: '\\u0000', '\\u0000': '\\\\u0000' }],
      ['numbers in verbatim text', { text: '9007199254740993 1.10 -0 1e400 {"a":1,"a":2}' }],
      [
        'numbers at the edges',
        { a: 2 ** 53 + 2, b: 1.1, c: -0, d: 5e-324, e: 1.7976931348623157e308, f: 1e21, g: 1e-7 },
      ],
      [
        'keys that JavaScript knows',
        Object.fromEntries([
          ['__proto__', { x: 1 }],
          ['constructor', 1],
          ['', 2],
        ]),
      ],
      ['keys in an order of their own', { '\u{1f600}': 1, '\uffff': 2, é: 3, z: 4, A: 5, '10': 6, '9': 7 }],
      ['every control character', { text: Array.from({ length: 160 }, (_, i) => String.fromCharCode(i)).join('') }],
      ['separators of JavaScript', { text: '\u2028\u2029\u0085\ufeff\ufffe\uffff' }],
      ['900 KB', { text: 'é'.repeat(450_000) }],
      ['900 KB with U+0000', { text: `\u0000${'x'.repeat(900_000)}` }],
      ['deep nesting', nested(250)],
    ];

    function nested(depth: number): JsonObject {
      let value: Json = 1;
      for (let i = 0; i < depth; i++) value = i % 2 === 0 ? [value] : { d: value };
      return { value };
    }

    it('come back byte for byte, with their hashes, whatever they hold and of whatever kind they are', async () => {
      const chain = new Chain();
      for (const [event_type, payload] of hostile) {
        chain.add({ payload });
        chain.add({ event_type: `x.${event_type.replaceAll(/[^A-Za-z]/g, '_')}`, payload });
      }
      const feed = await open(new ScriptLog().add(...chain.events));
      for (let i = 0; feed.lsn < chain.length; i++) await feed.apply(1 + (i % 3));
      await assertHolds(pool, chain.events);
    });

    it('come back byte for byte out of quarantine', async () => {
      const chain = new Chain();
      chain.add();
      for (const [, payload] of hostile) chain.add({ payload });
      const feed = await open(new ScriptLog().add(...chain.part(2)));
      await feed.apply();
      const rows = await quarantined(pool);
      assert.equal(rows.length, hostile.length);
      for (const [i, row] of rows.entries()) {
        assert.ok(row.payload.equals(Buffer.from(chain.at(i + 2).payload_bytes)), hostile[i]?.[0]);
      }
    });

    it('of any JSON come back byte for byte', async () => {
      const events: WarmEvent[] = [];
      const property = fc.asyncProperty(fc.array(anyObject, { minLength: 1, maxLength: 40 }), async (payloads) => {
        const chain = new Chain();
        for (const payload of payloads) chain.add({ payload, event_type: 'x.Any' });
        await (await open(new ScriptLog().add(...chain.events))).apply();
        events.push(...chain.events);
      });
      await fc.assert(property, { ...runs(15), endOnFailure: true });
      await assertHolds(pool, events);
    });

    it('with U+0000 in the names that the fleet is asked for stop nothing, and calls still find their results', async () => {
      const chain = new Chain();
      const strange = { tenant: 't\u0000', agent: '\u0001\u0000', model: 'm\u0000', model_version: '\u00011' };
      chain.add({ event_type: 'TaskStarted', payload: strange });
      const call = { tool_name: 'pay\u0000', arguments: '{}' };
      for (const id of ['a\u0000', 'a\u00010', 'a\\u0000']) {
        chain.add({ event_type: 'ToolIntent', payload: { ...call, tool_call_id: id } });
      }
      const log = new ScriptLog().add(...chain.events);
      await (await open(log)).apply();
      assert.deepEqual(await selectOne(pool, 'SELECT count(*) AS doubts FROM (SELECT * FROM in_doubt) d'), {
        doubts: 3,
      });
      await selectOne(pool, 'SELECT * FROM fleet');
      await selectOne(pool, 'SELECT * FROM pending_approvals');
      chain.add({ event_type: 'ToolResult', payload: { tool_call_id: 'a\u0000', status: 'ok', output: '' } });
      log.add(chain.at(5));
      // A new process: the summary comes from the database.
      await (await open(log)).apply();
      const { calls } = await selectOne<{ calls: string }>(
        pool,
        `SELECT string_agg(encode(convert_to(tool_call_id, 'UTF8'), 'hex'), ' ' ORDER BY tool_call_id) AS calls FROM in_doubt`,
      );
      assert.deepEqual(calls.split(' ').toSorted(), [hex('a\u000110'), hex('a\\u0000')].toSorted());
      await assertHolds(pool, chain.events);
    });

    it('are in no error, whatever fails', async () => {
      const chain = new Chain().grow(3, { payload: { password: SECRET } });
      const feed = await open(new ScriptLog().add(...chain.events));
      for (const sqlstate of ['40001', '53100', '58030', 'XX000', '42P01', '23514', '0A000']) {
        await beforeInsert(
          `RAISE EXCEPTION 'row % refused', NEW.payload::text USING ERRCODE = '${sqlstate}', DETAIL = NEW.payload::text;`,
        );
        const error = await feed.apply().then(
          () => undefined,
          (error: unknown) => error,
        );
        assert.ok(error instanceof VarveError, sqlstate);
        const isKept = ['40', '53', '58', '42', '0A'].includes(sqlstate.slice(0, 2));
        // Messages of these classes name objects and never values; a function that puts one there is not PostgreSQL's.
        if (!isKept) assert.ok(!textOf(error).includes(SECRET), sqlstate);
        assert.ok(!JSON.stringify(error.details).includes(SECRET), sqlstate);
        await exec(pool, 'DROP TRIGGER refuse ON trajectory_events; DROP FUNCTION refuse');
      }
      await feed.apply();
      await assertHolds(pool, chain.events);
    });
  });

  it('refers to blobs from events in warm and in quarantine', async () => {
    const sha256 = 'ab'.repeat(32);
    const payload = { text: { $blob: { sha256, bytes: 70_000, media_type: 'text/plain; charset=utf-8' } } };
    const chain = new Chain().grow(3, { payload });
    const feed = await open(new ScriptLog().add(chain.at(1), chain.at(3)));
    await feed.apply(1);
    await feed.apply();
    const refs = await select(pool, 'SELECT sequence_number AS n FROM blob_refs ORDER BY n');
    assert.deepEqual(refs, [{ n: 1 }, { n: 3 }]);
  });
});

function hex(text: string): string {
  return Buffer.from(text).toString('hex');
}
