/** Whoever goes back in time is noticed: a hot directory, a database, an ack. Nothing is overwritten, what is gone is named. */
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { HotLog } from '../../hot/log.ts';
import { type ErrorCode, isVarveError } from '../../schemas/errors.ts';
import { newTrajectoryId } from '../../schemas/ids.ts';
import { openPool, type WarmPool } from '../../warm/pool.ts';
import { Child } from '../support/child.ts';
import { createDatabase, type TestDatabase } from '../support/postgres.ts';
import { modestOrSoak, summarize } from '../support/scale.ts';
import { seededRandom } from '../support/seed.ts';
import { copyLog, grow, withLog } from '../support/sidecar-folder.ts';
import { assertEqual, eventsOf } from '../support/sidecar-hot.ts';
import { drainHere, type Place, SidecarProcess, until, varve, within } from '../support/sidecar-process.ts';
import { assertWhole, exec, select, selectOne, warmRows } from '../support/sidecar-warm.ts';
import { TempDirectory } from '../support/temp.ts';

describe('the sidecar after restores', () => {
  let database: TestDatabase;
  let pool: WarmPool;
  let temp: TempDirectory;
  let hot: string;
  let place: Place;

  beforeEach(async () => {
    database = await createDatabase();
    pool = database.pool;
    temp = new TempDirectory('sr');
    hot = temp.join('hot');
    place = { logs: hot, url: database.url, store: temp.join('store') };
  });
  afterEach(async () => {
    await database[Symbol.asyncDispose]();
    temp[Symbol.dispose]();
  });

  async function drains(): Promise<void> {
    await drainHere(place);
  }

  async function refuses(code: ErrorCode): Promise<void> {
    await assert.rejects(drainHere(place), (error) => isVarveError(error, code));
  }

  it('refuses a hot directory that went back, by name, also when it was written on; warm stays as it was', async () => {
    const id = newTrajectoryId();
    await withLog(hot, (log) => grow(log, 20, id));
    await drains();
    copyLog(hot, temp.join('copy'));
    await withLog(hot, (log) => grow(log, 10, id));
    await drains();
    const before = await warmRows(pool);
    assert.equal(before.length, 30);

    rmSync(hot, { recursive: true });
    copyLog(temp.join('copy'), hot);
    await refuses('TAIL_CURSOR_AHEAD');

    await withLog(hot, (log) => grow(log, 25, id, { note: 'another past' }));
    await refuses('TAIL_CURSOR_UNKNOWN');
    assert.deepEqual(await warmRows(pool), before);

    // Beside it, a log without trouble is replicated all the same, and the sidecar says which one needs a person.
    const good = temp.join('good');
    await withLog(good, (log) => grow(log, 5));
    const both = { ...place, logs: `${temp.path}/{hot,good}` };
    const drain = await varve(both, 'sidecar', '--drain');
    assert.equal(drain.code, 5);
    assert.match(drain.stderr, /TAIL_CURSOR_UNKNOWN/);
    assert.match(drain.stdout, new RegExp(`${good}: 5 of 5 records replicated`));
    await using sidecar = SidecarProcess.start(both);
    await sidecar.reaches(({ state }) => state === 'refused', hot);
    await sidecar.reaches(({ state }) => state === 'idle', good);
    const ready = await sidecar.get('/readyz');
    assert.equal(ready.status, 503);
    assert.match(ready.text, new RegExp(`^${hot}: TAIL_CURSOR_UNKNOWN`));
  });

  it('follows a directory that was replaced by another log, and keeps what the first one brought', async () => {
    await withLog(hot, (log) => grow(log, 7));
    await using sidecar = SidecarProcess.start(place);
    const { log_id } = await sidecar.reaches(({ state, replicated_lsn }) => state === 'idle' && replicated_lsn === 7);
    renameSync(hot, temp.join('first'));
    await withLog(hot, (log) => grow(log, 9));
    const second = await sidecar.reaches((status) => status.log_id !== log_id && status.replicated_lsn === 9);
    assert.notEqual(second.log_id, log_id);
    await sidecar.stop();
    assert.equal(await assertEqual(pool, place.store, hot, temp.join('first')), 16);
  });

  it('sends a database that went back again what the log still holds', async () => {
    const id = newTrajectoryId();
    await withLog(hot, (log) => grow(log, 20, id));
    await drains();
    await using backup = await snapshot();
    await withLog(hot, (log) => grow(log, 30, id));
    await drains();
    assert.equal(await assertEqual(pool, place.store, hot), 50);
    // The failover: the same sidecar, another database.
    place = { ...place, url: backup.url };
    await withLog(hot, (log) => grow(log, 5, id));
    await drains();
    assert.equal(await assertEqual(backup.pool, place.store, hot), 55);
  });

  it('names what neither a database that went back nor the log has, and goes on with the rest', async () => {
    const [id, other] = [newTrajectoryId(), newTrajectoryId()];
    const retention = { trimAfterMs: 0, blobGraceMs: 0 };
    await withLog(hot, (log) => grow(log, 5, id));
    await drains();
    await using backup = await snapshot();
    await withLog(hot, async (log) => {
      await grow(log, 5, id);
      await log.append(id, { event_type: 'TaskFinished', turn: 0, payload: { status: 'completed' } });
      await grow(log, 3, other);
    });
    await drains();
    await withLog(
      hot,
      async (log) => {
        const { lsn, hash } = log.cursorSource.durable();
        await log.acknowledge({ log_id: log.logId, epoch: log.epoch, cursor: { lsn, hash }, held: [] });
        assert.equal((await log.trim()).events, 11);
        await grow(log, 2, other);
      },
      { retention },
    );
    place = { ...place, url: backup.url };
    await drains();
    const rows = await select<{ n: number }>(
      backup.pool,
      `SELECT sequence_number AS n FROM trajectory_events WHERE trajectory_id = '${other}' ORDER BY n`,
    );
    assert.deepEqual(
      rows.map(({ n }) => n),
      [1, 2, 3, 4, 5],
    );
    await assertWhole(backup.pool);
    const missing = await select(backup.pool, 'SELECT from_lsn, to_lsn FROM missing_records');
    assert.deepEqual(missing, [{ from_lsn: 6, to_lsn: 11 }]);
    const status = await varve(place, 'status');
    assert.equal(status.code, 3);
    assert.match(status.stdout, /MISSING: records 6 to 11/);
  });

  /** A database with what this one holds now. Whoever is connected here is cut off. */
  async function snapshot(): Promise<{ url: string; pool: WarmPool } & AsyncDisposable> {
    const name = `${database.name}_old`;
    const admin = await openPool(urlOf('postgres'), { max: 1 });
    await pool.close();
    await exec(admin, `CREATE DATABASE ${name} TEMPLATE ${database.name}`);
    pool = await openPool(database.url, { max: 2 });
    const url = urlOf(name);
    const restored = await openPool(url, { max: 2 });
    return {
      url,
      pool: restored,
      async [Symbol.asyncDispose]() {
        await restored.close();
        await pool.close();
        await exec(admin, `DROP DATABASE ${name} WITH (FORCE)`);
        await admin.close();
      },
    };
  }

  function urlOf(name: string): string {
    const url = new URL(database.url);
    url.pathname = `/${name}`;
    return url.href;
  }

  for (const [what, spoil] of [
    ['torn', (path: string) => writeFileSync(path, readFileSync(path, 'utf8').slice(0, 40))],
    ['missing', (path: string) => rmSync(path)],
    ['of another log', (path: string) => writeFileSync(path, readFileSync(temp.join('other', 'ack.json')))],
  ] as const) {
    it(`with an ack file that is ${what} nothing is lost or sent for nothing, and the ack is made good`, async () => {
      await withLog(temp.join('other'), (log) => grow(log, 3));
      await drainHere({ ...place, logs: temp.join('other') });
      await withLog(hot, (log) => grow(log, 12));
      await drains();
      spoil(temp.join('hot', 'ack.json'));
      await withLog(hot, (log) => grow(log, 4));
      await drains();
      await assertEqual(pool, place.store, hot, temp.join('other'));
      const { cursor } = JSON.parse(readFileSync(temp.join('hot', 'ack.json'), 'utf8')) as { cursor: { lsn: number } };
      assert.equal(cursor.lsn, (await eventsOf(hot)).length);
    });
  }

  it('acknowledges nothing while more is held back than an ack can name, and goes on replicating', async () => {
    await withLog(hot, (log) => grow(log, 3));
    await drains();
    const { log_id } = JSON.parse(readFileSync(temp.join('hot', 'log.json'), 'utf8')) as { log_id: string };
    const ackedLsn = () =>
      (JSON.parse(readFileSync(temp.join('hot', 'ack.json'), 'utf8')) as { cursor: { lsn: number } }).cursor.lsn;
    for (const [count, acked] of [
      [10_001, 3],
      [10_000, 9],
    ] as const) {
      await exec(
        pool,
        `TRUNCATE quarantine; INSERT INTO quarantine (trajectory_id, sequence_number, log_id, lsn, reason, envelope, payload, cryptographic_hash)
         SELECT gen_random_uuid(), 1, '${log_id}', 1000 + n, 'gap', '', '', sha256('') FROM generate_series(1, ${count}) n`,
      );
      await withLog(hot, (log) => grow(log, 3));
      await drains();
      assert.equal(ackedLsn(), acked);
    }
    assert.equal((await warmRows(pool)).length, 9);
  });

  it('answers a worker that waits for an ack which was lost with its sidecar', async () => {
    await withLog(hot, (log) => grow(log, 6));
    await drains();
    rmSync(temp.join('hot', 'ack.json'));
    await using log = await HotLog.open(hot);
    const waiting = log.whenReplicated(log.durableLsn);
    waiting.catch(() => {});
    await using sidecar = SidecarProcess.start(place);
    await within('the worker to be told', waiting);
    assert.equal(log.acked?.cursor.lsn, 6);
    await sidecar.stop();
  });

  describe('--once', () => {
    /** A log whose writer was killed, somewhere else. */
    async function deadLog(): Promise<string> {
      const plan = { directory: hot, perSecond: 2000, trajectories: 20, seed: seededRandom('--once').between(0, 1e9) };
      await using worker = Child.start('sidecar-worker.ts', plan);
      await until(
        'some events',
        () => worker.lines.filter((line) => line.startsWith('durable ')).length > 20 || undefined,
      );
      worker.kill('SIGKILL');
      await worker.exited;
      const copy = temp.join('dead');
      copyLog(hot, copy);
      return copy;
    }

    it("takes over all of a dead host's directory", async () => {
      const copy = await deadLog();
      const ran = await varve(place, 'sidecar', '--once', copy);
      assert.equal(ran.code, 0, ran.stderr);
      assert.ok((await assertEqual(pool, place.store, copy)) > 1000);
    });

    it('takes over what is whole before damage, writes nothing into the directory, and does not end with 0', async () => {
      const copy = await deadLog();
      const rounds = modestOrSoak(1, 12);
      const random = seededRandom('damage');
      const whole = await eventsOf(hot);
      for (let i = 0; i < rounds; i++) {
        await exec(
          pool,
          'TRUNCATE trajectory_events, trajectories, cursors, quarantine, blocks, anchors, blob_refs CASCADE',
        );
        const damaged = temp.join(`damaged-${i}`);
        copyLog(copy, damaged);
        damage(damaged, 0.2 + 0.6 * random.next());
        const before = treeOf(damaged);
        const ran = await varve(place, 'sidecar', '--once', damaged);
        assert.equal(ran.code, 5, `${ran.stdout} ${ran.stderr}`);
        assert.deepEqual(treeOf(damaged), before);
        const lsn = Number(/up to LSN (\d+)/.exec(ran.stdout)?.[1]);
        const rows = await warmRows(pool);
        assert.ok(lsn > 0 && rows.length === lsn, `${rows.length} events, up to LSN ${lsn}: ${ran.stdout}`);
        const hashes = new Set(rows.map((row) => row.cryptographic_hash));
        for (const event of whole.slice(0, lsn)) assert.ok(hashes.has(event.cryptographic_hash));
        await assertWhole(pool);
      }
      summarize({ damaged_takeovers: rounds });
    });

    it('refuses a damaged directory that is of another past than what warm has', async () => {
      const copy = await deadLog();
      const { log_id } = JSON.parse(readFileSync(`${copy}/log.json`, 'utf8')) as { log_id: string };
      damage(copy, 0.8);
      await exec(
        pool,
        `INSERT INTO cursors (log_id, lsn, hash, epoch, host, directory)
         VALUES ('${log_id}', 1, sha256('other'), '${log_id}', 'h', 'd')`,
      );
      const ran = await varve(place, 'sidecar', '--once', copy);
      assert.match(ran.stdout, /HOT_DAMAGED/);
      assert.deepEqual([ran.code, /TAIL_CURSOR_UNKNOWN/.test(ran.stderr)], [5, true], ran.stderr);
      assert.equal((await selectOne<{ lsn: number }>(pool, 'SELECT lsn FROM cursors')).lsn, 1);
      assert.deepEqual(await warmRows(pool), []);
    });
  });

  /** Turns a byte of the log's newest WAL over. */
  function damage(directory: string, place: number): void {
    const wals = readdirSync(`${directory}/db`).filter((name) => name.endsWith('.log'));
    const path = wals
      .map((name) => `${directory}/db/${name}`)
      .toSorted((a, b) => statSync(a).size - statSync(b).size)
      .at(-1) as string;
    const bytes = readFileSync(path);
    const at = Math.floor(bytes.length * place);
    bytes[at] = (bytes[at] as number) ^ 0x20;
    writeFileSync(path, bytes);
  }

  function treeOf(directory: string): string[] {
    assert.ok(existsSync(directory));
    return readdirSync(directory, { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile() && entry.name !== 'LOCK' && !entry.name.startsWith('LOG'))
      .map((entry) => `${entry.parentPath}/${entry.name} ${statSync(`${entry.parentPath}/${entry.name}`).size}`)
      .toSorted();
  }
});
