/**
 * zstd, as concatenated frames of bounded size: any decoder reads them as one stream, and nobody has to hold more than
 * one of them. Packing is deterministic for one version of the library; work is done off the main thread.
 */
import { compress, decompress } from '@mongodb-js/zstd';
import { piecesOf } from './body.ts';
import { FRAME_BYTES_MAX, FrameError, FrameSplitter } from './zstd-frames.ts';

/** zstd's own default. Blobs are written on the way of the sidecar: higher levels cost it time (9: +40 % for −16 %). */
const LEVEL = 3;

/** One frame. `plain` has at most FRAME_BYTES_MAX bytes. */
export async function packFrame(plain: Uint8Array): Promise<Buffer> {
  return await compress(Buffer.from(plain.buffer, plain.byteOffset, plain.byteLength), LEVEL);
}

/** The plain bytes of one frame, whoever packed it. @throws FrameError */
export async function unpackFrame(packed: Uint8Array): Promise<Buffer> {
  return await decompress(Buffer.from(packed.buffer, packed.byteOffset, packed.byteLength)).catch((error: unknown) => {
    throw new FrameError(error instanceof Error ? error.message : String(error));
  });
}

/** Frames of FRAME_BYTES_MAX plain bytes each, the last one shorter; one empty frame for no bytes at all. */
export async function* pack(
  plain: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
): AsyncGenerator<Buffer, void, void> {
  let isEmpty = true;
  for await (const piece of piecesOf(plain, FRAME_BYTES_MAX)) {
    isEmpty = false;
    yield await packFrame(piece);
  }
  if (isEmpty) yield await packFrame(Buffer.alloc(0));
}

/** The plain bytes. @throws FrameError: they are not whole frames as `pack` makes them */
export async function* unpack(packed: AsyncIterable<Uint8Array>): AsyncGenerator<Buffer, void, void> {
  const splitter = new FrameSplitter();
  for await (const chunk of packed) {
    for (const frame of splitter.push(chunk)) {
      const plain = await unpackFrame(frame);
      if (plain.byteLength > 0) yield plain;
    }
  }
  splitter.end();
}
