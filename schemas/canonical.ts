/**
 * Canonical JSON: RFC 8785 (JCS), strict.
 *
 * The text is what is hashed, stored and moved between tiers, so a value has exactly one text, and whatever has none is
 * refused with the JSON pointer (RFC 6901) of the place: numbers that are not finite, strings that are not well-formed
 * Unicode, nesting over 256, and everything JSON would drop or bend in silence (undefined, functions, bigints, dates,
 * maps, holes in arrays, cycles).
 */
import { VarveError } from './errors.ts';
import { NESTING_MAX } from './limits.ts';

export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };
export type JsonObject = { readonly [key: string]: Json };

/**
 * Canonical text of a plain JSON value.
 *
 * @throws VarveError NUMBER_NOT_FINITE, STRING_NOT_WELL_FORMED, NESTING_TOO_DEEP, INVALID_PAYLOAD; `details.pointer`
 * names the place.
 */
export function canonicalJson(value: unknown): string {
  const text = encode(value, 1);
  if (text === undefined) throw refusal(value, '', 1) ?? new Error('invariant broken: refused for no reason');
  return text;
}

/** Anything that JSON.stringify would escape, or that could be half of a surrogate pair. */
// oxlint-disable-next-line no-control-regex -- control characters are the point
const NEEDS_CARE = /[\u0000-\u001f"\\\ud800-\udfff]/;

/** undefined: the string has no canonical form. */
function encodeString(text: string): string | undefined {
  if (text.length < 64 && !NEEDS_CARE.test(text)) return `"${text}"`;
  // JSON.stringify escapes exactly as RFC 8785, section 3.2.2.2, once lone surrogates are excluded.
  return text.isWellFormed() ? JSON.stringify(text) : undefined;
}

/** undefined: somewhere below there is a value without canonical form; `refusal` then finds it again, slowly. */
function encode(value: unknown, depth: number): string | undefined {
  switch (typeof value) {
    case 'string':
      return encodeString(value);
    case 'number':
      // ECMAScript's number-to-string is RFC 8785's; only −0 differs.
      return Number.isFinite(value) ? (value === 0 ? '0' : String(value)) : undefined;
    case 'boolean':
      return value ? 'true' : 'false';
    case 'object':
      if (value === null) return 'null';
      if (depth > NESTING_MAX) return undefined;
      return Array.isArray(value) ? encodeArray(value, depth) : encodeObject(value, depth);
    case 'undefined':
    case 'bigint':
    case 'symbol':
    case 'function':
      return undefined;
  }
}

function encodeArray(array: readonly unknown[], depth: number): string | undefined {
  let out = '[';
  for (let i = 0; i < array.length; i++) {
    const element = encode(array[i], depth + 1);
    if (element === undefined) return undefined;
    out += i === 0 ? element : `,${element}`;
  }
  return `${out}]`;
}

function encodeObject(object: object, depth: number): string | undefined {
  if (!isPlain(object)) return undefined;
  const keys = Object.keys(object);
  for (let i = 1; i < keys.length; i++) {
    // The default order of strings is by UTF-16 code units, as RFC 8785 wants it.
    if ((keys[i - 1] as string) > (keys[i] as string)) {
      keys.sort();
      break;
    }
  }
  let out = '{';
  for (let i = 0; i < keys.length; i++) {
    const key = keys[i] as string;
    const name = encodeString(key);
    const member = encode((object as Record<string, unknown>)[key], depth + 1);
    if (name === undefined || member === undefined) return undefined;
    out += i === 0 ? `${name}:${member}` : `,${name}:${member}`;
  }
  return `${out}}`;
}

function isPlain(object: object): boolean {
  const prototype = Object.getPrototypeOf(object);
  return prototype === Object.prototype || prototype === null;
}

/** First reason why a value has no canonical text. */
function refusal(value: unknown, pointer: string, depth: number): VarveError | undefined {
  const at = pointer === '' ? 'the payload itself' : pointer;
  if (typeof value === 'string') {
    if (value.isWellFormed()) return undefined;
    return new VarveError('STRING_NOT_WELL_FORMED', `${at}: the string holds half of a surrogate pair`, { pointer });
  }
  if (typeof value === 'number') {
    if (Number.isFinite(value)) return undefined;
    return new VarveError('NUMBER_NOT_FINITE', `${at}: JSON has no ${String(value)}`, { pointer });
  }
  if (typeof value === 'boolean' || value === null) return undefined;
  if (typeof value !== 'object') {
    return new VarveError('INVALID_PAYLOAD', `${at}: JSON has no ${typeof value}; leave the field out`, { pointer });
  }
  if (depth > NESTING_MAX) {
    const message = `nesting over ${NESTING_MAX} levels (or a cycle) below ${pointer.slice(0, 80)}`;
    return new VarveError('NESTING_TOO_DEEP', message, { pointer: pointer.slice(0, 200) });
  }
  if (!Array.isArray(value) && !isPlain(value)) {
    const name = value.constructor?.name ?? 'object';
    return new VarveError('INVALID_PAYLOAD', `${at}: a ${name} is not plain JSON`, { pointer });
  }
  // Not Object.entries: it would pass over the holes of an array.
  const keys = Array.isArray(value) ? Array.from(value, (_, i) => String(i)) : Object.keys(value);
  for (const key of keys) {
    const below = `${pointer}/${escapePointer(key)}`;
    if (!key.isWellFormed()) {
      return new VarveError('STRING_NOT_WELL_FORMED', `${at}: a key holds half of a surrogate pair`, { pointer });
    }
    const found = refusal((value as Record<string, unknown>)[key], below, depth + 1);
    if (found !== undefined) return found;
  }
  return undefined;
}

/** One reference token of a JSON pointer (RFC 6901, section 3). */
export function escapePointer(key: string): string {
  return key.replaceAll('~', '~0').replaceAll('/', '~1');
}
