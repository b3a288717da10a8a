import assert from 'node:assert/strict';
import { createHash, hash } from 'node:crypto';
import { appendFile, writeFile } from 'node:fs/promises';
import * as fc from 'fast-check';
import { type BodySource, chunksOf, collect, fileBody, piecesOf, sha256Of } from '../../cold/body.ts';
import { isVarveError } from '../../schemas/errors.ts';
import { MIB } from '../../schemas/limits.ts';
import { noise, rejects } from '../support/object-store-contract.ts';
import { runs } from '../support/property.ts';
import { TempDirectory } from '../support/temp.ts';

const chunksArbitrary = fc.array(fc.uint8Array({ maxLength: 50 }), { maxLength: 12 });

describe('bodies', () => {
  it('hand over their last bytes only when length and hash are proven', async () => {
    await fc.assert(
      fc.asyncProperty(chunksArbitrary, fc.integer({ min: -3, max: 3 }), fc.boolean(), async (chunks, off, isOther) => {
        const whole = Buffer.concat(chunks);
        const bytes = Math.max(0, whole.byteLength + off);
        const sha256 = isOther ? '0'.repeat(64) : hash('sha256', whole);
        const got: Uint8Array[] = [];
        const body: BodySource = { bytes, sha256, open: () => stream(chunks) };
        const reading = (async () => {
          for await (const chunk of chunksOf(body)) got.push(chunk);
        })();
        if (bytes === whole.byteLength && !isOther) {
          await reading;
          assert.ok(whole.equals(Buffer.concat(got)));
        } else {
          await rejects(reading, 'STORE_BODY_MISMATCH');
          const count = Buffer.concat(got).byteLength;
          assert.ok(count < bytes || count === 0, `${count} of ${bytes} announced bytes came out`);
        }
      }),
      runs(300),
    );
  });

  it('are cut into pieces of one size, in order, whatever they come in', async () => {
    await fc.assert(
      fc.asyncProperty(chunksArbitrary, fc.integer({ min: 1, max: 70 }), async (chunks, pieceBytes) => {
        const pieces: Buffer[] = [];
        for await (const piece of piecesOf(stream(chunks), pieceBytes)) pieces.push(piece);
        assert.ok(Buffer.concat(chunks).equals(Buffer.concat(pieces)));
        assert.ok(pieces.slice(0, -1).every((piece) => piece.byteLength === pieceBytes));
        assert.ok(pieces.every((piece) => piece.byteLength > 0 && piece.byteLength <= pieceBytes));
      }),
      runs(300),
    );
  });

  it('of files have the length that the file has now; one that grows is found out', async () => {
    using directory = new TempDirectory('body');
    const path = directory.join('file');
    const content = noise(3 * MIB);
    await writeFile(path, content);
    const body = await fileBody(path);
    assert.equal(body.bytes, content.byteLength);
    assert.equal(await sha256Of(body), createHash('sha256').update(content).digest('hex'));
    assert.ok(content.equals(await collect(body.open(), 4 * MIB)));
    await appendFile(path, 'x');
    await rejects(sha256Of(body), 'STORE_BODY_MISMATCH');
    await assert.rejects(fileBody(directory.join('none')), { code: 'ENOENT' });
  });

  it('are collected up to a limit', async () => {
    assert.equal((await collect(stream([noise(10), noise(5)]), 15)).byteLength, 15);
    await assert.rejects(collect(stream([noise(10), noise(6)]), 15), (error) => isVarveError(error, 'STORE_TOO_LARGE'));
  });
});

async function* stream(chunks: readonly Uint8Array[]): AsyncGenerator<Uint8Array, void, void> {
  yield* chunks;
}
