/**
 * `kill -9`: a writer dies at any moment and at every named failpoint, and the log has every acknowledged event, has no
 * hole, and goes on.
 *
 *   FAULT_RUNS=200 npm run test:soak -- kill
 */
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { FAILPOINT_VARIABLE, FAILPOINTS, type FailpointName } from '../../schemas/failpoint.ts';
import { KIB, MIB } from '../../schemas/limits.ts';
import type { Step } from '../support/append-child.ts';
import { FaultLog } from '../support/fault-log.ts';
import { modestOrSoak, runs, summarize } from '../support/scale.ts';
import { type Random, seededRandom } from '../support/seed.ts';
import { TempDirectory } from '../support/temp.ts';
import { GROUP } from '../support/workload.ts';

/** Deaths of one log, one after the other: recovery is tried on what earlier recoveries left. */
const KILLS_PER_LOG = 6;
const TRAJECTORIES = 300;

/** Small buffers put flushes, compactions and changes of WAL among the moments that are hit. */
const WRITE_BUFFERS = [256 * KIB, MIB, 16 * MIB];

/** Smaller than an `appendAll`: if anything can cut one apart, this does. */
const SMALL_BATCH = GROUP - 1;

describe('kill -9', () => {
  it('a writer killed at any moment has lost nothing that it acknowledged, and its log goes on', async function () {
    const kills = runs(12, 40);
    this.timeout(30_000 + kills * 15_000);
    const random = seededRandom('kill at any moment');
    let done = 0;
    let acknowledged = 0;
    while (done < kills) {
      using directory = new TempDirectory('kill');
      const log = new FaultLog(directory.join('log'), directory.join('ids'), TRAJECTORIES);
      for (let i = 0; i < KILLS_PER_LOG && done < kills; i++, done++) {
        const before = log.acknowledged.length;
        await killAtRandom(log, random);
        acknowledged += log.acknowledged.length - before;
        await log.recover({ writeBufferBytes: random.pick(WRITE_BUFFERS) });
      }
    }
    assert.ok(acknowledged > 20 * kills, `only ${acknowledged} events were acknowledged: the kills came too early`);
    summarize({ kills: done, acknowledged });
  });

  for (const name of FAILPOINTS.filter((name) => name.startsWith('hot.'))) {
    it(`a writer killed at ${name} has lost nothing, and its log goes on`, async function () {
      this.timeout(modestOrSoak(60_000, 300_000));
      const random = seededRandom(name);
      // What is reached thousands of times is hit at several of them.
      const isFrequent = name.startsWith('hot.commit.');
      const rounds = isFrequent ? modestOrSoak(2, 6) : modestOrSoak(1, 2);
      for (let round = 0; round < rounds; round++) await killAtFailpoint(name, random, round);
      summarize({ failpoint_kills: rounds });
    });
  }
});

async function killAtRandom(log: FaultLog, random: Random): Promise<void> {
  const commit = { maxBatchEvents: random.pick([4096, SMALL_BATCH]) };
  const options = { writeBufferBytes: random.pick(WRITE_BUFFERS), commit };
  await using child = log.start([
    { do: 'open', options },
    { do: 'append', events: null },
  ]);
  // Mostly among appends; every fourth one while it starts and opens.
  if (random.next() < 0.75) {
    await child.line('ack ');
    await sleep(random.between(0, 400));
  } else {
    await sleep(random.between(100, 900));
  }
  child.kill('SIGKILL');
  const { signal } = await child.exited;
  assert.equal(signal, 'SIGKILL', `the writer ended by itself: ${child.stderr}`);
}

/** Everything that a log does in its life, so that each failpoint is reached; twice, for those of an existing log. */
const LIFE: readonly Step[] = [
  { do: 'open', options: { commit: { maxBatchEvents: SMALL_BATCH }, retention: { trimAfterMs: 0, blobGraceMs: 0 } } },
  // Batches of which a trim leaves nothing, so that the log's floor moves.
  { do: 'append', events: 300, only: 'may-finish' },
  { do: 'append', events: 1200 },
  { do: 'finish' },
  { do: 'ack' },
  { do: 'trim' },
  { do: 'append', events: 500 },
  { do: 'close' },
];

async function killAtFailpoint(name: FailpointName, random: Random, round: number): Promise<void> {
  using directory = new TempDirectory('point');
  const log = new FaultLog(directory.join('log'), directory.join('ids'), 100);
  // A log is created once, and a second life finds everything finished and trimmed.
  const hasPast = !/create|trim/.test(name) && (name.startsWith('hot.open.') || round % 2 === 1);
  if (hasPast) await liveOnce(log);
  const count = name.startsWith('hot.commit.') ? random.between(1, 400) : 1;
  await using child = log.start([...LIFE, ...LIFE], { env: { [FAILPOINT_VARIABLE]: `${name}:${count}` } });
  const { signal } = await child.exit();
  assert.equal(signal, 'SIGKILL', `${name}:${count} was not reached: ${child.lines.at(-1)} ${child.stderr}`);
  if (log.acknowledged.length > 0) assert.ok(existsSync(log.directory));
  await log.recover();
  // What the first recovery left must open as well, and whatever the death cut off is finished by the next life.
  const goesOn = /ack|heads|trim/.test(name);
  if (goesOn) await liveOnce(log);
  const { trimmed } = await log.recover();
  if (goesOn) assert.ok(trimmed > 0, 'nothing was trimmed: these failpoints proved nothing');
}

async function liveOnce(log: FaultLog): Promise<void> {
  await using child = log.start(LIFE);
  const { code } = await child.exit();
  assert.equal(code, 0, `a life without faults failed: ${child.lines.at(-1)} ${child.stderr}`);
}
