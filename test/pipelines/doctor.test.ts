/** `varve doctor`: touches nothing by itself, copies evidence, and mends only what is provably nobody's. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, existsSync, readdirSync, readFileSync, statSync, utimesSync, writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { HotLog } from '../../hot/log.ts';
import { copyEvidence } from '../../pipelines/doctor.ts';
import { exitCodeOf, type HotFacts, judgeHot, judgeWarm } from '../../pipelines/doctor-plan.ts';
import { varve } from '../support/cli.ts';
import { TempDirectory } from '../support/temp.ts';
import { damageLog, Place, SERVED, writeAgent, writeLog } from './support.ts';

type Told = { readonly level: string; readonly what: string; readonly next?: readonly string[]; readonly fixed?: true };

/** Names, sizes, times and bytes of everything below a folder. */
function imageOf(folder: string): string[] {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .map((entry) => {
      const path = join(entry.parentPath, entry.name);
      const { size, mtimeMs, mode } = statSync(path);
      const bytes = entry.isFile() && entry.name !== 'LOCK' ? readFileSync(path).toString('base64') : '';
      return `${path} ${size} ${entry.isFile() ? mtimeMs : ''} ${mode} ${bytes}`;
    })
    .toSorted();
}

async function doctor(hot: string, ...flags: string[]): Promise<{ code: number; findings: Told[] }> {
  const { stdout, stderr, code } = await varve('doctor', '--hot', hot, '--json', ...flags);
  assert.notEqual(stdout, '', stderr);
  return { code, findings: (JSON.parse(stdout) as { findings: Told[] }).findings };
}

async function deadPid(): Promise<number> {
  const child = spawn('true');
  await once(child, 'close');
  return child.pid ?? 0;
}

/** As a writer names the directory of its log. */
function identityOf(directory: string): string {
  const { dev, ino } = statSync(directory, { bigint: true });
  return `${dev}:${ino}`;
}

describe('varve doctor', () => {
  let temp: TempDirectory;
  let hot: string;
  beforeEach(() => {
    temp = new TempDirectory('doctor');
    hot = temp.join('hot');
  });
  afterEach(() => temp[Symbol.dispose]());

  it('looks at a whole log and leaves every byte of it as it was', async () => {
    await writeLog(hot);
    const before = imageOf(hot);
    const { code, findings } = await doctor(hot);
    assert.deepEqual(imageOf(hot), before);
    assert.equal(code, 0, JSON.stringify(findings));
    assert.match(findings[0]?.what ?? '', /whole .* LSN 9/);
  });

  it('names who holds a log, and does not look into it meanwhile', async () => {
    await using log = await HotLog.open(hot, SERVED);
    await writeAgent(log);
    const { code, findings } = await doctor(hot);
    assert.equal(code, 0);
    assert.match(findings[0]?.what ?? '', new RegExp(`process ${process.pid} has it open \\(writer\\)$`));
  });

  it('names damage and the next commands, and changes nothing, copies all but the lock', async () => {
    await writeLog(hot, 30);
    damageLog(hot);
    const before = imageOf(hot);
    const { code, findings } = await doctor(hot, '--copy', temp.join('copy'));
    assert.deepEqual(imageOf(hot), before);
    assert.equal(code, 5);
    const found = findings.find(({ level }) => level === 'damage');
    assert.match(found?.what ?? '', /DAMAGED at LSN \d+: /);
    assert.deepEqual(
      found?.next?.map((step) => step.split(' ').slice(0, 2).join(' ')),
      ['varve sidecar', `mv ${hot}`],
    );
    const [id] = readdirSync(temp.join('copy'));
    const [from, to] = [imageOf(hot), imageOf(temp.join('copy', id ?? ''))];
    const bytes = (image: string[]) => image.map((line) => line.split(' ').at(-1) ?? '').toSorted();
    assert.deepEqual(bytes(to), bytes(from.filter((line) => !line.includes('/LOCK '))));
    const again = await varve('doctor', '--hot', hot, '--copy', temp.join('copy'));
    assert.deepEqual([again.code, /evidence is not overwritten/.test(again.stderr)], [2, true]);
  });

  it('does not copy a log into itself', async () => {
    await writeLog(hot);
    await assert.rejects(copyEvidence(hot, join(hot, 'copy')), /in the log itself/);
  });

  it('removes what dead processes left only when asked to, and then finds nothing to remove', async () => {
    await writeLog(hot);
    const pid = await deadPid();
    const old = new Date(Date.now() - 3_600_000);
    const left = [join(hot, `ack.json.${pid}.0123456789ab.tmp`), join(hot, 'blobs', 'tmp', `${pid}.0123456789abcdef`)];
    const alive = join(hot, 'blobs', 'tmp', `${process.pid}.0123456789abcdef`);
    const fresh = join(hot, `ack.json.${pid}.ba9876543210.tmp`);
    for (const path of [...left, alive, fresh]) writeFileSync(path, 'x');
    for (const path of [...left, alive]) utimesSync(path, old, old);
    const writer = {
      pid,
      start_time: '1',
      directory: identityOf(hot),
      host: hostname(),
      epoch: 'e',
      role: 'writer',
      socket: join(hot, 'tail.sock'),
    };
    writeFileSync(join(hot, 'writer.json'), JSON.stringify(writer));
    await orphan(join(hot, 'tail.sock'));

    const before = imageOf(hot);
    const looked = await doctor(hot);
    assert.deepEqual([looked.code, imageOf(hot)], [0, before]);
    const first = await doctor(hot, '--fix');
    assert.equal(first.findings.filter(({ fixed }) => fixed).length, 4);
    assert.deepEqual(
      [...left, join(hot, 'writer.json'), join(hot, 'tail.sock')].filter((path) => existsSync(path)),
      [],
    );
    assert.ok(existsSync(alive) && existsSync(fresh));
    const clean = imageOf(hot);
    const second = await doctor(hot, '--fix');
    assert.deepEqual([second.findings.filter(({ fixed }) => fixed), imageOf(hot)], [[], clean]);
    await writeLog(hot);
  });

  it('removes nothing of a log that another host may hold, or whose holder is silent', async () => {
    await writeLog(hot);
    const directory = identityOf(hot);
    const writer = { pid: 1, start_time: '1', host: 'elsewhere', epoch: 'e', role: 'writer', directory };
    writeFileSync(join(hot, 'writer.json'), JSON.stringify(writer));
    const { code, findings } = await doctor(hot, '--fix');
    assert.equal(code, 3);
    assert.match(findings.map(({ what }) => what).join(), /elsewhere/);
    assert.ok(existsSync(join(hot, 'writer.json')));
  });

  it('tells that others can read a log, and where there is none', async () => {
    await writeLog(hot);
    chmodSync(hot, 0o755);
    const { code, findings } = await doctor(hot);
    assert.deepEqual([code, findings.some(({ next }) => next?.[0] === `chmod 700 ${hot}`)], [3, true]);
    assert.equal((await doctor(temp.join('nothing'))).code, 4);
  });

  it('says nothing is whole where log.json does not say what it is', async () => {
    await writeLog(hot);
    writeFileSync(join(hot, 'log.json'), '{');
    assert.equal((await doctor(hot)).code, 5);
  });
});

