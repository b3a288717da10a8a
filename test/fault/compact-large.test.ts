/**
 * Bounded memory: far more than memory is compacted by one process that never holds more than 512 MB: one trajectory of
 * large rows, rows whose strings leave for blobs, and many small ones. `npm test` takes 100 MB of events, a soak 600.
 *
 *   FAULT_RUNS=2000 npm run test:soak -- compact-large      2 GB
 */
import assert from 'node:assert/strict';
import { MIB } from '../../schemas/limits.ts';
import { Child } from '../support/child.ts';
import { idAt, textOf } from '../support/cold-rows.ts';
import { CompactPlace } from '../support/compact-place.ts';
import { compile } from '../support/compiled.ts';
import { runs, summarize } from '../support/scale.ts';
import { Chain } from '../support/sidecar-script.ts';
import { skipAloud } from '../support/skip.ts';

const PEAK_BYTES_MAX = 512_000_000;
const DAY = Date.UTC(2024, 10, 20);
const MEGABYTE = 1_000_000;
/** Below the threshold: they stay in their row. */
const STRING = 15_000;

describe('a large compaction', () => {
  it('takes less than 512 MB of memory', async function () {
    if (process.platform !== 'linux') skipAloud(this, 'the peak is read from /proc/self/status');
    const megabytes = runs(100, 600);
    this.timeout(60_000 + megabytes * 3000);
    await using place = await CompactPlace.create('compact-large');
    const events = await fill(place, megabytes);
    const script = compile('compact-child.ts', place.temp.join('js'));
    await using child = Child.start(script, {}, { env: place.environment() });
    const { code } = await child.exit(30_000 + megabytes * 1000);
    assert.equal(code, 0, child.stderr);
    const [, moved, files, blobs, peak] = (child.lines.at(-1) as string).split(' ').map(Number);
    assert.equal(moved, events);
    assert.ok((blobs as number) > 0);
    assert.ok((peak as number) < PEAK_BYTES_MAX, `it took ${Math.round((peak as number) / MIB)} MiB at its peak`);
    summarize({
      compacted_mb: megabytes,
      compacted_files: files as number,
      compact_peak_mib: Math.round((peak as number) / MIB),
    });
  });
});

/** @returns events */
async function fill(place: CompactPlace, megabytes: number): Promise<number> {
  let events = 0;
  const take = async (chain: Chain, from: number): Promise<void> => {
    await place.ingest({ chain, from });
    events += chain.length - from + 1;
    // What is in the database is not kept here: only numbers and hashes go on.
    for (const event of chain.events) (event as { payload_bytes: Uint8Array }).payload_bytes = new Uint8Array(0);
  };
  const large = new Chain(idAt(0, DAY));
  large.add({ event_type: 'TaskStarted', payload: { tenant: 'acme', model_version: 'm-1' } });
  for (let mb = 0; mb < megabytes / 2; mb++) {
    const from = large.length + 1;
    large.add({
      event_type: 'Noted',
      payload: { parts: Array.from({ length: 60 }, (_, i) => textOf(STRING, mb * 60 + i)) },
    });
    if (mb > 0) await take(large, from);
    else await take(large, 1);
  }
  const end = large.length + 1;
  large.add({ event_type: 'TaskFinished', payload: { status: 'completed' } });
  await take(large, end);
  for (let mb = 0; mb < megabytes / 2; mb++) {
    const chain = new Chain(idAt(mb + 1, DAY));
    chain.add({ event_type: 'TaskStarted', payload: { tenant: 'acme', model_version: 'm-1' } });
    const isBulky = mb % 4 === 0;
    for (let i = 0; i < (isBulky ? 30 : 700); i++) {
      chain.add({
        event_type: 'Noted',
        payload: { text: textOf(isBulky ? 2 * STRING : STRING / 12, mb * 1000 + i), i },
      });
    }
    chain.add({ event_type: 'TaskFinished', payload: { status: 'completed' } });
    await take(chain, 1);
  }
  assert.ok(events > megabytes, `${MEGABYTE * megabytes} bytes are more events than ${events}`);
  return events;
}
