/**
 * Lines of a file, streamed, with their numbers. A line over the limit and one that is not UTF-8 are named, not returned:
 * memory is bounded by the limit, whatever the file holds.
 */
import { createReadStream } from 'node:fs';
import { VarveError } from '../schemas/errors.ts';
import { MIB } from '../schemas/limits.ts';

/** An event has at most 1 MiB; as a line it also has its hash and the names of its fields. */
export const LINE_BYTES_MAX = 4 * MIB;

export type Line =
  | { readonly number: number; readonly text: string }
  | { readonly number: number; readonly text: undefined; readonly why: string };

const NEWLINE = 0x0a;

/** Lines that are empty are left out. @throws VarveError INVALID_OPTION where the file cannot be read */
export async function* readLines(path: string): AsyncGenerator<Line> {
  const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
  let number = 1;
  let parts: Buffer[] = [];
  let bytes = 0;
  const finish = (): Line | undefined => {
    const [line, length] = [number, bytes];
    const whole = parts.length === 1 && parts[0] !== undefined ? parts[0] : Buffer.concat(parts);
    number += 1;
    parts = [];
    bytes = 0;
    if (length === 0) return undefined;
    if (length > LINE_BYTES_MAX) {
      return { number: line, text: undefined, why: `the line has ${length} bytes; ${LINE_BYTES_MAX} is the most` };
    }
    try {
      return { number: line, text: decoder.decode(whole) };
    } catch {
      return { number: line, text: undefined, why: 'the line is not UTF-8' };
    }
  };
  const take = (part: Buffer) => {
    bytes += part.length;
    if (bytes > LINE_BYTES_MAX) parts = [];
    else if (part.length > 0) parts.push(part);
  };
  try {
    for await (const chunk of createReadStream(path) as AsyncIterable<Buffer>) {
      let from = 0;
      for (let at = chunk.indexOf(NEWLINE); at !== -1; at = chunk.indexOf(NEWLINE, from)) {
        take(chunk.subarray(from, at));
        from = at + 1;
        const line = finish();
        if (line !== undefined) yield line;
      }
      take(chunk.subarray(from));
    }
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === undefined) throw error;
    throw new VarveError('INVALID_OPTION', `${path} cannot be read (${code})`, { path }, error);
  }
  const last = finish();
  if (last !== undefined) yield last;
}
