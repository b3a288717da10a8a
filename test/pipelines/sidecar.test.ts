/** The sidecar as people run it: processes, directories, signals, HTTP, exit codes, log lines. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { HotLog } from '../../hot/log.ts';
import type { JsonObject } from '../../schemas/canonical.ts';
import { isVarveError } from '../../schemas/errors.ts';
import { newTrajectoryId, type TrajectoryId } from '../../schemas/ids.ts';
import type { WarmPool } from '../../warm/pool.ts';
import { createDatabase, type TestDatabase } from '../support/postgres.ts';
import { copyEvents, grow, SMALL, withLog } from '../support/sidecar-folder.ts';
import { assertEqual } from '../support/sidecar-hot.ts';
import { drainHere, type Place, SidecarProcess, until, varve, within } from '../support/sidecar-process.ts';
import { assertWhole, exec, heldLines, quarantined, select, selectOne, warmRows } from '../support/sidecar-warm.ts';
import { TempDirectory } from '../support/temp.ts';

const SECRET = 'hunter2';

describe('pipelines/sidecar', () => {
  let database: TestDatabase;
  let pool: WarmPool;
  let temp: TempDirectory;
  let place: Place;

  beforeEach(async () => {
    database = await createDatabase();
    pool = database.pool;
    temp = new TempDirectory('sp');
    place = { logs: `${temp.path}/logs/*`, url: database.url, store: temp.join('store') };
  });
  afterEach(async () => {
    await database[Symbol.asyncDispose]();
    temp[Symbol.dispose]();
  });

  const dir = (name: string): string => temp.join('logs', name);

  /** Inserts stand still until it is given up. */
  async function outage(): Promise<{ readonly end: () => Promise<void> }> {
    await exec(
      pool,
      `CREATE TABLE outage AS SELECT true AS lasts;
       CREATE FUNCTION outage() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
         WHILE (SELECT lasts FROM outage) LOOP PERFORM pg_sleep(0.02); END LOOP; RETURN NULL;
       END $$;
       CREATE TRIGGER outage BEFORE INSERT ON trajectory_events FOR EACH STATEMENT EXECUTE FUNCTION outage()`,
    );
    return { end: () => exec(pool, 'UPDATE outage SET lasts = false') };
  }

  function isWaiting(): Promise<true | undefined> {
    return select(
      pool,
      `SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()`,
    ).then((rows) => (rows.length > 0 ? true : undefined));
  }

  it('finds directories that appear while it runs, follows writers and drains what they leave, and says so', async () => {
    await withLog(dir('a'), (log) => grow(log, 4));
    await using sidecar = SidecarProcess.start(place);
    await sidecar.reaches(({ state, replicated_lsn }) => state === 'idle' && replicated_lsn === 4, dir('a'));
    await withLog(dir('b'), async (log) => {
      const [first] = await grow(log, 3);
      assert.ok(first !== undefined);
      await log.whenReplicated(log.durableLsn);
      await sidecar.reaches(({ state, replicated_lsn }) => state === 'following' && replicated_lsn === 3, dir('b'));
      await grow(log, 2);
      await log.whenReplicated(log.durableLsn);
    });
    await withLog(dir('a'), (log) => grow(log, 5));
    await sidecar.reaches(({ replicated_lsn }) => replicated_lsn === 9, dir('a'));

    assert.deepEqual(await sidecar.get('/healthz'), { status: 200, text: 'ok\n' });
    assert.deepEqual(await sidecar.get('/readyz'), { status: 200, text: 'ready\n' });
    assert.equal((await sidecar.get('/nothing')).status, 404);
    const { text } = await sidecar.get('/metrics');
    const a = dir('a').replaceAll('/', '\\/');
    for (const line of [
      `varve_sidecar_replicated_lsn\\{log="${a}"\\} 9`,
      `varve_sidecar_inserted_total\\{log="${a}"\\} 9`,
      `varve_sidecar_unreplicated_records\\{log="${a}"\\} 0`,
      `varve_sidecar_needs_a_person\\{log="${a}"\\} 0`,
      'varve_warm_partitions_ahead 7',
      'varve_warm_clock_skew_seconds -?0',
      'varve_warm_in_doubt 0',
    ]) {
      assert.match(text, new RegExp(`^${line}`, 'm'));
    }
    const { code } = await sidecar.stop();
    assert.equal(code, 143);
    assert.equal(await assertEqual(pool, place.store, dir('a'), dir('b')), 14);
    assert.equal((await varve(place, 'status')).code, 0);
  });

  it('carries hostile payloads from the worker to warm byte for byte, with their blobs', async () => {
    await withLog(dir('a'), async (log) => {
      const id = newTrajectoryId();
      const texts = [
        '\u0000',
        '\\u0000',
        '9007199254740993 1.10 -0 {"a":1,"a":2}',
        '\ufffe\uffff\u2028',
        '\u{1f600}'.repeat(40),
      ];
      const payloads: JsonObject[] = [
        ...texts.map((text) => ({ text, [text]: { nested: [text, -0, 1.1, 2 ** 53, 5e-324] } })),
        Object.fromEntries([
          ['__proto__', { polluted: true }],
          ['constructor', 1],
          ['toString', 'x'],
        ]),
        Object.fromEntries(Array.from({ length: 15 }, (_, i) => [`k${i}\u0000`, 'é\u0000'.repeat(20_000)])),
        { body: 'b\u0000'.repeat(300_000), same: 'b\u0000'.repeat(300_000) },
      ];
      for (const payload of payloads) {
        for (const event_type of ['Noted', 'x.Unknown/kind:1']) await log.append(id, { event_type, turn: 0, payload });
      }
      const calls = ['c\u0000', 'c\\u0000'];
      for (const tool_call_id of calls) {
        const payload = { tool_call_id, tool_name: 'pay\u0000', arguments: '{"amount": 1.10}' };
        await log.append(id, { event_type: 'ToolIntent', turn: 0, payload });
      }
    });
    await drainHere(place);
    assert.equal(await assertEqual(pool, place.store, dir('a')), 18);
    assert.deepEqual(await selectOne(pool, 'SELECT count(*) AS calls FROM in_doubt'), { calls: 2 });
    assert.deepEqual(await selectOne(pool, 'SELECT count(DISTINCT sha256) AS blobs FROM blob_refs'), { blobs: 2 });
    await using sidecar = SidecarProcess.start(place);
    await until('the calls in its metrics', async () => {
      const { text } = await sidecar.get('/metrics');
      return /^varve_warm_in_doubt 2$/m.test(text) ? true : undefined;
    });
  });

  it('ends at SIGTERM with the batch under way in the database, and tells the log', async () => {
    await withLog(dir('a'), (log) => grow(log, 5));
    const { end } = await outage();
    await using sidecar = SidecarProcess.start(place);
    await until('a batch under way', isWaiting);
    sidecar.child.kill('SIGTERM');
    // Told, and still at it: it ends when the batch does.
    await end();
    assert.equal((await sidecar.child.exit()).code, 143);
    assert.equal((await warmRows(pool)).length, 5);
    assert.equal((await selectOne<{ lsn: number }>(pool, 'SELECT lsn FROM cursors')).lsn, 5);
  });

  it('takes a log whose own name looks like a glob for itself', async () => {
    await withLog(dir('a [b] *?'), (log) => grow(log, 4));
    await withLog(dir('ab'), (log) => grow(log, 3));
    await drainHere({ ...place, logs: dir('a [b] *?') });
    assert.equal((await warmRows(pool)).length, 4);
  });

  it('drains: 0 where everything is out, 4 where its time was not enough or another one is at it, 2 where there is no log', async () => {
    const nothing = await varve(place, 'sidecar', '--drain');
    assert.deepEqual([nothing.code, /HOT_NOT_A_LOG/.test(nothing.stderr)], [2, true]);
    // A live writer that has nothing more to say.
    await using log = await HotLog.open(dir('a'), SMALL);
    await grow(log, 5);
    const first = await varve(place, 'sidecar', '--drain');
    assert.deepEqual([first.code, first.stdout], [0, `${dir('a')}: 5 of 5 records replicated`]);
    await drainHere(place);
    await using other = SidecarProcess.start(place);
    await other.reaches(({ state }) => state === 'following');
    const short = { ...place, env: { VARVE_SIDECAR_DRAIN_TIMEOUT_MS: '500' } };
    const second = await varve(short, 'sidecar', '--drain');
    assert.equal(second.code, 4, second.stderr);
    assert.match(second.stdout, /another sidecar follows it/);
    await other.stop();
    const { end } = await outage();
    await grow(log, 5);
    // A batch takes what has arrived, up to its size: only a batch of one is always as large.
    const small = { ...place, env: { ...short.env, VARVE_SIDECAR_BATCH_EVENTS: '1' } };
    const draining = varve(small, 'sidecar', '--drain');
    await until('a batch under way', isWaiting);
    await until('the end of its time', async () => {
      const [row] = await select<{ late: boolean }>(
        pool,
        `SELECT max(clock_timestamp() - xact_start) > interval '1 second' AS late
        FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()`,
      );
      return row?.late === true ? true : undefined;
    });
    await end();
    const third = await draining;
    // The batch under way was finished; those behind it were not begun.
    assert.deepEqual([third.code, third.stdout], [4, `${dir('a')}: 6 of 10 records replicated`]);
  });

  it('holds the second log of a fork back, in order, and goes on with everything else; status says so until accepted', async () => {
    const id = newTrajectoryId();
    const elsewhere = newTrajectoryId();
    await withLog(dir('a'), async (a) => {
      await grow(a, 6, id);
      await withLog(dir('b'), async (b) => {
        await copyEvents(a, b, id, 6);
        await grow(b, 2, id, { note: 'another seventh', password: SECRET });
        await grow(b, 3, elsewhere);
        await grow(b, 2, id, { note: 'and its rest' });
      });
      await grow(a, 3, id);
    });
    await drainHere({ ...place, logs: dir('a') });
    const before = await warmRows(pool);
    const drain = await varve(place, 'sidecar', '--drain');
    assert.equal(drain.code, 0, drain.stderr);
    assert.ok(!`${drain.stdout}${drain.stderr}`.includes(SECRET));
    // Both logs go on, and it stays.
    await withLog(dir('a'), (a) => grow(a, 1, id));
    await withLog(dir('b'), (b) => grow(b, 1, elsewhere));
    await drainHere(place);
    assert.deepEqual(
      await heldLines(pool),
      [7, 8, 9, 10].map((n) => `${id} ${n} fork`),
    );
    assert.deepEqual((await warmRows(pool, [id])).slice(0, 9), before);
    assert.equal((await warmRows(pool, [id])).length, 10);
    assert.equal((await warmRows(pool, [elsewhere])).length, 4);
    await assertWhole(pool);
    const status = await varve(place, 'status');
    assert.equal(status.code, 3);
    assert.match(status.stdout, /HELD BACK[\s\S]*fork +1 +4/);
    await withLog(dir('b'), async (log) => {
      await using sidecar = SidecarProcess.start(place);
      const waiting = log.whenReplicated(log.head(id)?.lsn as never);
      await assert.rejects(waiting, (error) => isVarveError(error, 'REPLICATION_HELD'));
      const status = await sidecar.reaches(({ held }) => held.length === 1, dir('b'));
      assert.deepEqual(
        status.held.map(({ trajectory_id, reason, events }) => [trajectory_id, reason, events]),
        [[id, 'fork', 4]],
      );
      await exec(pool, `UPDATE quarantine SET state = 'accepted'`);
      await sidecar.stop();
    });
    assert.equal((await varve(place, 'status')).code, 0);
  });

  it('tells a worker whose event waits for another log as soon as that log has brought what it waits for', async () => {
    const id = newTrajectoryId();
    await using first = await HotLog.open(temp.join('first'), SMALL);
    const [, , third] = await grow(first, 3, id);
    assert.ok(third !== undefined);
    await using second = await HotLog.open(dir('second'), SMALL);
    const { sequence_number, cryptographic_hash, created_at } = third;
    await second.adopt(id, { sequence_number, cryptographic_hash, created_at, turn: 0, fencing_token: 0 });
    const [fourth] = await grow(second, 1, id);
    assert.ok(fourth !== undefined);
    await using sidecar = SidecarProcess.start(place);
    const told = second.whenReplicated(fourth.lsn);
    told.catch(() => {});
    await sidecar.reaches(({ held }) => held[0]?.reason === 'waiting', dir('second'));
    assert.deepEqual(await heldLines(pool), [`${id} 4 waiting`]);
    assert.equal(await Promise.race([told.then(() => 'told'), Promise.resolve('waits')]), 'waits');
    await drainHere({ ...place, logs: temp.join('first') });
    await within('the worker to be told', told);
    assert.equal((await warmRows(pool, [id])).length, 4);
    await assertWhole(pool);
    await sidecar.reaches(({ held }) => held.length === 0, dir('second'));
    await sidecar.stop();
  });

  it('holds what a log writes after an event that PostgreSQL refuses, goes on with the rest, and writes no payload into a line', async () => {
    const [good, bad] = [newTrajectoryId(), newTrajectoryId()];
    await exec(
      pool,
      `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
         IF NEW.trajectory_id = '${bad}' AND NEW.sequence_number = 3 THEN
           RAISE EXCEPTION 'no %', NEW.payload::text USING ERRCODE = '22P05', DETAIL = NEW.payload::text;
         END IF;
         IF NEW.trajectory_id = '${good}' AND NEW.sequence_number = 4 AND nextval('tries') < 4 THEN
           RAISE EXCEPTION 'later' USING ERRCODE = '40001', DETAIL = NEW.payload::text, HINT = NEW.payload::text;
         END IF;
         RETURN NEW;
       END $$;
       CREATE SEQUENCE tries;
       CREATE TRIGGER refuse BEFORE INSERT ON trajectory_events FOR EACH ROW EXECUTE FUNCTION refuse()`,
    );
    await using log = await HotLog.open(dir('a'), SMALL);
    await using sidecar = SidecarProcess.start({ ...place, env: { VARVE_LOG_LEVEL: 'trace' } });
    for (let n = 0; n < 5; n++) {
      await grow(log, 1, good, { password: SECRET });
      await grow(log, 1, bad, { password: SECRET });
    }
    await sidecar.reaches(({ replicated_lsn }) => replicated_lsn === 10);
    const { stderr } = sidecar.child;
    await sidecar.stop();
    assert.match(stderr, /sidecar\.quarantined/);
    assert.match(stderr, /WARM_CONFLICT/);
    assert.ok(!stderr.includes(SECRET));
    assert.equal((await warmRows(pool, [good])).length, 5);
    assert.equal((await warmRows(pool, [bad])).length, 2);
    assert.deepEqual(
      await heldLines(pool),
      [3, 4, 5].map((n) => `${bad} ${n} poison`),
    );
    assert.ok((await quarantined(pool)).every(({ payload }) => payload.includes(SECRET)));
  });

  it('is not ready where nothing has gone through for too long, and is again when it does', async () => {
    await withLog(dir('a'), (log) => grow(log, 3));
    const { end } = await outage();
    await using sidecar = SidecarProcess.start({ ...place, env: { VARVE_SIDECAR_STALLED_AFTER_MS: '300' } });
    const ready = (wanted: number) => async () => {
      const answer = await sidecar.get('/readyz');
      return answer.status === wanted ? answer.text : undefined;
    };
    assert.match(await until('it to be unready', ready(503)), /no progress for/);
    await end();
    await until('it to be ready', ready(200));
    await sidecar.stop();
  });

  it('keeps its memory within bounds when a database that stands still is behind a log of large events', async () => {
    const count = 60;
    const log = await HotLog.open(dir('a'), SMALL);
    try {
      const id: TrajectoryId = newTrajectoryId();
      const note = 'x'.repeat(60_000);
      for (let n = 0; n < count; n++) {
        // Strings under the offload threshold, so that the event itself is large.
        const payload = Object.fromEntries(Array.from({ length: 15 }, (_, i) => [`n${i}`, note]));
        await log.append(id, { event_type: 'x.Large', turn: 0, payload });
      }
      const peak = await followed(count);
      console.log(`    [fault] sidecar_peak_mib=${Math.round(peak)}`);
      assert.ok(peak < 350, `${Math.round(peak)} MiB`);
    } finally {
      await log.close();
    }
    assert.equal(await assertEqual(pool, place.store, dir('a')), count);
  });

  /** Peak memory of a sidecar that finds a database which does not take anything for a while, in MiB. */
  async function followed(count: number): Promise<number> {
    const { end } = await outage();
    await using sidecar = SidecarProcess.start(place);
    await until('a batch under way', isWaiting);
    // It knows of all of them, and has no more than two batches, two on their way to the database, and what was read last.
    // It may know of them before it has read so much.
    const { queued_bytes } = await sidecar.reaches(
      (status) => status.durable_lsn === count && status.queued_bytes > 4_000_000,
    );
    assert.ok(queued_bytes < 10_000_000, `${queued_bytes} bytes are queued`);
    await end();
    await sidecar.reaches(({ replicated_lsn }) => replicated_lsn === count);
    const text = readFileSync(`/proc/${sidecar.child.pid}/status`, 'utf8');
    await sidecar.stop();
    return Number(/VmHWM:\s+(\d+)/.exec(text)?.[1]) / 1024;
  }
});
