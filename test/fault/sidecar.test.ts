/**
 * `kill -9` of the sidecar and of the worker and immediate stops of PostgreSQL, while a worker writes: in the end warm
 * equals hot, event by event and hash by hash.
 *
 *   FAULT_SCALE=soak npm run test:soak -- sidecar      20, 10 and 5 of them, under 1,000 events a second
 */
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { type EmbeddedServer, startEmbedded } from '../../warm/embedded.ts';
import { migrate } from '../../warm/migrate.ts';
import { openPool, type WarmPool } from '../../warm/pool.ts';
import { Child } from '../support/child.ts';
import { TEST_SERVER } from '../support/postgres.ts';
import { modestOrSoak, runs, summarize } from '../support/scale.ts';
import { type Random, seededRandom } from '../support/seed.ts';
import { assertEqual } from '../support/sidecar-hot.ts';
import { type Place, SidecarProcess, until } from '../support/sidecar-process.ts';
import { select } from '../support/sidecar-warm.ts';
import type { WorkerPlan } from '../support/sidecar-worker.ts';
import { TempDirectory } from '../support/temp.ts';

const EVENTS_PER_SECOND = modestOrSoak(400, 1000);
/** While the sidecar is away this much waits in the log. */
const OUTAGE_MS = modestOrSoak(2500, 120_000);

/** A server of its own, that is killed; a sidecar and a worker, that are. */
class Scene implements AsyncDisposable {
  readonly temp: TempDirectory;
  readonly directory: string;
  readonly random: Random;
  readonly place: Place;
  server: EmbeddedServer;
  readonly pool: WarmPool;
  sidecar: SidecarProcess;
  worker: Child | undefined;
  acknowledged = 0;

  private constructor(server: EmbeddedServer, pool: WarmPool, temp: TempDirectory, random: Random) {
    this.temp = temp;
    this.directory = temp.join('hot');
    this.random = random;
    this.server = server;
    this.pool = pool;
    this.place = { logs: this.directory, url: server.url, store: temp.join('store') };
    this.sidecar = SidecarProcess.start(this.place);
  }

  static async open(label: string): Promise<Scene> {
    const temp = new TempDirectory('sc');
    const server = await startEmbedded(temp.join('pg'), TEST_SERVER);
    const pool = await openPool(server.url, { max: 2 });
    await migrate(pool);
    return new Scene(server, pool, temp, seededRandom(label));
  }

  startWorker(plan: Partial<WorkerPlan> = {}): Child {
    const seed = this.random.between(0, 2 ** 31);
    const whole = { directory: this.directory, perSecond: EVENTS_PER_SECOND, trajectories: 40, seed, ...plan };
    const onLine = (line: string) => {
      const [word, lsn] = line.split(' ');
      if (word === 'durable') this.acknowledged = Math.max(this.acknowledged, Number(lsn));
    };
    this.worker = Child.start('sidecar-worker.ts', whole, { onLine });
    return this.worker;
  }

  async cursor(): Promise<number> {
    const [row] = await select<{ lsn: number }>(this.pool, 'SELECT lsn FROM cursors').catch(() => []);
    return row?.lsn ?? 0;
  }

  /** The sidecar has brought something since now. */
  async moves(): Promise<void> {
    const before = await this.cursor();
    await until(
      'the cursor to move',
      async () => (await this.cursor()) > before || undefined,
      60_000,
      () => this.sidecar.child.stderr.slice(-1500),
    );
  }

  async killSidecar(): Promise<void> {
    this.sidecar.child.kill('SIGKILL');
    await this.sidecar.child.exited;
    this.sidecar = SidecarProcess.start(this.place);
  }

  async killWorker(): Promise<void> {
    this.worker?.kill('SIGKILL');
    await this.worker?.exited;
    this.startWorker();
  }

  async stopServer(): Promise<void> {
    await this.server.stop('immediate');
    this.server = await startEmbedded(this.temp.join('pg'), TEST_SERVER);
    assert.equal(this.server.url, this.place.url);
  }

