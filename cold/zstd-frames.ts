/**
 * Where a zstd frame ends: RFC 8878, section 3.1.1, without decompressing.
 *
 *   magic 28 b5 2f fd │ descriptor │ window? │ dictionary id? │ content size? │ block … block │ checksum?
 *
 * A block is three bytes (last?, type, size) and its content, and gives at most 128 KiB of plain bytes. Frames that
 * cannot be varve's are refused before anything is decompressed: longer ones than it writes, ones of more blocks, with a
 * dictionary, or skippable. So memory is bounded, whatever the bytes claim.
 */
import { MIB } from '../schemas/limits.ts';

/** Plain bytes of one frame, at most. Large enough that frames cost nothing in size, small enough to hold some. */
export const FRAME_BYTES_MAX = 8 * MIB;

const MAGIC = 0xfd2fb528;
const HEADER_BYTES_MAX = 14;
/** Compressed bytes of one frame: incompressible content is stored raw, with three bytes a block of 128 KiB. */
const PACKED_BYTES_MAX = FRAME_BYTES_MAX + FRAME_BYTES_MAX / 1024 + HEADER_BYTES_MAX;

const BLOCK_BYTES_MAX = 128 * 1024;
/** Four times what FRAME_BYTES_MAX needs: encoders may end a block early. */
const BLOCKS_MAX = (4 * FRAME_BYTES_MAX) / BLOCK_BYTES_MAX;

/** What is wrong with the bytes. The caller knows which object they are of. */
export class FrameError extends Error {
  override readonly name = 'FrameError';
}

type Header = { readonly bytes: number; readonly trailerBytes: number };

/** Cuts a stream of bytes into frames, each of them packed and whole. */
export class FrameSplitter {
  #arena = Buffer.allocUnsafe(64 * 1024);
  #length = 0;
  /** Where the next block header of the frame under way begins. */
  #at = 0;
  #blocks = 0;
  #header: Header | undefined;

  /** @throws FrameError */
  *push(chunk: Uint8Array): Generator<Buffer, void, void> {
    this.#append(chunk);
    for (let frame = this.#take(); frame !== undefined; frame = this.#take()) yield frame;
  }

  /** @throws FrameError: the stream ended within a frame */
  end(): void {
    if (this.#length > 0) throw new FrameError('it ends within a frame');
  }

  #append(chunk: Uint8Array): void {
    const length = this.#length + chunk.byteLength;
    if (length > this.#arena.byteLength) {
      const grown = Buffer.allocUnsafe(Math.max(length, this.#arena.byteLength * 2));
      this.#arena.copy(grown, 0, 0, this.#length);
      this.#arena = grown;
    }
    this.#arena.set(chunk, this.#length);
    this.#length = length;
  }

  #take(): Buffer | undefined {
    this.#header ??= readHeader(this.#arena.subarray(0, this.#length));
    if (this.#header === undefined) return undefined;
    const { bytes, trailerBytes } = this.#header;
    if (this.#at === 0) this.#at = bytes;
    while (this.#at + 3 <= this.#length) {
      const { next, isLast } = readBlock(this.#arena, this.#at);
      const end = isLast ? next + trailerBytes : next;
      if (end > PACKED_BYTES_MAX || this.#blocks >= BLOCKS_MAX) {
        throw new FrameError('a frame is longer than any that varve writes');
      }
      if (end > this.#length) return undefined;
      if (isLast) return this.#cut(end);
      this.#at = next;
      this.#blocks += 1;
    }
    return undefined;
  }

  #cut(end: number): Buffer {
    const packed = Buffer.from(this.#arena.subarray(0, end));
    this.#arena.copy(this.#arena, 0, end, this.#length);
    this.#length -= end;
    this.#at = 0;
    this.#blocks = 0;
    this.#header = undefined;
    return packed;
  }
}

/** undefined: more bytes are needed. */
function readHeader(bytes: Buffer): Header | undefined {
  if (bytes.byteLength < 5) return undefined;
  if (bytes.readUInt32LE(0) !== MAGIC) throw new FrameError('it is not zstd');
  const descriptor = bytes.readUInt8(4);
  const isSingleSegment = (descriptor & 0x20) !== 0;
  if ((descriptor & 0x0b) !== 0) throw new FrameError('a frame has a dictionary, or bits that mean nothing yet');
  const sizeFlag = descriptor >> 6;
  const sizeBytes = sizeFlag === 0 ? Number(isSingleSegment) : 1 << sizeFlag;
  const windowBytes = isSingleSegment ? 0 : 1;
  return { bytes: 5 + windowBytes + sizeBytes, trailerBytes: (descriptor & 0x04) === 0 ? 0 : 4 };
}

function readBlock(bytes: Buffer, at: number): { next: number; isLast: boolean } {
  const header = bytes.readUIntLE(at, 3);
  const type = (header >> 1) & 3;
  const size = header >> 3;
  if (type === 3) throw new FrameError('a block has a type that does not exist');
  if (size > BLOCK_BYTES_MAX) throw new FrameError('a block is longer than blocks are');
  // A run-length block stores one byte, whatever its size.
  return { next: at + 3 + (type === 1 ? 1 : size), isLast: (header & 1) === 1 };
}
