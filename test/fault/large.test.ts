/**
 * Bounded memory: a trajectory with hundreds of megabytes of tool output is appended, read back and folded by processes
 * that never hold more than 200 MB. `npm test` takes 120 MB of output under the same bar, a soak 600.
 */
import assert from 'node:assert/strict';
import { newTrajectoryId } from '../../schemas/ids.ts';
import { MIB } from '../../schemas/limits.ts';
import { Child } from '../support/child.ts';
import { compile } from '../support/compiled.ts';
import type { LargePlan } from '../support/large-child.ts';
import { modestOrSoak, summarize } from '../support/scale.ts';
import { skipAloud } from '../support/skip.ts';
import { TempDirectory } from '../support/temp.ts';

/** Of resident memory; node itself takes 45 MB of it. */
const PEAK_BYTES_MAX = 200_000_000;

describe('a large trajectory', () => {
  it('is appended, read back and folded within 200 MB of memory', async function () {
    if (process.platform !== 'linux') skipAloud(this, 'the peak is read from /proc/self/status');
    const events = modestOrSoak(120, 600);
    this.timeout(modestOrSoak(120_000, 600_000));
    using directory = new TempDirectory('large');
    const trajectory_id = newTrajectoryId();
    const script = compile('large-child.ts', directory.join('js'));
    const results = [];
    for (const what of ['append', 'read', 'read-log', 'fold'] as const) {
      const plan: LargePlan = { do: what, directory: directory.join('log'), trajectory_id, events };
      await using child = Child.start(script, plan);
      const { code } = await child.exit(modestOrSoak(60_000, 400_000));
      assert.equal(code, 0, `${what}: ${child.stderr}`);
      const [, count, bytes, checksum, peak] = (child.lines.at(-1) as string).split(' ');
      results.push({ what, count: Number(count), bytes: Number(bytes), checksum, peak: Number(peak) });
    }
    const [appended, ...others] = results;
    assert.equal(appended?.bytes, events * 1_000_000);
    for (const { what, count, bytes, checksum } of others) {
      assert.equal(count, events, what);
      if (what === 'fold') continue;
      assert.deepEqual([bytes, checksum], [appended?.bytes, appended?.checksum], `${what} gave other bytes`);
    }
    for (const { what, peak } of results) {
      assert.ok(peak < PEAK_BYTES_MAX, `${what} took ${Math.round(peak / MIB)} MiB at its peak`);
    }
    const peaks = results.map(({ what, peak }) => [`${what.replace('-', '_')}_peak_mib`, Math.round(peak / MIB)]);
    summarize({ large_events: events, ...Object.fromEntries(peaks) });
  });
});