  /** The worker stops, the sidecar takes the rest over and stops. Returns the end of the log. */
  async finish(): Promise<number> {
    const worker = this.worker as Child;
    worker.send('stop');
    const last = Number((await worker.line('closed ', 60_000)).slice('closed '.length));
    assert.ok(last >= this.acknowledged, `the log ends at ${last}, but ${this.acknowledged} was acknowledged`);
    await until(
      'everything to be replicated',
      async () => (await this.cursor()) === last || undefined,
      60_000,
      () => this.sidecar.child.stderr.slice(-1500),
    );
    const { code } = await this.sidecar.stop();
    assert.equal(code, 143);
    return last;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.worker?.[Symbol.asyncDispose]();
    await this.sidecar[Symbol.asyncDispose]();
    await this.pool.close();
    await this.server.stop('immediate');
    this.temp[Symbol.dispose]();
  }
}

describe('the sidecar under faults', () => {
  it('after kills of sidecar, worker and PostgreSQL warm equals hot: nothing lost, doubled or reordered', async function () {
    const kills = runs(3, 20);
    const workerKills = modestOrSoak(2, 10);
    const serverStops = modestOrSoak(1, 5);
    this.timeout(60_000 + 30_000 * (kills + workerKills + serverStops));
    await using scene = await Scene.open('kills of the sidecar');
    scene.startWorker();
    const faults = [
      ...Array.from({ length: kills }, () => () => scene.killSidecar()),
      ...Array.from({ length: workerKills }, () => () => scene.killWorker()),
      ...Array.from({ length: serverStops }, () => () => scene.stopServer()),
    ];
    while (faults.length > 0) {
      await scene.moves();
      // Any moment of a batch.
      await sleep(scene.random.between(0, 150));
      await faults.splice(scene.random.between(0, faults.length - 1), 1)[0]?.();
    }
    await scene.moves();
    await scene.finish();
    const events = await assertEqual(scene.pool, scene.place.store, scene.directory);
    summarize({ sidecar_kills: kills, worker_kills: workerKills, server_stops: serverStops, replicated: events });
  });

  it('while PostgreSQL is away appends go on, the lag is visible, memory stays flat, and all is caught up', async function () {
    this.timeout(120_000 + 3 * OUTAGE_MS);
    await using scene = await Scene.open('PostgreSQL away');
    // Enough that it fills what the sidecar may hold many times.
    scene.startWorker({ perSecond: 600, textBytes: modestOrSoak(8000, 1500) });
    await scene.moves();
    const before = await scene.sidecar.reaches((status) => status.replicated_lsn > 0);
    await scene.server.stop('immediate');
    const until = Date.now() + OUTAGE_MS;
    await scene.sidecar.reaches((status) => status.error !== null && status.error !== undefined);
    const rss = await rssOf(scene.sidecar);
    let peak = rss;
    let shown = before.durable_lsn;
    while (Date.now() < until) {
      const status = await scene.sidecar.status();
      shown = Math.max(shown, status?.durable_lsn ?? 0);
      peak = Math.max(peak, await rssOf(scene.sidecar));
      await sleep(50);
    }
    const acknowledged = scene.acknowledged;
    assert.ok(acknowledged > before.durable_lsn + OUTAGE_MS / 10, 'appends stood still');
    const late = await scene.sidecar.reaches((status) => status.durable_lsn >= acknowledged);
    assert.ok(late.durable_lsn - late.replicated_lsn > OUTAGE_MS / 10, 'no lag is shown');
    assert.ok(late.oldest_ms > OUTAGE_MS / 2, `the oldest record has waited ${late.oldest_ms} ms`);
    assert.match(
      (await scene.sidecar.get('/metrics')).text,
      /varve_sidecar_retries_total\{[^}]*code="WARM_UNAVAILABLE"\} [1-9]/,
    );
    // Four batches of a mebibyte, and what a garbage collector leaves lying about.
    assert.ok(peak - rss < 120, `the sidecar grew from ${rss} to ${peak} MiB`);
    scene.server = await startEmbedded(scene.temp.join('pg'), TEST_SERVER);
    await scene.finish();
    const events = await assertEqual(scene.pool, scene.place.store, scene.directory);
    summarize({ outages: 1, replicated: events, sidecar_peak_mib: peak });
  });

  it('connections that are cut, and the errors of a server in trouble, are tried again until all is there', async function () {
    this.timeout(120_000);
    await using scene = await Scene.open('errors of the server');
    scene.startWorker();
    await scene.moves();
    const states = ['40001', '40P01', '57P01', '53100', '53300', '55P03'];
    await scene.pool.lend((session) =>
      session.exec(`
        CREATE SEQUENCE trouble;
        CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          IF nextval('trouble') % 3 = 0 THEN
            RAISE EXCEPTION 'trouble' USING ERRCODE = ('{${states.join(',')}}'::text[])[1 + (currval('trouble') / 3) % ${states.length}];
          END IF;
          RETURN NULL;
        END $$;
        CREATE TRIGGER trouble AFTER UPDATE ON cursors FOR EACH STATEMENT EXECUTE FUNCTION trouble()`),
    );
    const wanted = ['WARM_CONFLICT', 'WARM_UNAVAILABLE', 'WARM_DISK_FULL', 'WARM_OVERLOADED', 'WARM_LOCKED'];
    const cuts = modestOrSoak(6, 60);
    for (let i = 0; i < cuts; i++) {
      await scene.moves();
      await scene.pool
        .lend((session) =>
          session.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
          WHERE application_name = 'varve' AND pid <> pg_backend_pid() AND (${i % 2 === 0 ? "state = 'idle'" : 'true'})`),
        )
        .catch(() => {});
    }
    await until('every error to be counted', async () => {
      const { text } = await scene.sidecar.get('/metrics');
      return wanted.every((code) => new RegExp(`retries_total\\{[^}]*code="${code}"\\} [1-9]`).test(text)) || undefined;
    });
    await scene.pool.lend((session) => session.exec('DROP TRIGGER trouble ON cursors'));
    await scene.finish();
    await assertEqual(scene.pool, scene.place.store, scene.directory);
    summarize({ cuts });
  });

  it('two sidecars on one log, killed in turn, replicate it once; the other one takes over', async function () {
    this.timeout(120_000);
    await using scene = await Scene.open('two sidecars');
    scene.startWorker();
    await scene.moves();
    const rounds = modestOrSoak(1, 12);
    for (let i = 0; i < rounds; i++) {
      const second = SidecarProcess.start(scene.place);
      try {
        await second.reaches(({ state }) => state === 'standby');
        scene.sidecar.child.kill('SIGKILL');
        await scene.sidecar.child.exited;
        await second.reaches(({ state }) => state === 'following');
      } finally {
        scene.sidecar = second;
      }
      await scene.moves();
    }
    await scene.finish();
    await assertEqual(scene.pool, scene.place.store, scene.directory);
    summarize({ takeovers: rounds });
  });

  it('a worker that restarts gets its log at once, while a sidecar drains it and PostgreSQL is away', async function () {
    this.timeout(60_000);
    await using scene = await Scene.open('a drain that yields');
    await scene.sidecar.stop();
    // Far more than the sidecar may hold, and nobody has replicated it.
    scene.startWorker({ perSecond: 3000, textBytes: 8000 });
    await until('a backlog', () => scene.acknowledged > 1200 || undefined);
    scene.worker?.kill('SIGKILL');
    await scene.worker?.exited;
    await scene.pool.lend((session) =>
      session.exec(`
        CREATE TABLE outage AS SELECT true AS lasts;
        CREATE FUNCTION outage() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          WHILE (SELECT lasts FROM outage) LOOP PERFORM pg_sleep(0.02); END LOOP; RETURN NULL;
        END $$;
        CREATE TRIGGER outage BEFORE INSERT ON trajectory_events FOR EACH STATEMENT EXECUTE FUNCTION outage()`),
    );
    scene.sidecar = SidecarProcess.start(scene.place);
    await scene.sidecar.reaches(({ state, queued_bytes }) => state === 'draining' && queued_bytes > 4_000_000);
    // Its own patience is five seconds; it must not be used up.
    const worker = scene.startWorker({ perSecond: 100, options: { lockTimeoutMs: 2000 } });
    await worker.line('open ');
    await scene.pool.lend((session) => session.exec('UPDATE outage SET lasts = false'));
    await scene.sidecar.reaches(({ state }) => state === 'following');
    await scene.finish();
    await assertEqual(scene.pool, scene.place.store, scene.directory);
  });
});

/** In MiB. */
async function rssOf(sidecar: SidecarProcess): Promise<number> {
  const { text } = await sidecar.get('/metrics');
  return Math.round(Number(/^process_resident_memory_bytes (\S+)$/m.exec(text)?.[1]) / 1_048_576);
}
