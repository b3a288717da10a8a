/** The queue between tail and database: order, bounds, and how it ends. */
import assert from 'node:assert/strict';
import * as fc from 'fast-check';
import type { TailItem } from '../../hot/read-check.ts';
import { RecordQueue } from '../../pipelines/record-queue.ts';
import { runs } from '../support/property.ts';

/** Only its kind, its place and its payload's length matter here. */
function item(lsn: number, bytes = 0): TailItem {
  const event = { payload_bytes: Buffer.alloc(bytes) };
  return { kind: 'event', lsn: BigInt(lsn), hash: '', event } as unknown as TailItem;
}

function lsnOf(item: TailItem): number {
  return item.kind === 'trimmed' ? item.to_lsn : Number(item.lsn);
}

describe('pipelines/record-queue', () => {
  it('hands out everything once, in order, in parts that keep to their limits', async () => {
    const property = fc.asyncProperty(
      fc.array(fc.array(fc.nat(2000), { maxLength: 8 }), { maxLength: 20 }),
      fc.integer({ min: 1, max: 10 }),
      fc.integer({ min: 1, max: 8000 }),
      async (pushes, countMax, bytesMax) => {
        const queue = new RecordQueue(4000);
        const taken: number[] = [];
        let lsn = 0;
        const writing = (async () => {
          for (const sizes of pushes) {
            queue.add(sizes.map((size) => item(++lsn, size)));
            await queue.room();
            assert.ok(queue.bytes <= 4000 || queue.isEnded);
          }
          queue.end();
        })();
        for (;;) {
          const part = await queue.take(countMax, bytesMax);
          if (part === undefined) break;
          assert.ok(part.items.length > 0 && part.items.length <= countMax);
          assert.ok(part.items.length === 1 || part.bytes <= bytesMax);
          taken.push(...part.items.map(lsnOf));
        }
        await writing;
        assert.deepEqual(
          taken,
          Array.from({ length: lsn }, (_, i) => i + 1),
        );
        assert.deepEqual([queue.length, queue.bytes, queue.oldestAtMs], [0, 0, undefined]);
      },
    );
    await fc.assert(property, runs(100));
  });

  it('lets one item in, and out, that is larger than all of it', async () => {
    const queue = new RecordQueue(100);
    queue.add([item(1, 10_000), item(2)]);
    assert.equal(queue.hasRoom, false);
    assert.deepEqual((await queue.take(10, 50))?.items.map(lsnOf), [1]);
    assert.deepEqual((await queue.take(10, 50))?.items.map(lsnOf), [2]);
    await queue.room();
  });

  it('makes a reader wait until there is room, and a taker until there is something', async () => {
    const queue = new RecordQueue(1000);
    queue.add([item(1, 2000)]);
    let hasRoom = false;
    const room = (async () => {
      await queue.room();
      hasRoom = true;
    })();
    await new Promise(setImmediate);
    assert.equal(hasRoom, false);
    await queue.take(1, 1);
    await room;
    const taking = queue.take(1, 1);
    queue.add([item(2)]);
    assert.deepEqual((await taking)?.items.map(lsnOf), [2]);
  });

  it('hands out what it has before it ends, with the error or without, and lets nobody wait after that', async () => {
    for (const error of [undefined, new Error('lost')]) {
      const queue = new RecordQueue(10);
      queue.add([item(1, 100), item(2, 100)]);
      const room = queue.room();
      queue.end(error);
      queue.end(new Error('a second one'));
      await room;
      assert.deepEqual((await queue.take(10, 1e6))?.items.map(lsnOf), [1, 2]);
      if (error === undefined) assert.equal(await queue.take(1, 1), undefined);
      else await assert.rejects(queue.take(1, 1), error);
    }
    const waiting = new RecordQueue(10);
    const taking = waiting.take(1, 1);
    waiting.end();
    assert.equal(await taking, undefined);
  });
});
