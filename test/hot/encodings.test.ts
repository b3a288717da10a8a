import assert from 'node:assert/strict';
import fc from 'fast-check';
import { decodeHeads, encodeHeads, Heads } from '../../hot/heads.ts';
import {
  ANCHOR,
  CHECKPOINT,
  decodeIndexBlock,
  entryBytes,
  hasTag,
  INDEX_HEADER_BYTES,
  TASK_FINISHED,
  TOOL_INTENT,
  TOOL_RESULT,
  TRIM,
  writeIndexEntry,
  writeIndexHeader,
} from '../../hot/index-block.ts';
import { readU64, writeU64 } from '../../hot/record.ts';
import { runs } from '../support/property.ts';

const anyHash = fc.uint8Array({ minLength: 32, maxLength: 32 }).map((bytes) => Buffer.from(bytes));
const latin1 = (length: number) =>
  fc.uint8Array({ minLength: length, maxLength: length }).map((bytes) => Buffer.from(bytes).toString('latin1'));
const safe = fc.oneof(fc.maxSafeNat(), fc.constantFrom(0, 2 ** 32 - 1, 2 ** 32, Number.MAX_SAFE_INTEGER));
const u32 = fc.oneof(fc.integer({ min: 0, max: 2 ** 32 - 1 }), fc.constantFrom(0, 2 ** 31 - 1));

describe('stored integers', () => {
  it('keep every number from 0 to 2^53 − 1', () => {
    fc.assert(
      fc.property(safe, (value) => {
        const buffer = Buffer.alloc(10, 0xff);
        writeU64(buffer, value, 1);
        assert.equal(buffer.readBigUInt64BE(1), BigInt(value));
        assert.equal(readU64(buffer, 1), value);
      }),
      runs(200),
    );
  });
});

describe('an index block', () => {
  const entry = fc
    .record({
      code: fc.constantFrom(0, 1, CHECKPOINT, TASK_FINISHED, TOOL_INTENT, TOOL_RESULT, ANCHOR, TRIM),
      id: latin1(16),
      sequence: safe,
      previousLsn: safe,
      hash: latin1(32),
      turn: u32,
      token: safe,
      createdMs: safe,
      tag: latin1(8),
      blobs: fc.array(
        anyHash.map((hash) => hash.toString('hex')),
        { maxLength: 3 },
      ),
    })
    .map((entry) => ({ ...entry, tag: hasTag(entry.code) ? entry.tag : '' }));
  const block = fc.tuple(
    fc.array(entry, { minLength: 1, maxLength: 6 }),
    fc.integer({ min: 1, max: 2 ** 50 }),
    fc.maxSafeNat(),
  );

  function encode([entries, firstLsn, bytes]: typeof block extends fc.Arbitrary<infer T> ? T : never): Buffer {
    const need = entries.reduce((sum, { code, blobs }) => sum + entryBytes(code, blobs.length), INDEX_HEADER_BYTES);
    const buffer = Buffer.alloc(need);
    writeIndexHeader(buffer, firstLsn, entries.length, bytes);
    let at = INDEX_HEADER_BYTES;
    for (const [i, entry] of entries.entries()) at = writeIndexEntry(buffer, at, { ...entry, lsn: firstLsn + i });
    assert.equal(at, need);
    return buffer;
  }

  it('says what was written', () => {
    fc.assert(
      fc.property(block, ([entries, firstLsn, bytes]) => {
        const lastLsn = firstLsn + entries.length - 1;
        assert.deepEqual(decodeIndexBlock(lastLsn, encode([entries, firstLsn, bytes])), {
          firstLsn,
          lastLsn,
          bytes,
          entries: entries.map((entry, i) => ({ ...entry, lsn: firstLsn + i })),
        });
      }),
      runs(200),
    );
  });

  it('is none under another key, cut short, or with something behind it', () => {
    fc.assert(
      fc.property(block, fc.nat(), ([entries, firstLsn, bytes], cut) => {
        const encoded = encode([entries, firstLsn, bytes]);
        const lastLsn = firstLsn + entries.length - 1;
        assert.equal(decodeIndexBlock(lastLsn + 1, encoded), undefined);
        assert.equal(decodeIndexBlock(lastLsn, encoded.subarray(0, cut % encoded.length)), undefined);
        assert.equal(decodeIndexBlock(lastLsn, Buffer.concat([encoded, Buffer.alloc(1)])), undefined);
      }),
      runs(100),
    );
  });
});

describe('a snapshot of heads', () => {
  const head = fc.record({
    idBytes: latin1(16),
    sequence: fc.integer({ min: 1, max: 2 ** 50 }),
    lsn: safe,
    hash: latin1(32),
    turn: u32,
    token: safe,
    createdMs: safe,
    finished: fc.boolean(),
    contextLsn: safe,
    checkpointLsn: safe,
    anchorLsn: safe,
    intents: fc.uniqueArray(fc.tuple(latin1(8), safe), { maxLength: 3, selector: ([tag]) => tag }),
  });
  const heads = fc.uniqueArray(head, { maxLength: 6, selector: ({ idBytes }) => idBytes });
  const place = fc
    .record({ lsn: safe, hash: anyHash.map((hash) => hash.toString('hex')), bytes: safe })
    .map((place) => ({ ...place }));

  function build(all: typeof heads extends fc.Arbitrary<infer T> ? T : never): Heads {
    const built = new Heads();
    for (const { intents, ...fields } of all) {
      const head = Object.assign(built.at(fields.idBytes), fields);
      if (intents.length > 0) head.openIntents = new Map(intents);
    }
    return built;
  }

  it('says what the heads said', () => {
    fc.assert(
      fc.property(heads, place, (all, place) => {
        const decoded = decodeHeads(encodeHeads(build(all), place));
        assert.deepEqual(decoded?.place, place);
        const read = [...(decoded?.heads ?? [])].map((head) => {
          assert.deepEqual(head.lsns, []);
          assert.equal(head.listedFrom, head.sequence + 1);
          const {
            idBytes,
            sequence,
            lsn,
            hash,
            turn,
            token,
            createdMs,
            finished,
            contextLsn,
            checkpointLsn,
            anchorLsn,
          } = head;
          const intents = [...(head.openIntents ?? [])];
          const fields = {
            idBytes,
            sequence,
            lsn,
            hash,
            turn,
            token,
            createdMs,
            finished,
            contextLsn,
            checkpointLsn,
            anchorLsn,
          };
          return { ...fields, intents };
        });
        assert.deepEqual(
          read,
          all.map((head) => ({ ...head })),
        );
      }),
      runs(200),
    );
  });

  it('is none with a single bit changed, cut short, or longer', () => {
    fc.assert(
      fc.property(heads, place, fc.nat(), fc.nat(7), (all, place, at, bit) => {
        const encoded = encodeHeads(build(all), place);
        const bent = Buffer.from(encoded);
        bent[at % bent.length] = (bent[at % bent.length] as number) ^ (1 << bit);
        assert.equal(decodeHeads(bent), undefined);
        assert.equal(decodeHeads(encoded.subarray(0, at % encoded.length)), undefined);
        assert.equal(decodeHeads(Buffer.concat([encoded, Buffer.alloc(1)])), undefined);
      }),
      runs(200),
    );
  });
});