/** A socket that nobody listens on, as a killed process leaves it. */
async function orphan(path: string): Promise<void> {
  const script = `require('node:net').createServer().listen(${JSON.stringify(path)}, () => process.kill(process.pid, 'SIGKILL'))`;
  await once(spawn(process.execPath, ['-e', script]), 'close');
  assert.ok(existsSync(path));
}

describe('varve doctor of everything', () => {
  let place: Place;
  beforeEach(async () => {
    place = await Place.make('doctor');
  });
  afterEach(() => place[Symbol.asyncDispose]());

  async function everything(): Promise<{ code: number; text: string }> {
    const { code, stdout, stderr } = await varve('doctor', '--config', place.config);
    return { code, text: stdout + stderr };
  }

  it('finds logs, a migrated database and a store, and makes none of them', async () => {
    await writeLog(place.hot);
    const { code, text } = await everything();
    assert.equal(code, 0, text);
    assert.match(text, /is migrated, and has partitions for 2 days ahead/);
    assert.match(text, /it can be made/);
    assert.equal(existsSync(place.temp.join('cold')), false);
  });

  it('tells what is held back, and a database that does not answer', async () => {
    await writeLog(place.hot);
    await place.database.pool.lend((session) =>
      session.exec(`INSERT INTO quarantine (trajectory_id, sequence_number, log_id, lsn, reason, envelope, payload, cryptographic_hash)
        VALUES (gen_random_uuid(), 1, gen_random_uuid(), 1, 'gap', '{}', '{}', sha256('x'))`),
    );
    const held = await everything();
    assert.equal(held.code, 3);
    assert.match(held.text, /1 events of 1 trajectories are held back: gap\n.*varve quarantine list --reason gap/);
    const settings = { hot: { logs: place.hot }, warm: { databaseUrl: 'postgresql://nobody@127.0.0.1:1/none' } };
    writeFileSync(place.config, JSON.stringify(settings));
    const { code, text } = await everything();
    assert.deepEqual([code, /PROBLEM .*WARM_UNAVAILABLE/.test(text)], [4, true], text);
  });
});

describe('what a doctor makes of facts', () => {
  const FACTS: HotFacts = {
    directory: '/log',
    host: 'here',
    log_id: 'l',
    unreadable: undefined,
    creating: false,
    holder: undefined,
    writer: undefined,
    socket: undefined,
    temporaries: [],
    mode: 0o40_700,
    hasBallast: true,
    fileSystem: { type: 'ext4' },
    freeBytes: 1e12,
    totalBytes: 1e13,
    check: { tip: 1, trajectories: 1 },
    copied: undefined,
  };

  it('offers no removal while anybody holds the log', () => {
    const temporaries = [{ path: '/log/x.1.0.tmp', pid: 1, isAlive: false, ageMs: 1e9 }];
    const holder = { pid: 2, role: 'writer', answers: false };
    assert.equal(judgeHot({ ...FACTS, temporaries }).filter(({ remove }) => remove !== undefined).length, 1);
    assert.equal(judgeHot({ ...FACTS, temporaries, holder }).filter(({ remove }) => remove !== undefined).length, 0);
  });

  it('warns of a file system that makes no sense under a log, and of a disk that is nearly full', () => {
    const nfs = judgeHot({ ...FACTS, fileSystem: { type: 'nfs', warning: 'a network' }, freeBytes: 1000 });
    assert.deepEqual(
      nfs.map(({ level }) => level),
      ['ok', 'attention', 'problem'],
    );
    assert.equal(exitCodeOf(nfs), 4);
  });

  it('takes an embedded server that nobody has started for no fault', () => {
    const facts = {
      server: '/warm',
      unreachable: undefined,
      notStarted: true,
      pending: [],
      unknown: [],
      state: undefined,
    };
    assert.equal(exitCodeOf(judgeWarm(facts)), 0);
    assert.equal(exitCodeOf(judgeWarm({ ...facts, notStarted: false, pending: ['0001-warm'] })), 4);
  });
});
