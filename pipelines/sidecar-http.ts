/**
 * The sidecar's HTTP server: `/healthz` (the process answers), `/readyz` (503 when a log has made no progress for too
 * long, or needs a person), `/status` (JSON), `/metrics`.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { VarveError } from '../schemas/errors.ts';
import type { LogStatus } from './log-loop.ts';
import type { SidecarMetrics } from './sidecar-metrics.ts';

export type HttpSources = {
  readonly metrics: SidecarMetrics;
  readonly statuses: () => readonly LogStatus[];
  /** Why the sidecar is not ready, one line each; empty: it is. */
  readonly unready: () => readonly string[];
};

export class SidecarHttp {
  readonly #server: Server;

  private constructor(server: Server) {
    this.#server = server;
  }

  /** @throws VarveError INVALID_OPTION where the address is taken */
  static async listen(host: string, port: number, sources: HttpSources): Promise<SidecarHttp> {
    const server = createServer((request, response) => {
      answer(request, response, sources).catch(() => {
        if (!response.headersSent) response.writeHead(500);
        response.end();
      });
    });
    await new Promise<void>((resolve, reject) => {
      server.once('error', (cause) => {
        reject(
          new VarveError('INVALID_OPTION', `cannot listen on ${host}:${port} (sidecar.port)`, { host, port }, cause),
        );
      });
      server.listen(port, host, resolve);
    });
    return new SidecarHttp(server);
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise<void>((resolve) => this.#server.close(() => resolve()));
  }
}

async function answer(request: IncomingMessage, response: ServerResponse, sources: HttpSources): Promise<void> {
  const { pathname } = new URL(request.url ?? '/', 'http://sidecar');
  switch (pathname) {
    case '/healthz':
      text(response, 200, 'ok\n');
      return;
    case '/readyz': {
      const why = sources.unready();
      text(response, why.length === 0 ? 200 : 503, why.length === 0 ? 'ready\n' : `${why.join('\n')}\n`);
      return;
    }
    case '/status':
      response.writeHead(200, { 'content-type': 'application/json' }).end(`${JSON.stringify(sources.statuses())}\n`);
      return;
    case '/metrics': {
      const { registry } = sources.metrics;
      response.writeHead(200, { 'content-type': registry.contentType }).end(await registry.metrics());
      return;
    }
    default:
      text(response, 404, 'there are /healthz, /readyz, /status and /metrics\n');
  }
}

function text(response: ServerResponse, status: number, body: string): void {
  response.writeHead(status, { 'content-type': 'text/plain; charset=utf-8' }).end(body);
}
