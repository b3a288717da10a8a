/**
 * Conservation: a compactor killed at any moment, and at every named failpoint, loses nothing, doubles nothing, and
 * leaves nothing that is ever read; run again, it comes to what an undisturbed run comes to, byte for byte.
 *
 *   FAULT_RUNS=150 npm run test:soak -- compact
 */
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { FAILPOINTS, type FailpointName } from '../../schemas/failpoint.ts';
import { idAt } from '../support/cold-rows.ts';
import { CompactPlace } from '../support/compact-place.ts';
import { modestOrSoak, runs, summarize } from '../support/scale.ts';
import { type Random, seededRandom } from '../support/seed.ts';
import type { Chain } from '../support/sidecar-script.ts';
import { assertWhole, select } from '../support/sidecar-warm.ts';

const DAY = Date.UTC(2024, 10, 20);
const KIB = 1024;

/** What a run reaches more than once is hit at more than one of its places. */
const REACHED: Partial<Record<FailpointName, number>> = {
  'compact.blob.after-put': 3,
  'cold.file.before-put': 4,
  'cold.file.after-put': 4,
  'cold.segments.after-put': 4,
  'compact.derived.after-put': 4,
  'compact.file.read-back': 4,
};

const POINTS = FAILPOINTS.filter(
  (name) => name.startsWith('compact.') || (name.startsWith('cold.') && name !== 'cold.checkpoint.after-put'),
);

describe('fault/compact', () => {
  let place: CompactPlace;
  let wanted: Map<string, string> | undefined;

  beforeEach(async () => {
    place = await CompactPlace.create('compact');
  });
  afterEach(async () => await place[Symbol.asyncDispose]());

  /** Trajectories of several partitions, one with long strings; always the same. */
  async function fill(place: CompactPlace): Promise<Chain[]> {
    return [
      await place.finished(idAt(1, DAY)),
      await place.finished(idAt(2, DAY), { turns: 12 }),
      await place.finished(idAt(3, DAY), { turns: 4, textBytes: 20 * KIB }),
      await place.finished(idAt(4, DAY), { tenant: 'a/b' }),
      await place.finished(idAt(5, DAY), { model_version: null }),
      await place.finished(idAt(1, DAY + 86_400_000), { turns: 6 }),
    ];
  }

  /** After a kill: nothing lost, nothing doubled; and then the run that finishes it. */
  async function recover(chains: readonly Chain[]): Promise<void> {
    await assertWhole(place.database.pool);
    const before = await place.files();
    if (before.size > 0) await place.assertCold();
    const again = await place.compact();
    assert.equal(again.code, 0, again.err);
    await place.assertCold(chains);
    await assertMarked(chains);
  }

  /** What was claimed lapses with its run. */
  async function letClaimsLapse(): Promise<void> {
    await select(place.database.pool, `UPDATE compaction_runs SET expires_at = varve_now() RETURNING run_id`);
  }

  async function assertMarked(chains: readonly Chain[]): Promise<void> {
    const rows = await select<{ trajectory_id: string; last: number; hash: string }>(
      place.database.pool,
      `SELECT trajectory_id, max(last_sequence_number) AS last,
         (array_agg(encode(head_hash, 'hex') ORDER BY last_sequence_number DESC))[1] AS hash
       FROM cold_segments GROUP BY trajectory_id ORDER BY trajectory_id`,
    );
    const wanted = chains.map(({ id, length, events }) => `${id} ${length} ${events.at(-1)?.cryptographic_hash}`);
    assert.deepEqual(
      rows.map(({ trajectory_id, last, hash }) => `${trajectory_id} ${last} ${hash}`),
      wanted.toSorted(),
    );
  }

  it('an undisturbed run moves everything, marks it, and leaves nothing to move', async () => {
    const chains = await fill(place);
    const ended = await place.compact();
    assert.equal(ended.code, 0, ended.err);
    const events = chains.reduce((sum, { length }) => sum + length, 0);
    assert.match(ended.out, new RegExp(`moved ${events} events of 6 trajectories into 4 files`));
    assert.equal(await place.assertCold(chains), events);
    await assertMarked(chains);
    assert.match((await place.compact()).out, /moved 0 events/);
    // A session that grows afterwards gets a second segment, in the partition of its first.
    await place.grow(chains[4] as Chain, 2);
    const more = await place.compact();
    assert.match(more.out, /moved 9 events of 1 trajectories into 1 files/);
    await place.assertCold(chains);
    await assertMarked(chains);
  });

  for (const name of POINTS) {
    it(`killed at ${name}, nothing is lost or doubled, and the next run comes to the same files`, async function () {
      this.timeout(modestOrSoak(120_000, 600_000));
      const chains = await fill(place);
      const random = seededRandom(name);
      const nth = random.between(1, REACHED[name] ?? 1);
      const killed = await place.compactUntil(`${name}:${nth}`);
      assert.equal(killed.signal, 'SIGKILL', `${name}:${nth} was not reached: ${killed.out}${killed.err}`);
      await letClaimsLapse();
      await recover(chains);
      assert.deepEqual(await place.files(), await undisturbed());
      summarize({ compact_failpoint_kills: 1 });
    });
  }

  it('killed at any moment, run after run, nothing is lost or doubled', async function () {
    const kills = runs(6, 40);
    this.timeout(60_000 + kills * 15_000);
    const random = seededRandom('compact killed at any moment');
    const chains = await fill(place);
    let struck = 0;
    for (let i = 0; i < kills; i++) {
      const after = random.between(350, 1100);
      const ended = await place.varve(['compact', '--older-than', '0'], {
        env: { VARVE_COMPACT_CLAIM_TTL_MS: '1000' },
        onStart: (kill) => void sleep(after).then(() => kill('SIGKILL')),
      });
      if (ended.signal === 'SIGKILL') struck += 1;
      await letClaimsLapse();
      await assertWhole(place.database.pool);
      if ((await place.files()).size > 0) await place.assertCold();
      await growSome(chains, random);
    }
    await recover(chains);
    assert.ok(struck >= kills / 3, `only ${struck} of ${kills} kills struck`);
    summarize({ compact_kills: kills });
  });

  async function growSome(chains: Chain[], random: Random): Promise<void> {
    await place.grow(random.pick(chains), random.between(1, 3));
    chains.push(await place.finished(idAt(1000 + chains.length, DAY), { textBytes: random.pick([40, 17 * KIB]) }));
  }

  /** The same events in another database, moved at once: files of the same members have the same bytes. */
  async function undisturbed(): Promise<Map<string, string>> {
    if (wanted !== undefined) return wanted;
    await using other = await CompactPlace.create('undisturbed');
    await fill(other);
    assert.equal((await other.compact()).code, 0);
    wanted = await other.files();
    return wanted;
  }
});
