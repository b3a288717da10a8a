/** Bodies on their way to a server: streamed at its pace, and cut where they must not arrive. */
import { Readable } from 'node:stream';
import { type Body, chunksOf } from './body.ts';

/**
 * Sends a body through `send`. One that fails or is aborted half-way cuts its request: the server then has less than was
 * announced and stores nothing, and what cut it is thrown. A stream in Node that fails does not end the request that it
 * is piped into: without the cut the server would be waited for.
 */
export async function sendBody(
  body: Body,
  signal: AbortSignal | undefined,
  send: (body: Uint8Array | Readable, cut: AbortSignal) => Promise<unknown>,
): Promise<void> {
  const cut = new AbortController();
  if (body instanceof Uint8Array) {
    await send(body, cut.signal);
    return;
  }
  let failure: { readonly error: unknown } | undefined;
  const stream = Readable.from(chunksOf(body, signal), { objectMode: true, highWaterMark: 2 });
  stream.on('error', (error) => {
    failure ??= { error };
    cut.abort();
  });
  try {
    await send(stream, cut.signal);
  } catch (error) {
    throw failure === undefined ? error : failure.error;
  } finally {
    // A server may have answered before it had all; the rest is not sent.
    if (!stream.readableEnded) cut.abort();
    stream.destroy();
  }
}
