/** The roles of `schemas/sql/roles.sql`: each can do its work, and nothing else. */
import assert from 'node:assert/strict';
import { randomBytes, randomUUID } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { isVarveError } from '../../schemas/errors.ts';
import { sqlFolder } from '../../warm/migrate.ts';
import { openPool, statement, type WarmPool } from '../../warm/pool.ts';
import { varve } from '../support/cli.ts';
import { Place, writeLog } from './support.ts';

const RELATIONS = statement<{ name: string; kind: string }>(
  'test.relations',
  `SELECT c.relname::text AS name, c.relkind::text AS kind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
   WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p', 'v') ORDER BY c.relname`,
);
const FUNCTIONS = statement<{ name: string }>(
  'test.functions',
  `SELECT p.oid::regprocedure::text AS name FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
   WHERE n.nspname = 'public' AND p.provolatile = 'v' AND has_function_privilege(current_user, p.oid, 'EXECUTE')`,
);

describe('roles.sql', () => {
  let place: Place;
  const made: string[] = [];
  beforeEach(async () => {
    place = await Place.make('roles');
    const text = await readFile(join(sqlFolder(), 'roles.sql'), 'utf8');
    await place.database.pool.lend((session) => session.exec(text));
    await place.database.pool.lend((session) => session.exec(text));
  });
  afterEach(async () => {
    await place.database.pool.lend(async (session) => {
      for (const name of made.splice(0)) await session.exec(`DROP ROLE ${name}`);
    });
    await place[Symbol.asyncDispose]();
  });

  /** The URL of somebody who has only this role. */
  async function urlAs(role: string): Promise<string> {
    const name = `t_${randomBytes(6).toString('hex')}`;
    await place.database.pool.lend((session) => session.exec(`CREATE ROLE ${name} LOGIN PASSWORD 'x' IN ROLE ${role}`));
    made.push(name);
    const url = new URL(place.database.url);
    url.username = name;
    url.password = 'x';
    return url.href;
  }

  async function isForbidden(pool: WarmPool, text: string): Promise<boolean> {
    try {
      await pool.lend((session) => session.exec(text));
      return false;
    } catch (error) {
      if (isVarveError(error, 'WARM_FORBIDDEN')) return true;
      throw error;
    }
  }

  async function configureAs(role: string): Promise<void> {
    const settings = JSON.parse(await readFile(place.config, 'utf8')) as { warm: object };
    settings.warm = { ...settings.warm, databaseUrl: await urlAs(role) };
    await writeFile(place.config, JSON.stringify(settings));
  }

  it('a sidecar works as varve_sidecar, also where it must make a partition, and changes no event', async () => {
    await writeLog(place.hot, 3);
    await place.database.pool.lend((session) =>
      session.exec(
        `DO $$ DECLARE v text; BEGIN FOR v IN SELECT name FROM event_partitions LOOP EXECUTE 'DROP TABLE ' || v; END LOOP; END $$`,
      ),
    );
    await configureAs('varve_sidecar');
    await place.drain();
    assert.equal((await varve('status', '--config', place.config)).code, 0);
    assert.equal((await varve('verify', '--warm', '--config', place.config)).code, 0);
    const url = (JSON.parse(await readFile(place.config, 'utf8')) as { warm: { databaseUrl: string } }).warm
      .databaseUrl;
    await using pool = await openPool(url, { max: 1 });
    for (const text of [
      `UPDATE trajectory_events SET turn = 0`,
      `DELETE FROM trajectory_events`,
      `DELETE FROM trajectories`,
      `DELETE FROM quarantine`,
      `DELETE FROM blob_refs`,
      `INSERT INTO cold_segments SELECT NULL, 1, 1, NULL, NULL`,
      `SELECT varve_add_partition('x', gen_random_uuid(), gen_random_uuid())`,
      `CREATE TABLE x (i int)`,
      `DROP TABLE cursors`,
    ])
      assert.ok(await isForbidden(pool, text), text);
  });

  it('an operator replays, accepts and branches', async () => {
    const ids = await writeLog(place.hot, 3);
    await place.drain();
    await configureAs('varve_operator');
    const hold = async (id: string | undefined, reason: string, log: string) =>
      await place.database.pool.lend((session) =>
        session.exec(`INSERT INTO quarantine (trajectory_id, sequence_number, log_id, lsn, reason, envelope, payload, cryptographic_hash)
          SELECT trajectory_id, sequence_number + 5, '${log}', 1, '${reason}', varve_envelope(trajectory_id, sequence_number + 5,
            event_type, turn, payload_sha256, created_at, fencing_token), convert_to('{}', 'UTF8'), cryptographic_hash
          FROM trajectory_events WHERE trajectory_id = '${id}' AND sequence_number = 9;
          INSERT INTO blocks (trajectory_id, log_id, fencing_token, reason, sequence_number) VALUES ('${id}', '${log}', 0, '${reason}', 14)`),
      );
    const reasons = ['gap', 'fork', 'fenced'];
    for (const [i, reason] of reasons.entries()) await hold(ids[i], reason, randomUUID());
    const run = async (command: string, i: number, ...flags: string[]) =>
      await varve('quarantine', command, ids[i] ?? '', '--config', place.config, ...flags);
    const codes = [await run('replay', 0), await run('accept', 1, '--reason', 'seen'), await run('branch', 2)];
    assert.deepEqual(
      codes.map(({ code, stderr }) => [code, stderr]),
      [
        [3, ''],
        [0, ''],
        [0, ''],
      ],
    );
  });

  it('a reader sees every view for people, and no table and no payload', async () => {
    await using pool = await openPool(await urlAs('varve_reader'), { max: 1 });
    const relations = await pool.lend((session) => session.query(RELATIONS));
    const views: string[] = [];
    for (const { name, kind } of relations) {
      const forbidden = await isForbidden(pool, `SELECT * FROM ${name} LIMIT 1`);
      assert.equal(forbidden, kind !== 'v', name);
      if (kind === 'v') views.push(name);
    }
    assert.deepEqual(views, ['fleet', 'in_doubt', 'pending_approvals', 'replication_lag']);
    const functions = (await pool.lend((session) => session.query(FUNCTIONS))).map(({ name }) => name);
    assert.deepEqual(
      functions.filter((name) => !/^varve_(now|refuse)\(/.test(name)),
      [],
    );
  });

  it('a compactor compacts, and changes no event', async () => {
    const ids = await writeLog(place.hot, 3);
    await place.drain();
    await place.database.pool.lend((session) => session.exec(`UPDATE trajectories SET status = 'completed'`));
    await configureAs('varve_compactor');
    const ran = await varve('compact', '--older-than', '0', '--config', place.config);
    assert.deepEqual([ran.code, ran.stderr], [0, '']);
    assert.match(ran.stdout, new RegExp(`of ${ids.length} trajectories into`));
    assert.equal((await varve('runs', '--config', place.config)).code, 0);
    await using pool = await openPool(await urlAs('varve_compactor'), { max: 1 });
    for (const text of [
      `SELECT trajectory_id FROM trajectories FOR UPDATE SKIP LOCKED`,
      `SELECT payload FROM trajectory_events LIMIT 1`,
      `UPDATE quarantine SET state = 'proven', settled_at = varve_now() WHERE false`,
    ])
      assert.equal(await isForbidden(pool, text), false, text);
    for (const text of [
      `DELETE FROM trajectory_events`,
      `UPDATE trajectories SET head_hash = sha256('x')`,
      `DELETE FROM quarantine`,
    ])
      assert.ok(await isForbidden(pool, text), text);
  });
});
