/** Trajectories read back from the cold tier: every byte as it was appended, or an error that names what is wrong. */
import assert from 'node:assert/strict';
import { rmSync } from 'node:fs';
import * as fc from 'fast-check';
import { blobKey, putBlob } from '../../cold/blobs.ts';
import { DuckDb } from '../../cold/duckdb.ts';
import { FileStore } from '../../cold/file-store.ts';
import { findInCold, segmentsOfTrajectories } from '../../cold/locate.ts';
import type { ObjectStore } from '../../cold/object-store.ts';
import { SegmentReader } from '../../cold/segment-reader.ts';
import { readColdTrajectory } from '../../cold/trajectory-reader.ts';
import type { JsonObject } from '../../schemas/canonical.ts';
import { isVarveError } from '../../schemas/errors.ts';
import { formatEventLine, lineOfProven, type ProvenEvent, type TrajectoryEvent } from '../../schemas/event.ts';
import type { TrajectoryId } from '../../schemas/ids.ts';
import { rowOf } from '../../schemas/parquet.ts';
import { chain, type Draft, GENESIS, idAt, offloadedRun, PLACE, runOf, textOf } from '../support/cold-rows.ts';
import { ColdTable } from '../support/cold-table.ts';
import { anyDraft } from '../support/events.ts';
import { runs } from '../support/property.ts';
import { TempDirectory } from '../support/temp.ts';

const AWKWARD: readonly Draft[] = [
  {
    event_type: 'x.Custom/kind:1',
    payload: JSON.parse('{"__proto__":{"a":1},"constructor":null,"number":"9007199254740993","nul":"a\\u0000b"}'),
  },
  { event_type: 'Noted', payload: { note: '\ufeffmark', '': [[], {}, [1e21, 5e-324, -0.5]], '\u{1f600}': '\u2028' } },
  { event_type: 'Noted', payload: { note: '{"$redacted":1}', 'a~b/c': { '0': 'x' } } },
];

