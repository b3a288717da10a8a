/**
 * Keys of objects: names that every store takes as they are, so that what works on one works on the other.
 *
 * A key is well-formed Unicode of 1 to 1024 bytes of UTF-8, segments separated by `/`. A segment has 1 to 220 bytes; is
 * not `.` or `..` (file systems and URL parsers resolve them); does not begin with `.varve-tmp.` (the names of
 * unfinished files); and has no control characters, U+FFFE or U+FFFF (a file name ends at NUL, and XML 1.0, in which S3
 * speaks of keys, has none of them). Everything else is allowed and kept byte for byte: spaces, `%`, `+`, `&`, `<`,
 * quotes, backslashes, any script. Case matters; on a file system that ignores case, two keys may be one.
 */
import { VarveError } from '../schemas/errors.ts';

/** S3's limit, in bytes of UTF-8; a root inside the bucket counts as well. */
export const KEY_BYTES_MAX = 1024;
/** File names have 255 bytes; a temporary one adds 28 to that of its segment. */
export const SEGMENT_BYTES_MAX = 220;
/** Begins the names of files that are not objects yet. */
export const TEMPORARY_PREFIX = '.varve-tmp.';

const FORBIDDEN = /[\p{Cc}\ufffe\uffff]/u;

/** @throws VarveError STORE_KEY_INVALID */
export function checkKey(key: string): void {
  const flaw = flawOfKey(key);
  if (flaw !== undefined) throw new VarveError('STORE_KEY_INVALID', `a key ${flaw}: ${shown(key)}`, { key });
}

/** A prefix of legal keys: empty, or folders and the beginning of a name. @throws VarveError STORE_KEY_INVALID */
export function checkPrefix(prefix: string): void {
  const folders = prefix.slice(0, prefix.lastIndexOf('/') + 1);
  const name = prefix.slice(folders.length);
  const flaw = (folders === '' ? undefined : flawOfKey(folders.slice(0, -1))) ?? flawOfText(prefix);
  if (flaw !== undefined) throw new VarveError('STORE_KEY_INVALID', `a key ${flaw}: ${shown(prefix)}`, { prefix });
  if (name.startsWith(TEMPORARY_PREFIX)) {
    throw new VarveError('STORE_KEY_INVALID', `no key begins like a temporary file: ${shown(prefix)}`, { prefix });
  }
}

export function isSegment(name: string): boolean {
  return flawOfText(name) === undefined && flawOfSegment(name) === undefined;
}

/** The order in which stores list: by bytes of UTF-8. JavaScript's own differs where surrogate pairs are involved. */
export function compareKeys(a: string, b: string): number {
  if (a === b) return 0;
  for (let i = 0; ; i++) {
    const x = a.charCodeAt(i);
    const y = b.charCodeAt(i);
    if (x === y) continue;
    if (Number.isNaN(x)) return -1;
    if (Number.isNaN(y)) return 1;
    const xIsPair = x >= 0xd800 && x <= 0xdfff;
    const yIsPair = y >= 0xd800 && y <= 0xdfff;
    // A pair stands for a code point past every single unit.
    if (xIsPair !== yIsPair) return xIsPair ? 1 : -1;
    return x - y;
  }
}

function flawOfKey(key: string): string | undefined {
  const flaw = flawOfText(key);
  if (flaw !== undefined) return flaw;
  if (Buffer.byteLength(key) > KEY_BYTES_MAX) return `has at most ${KEY_BYTES_MAX} bytes`;
  for (const segment of key.split('/')) {
    const flaw = flawOfSegment(segment);
    if (flaw !== undefined) return flaw;
  }
  return undefined;
}

function flawOfText(text: string): string | undefined {
  if (!text.isWellFormed()) return 'is well-formed Unicode';
  return FORBIDDEN.test(text) ? 'has no control characters' : undefined;
}

function flawOfSegment(segment: string): string | undefined {
  if (segment === '') return 'has no empty segments';
  if (segment === '.' || segment === '..') return 'has no segments . and ..';
  if (segment.startsWith(TEMPORARY_PREFIX)) return `has no segment that begins with ${TEMPORARY_PREFIX}`;
  if (Buffer.byteLength(segment) > SEGMENT_BYTES_MAX) return `has segments of at most ${SEGMENT_BYTES_MAX} bytes`;
  return undefined;
}

function shown(key: string): string {
  return JSON.stringify(key.slice(0, 200));
}
