/** `varve compact` and `varve runs`: what moves, what stays and why, beside other compactors and on stores in trouble. */
import assert from 'node:assert/strict';
import { existsSync, rmSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { concernOf } from '../../pipelines/show-runs.ts';
import { dateOf } from '../../schemas/parquet.ts';
import type { RunRow } from '../../warm/compaction-rows.ts';
import { idAt } from '../support/cold-rows.ts';
import { CompactPlace } from '../support/compact-place.ts';
import { eventually } from '../support/eventually.ts';
import { FaultProxy, type ProxyFault } from '../support/fault-proxy.ts';
import { createDatabase } from '../support/postgres.ts';
import { openBucket } from '../support/s3-place.ts';
import { S3Server } from '../support/s3-server.ts';
import { Chain } from '../support/sidecar-script.ts';
import { exec, select, selectOne } from '../support/sidecar-warm.ts';

const DAY = Date.UTC(2024, 10, 20);
const SHORT_CLAIMS = { VARVE_COMPACT_CLAIM_TTL_MS: '1000' };

describe('pipelines/compact', () => {
  let place: CompactPlace;

  beforeEach(async () => {
    place = await CompactPlace.create('compact');
  });
  afterEach(async () => await place[Symbol.asyncDispose]());

  async function some(count: number, first = 0): Promise<Chain[]> {
    const chains: Chain[] = [];
    for (let i = 0; i < count; i++) chains.push(await place.finished(idAt(first + i, DAY)));
    return chains;
  }

  async function compact(...args: readonly string[]): Promise<{ out: string; err: string; code: number | null }> {
    return await place.compact(...args);
  }

  describe('what moves', () => {
    it('only what is closed and old enough; an import or an idle one by its own clock; blocked ones are named', async () => {
      const { pool } = place.database;
      const [young, gap, fork] = (await some(3)) as [Chain, Chain, Chain];
      const running = new Chain(idAt(10, DAY)).grow(3);
      const imported = new Chain(idAt(11, DAY));
      imported.add({ event_type: 'TaskStarted', payload: { source: { format: 'codex', id: 's' } } });
      await place.ingest({ chain: running, from: 1 }, { chain: imported, from: 1 });
      const hold = (id: string, reason: string) =>
        exec(
          pool,
          `INSERT INTO quarantine (trajectory_id, sequence_number, log_id, lsn, reason, envelope, payload, cryptographic_hash)
           VALUES ('${id}', 99, gen_random_uuid(), 1, '${reason}', '', '', '')`,
        );
      await hold(gap.id, 'gap');
      await hold(fork.id, 'fork');
      // Warm has had them for an hour only, whatever their own times say.
      await exec(
        pool,
        `UPDATE trajectories SET updated_at = varve_now() - interval '1 hour 1 minute', created_at = varve_now()`,
      );
      assert.match((await place.run('compact', '--older-than', '2h')).out, /moved 0 events/);
      const ended = await compact();
      assert.equal(ended.code, 3, ended.err);
      assert.match(ended.out, /of 3 trajectories/);
      assert.match(ended.out, new RegExp(`SKIPPED ${gap.id}: events of it are held back in quarantine \\(gap\\)`));
      await place.assertCold([young, fork, imported]);
      await exec(pool, `UPDATE trajectories SET updated_at = varve_now() - interval '31 days'`);
      await exec(pool, `UPDATE quarantine SET state = 'accepted'`);
      assert.equal((await compact()).code, 0);
      await place.assertCold([young, gap, fork, imported, running]);
    });

    it('a dry run says it, and changes nothing', async () => {
      await some(2);
      const ended = await compact('--dry-run');
      assert.deepEqual(
        [ended.code, ended.out],
        [0, 'would move 28 events of 2 trajectories into 1 files\n'],
        ended.err,
      );
      const told = JSON.parse((await compact('--dry-run', '--json')).out) as { end: string; error?: object };
      assert.deepEqual([told.end, told.error], ['finished', undefined]);
      assert.equal(existsSync(place.storeRoot), false);
      const { runs } = await selectOne<{ runs: number }>(
        place.database.pool,
        'SELECT count(*) AS runs FROM compaction_runs',
      );
      assert.equal(runs, 0);
    });

    it('a partition with too little in it waits, for a while', async () => {
      const chains = await some(2);
      await exec(place.database.pool, `UPDATE trajectories SET created_at = varve_now() - interval '8 days'`);
      const waits = await place.run('compact');
      assert.match(waits.out, /moved 0 events[\s\S]*2 trajectories wait in 1 partitions that are too small/);
      await exec(place.database.pool, `UPDATE trajectories SET created_at = varve_now() - interval '11 days'`);
      assert.match((await place.run('compact')).out, /of 2 trajectories into 1 files/);
      await place.assertCold(chains);
    });

    it('only one tenant, where one is named, and nothing after its time', async () => {
      const [first] = await some(1);
      const other = await place.finished(idAt(5, DAY), { tenant: 'other' });
      assert.match((await compact('--tenant', 'other')).out, /of 1 trajectories/);
      await place.assertCold([other]);
      const now = new Date();
      const past = new Date(now.getTime() - 60_000).toTimeString().slice(0, 5);
      // The next time that a clock shows it is tomorrow: everything fits.
      assert.match((await compact('--until', past)).out, /of 1 trajectories/);
      await place.assertCold([first as Chain, other]);
    });

    it('every partition value and every id: folders are slugs, the truth is in the log', async () => {
      const values = [
        'a/b',
        '..',
        '007',
        '4.10',
        'NULL',
        'null',
        'ünïcödé 日本',
        'x'.repeat(256),
        'anthropic/claude:2026-01',
      ];
      const chains: Chain[] = [];
      for (const [i, value] of values.entries()) {
        chains.push(await place.finished(idAt(i, DAY), { tenant: value, model_version: value, turns: 1 }));
      }
      chains.push(await place.finished(idAt(0, 0), { model_version: null }));
      chains.push(await place.finished(idAt(0, Date.now() + 80_000_000)));
      const single = new Chain(idAt(99, DAY));
      single.add({ event_type: 'TaskFinished', payload: { status: 'failed' } });
      await place.ingest({ chain: single, from: 1 });
      assert.equal((await compact()).code, 0);
      await place.assertCold([...chains, single]);
      const log = await place.openLog();
      const partitions = [...(await log.snapshot()).files.values()].map(({ add }) => add.partitionValues);
      assert.deepEqual(new Set(partitions.map(({ tenant }) => tenant)), new Set([...values, 'acme', 'default']));
      assert.ok(partitions.some(({ date, model_version }) => date === '1970-01-01' && model_version === 'unknown'));
      assert.ok(partitions.some(({ date }) => date === dateOf(chains.at(-1)?.id as Chain['id'])));
    });
  });

  it('what a transaction changes at this moment is left for the next run, and not lost', async () => {
    const [first, second] = (await some(2)) as [Chain, Chain];
    await place.database.pool.lend((session) =>
      session.transaction(async (tx) => {
        await tx.exec(`SELECT 1 FROM trajectories WHERE trajectory_id = '${second.id}' FOR UPDATE`);
        const ended = await compact();
        assert.match(ended.out, /of 1 trajectories[\s\S]*1 trajectories were busy/, ended.err);
      }),
    );
    await place.assertCold([first]);
    assert.equal((await compact()).code, 0);
    await place.assertCold([first, second]);
  });

  it('a trajectory that is damaged in warm is left out by name, and all others move', async () => {
    const chains = await some(4);
    const [, payload, missing] = chains as [Chain, Chain, Chain];
    const { pool } = place.database;
    await exec(
      pool,
      `UPDATE trajectory_events SET payload = '{"n": 99}', payload_exact = NULL WHERE trajectory_id = '${payload.id}' AND sequence_number = 5;
       DELETE FROM trajectory_events WHERE trajectory_id = '${missing.id}' AND sequence_number = 7`,
    );
    const ended = await compact();
    assert.equal(ended.code, 3);
    assert.match(
      ended.out,
      new RegExp(`SKIPPED ${payload.id}: event 5 of ${payload.id}: its payload has another hash`),
    );
    assert.match(
      ended.out,
      new RegExp(`SKIPPED ${missing.id}: event 7 of ${missing.id} was expected|SKIPPED ${missing.id}: .*event 7`),
    );
    await place.assertCold([chains[0] as Chain, chains[3] as Chain]);
  });

  it('what warm could not prove is settled against cold: duplicates are, forks stay, by name', async () => {
    const [chain, other] = (await some(2)) as [Chain, Chain];
    assert.equal((await compact()).code, 0);
    const { pool } = place.database;
    // Their rows are gone from warm, as after a partition was dropped, and a log sends some of them again.
    await exec(pool, 'DELETE FROM trajectory_events');
    const hold = (chain: Chain, number: number, hash: string) =>
      exec(
        pool,
        `INSERT INTO quarantine (trajectory_id, sequence_number, log_id, lsn, reason, envelope, payload, cryptographic_hash)
         VALUES ('${chain.id}', ${number}, gen_random_uuid(), 1, 'unproven', '', '', decode('${hash}', 'hex'))`,
      );
    for (const number of [1, 5, 14]) await hold(chain, number, chain.at(number).cryptographic_hash);
    await hold(other, 3, chain.at(3).cryptographic_hash);
    await hold(other, 99, chain.at(3).cryptographic_hash);
    const ended = await compact();
    assert.match(
      ended.out,
      /3 events in quarantine were proven to be duplicates[\s\S]*1 events in quarantine are forks/,
      ended.err,
    );
    const rows = await select<{ line: string }>(
      pool,
      `SELECT concat_ws(' ', sequence_number, reason, state) AS line FROM quarantine ORDER BY trajectory_id, sequence_number`,
    );
    assert.deepEqual(
      rows.map(({ line }) => line),
      ['1 unproven proven', '5 unproven proven', '14 unproven proven', '3 fork held', '99 unproven held'],
    );
  });

  it('damage in cold is named, and keeps nothing of other days in warm', async () => {
    const [first] = await some(1);
    const nextDay = await place.finished(idAt(0, DAY + 86_400_000));
    assert.equal((await compact()).code, 0);
    const stems = await place.files();
    const stemOf = (day: string) => [...stems.values()].find((stem) => stem.includes(day)) as string;
    // A lost data file hinders nobody who does not read it; a lost list of segments hides what its day holds.
    rmSync(`${place.storeRoot}/events/${stemOf('2024-11-20')}.parquet`);
    await place.grow(first as Chain, 1);
    assert.match((await compact()).out, /moved 5 events of 1 trajectories/);
    rmSync(`${place.storeRoot}/events/${stemOf('2024-11-21')}.segments`);
    await place.grow(nextDay, 1);
    await place.grow(first as Chain, 1);
    const ended = await compact();
    assert.equal(ended.code, 3, ended.err);
    assert.match(ended.out, /moved 5 events of 1 trajectories/);
    assert.match(ended.out, new RegExp(`SKIPPED ${nextDay.id}: what cold has of its day is unknown: .*\\.segments`));
  });

  describe('beside others', () => {
    it('two compactors at once move everything once', async () => {
      const chains = await some(12);
      for (let i = 0; i < 6; i++) chains.push(await place.finished(idAt(100 + i, DAY), { tenant: `t-${i}` }));
      const both = await Promise.all(
        [[], ['--concurrency', '2']].map((more) => place.varve(['compact', '--older-than', '0', ...more])),
      );
      for (const { code, err } of both) assert.equal(code, 0, err);
      assert.equal((await compact()).code, 0);
      await place.assertCold(chains);
    });

    for (const point of ['compact.lot.claimed', 'cold.commit.before-put', 'cold.commit.after-put']) {
      it(`one that slept at ${point} past its claims commits nothing twice when it wakes up`, async function () {
        this.timeout(60_000);
        const chains = await some(3);
        let wake = (): void => {};
        const sleeper = place.varve(['compact', '--older-than', '0'], {
          env: { ...SHORT_CLAIMS, VARVE_FAILPOINT: `${point}/stop` },
          onStart: (kill) => (wake = () => kill('SIGCONT')),
        });
        const { pool } = place.database;
        await eventually('its claims', async () => {
          const rows = await select(pool, `SELECT 1 FROM compaction_runs WHERE expires_at <= varve_now()`);
          return rows.length > 0 ? true : undefined;
        });
        const other = await place.varve(['compact', '--older-than', '0'], { env: SHORT_CLAIMS });
        assert.equal(other.code, 0, other.err);
        await place.assertCold(chains);
        wake();
        const woken = await sleeper;
        assert.equal(woken.signal, null, woken.err);
        if (point === 'cold.commit.before-put') assert.match(woken.err, /COLD_CLAIM_LAPSED/);
        await place.assertCold(chains);
        assert.match((await compact()).out, /moved 0 events/);
        const log = await place.openLog();
        assert.equal((await log.snapshot()).version, 1, 'one commit behind the making of the table');
      });
    }
  });

  describe('a database that went back', () => {
    it('to before a compaction: cold is not doubled, its marks are repaired', async () => {
      const chains = await some(3);
      assert.equal((await compact()).code, 0);
      await exec(
        place.database.pool,
        'DELETE FROM cold_segments; DELETE FROM compaction_claims; DELETE FROM compaction_runs; DELETE FROM cold_tables',
      );
      const again = await compact();
      assert.match(again.out, /moved 0 events[\s\S]*3 marks of what is in cold were missing/, again.err);
      await place.assertCold(chains);
      await place.grow(chains[1] as Chain, 1);
      assert.match((await compact()).out, /moved 5 events of 1 trajectories/);
      await place.assertCold(chains);
    });

    it('to before events that are in cold: they are not doubled when the log sends them again', async () => {
      const [chain] = (await some(1)) as [Chain];
      const short = chain.fork(6);
      assert.equal((await compact()).code, 0);
      // The same store behind a database that has only the beginning.
      await place.database[Symbol.asyncDispose]();
      const back = await CompactPlace.create('back');
      try {
        back.settings = { VARVE_COLD_STORE: `file:${place.storeRoot}` };
        back.openStore = place.openStore;
        await back.ingest({ chain: short, from: 1 });
        await exec(back.database.pool, `UPDATE trajectories SET status = 'completed'`);
        assert.match((await back.compact()).out, /moved 0 events/);
        await back.ingest({ chain, from: 7 });
        await back.grow(chain, 1);
        assert.match((await back.compact()).out, /moved 5 events of 1 trajectories/);
        assert.equal(await back.assertCold([chain]), chain.length);
      } finally {
        await back[Symbol.asyncDispose]();
        place.database = await createDatabase();
      }
    });

    it('and took another way is named as a fork: the first one wins', async () => {
      const [chain] = (await some(1)) as [Chain];
      assert.equal((await compact()).code, 0);
      const other = chain.fork(5);
      other.grow(chain.length - 6).add({ event_type: 'TaskFinished', payload: { status: 'failed' } });
      const { pool } = place.database;
      await exec(
        pool,
        'TRUNCATE trajectory_events, trajectories, cursors, cold_segments, blocks, quarantine, fences, leases',
      );
      const before = place.chains.get(chain.id) as Chain;
      await using second = await CompactPlace.create('fork');
      second.settings = { VARVE_COLD_STORE: `file:${place.storeRoot}` };
      await second.ingest({ chain: other, from: 1 });
      const ended = await second.compact();
      assert.equal(ended.code, 3);
      assert.match(ended.out, /SKIPPED .*: cold has another event 14 than warm: a fork/);
      await place.assertCold([before]);
    });
  });

  it('another table, and one that went back, are refused by name', async () => {
    await some(1);
    assert.equal((await compact()).code, 0);
    place.settings = { VARVE_COLD_STORE: `file:${place.temp.join('elsewhere')}` };
    for (const more of [['--dry-run'], []]) {
      const other = await compact(...more);
      assert.deepEqual([other.code, /COLD_OTHER_TABLE/.test(other.err)], [2, true], other.err);
      assert.equal(existsSync(place.temp.join('elsewhere', 'events')), false, 'no table was made there');
    }
    place.settings = {};
    await exec(place.database.pool, 'UPDATE cold_tables SET version = 7');
    for (const more of [['--dry-run'], []]) {
      const back = await compact(...more);
      assert.deepEqual([back.code, /COLD_WENT_BACK/.test(back.err)], [5, true], back.err);
    }
  });

  describe('on S3', () => {
    let server: S3Server;
    let proxy: FaultProxy;

    beforeEach(async () => {
      server = await S3Server.start();
      proxy = await FaultProxy.start(server.endpoint);
      place.settings = {
        VARVE_COLD_STORE: `s3://${server.bucket}/root`,
        VARVE_COLD_ENDPOINT: proxy.endpoint,
        VARVE_COLD_PATH_STYLE: 'true',
        VARVE_COLD_REGION: 'us-east-1',
        AWS_ACCESS_KEY_ID: server.keys.accessKey,
        AWS_SECRET_ACCESS_KEY: server.keys.secretKey,
      };
      place.openStore = () => openBucket(server, 'root', { pathStyle: true });
    });
    afterEach(async () => {
      await proxy[Symbol.asyncDispose]();
      await server[Symbol.asyncDispose]();
    });

    const DATA = /\.parquet/;
    const COMMIT = /_delta_log.*\.json/;
    const FAULTS: readonly (readonly [string, ProxyFault])[] = [
      ['answers 500', { kind: 'status', method: 'PUT', path: DATA, status: 500, code: 'InternalError' }],
      ['answers 503', { kind: 'status', method: 'PUT', path: COMMIT, status: 503, code: 'SlowDown' }],
      ['fails after a file is there', { kind: 'reset', method: 'PUT', path: DATA }],
      ['fails after a commit is there', { kind: 'reset', method: 'PUT', path: COMMIT }],
      [
        'answers 500 after a commit is there',
        { kind: 'status-after', method: 'PUT', path: COMMIT, status: 500, code: 'InternalError' },
      ],
      ['answers 409', { kind: 'status', method: 'PUT', path: COMMIT, status: 409, code: 'ConditionalRequestConflict' }],
      ['gives back less than it has', { kind: 'truncated', method: 'GET', path: DATA, afterBytes: 100 }],
      ['gives back less, with a length that fits', { kind: 'short', method: 'GET', path: DATA, afterBytes: 100 }],
      ['gives back another bit', { kind: 'flipped', method: 'GET', path: DATA, bit: 900 }],
    ];

    for (const [what, fault] of FAULTS) {
      it(`a store that ${what} makes no difference to what is in cold`, async () => {
        const chains = await some(2);
        chains.push(await place.finished(idAt(50, DAY), { textBytes: 20_000 }));
        // The first commit makes the table; the fault is for the second one.
        assert.match((await place.run('compact', '--older-than', '9999d')).out, /moved/);
        proxy.inject(fault);
        const ended = await compact();
        assert.equal(ended.code, 0, ended.err);
        assert.equal(proxy.pending, 0, 'the fault was met');
        await place.assertCold(chains);
        assert.match((await compact()).out, /moved 0 events/);
      });
    }

    it('a store that ignores the condition is refused before anything is written', async () => {
      await some(1);
      server.vices.conditions = 'ignored';
      const ended = await compact();
      assert.deepEqual([ended.code, /STORE_UNCONDITIONAL/.test(ended.err)], [4, true], ended.err);
      const { runs } = await selectOne<{ runs: number }>(
        place.database.pool,
        'SELECT count(*) AS runs FROM compaction_runs',
      );
      assert.equal(runs, 0);
    });
  });

  describe('varve runs', () => {
    it('tells what each run did, what is left, and since when', async () => {
      assert.match((await place.run('runs')).out, /no run yet[\s\S]*nothing is left to move/);
      const [chain] = (await some(1)) as [Chain];
      await exec(place.database.pool, `UPDATE trajectories SET created_at = varve_now() - interval '8 days'`);
      const left = await place.run('runs');
      assert.match(
        left.out,
        new RegExp(`1 trajectories are old enough and not in cold; the oldest, ${chain.id}, since `),
      );
      assert.equal((await compact()).code, 0);
      const done = await place.run('runs', '--json');
      assert.equal(done.code, 0);
      const { runs, backlog } = JSON.parse(done.out) as { runs: RunRow[]; backlog: { trajectories: number } };
      assert.deepEqual([runs.length, runs[0]?.state, backlog.trajectories], [1, 'finished', 0]);
    });

    it('compares what is due by the configuration, whatever a run was asked for', async () => {
      await some(3);
      await exec(place.database.pool, 'UPDATE trajectories SET created_at = varve_now()');
      assert.equal((await place.run('compact')).code, 0);
      assert.equal((await compact('--tenant', 'nobody')).code, 0);
      const { code, out } = await place.run('runs', '--json');
      const { runs } = JSON.parse(out) as { runs: { report: { backlog: { trajectories: number } } }[] };
      const left = runs.map(({ report }) => report.backlog.trajectories);
      assert.deepEqual([code, left], [0, [0, 0]]);
    });

    it('one that died, failed, or left more than the one before is a concern', () => {
      const run = (state: RunRow['state'], left: number | undefined, is_lapsed = false): RunRow => ({
        run_id: 'r',
        host: 'h',
        pid: 1,
        state,
        is_lapsed,
        started_at: '',
        finished_at: null,
        error_code: null,
        report: left === undefined ? null : { backlog: { trajectories: left, oldest: null } },
      });
      assert.equal(concernOf([]), undefined);
      assert.equal(concernOf([run('finished', 3)]), undefined);
      assert.equal(concernOf([run('finished', 3), run('finished', 3)]), undefined);
      assert.match(
        concernOf([run('finished', 4), run('failed', undefined), run('finished', 3)]) ?? '',
        /grew from 3 to 4/,
      );
      assert.match(concernOf([run('failed', undefined)]) ?? '', /failed/);
      assert.match(concernOf([run('running', undefined, true)]) ?? '', /died/);
      assert.equal(concernOf([run('running', undefined), run('finished', 1)]), undefined);
      const waiting = {
        ...run('finished', 0),
        report: { backlog: { trajectories: 9, oldest: null }, held_trajectories: 9 },
      };
      assert.equal(concernOf([waiting, run('finished', 0)]), undefined, 'who waits for a full file is no backlog');
    });
  });

  it('counts the bytes of payloads, not their characters', async () => {
    const chain = new Chain(idAt(0, DAY));
    chain.add({ event_type: 'TaskStarted', payload: { tenant: 'acme' } });
    chain.add({ event_type: 'MessageAdded', payload: { content: '永不丢失'.repeat(100) } });
    chain.add({ event_type: 'TaskFinished', payload: { status: 'completed' } });
    await place.ingest({ chain, from: 1 });
    const { payload_bytes } = JSON.parse((await compact('--json')).out) as { payload_bytes: number };
    const expected = chain.events.reduce((sum, event) => sum + event.payload_bytes.byteLength, 0);
    assert.equal(payload_bytes, expected);
  });

  it('a signal gives up what is not committed, and gives its claims back', async () => {
    const chains = await some(2);
    const { pool } = place.database;
    const ended = await place.varve(['compact', '--older-than', '0'], {
      env: { VARVE_FAILPOINT: 'compact.lot.claimed/stop' },
      onStart: (kill) =>
        void eventually('its claims', async () => {
          const rows = await select(pool, `SELECT 1 FROM compaction_claims`);
          return rows.length > 0 ? true : undefined;
        })
          .then(() => sleep(200))
          .then(() => ['SIGTERM', 'SIGCONT'].forEach((signal) => kill(signal as NodeJS.Signals))),
    });
    assert.equal(ended.code, 143, ended.err);
    const claims = await selectOne<{ left: number }>(pool, 'SELECT count(*) AS left FROM compaction_claims');
    assert.equal(claims.left, 0);
    const run = await selectOne<{ state: string }>(pool, 'SELECT state FROM compaction_runs');
    assert.equal(run.state, 'stopped');
    assert.equal((await place.files()).size, 0);
    assert.equal((await compact()).code, 0);
    await place.assertCold(chains);
  });
});