describe('cold trajectory reader', () => {
  let directory: TempDirectory;
  let duck: DuckDb;
  let store: ObjectStore;
  beforeEach(async () => {
    directory = new TempDirectory('cold-read');
    duck = await DuckDb.open({ tempDir: directory.join('spill') });
    store = await FileStore.open(directory.join('store'));
  });
  afterEach(async () => {
    await duck.close();
    directory[Symbol.dispose]();
  });

  const table = () => ColdTable.create(store, duck, directory.path);

  async function read({ log }: ColdTable, id: TrajectoryId, from?: number): Promise<ProvenEvent[]> {
    const placed = (await segmentsOfTrajectories(log, await log.snapshot(), [id])).get(id) ?? [];
    const events: ProvenEvent[] = [];
    for await (const event of readColdTrajectory(new SegmentReader(store, log), placed, { from })) events.push(event);
    return events;
  }

  /** The same events, byte for byte. */
  function assertSame(found: readonly ProvenEvent[], wanted: readonly TrajectoryEvent[]): void {
    assert.deepEqual(found.map(formatEventLine), wanted.map(formatEventLine));
    assert.deepEqual(
      found.map((event) => lineOfProven(event).toString()),
      wanted.map((event) => `${formatEventLine(event)}\n`),
    );
  }

  it('gives back unknown kinds, U+0000, large numbers in text and keys such as __proto__ byte for byte', async () => {
    const cold = await table();
    const events = chain(idAt(1), AWKWARD);
    await cold.add(runOf(events));
    assertSame(await read(cold, idAt(1)), events);
  });

  it('gives back any events, over any segments, with what was offloaded put back', async () => {
    let n = 10;
    const anyCase = fc.record({
      drafts: fc.array(anyDraft, { minLength: 1, maxLength: 12 }),
      cutAt: fc.nat(11),
      texts: fc.array(fc.nat(3), { maxLength: 4 }),
    });
    const cold = await table();
    await fc.assert(
      fc.asyncProperty(anyCase, async ({ drafts, cutAt, texts }) => {
        const id = idAt((n += 1));
        const long = texts.map((seed) => ({
          event_type: 'x.Long',
          payload: { 'a/b~c': [textOf(5000, seed), { ['__proto__']: textOf(3000, seed) }] } as JsonObject,
        }));
        const events = chain(id, [...drafts, ...long]);
        const at = Math.min(cutAt, events.length - 1);
        for (const part of [events.slice(0, at), events.slice(at)]) {
          if (part.length === 0) continue;
          const previous = events[(part[0]?.sequence_number ?? 1) - 2]?.cryptographic_hash ?? GENESIS;
          const { run, bodies } = offloadedRun(part, 2000, previous);
          for (const { ref, body } of bodies) await putBlob(store, ref.sha256, body);
          await cold.add(run);
        }
        assertSame(await read(cold, id), events);
        assertSame(await read(cold, id, at + 1), events.slice(at));
      }),
      runs(12),
    );
  });

  it('passes an erased payload as the stub that it is', async () => {
    const events = chain(idAt(1), [...AWKWARD, { event_type: 'Noted', payload: { note: 'after' } }]);
    const rows = events.map((event, i) => {
      const erased = { ...event, payload: { $redacted: { run: 'r1' } } };
      return i === 1
        ? rowOf(erased, PLACE, { payload_sha256: rowOf(event, PLACE).payload_sha256, offloaded: null })
        : rowOf(event, PLACE);
    });
    const cold = await table();
    await cold.add({ previous_hash: GENESIS, rows });
    const found = await read(cold, idAt(1));
    assert.deepEqual(found[1]?.payload, { $redacted: { run: 'r1' } });
    assert.equal(found[1]?.payload_sha256, rows[1]?.payload_sha256);
    assert.equal(found.length, 4);
  });

  it('names the event, the object and the place of a body that is missing or damaged, behind all that is whole', async () => {
    const drafts = Array.from({ length: 6 }, (_, i) => ({ event_type: 'Noted', payload: { note: textOf(4000, i) } }));
    const events = chain(idAt(1), drafts);
    const { run, bodies } = offloadedRun(events, 2000);
    for (const { ref, body } of bodies) await putBlob(store, ref.sha256, body);
    const cold = await table();
    await cold.add(run);
    const key = blobKey(bodies[3]?.ref.sha256 as string);
    const path = directory.join('store', key);
    for (const code of ['COLD_OBJECT_MISSING', 'STORE_CORRUPT'] as const) {
      rmSync(path);
      if (code === 'STORE_CORRUPT') await store.put(key, Buffer.from('no zstd at all'));
      const seen: number[] = [];
      await assert.rejects(
        async () => {
          const placed = (await segmentsOfTrajectories(cold.log, await cold.log.snapshot(), [idAt(1)])).get(idAt(1));
          for await (const event of readColdTrajectory(new SegmentReader(store, cold.log), placed ?? []))
            seen.push(event.sequence_number);
        },
        (error: unknown) => {
          assert.ok(isVarveError(error, code), String(error));
          const { pointer, sequence_number, trajectory_id } = error.details;
          assert.deepEqual([error.details['key'], pointer, sequence_number, trajectory_id], [key, '/note', 4, idAt(1)]);
          return true;
        },
      );
      assert.deepEqual(seen, [1, 2, 3]);
      if (code === 'COLD_OBJECT_MISSING') await store.put(key, Buffer.from(''));
    }
  });

  it('refuses segments that do not join, by name', async () => {
    const events = chain(
      idAt(1),
      Array.from({ length: 9 }, () => ({ event_type: 'Noted', payload: {} })),
    );
    const part = (from: number, to: number) =>
      runOf(events.slice(from - 1, to), events[from - 2]?.cryptographic_hash ?? GENESIS);
    const cold = await table();
    await cold.add(part(1, 3));
    await cold.add(part(7, 9));
    await assert.rejects(read(cold, idAt(1)), (error: unknown) => {
      assert.ok(isVarveError(error, 'COLD_SEGMENTS_INVALID'));
      assert.deepEqual(error.details['sequence_number'], 4);
      return true;
    });
    await cold.add(part(4, 6));
    assertSame(await read(cold, idAt(1)), events);
  });

  it('finds trajectories by the beginning of their id, and the segments of many at once', async () => {
    const cold = await table();
    const one = (n: number) => runOf(chain(idAt(n), [{ event_type: 'Noted', payload: {} }]));
    await cold.addFiles([one(1), one(300)], [one(2), one(4000)]);
    const snapshot = await cold.log.snapshot();
    const found = await segmentsOfTrajectories(cold.log, snapshot, [idAt(4000), idAt(1), idAt(3)]);
    assert.deepEqual([...found.keys()].toSorted(), [idAt(1), idAt(4000)]);
    const common = idAt(1).slice(0, 9);
    assert.deepEqual(
      await findInCold(cold.log, snapshot, common, 10),
      [1, 2, 300, 4000].map((n) => idAt(n)),
    );
    assert.equal((await findInCold(cold.log, snapshot, common, 2)).length, 2);
    assert.deepEqual(await findInCold(cold.log, snapshot, idAt(300), 10), [idAt(300)]);
    assert.deepEqual(await findInCold(cold.log, snapshot, 'ffff', 10), []);
  });
});
