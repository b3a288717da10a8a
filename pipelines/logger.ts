/**
 * Log lines: an event name and fields, as JSON on standard error. Never payloads or secrets.
 *
 * A failure that repeats in a loop is written once in 30 seconds, with the number of times it happened.
 */
import { type Logger as Pino, pino } from 'pino';
import { isVarveError } from '../schemas/errors.ts';

const REPEAT_MS = 30_000;

export class Logger {
  readonly #pino: Pino;
  readonly #repeats = new Map<string, { writtenAt: number; count: number }>();

  constructor(level: string) {
    this.#pino = pino(
      { level, base: null, timestamp: pino.stdTimeFunctions.isoTime },
      pino.destination({ fd: 2, sync: true }),
    );
  }

  info(event: string, fields: Readonly<Record<string, unknown>>): void {
    this.#pino.info({ event, ...fields });
  }

  warn(event: string, fields: Readonly<Record<string, unknown>>): void {
    this.#pino.warn({ event, ...fields });
  }

  /** Code and message of a VarveError, which hold no payload; of any other error its class alone. */
  failure(event: string, error: unknown, fields: Readonly<Record<string, unknown>>): void {
    const known = isVarveError(error);
    const code = known ? error.code : error instanceof Error ? error.name : typeof error;
    const key = `${event} ${code} ${JSON.stringify(fields)}`;
    const repeat = this.#repeats.get(key) ?? { writtenAt: 0, count: 0 };
    repeat.count += 1;
    this.#repeats.set(key, repeat);
    if (Date.now() - repeat.writtenAt < REPEAT_MS) return;
    this.#pino.warn({ event, code, message: known ? error.message : undefined, times: repeat.count, ...fields });
    repeat.writtenAt = Date.now();
    repeat.count = 0;
  }
}
