/**
 * The tail's server side: hands every durable record to whoever asks, in LSN order, none before it is durable.
 *
 * A reader that keeps up is *live*: it is sent the commit's own bytes. One that is behind *catches up* from the
 * database in small pages, with a pause between them while appends are under way, because a catch-up at full speed
 * makes appends four times slower (measured). A live reader whose socket backs up goes back to catching up, so nothing
 * is kept in memory for it. LSNs without a record are named as trimmed only where trim marks say so; otherwise the
 * reader is refused, and never sees a hole.
 */
import { chmod, rm } from 'node:fs/promises';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { KIB, MIB } from '../schemas/limits.ts';
import type { Batch } from './batch.ts';
import { type CursorSource, checkCursor } from './cursor.ts';
import type { Trimmed } from './read-check.ts';
import { isIndexKey, keyLsn, RECORD_KEY_BYTES } from './record.ts';
import type { Row } from './rocks.ts';
import {
  type Ack,
  type Cursor,
  FrameReader,
  JSON_FRAME,
  jsonFrame,
  parseMessage,
  type Role,
  TAIL_PROTOCOL,
  type ToReader,
  type ToServer,
} from './tail-protocol.ts';

/** `sun_path` of a Unix socket on Linux, less its terminating zero, in bytes. */
const SOCKET_PATH_BYTES_MAX = 107;
const CATCH_UP_PAGE_BYTES = 128 * KIB;
const CATCH_UP_PAUSE_MS = 1;
/** A live reader with more than this unsent falls back to catching up. */
const UNSENT_BYTES_MAX = 4 * MIB;

/** What the server needs of the log that it serves. */
export type TailSource = CursorSource & {
  readonly identity: { readonly log_id: string; readonly epoch: string; readonly role: Role };
  /** Barriers so far: has it moved, appends are under way. */
  flushes(): number;
  rows(fromLsn: number, toLsn: number, pageBytes: number): AsyncGenerator<Row[]>;
  /** Names these LSNs as trimmed. @throws VarveError HOT_DAMAGED where trim marks do not account for every one */
  trimmed(fromLsn: number, toLsn: number): Promise<Trimmed>;
  unpin(batch: Batch): void;
  /** @throws VarveError where the ack is not of this log */
  onAck(ack: Ack): Promise<void>;
  onYield(): void;
};

type Reader = {
  readonly socket: Socket;
  /** Last LSN that was sent or named as trimmed. */
  sent: number;
  mode: 'hello' | 'catching-up' | 'live' | 'gone';
};

/** @throws VarveError SOCKET_PATH_TOO_LONG */
export function checkSocketPath(path: string): void {
  const bytes = Buffer.byteLength(path);
  if (bytes <= SOCKET_PATH_BYTES_MAX) return;
  const message = `the socket path ${path} has ${bytes} bytes, this system takes ${SOCKET_PATH_BYTES_MAX}: use a shorter directory, or set socketPath`;
  throw new VarveError('SOCKET_PATH_TOO_LONG', message, { path, bytes });
}

export class TailServer {
  readonly #source: TailSource;
  readonly #server: Server;
  readonly #readers = new Set<Reader>();
  #closing = false;

  private constructor(source: TailSource) {
    this.#source = source;
    this.#server = createServer((socket) => this.#accept(socket));
  }

