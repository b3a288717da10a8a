/**
 * The tail's reader side: every durable record of a log behind a cursor, in LSN order, once.
 *
 * The reader checks what it is sent: LSNs are dense but for those named as trimmed, payload and envelope agree with
 * their hashes, and within a trajectory each hash covers the one before, from the first event of it that this reader
 * has seen. What fails ends the reading with an error; it is never passed on.
 *
 * A reader does not reconnect. When the writer goes away the iteration ends with TAIL_LOST (retry: true), and the
 * caller connects again with the last cursor it took over.
 */
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { VarveError } from '../schemas/errors.ts';
import { KIB } from '../schemas/limits.ts';
import { errnoOf } from './files.ts';
import { readWriterFile } from './holder.ts';
import { ReadCheck, type TailBatch, type TailItem, type Trimmed } from './read-check.ts';
import { decodeRecord, readU64 } from './record.ts';
import {
  type Ack,
  type Cursor,
  type Frame,
  FrameReader,
  jsonFrame,
  parseMessage,
  RECORD_FRAME,
  START,
  TAIL_PROTOCOL,
  type ToReader,
} from './tail-protocol.ts';

export type TailReaderOptions = {
  /** Last record that was taken over. @default the start of the log */
  readonly cursor?: Cursor;
  /** The log that the cursor is of; another one is refused. @default any */
  readonly log_id?: string;
  /** Socket of the writer. @default what `writer.json` says, else `tail.sock` in the directory */
  readonly socketPath?: string;
};

const HIGH_WATER_BYTES = 512 * KIB;

export class TailReader implements AsyncIterable<TailBatch> {
  readonly log_id: string;
  readonly epoch: string;
  readonly role: 'writer' | 'drain';
  /** Process that serves the log. */
  readonly pid: number;
  readonly #socket: Socket;
  readonly #frames: FrameReader;
  readonly #chunks: AsyncIterator<Buffer>;
  readonly #check: ReadCheck;
  readonly #acks: { lsn: number; resolve: () => void; reject: (error: unknown) => void }[] = [];
  #early: Frame[];
  #closed = false;
  #durableLsn: number;

  private constructor(
    socket: Socket,
    frames: FrameReader,
    chunks: AsyncIterator<Buffer>,
    welcome: ToReader & { type: 'welcome' },
    early: Frame[],
    cursor: Cursor,
  ) {
    this.#socket = socket;
    this.#frames = frames;
    this.#chunks = chunks;
    this.log_id = welcome.log_id;
    this.epoch = welcome.epoch;
    this.role = welcome.role;
    this.pid = welcome.pid;
    this.#early = early;
    this.#durableLsn = welcome.durable.lsn;
    this.#check = new ReadCheck(cursor);
  }

