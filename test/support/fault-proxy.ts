/**
 * A proxy in front of an HTTP server that harms requests on their way. Each fault is used up by the next request that
 * it matches; all others pass as they are, signatures and all.
 *
 *   status          answers with that status and S3 code; the server never sees the request
 *   status-after    the same, after the server has done what it was asked
 *   silent          passes the request on and swallows the answer: the client waits until it gives up
 *   reset           passes the request on and breaks the connection instead of answering
 *   reset-before    breaks the connection before the server sees anything
 *   truncated       breaks the connection after so many bytes of the answer's body
 *   short           answers fewer bytes than the server, with a length that fits: nothing on the wire is wrong
 *   flipped         one bit of the answer's body is another
 */
import {
  createServer,
  request as httpRequest,
  type IncomingMessage,
  type Server,
  type ServerResponse,
} from 'node:http';
import type { AddressInfo } from 'node:net';

export type ProxyFault = { readonly method: string; readonly path?: RegExp } & (
  | { readonly kind: 'status' | 'status-after'; readonly status: number; readonly code: string }
  | { readonly kind: 'silent' | 'reset' | 'reset-before' }
  | { readonly kind: 'truncated' | 'short'; readonly afterBytes: number }
  | { readonly kind: 'flipped'; readonly bit: number }
);

type Passed = { readonly status: number; readonly headers: IncomingMessage['headers']; readonly body: Buffer };

export class FaultProxy implements AsyncDisposable {
  readonly #target: URL;
  readonly #faults: ProxyFault[] = [];
  readonly #passing = new Set<Promise<unknown>>();
  readonly #http: Server;

  private constructor(target: string) {
    this.#target = new URL(target);
    this.#http = createServer((message, response) => void this.#serve(message, response));
  }

  static async start(target: string): Promise<FaultProxy> {
    const proxy = new FaultProxy(target);
    await new Promise<void>((resolve) => {
      proxy.#http.listen(0, '127.0.0.1', resolve);
    });
    return proxy;
  }

  get endpoint(): string {
    return `http://127.0.0.1:${(this.#http.address() as AddressInfo).port}`;
  }

  inject(...faults: readonly ProxyFault[]): void {
    this.#faults.push(...faults);
  }

  get pending(): number {
    return this.#faults.length;
  }

  /** Resolves when the server has answered everything that was passed on, whatever became of the answers. */
  async idle(): Promise<void> {
    while (this.#passing.size > 0) await Promise.allSettled(this.#passing);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#http.closeAllConnections();
    await new Promise((resolve) => {
      this.#http.close(resolve);
    });
  }

  async #serve(message: IncomingMessage, response: ServerResponse): Promise<void> {
    const at = this.#faults.findIndex(
      ({ method, path }) => method === message.method && (path?.test(message.url ?? '') ?? true),
    );
    const fault = at < 0 ? undefined : this.#faults.splice(at, 1)[0];
    try {
      if (fault?.kind === 'reset-before') {
        response.destroy();
        return;
      }
      const body = await bodyOf(message);
      if (fault?.kind === 'status') answerStatus(response, fault.status, fault.code);
      else harm(response, await this.#tracked(this.#pass(message, body)), fault);
    } catch {
      response.destroy();
    }
  }

  async #tracked<T>(passing: Promise<T>): Promise<T> {
    this.#passing.add(passing);
    try {
      return await passing;
    } finally {
      this.#passing.delete(passing);
    }
  }

  #pass(message: IncomingMessage, body: Buffer): Promise<Passed> {
    const { hostname, port } = this.#target;
    const options = { hostname, port, method: message.method, path: message.url, headers: message.headers };
    return new Promise((resolve, reject) => {
      // The Host header stays the proxy's: it is signed.
      const sent = httpRequest(options, (answer) => {
        bodyOf(answer).then(
          (body) => resolve({ status: answer.statusCode ?? 0, headers: answer.headers, body }),
          reject,
        );
      });
      sent.on('error', reject);
      sent.end(body);
    });
  }
}

function harm(response: ServerResponse, { status, headers, body }: Passed, fault: ProxyFault | undefined): void {
  switch (fault?.kind) {
    case 'silent':
      return;
    case 'reset':
      response.destroy();
      return;
    case 'status-after':
      answerStatus(response, fault.status, fault.code);
      return;
    case 'truncated':
      response.writeHead(status, headers);
      response.write(body.subarray(0, fault.afterBytes), () => response.destroy());
      return;
    case 'short': {
      const part = body.subarray(0, fault.afterBytes);
      response.writeHead(status, { ...headers, 'content-length': String(part.byteLength) });
      response.end(part);
      return;
    }
    case 'flipped':
      body.writeUInt8(body.readUInt8(fault.bit >> 3) ^ (1 << (fault.bit & 7)), fault.bit >> 3);
      response.writeHead(status, headers);
      response.end(body);
      return;
    case 'status':
    case 'reset-before':
    case undefined:
      response.writeHead(status, headers);
      response.end(body);
  }
}

function answerStatus(response: ServerResponse, status: number, code: string): void {
  const body = `<?xml version="1.0"?><Error><Code>${code}</Code><Message>injected</Message></Error>`;
  response.writeHead(status, { 'content-type': 'application/xml', 'content-length': Buffer.byteLength(body) });
  response.end(body);
}

async function bodyOf(message: IncomingMessage): Promise<Buffer> {
  const parts: Buffer[] = [];
  for await (const chunk of message as AsyncIterable<Buffer>) parts.push(chunk);
  return Buffer.concat(parts);
}