  /** Listens when it resolves. The caller holds the log's lock, so a socket file in the way is a dead process's. */
  static async listen(path: string, source: TailSource): Promise<TailServer> {
    checkSocketPath(path);
    await rm(path, { force: true });
    const server = new TailServer(source);
    await new Promise<void>((resolve, reject) => {
      server.#server.once('error', reject);
      server.#server.listen(path, () => {
        server.#server.off('error', reject);
        resolve();
      });
    });
    await chmod(path, 0o600);
    return server;
  }

  /** Does not keep the process alive. */
  unref(): void {
    this.#server.unref();
  }

  /** Called for every batch, once it is durable and before its waiters are told. */
  publish(batch: Batch): void {
    for (const reader of this.#readers) {
      if (reader.mode !== 'live') continue;
      if (reader.sent !== batch.firstLsn - 1 || reader.socket.writableLength > UNSENT_BYTES_MAX) {
        reader.mode = 'catching-up';
        this.#catchUp(reader);
        continue;
      }
      batch.pins += 1;
      reader.sent = batch.lastLsn;
      reader.socket.write(batch.frames, () => this.#source.unpin(batch));
    }
  }

  async close(): Promise<void> {
    if (this.#closing) return;
    this.#closing = true;
    // Unreferenced handles would let the process end before they are closed.
    this.#server.ref();
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    for (const { socket } of this.#readers) {
      socket.ref();
      socket.end();
      // A reader that does not read must not hold up the writer's exit.
      socket.setTimeout(200, () => socket.destroy());
    }
    await closed;
  }

  #accept(socket: Socket): void {
    const reader: Reader = { socket, sent: 0, mode: 'hello' };
    const frames = new FrameReader();
    this.#readers.add(reader);
    socket.unref();
    socket.on('error', () => socket.destroy());
    socket.on('close', () => {
      reader.mode = 'gone';
      this.#readers.delete(reader);
    });
    socket.on('data', (chunk) => {
      try {
        for (const { type, body } of frames.push(chunk)) {
          if (type !== JSON_FRAME) throw new VarveError('TAIL_PROTOCOL', 'a reader sent a record', {});
          this.#message(reader, parseMessage(body) as ToServer).catch((error: unknown) => refuse(reader, error));
        }
      } catch (error) {
        refuse(reader, error);
      }
    });
  }

  async #message(reader: Reader, message: ToServer): Promise<void> {
    switch (message.type) {
      case 'ack':
        await this.#source.onAck(message.ack);
        send(reader, { type: 'acked', lsn: message.ack.cursor.lsn });
        return;
      case 'hello':
        if (message.protocol !== TAIL_PROTOCOL || reader.mode !== 'hello') {
          throw new VarveError('TAIL_PROTOCOL', `this tail speaks protocol ${TAIL_PROTOCOL}`, {});
        }
        if (message.mode === 'follow') {
          await this.#follow(reader, message.cursor, message.log_id);
          return;
        }
        this.#welcome(reader);
        if (message.mode === 'yield') this.#source.onYield();
        return;
    }
  }

  #welcome(reader: Reader): void {
    const { lsn, hash } = this.#source.durable();
    const { log_id, epoch, role } = this.#source.identity;
    const durable = { lsn, hash };
    send(reader, { type: 'welcome', protocol: TAIL_PROTOCOL, log_id, epoch, role, pid: process.pid, durable });
  }

  async #follow(reader: Reader, cursor: Cursor, logId: string | undefined): Promise<void> {
    await checkCursor(this.#source, this.#source.identity.log_id, cursor, logId);
    if (reader.mode !== 'hello') return;
    reader.sent = cursor.lsn;
    reader.mode = 'catching-up';
    this.#welcome(reader);
    this.#catchUp(reader);
  }

  #catchUp(reader: Reader): void {
    this.#sendBehind(reader).catch((error: unknown) => refuse(reader, error));
  }

  async #sendBehind(reader: Reader): Promise<void> {
    const source = this.#source;
    while (reader.mode === 'catching-up') {
      const tip = source.durable().lsn;
      if (reader.sent === tip) {
        reader.mode = 'live';
        return;
      }
      if (reader.sent < source.floorLsn()) await this.#sendTrimmed(reader, source.floorLsn());
      let flushes = source.flushes();
      for await (const rows of source.rows(reader.sent + 1, tip, CATCH_UP_PAGE_BYTES)) {
        await this.#sendRows(reader, rows);
        send(reader, { type: 'durable', lsn: source.durable().lsn });
        if (isGone(reader)) return;
        if (source.flushes() !== flushes) await sleep(CATCH_UP_PAUSE_MS, undefined, { ref: false });
        flushes = source.flushes();
      }
      if (reader.sent < tip) await this.#sendTrimmed(reader, tip);
    }
  }

  async #sendRows(reader: Reader, rows: readonly Row[]): Promise<void> {
    let run: Row[] = [];
    for (const row of rows) {
      if (isIndexKey(row[0])) continue;
      const lsn = keyLsn(row[0]);
      if (lsn > reader.sent + 1) {
        await writeAll(reader, framesOf(run));
        run = [];
        await this.#sendTrimmed(reader, lsn - 1);
      }
      if (lsn <= reader.sent) continue;
      run.push(row);
      reader.sent = lsn;
    }
    await writeAll(reader, framesOf(run));
  }

  async #sendTrimmed(reader: Reader, toLsn: number): Promise<void> {
    const { from_lsn, to_lsn, hash } = await this.#source.trimmed(reader.sent + 1, toLsn);
    send(reader, { type: 'trimmed', from_lsn, to_lsn, hash });
    reader.sent = to_lsn;
  }
}

function isGone(reader: Reader): boolean {
  return reader.mode === 'gone';
}

function framesOf(rows: readonly Row[]): Buffer {
  let bytes = 0;
  for (const [, value] of rows) bytes += 4 + RECORD_KEY_BYTES + value.length;
  const frames = Buffer.allocUnsafe(bytes);
  let at = 0;
  for (const [key, value] of rows) {
    at = frames.writeUInt32BE(RECORD_KEY_BYTES + value.length, at);
    at += key.copy(frames, at);
    at += value.copy(frames, at);
  }
  return frames;
}

/** Resolves when the socket takes more. */
async function writeAll({ socket }: Reader, bytes: Buffer): Promise<void> {
  if (bytes.length === 0 || socket.destroyed || socket.write(bytes)) return;
  await new Promise<void>((resolve) => {
    const done = () => {
      socket.off('drain', done);
      socket.off('close', done);
      resolve();
    };
    socket.on('drain', done);
    socket.on('close', done);
  });
}

function send({ socket }: Reader, message: ToReader): void {
  if (!socket.destroyed) socket.write(jsonFrame(message));
}

function refuse(reader: Reader, error: unknown): void {
  if (reader.mode === 'gone') return;
  reader.mode = 'gone';
  const known = isVarveError(error) ? error : new VarveError('TAIL_LOST', 'the tail could not read the log', {}, error);
  send(reader, { type: 'refused', code: known.code, message: known.message });
  reader.socket.end();
}

/** Asks whoever listens on a tail socket for its identity. undefined: nobody does. */
export async function askTail(
  path: string,
  mode: 'who' | 'yield',
  timeoutMs: number,
): Promise<(ToReader & { type: 'welcome' }) | undefined> {
  return new Promise((resolve) => {
    const socket = connect(path);
    const frames = new FrameReader();
    const finish = (answer: (ToReader & { type: 'welcome' }) | undefined) => {
      socket.destroy();
      resolve(answer);
    };
    socket.setTimeout(timeoutMs, () => finish(undefined));
    socket.on('connect', () => socket.write(jsonFrame({ type: 'hello', protocol: TAIL_PROTOCOL, mode })));
    // Also a path that is no socket, or too long to be one: nobody is behind it either.
    socket.on('error', () => finish(undefined));
    socket.on('data', (chunk) => {
      for (const { type, body } of frames.push(chunk)) {
        if (type !== JSON_FRAME) continue;
        const message = parseMessage(body) as ToReader;
        finish(message.type === 'welcome' ? message : undefined);
      }
    });
    socket.on('close', () => finish(undefined));
  });
}