  /**
   * Resolves when the writer has accepted the cursor.
   *
   * @throws VarveError TAIL_NO_WRITER where nobody serves the log, TAIL_CURSOR_UNKNOWN and TAIL_CURSOR_AHEAD where the
   * cursor is not of this log's past
   */
  static async connect(dir: string, options: TailReaderOptions = {}): Promise<TailReader> {
    const cursor = options.cursor ?? START;
    const path = options.socketPath ?? (await readWriterFile(dir))?.socket ?? join(dir, 'tail.sock');
    const socket = await connectTo(path, dir);
    const frames = new FrameReader();
    const hello = { type: 'hello', protocol: TAIL_PROTOCOL, mode: 'follow', cursor } as const;
    socket.write(jsonFrame(options.log_id === undefined ? hello : { ...hello, log_id: options.log_id }));
    const chunks = socket[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
    try {
      for (;;) {
        const [first, ...early] = frames.push(await nextChunk(chunks));
        if (first === undefined) continue;
        const message = parseMessage(first.body) as ToReader;
        if (message.type === 'refused') throw new VarveError(message.code, message.message, { dir });
        if (message.type !== 'welcome') throw new VarveError('TAIL_PROTOCOL', 'the tail did not greet', { dir });
        return new TailReader(socket, frames, chunks, message, early, cursor);
      }
    } catch (error) {
      socket.destroy();
      throw error;
    }
  }

  /** Where the log is taken up again after what was handed out so far. */
  get cursor(): Cursor {
    return this.#check.cursor;
  }

  /** How far the log had come when its writer last said so. */
  get durableLsn(): number {
    return Math.max(this.#durableLsn, this.#check.cursor.lsn);
  }

  /** @throws VarveError TAIL_LOST, TAIL_GAP, TAIL_PROTOCOL, HOT_DAMAGED; ends without error after `close()` */
  async *[Symbol.asyncIterator](): AsyncGenerator<TailBatch> {
    try {
      while (!this.#closed) {
        const frames = this.#early.length > 0 ? this.#early : this.#frames.push(await nextChunk(this.#chunks));
        this.#early = [];
        const records: TailItem[] = [];
        for (const frame of frames) {
          if (frame.type === RECORD_FRAME) records.push(this.#record(frame.body));
          else this.#message(parseMessage(frame.body) as ToReader, records);
        }
        if (records.length > 0) yield { records, cursor: this.#check.cursor };
      }
    } catch (error) {
      if (!this.#closed) throw error;
    } finally {
      await this.close();
    }
  }

  /**
   * Tells the log what replication has taken over. Resolves when the writer has noted it; the iteration must go on
   * meanwhile, since the answer comes between records.
   */
  ack(ack: Ack): Promise<void> {
    if (this.#closed) return Promise.reject(new VarveError('TAIL_LOST', 'the reader is closed', {}));
    return new Promise((resolve, reject) => {
      this.#acks.push({ lsn: ack.cursor.lsn, resolve, reject });
      this.#socket.write(jsonFrame({ type: 'ack', ack }));
    });
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#socket.destroy();
    const lost = new VarveError('TAIL_LOST', 'the tail ended before the writer noted the ack', {});
    for (const { reject } of this.#acks.splice(0)) reject(lost);
    await Promise.resolve();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #record(body: Buffer): TailItem {
    const lsn = readU64(body, 0);
    const record = decodeRecord(lsn, body.subarray(8));
    if (record === undefined) {
      throw new VarveError('HOT_DAMAGED', `the record at LSN ${lsn} contradicts its own hashes`, { lsn });
    }
    return this.#check.take(record);
  }

  #message(message: ToReader, records: TailItem[]): void {
    switch (message.type) {
      case 'trimmed':
        records.push(this.#check.take(trimmedOf(message)));
        return;
      case 'acked':
        this.#acks.shift()?.resolve();
        return;
      case 'durable':
        this.#durableLsn = Math.max(this.#durableLsn, message.lsn);
        return;
      case 'refused':
        throw new VarveError(message.code, message.message, {});
      case 'welcome':
        throw new VarveError('TAIL_PROTOCOL', 'the tail greeted twice', {});
    }
  }
}

function trimmedOf({ from_lsn, to_lsn, hash }: ToReader & { type: 'trimmed' }): Trimmed {
  return { kind: 'trimmed', from_lsn, to_lsn, hash };
}

function connectTo(path: string, dir: string): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = connect({ path, readableHighWaterMark: HIGH_WATER_BYTES } as { path: string });
    const failed = (error: Error) => {
      const message = `no process serves ${dir} (${errnoOf(error) ?? error.message} at ${path})`;
      reject(new VarveError('TAIL_NO_WRITER', message, { dir, path }, error));
    };
    socket.once('error', failed);
    socket.once('connect', () => {
      socket.off('error', failed);
      resolve(socket);
    });
  });
}

async function nextChunk(chunks: AsyncIterator<Buffer>): Promise<Buffer> {
  try {
    const { done, value } = await chunks.next();
    if (done !== true) return value;
  } catch (cause) {
    throw new VarveError('TAIL_LOST', 'the connection to the writer broke', {}, cause);
  }
  throw new VarveError('TAIL_LOST', 'the writer closed the tail', {});
}
