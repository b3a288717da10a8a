/**
 * What goes over the tail's Unix socket, in both directions: frames `u32 length ‖ type ‖ body`, big-endian.
 *
 *   'e'  one record: `u64 LSN ‖ value`, exactly the key and value of the log (see `hot/record.ts`)
 *   'j'  one message, UTF-8 JSON
 *
 * The reader speaks first (`hello`). `follow` is answered by `welcome` and then by every record behind the cursor once
 * it is durable, in LSN order, none twice; LSNs that a trim took are named by `trimmed`. `who` is answered by `welcome`
 * alone. `yield` asks a drain to give the log up. A refusal names its code and ends the connection.
 */
import type { ErrorCode } from '../schemas/errors.ts';
import { VarveError } from '../schemas/errors.ts';
import { MIB } from '../schemas/limits.ts';

export const TAIL_PROTOCOL = 1;
export const RECORD_FRAME = 0x65;
export const JSON_FRAME = 0x6a;
/** A record is an event of at most 1 MiB, its hash, its key and two lengths. */
const FRAME_BYTES_MAX = 2 * MIB;

/** A place in a log: the record there has this hash (hex). LSN 0 with 64 zeros is the start. */
export type Cursor = { readonly lsn: number; readonly hash: string };

export const START: Cursor = { lsn: 0, hash: '0'.repeat(64) };

/** What replication has taken over, as the sidecar says it. */
export type Ack = {
  readonly log_id: string;
  readonly epoch: string;
  /** Everything up to here is in warm or in quarantine. */
  readonly cursor: Cursor;
  /** Trajectories of which warm does not hold what lies at and behind `from_lsn`. */
  readonly held: readonly Held[];
};

export type HeldReason = 'waiting' | 'gap' | 'fork' | 'poison' | 'fenced' | 'unproven';

export type Held = {
  readonly trajectory_id: string;
  readonly from_lsn: number;
  readonly reason: HeldReason;
};

/** Who has a log open: a worker that writes it, or a reader that drains it. */
export type Role = 'writer' | 'drain';

export type ToServer =
  | {
      readonly type: 'hello';
      readonly protocol: number;
      readonly mode: 'follow';
      readonly cursor: Cursor;
      readonly log_id?: string;
    }
  | { readonly type: 'hello'; readonly protocol: number; readonly mode: 'who' | 'yield' }
  | { readonly type: 'ack'; readonly ack: Ack };

export type ToReader =
  | {
      readonly type: 'welcome';
      readonly protocol: number;
      readonly log_id: string;
      readonly epoch: string;
      readonly role: Role;
      readonly pid: number;
      readonly durable: Cursor;
    }
  | { readonly type: 'trimmed'; readonly from_lsn: number; readonly to_lsn: number; readonly hash: string }
  /** How far the log has come, told while the reader catches up. */
  | { readonly type: 'durable'; readonly lsn: number }
  | { readonly type: 'acked'; readonly lsn: number }
  | { readonly type: 'refused'; readonly code: ErrorCode; readonly message: string };

export function jsonFrame(message: ToServer | ToReader): Buffer {
  const body = Buffer.from(JSON.stringify(message));
  const frame = Buffer.allocUnsafe(5 + body.length);
  frame.writeUInt32BE(1 + body.length, 0);
  frame[4] = JSON_FRAME;
  body.copy(frame, 5);
  return frame;
}

export type Frame = { readonly type: number; readonly body: Buffer };

/** Cuts a stream of chunks into frames. A frame's body is a view of the chunk it came in. */
export class FrameReader {
  #parts: Buffer[] = [];
  #bytes = 0;
  #need = 5;

  /** @throws VarveError TAIL_PROTOCOL for a frame longer than any legal one */
  push(chunk: Buffer): Frame[] {
    this.#parts.push(chunk);
    this.#bytes += chunk.length;
    if (this.#bytes < this.#need) return [];
    const buffer = this.#parts.length === 1 ? chunk : Buffer.concat(this.#parts, this.#bytes);
    const frames: Frame[] = [];
    let at = 0;
    this.#need = 5;
    while (buffer.length - at >= 5) {
      const length = buffer.readUInt32BE(at);
      if (length < 1 || length > FRAME_BYTES_MAX) {
        throw new VarveError('TAIL_PROTOCOL', `a frame of ${length} bytes came over the tail`, { length });
      }
      if (buffer.length - at < 4 + length) {
        this.#need = 4 + length;
        break;
      }
      frames.push({ type: buffer[at + 4] as number, body: buffer.subarray(at + 5, at + 4 + length) });
      at += 4 + length;
    }
    const rest = buffer.subarray(at);
    this.#parts = rest.length > 0 ? [rest] : [];
    this.#bytes = rest.length;
    return frames;
  }
}

/** @throws VarveError TAIL_PROTOCOL */
export function parseMessage(body: Buffer): ToServer | ToReader {
  try {
    const message: unknown = JSON.parse(body.toString('utf8'));
    if (typeof message === 'object' && message !== null && 'type' in message) return message as ToServer | ToReader;
  } catch {
    // Said below, without the peer's bytes.
  }
  throw new VarveError('TAIL_PROTOCOL', 'a message over the tail is not JSON of a known form', {});
}
