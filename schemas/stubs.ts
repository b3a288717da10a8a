/**
 * Stubs: `{"$blob": {sha256, bytes, media_type}}` stands for a string of a payload whose body is a blob.
 *
 * What is hashed is the payload with its stubs, so offloading must be a pure function of the payload: every string over
 * `overBytes` of UTF-8 goes; then the largest remaining ones (ties by JSON pointer) until the payload fits. Strings up
 * to 1 KiB never go, because ids, names and keys are among them. Nothing else is moved.
 */
import { hash } from 'node:crypto';
import { canonicalJson, escapePointer, type Json, type JsonObject } from './canonical.ts';
import { VarveError } from './errors.ts';
import { NAME_BYTES_MAX } from './limits.ts';

export type BlobRef = {
  /** Hex SHA-256 of the plain bytes. */
  readonly sha256: string;
  /** Length of the plain bytes. */
  readonly bytes: number;
  readonly media_type: string;
};
export type Stub = { readonly $blob: BlobRef };

export const TEXT_MEDIA_TYPE = 'text/plain; charset=utf-8';

/** A string that leaves its payload. */
export type OffloadedBody = { readonly pointer: string; readonly ref: BlobRef; readonly body: Buffer };

export type Offloaded = { readonly payload: JsonObject; readonly bodies: readonly OffloadedBody[] };

export function stubFor(body: Uint8Array, media_type: string = TEXT_MEDIA_TYPE): Stub {
  return { $blob: { sha256: hash('sha256', body, 'hex'), bytes: body.byteLength, media_type } };
}

/**
 * May a canonical payload hold a stub? Never wrongly no; wrongly yes only for a key that ends in `"$blob`, because the
 * quotes inside other strings are escaped.
 */
export function mayHoldStub(canonicalPayload: string): boolean {
  // Twice: a search that begins with a quotation mark stops at every one of them, and JSON is full of them.
  return canonicalPayload.includes('$blob":') && canonicalPayload.includes('"$blob":');
}

/** `stubsOf`, of a payload whose canonical bytes are at hand: without a stub it is not looked into. */
export function stubsIn(event: { readonly payload: JsonObject; readonly payload_bytes: Buffer }): BlobRef[] {
  return event.payload_bytes.includes('"$blob":') ? stubsOf(event.payload) : [];
}

/**
 * All stubs of a payload, in canonical order.
 *
 * @throws VarveError STUB_MALFORMED where an object has the key `$blob` and is not exactly a stub.
 */
export function stubsOf(payload: JsonObject): BlobRef[] {
  const found: BlobRef[] = [];
  walk(payload, '', (value, pointer) => {
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, '$blob')) return true;
    found.push(checkStub(value as JsonObject, pointer));
    return false;
  });
  return found;
}

/**
 * Moves strings out of a payload until it fits.
 *
 * @param canonicalBytes UTF-8 length of the payload's canonical text
 * @throws VarveError EVENT_TOO_LARGE where no string over 1 KiB is left and it still does not fit.
 */
export function offload(payload: JsonObject, canonicalBytes: number, overBytes: number, fitBytes: number): Offloaded {
  const strings: { pointer: string; text: string; bytes: number }[] = [];
  walk(payload, '', (value, pointer) => {
    if (typeof value === 'string' && value.length * 3 > NAME_BYTES_MAX) {
      const bytes = Buffer.byteLength(value);
      if (bytes > NAME_BYTES_MAX) strings.push({ pointer, text: value, bytes });
    }
    return typeof value !== 'object' || value === null || !Object.hasOwn(value, '$blob');
  });
  strings.sort((a, b) => b.bytes - a.bytes || (a.pointer < b.pointer ? -1 : 1));

  const bodies = new Map<string, OffloadedBody>();
  let size = canonicalBytes;
  for (const { pointer, text, bytes } of strings) {
    if (bytes <= overBytes && size <= fitBytes) break;
    const body = Buffer.from(text);
    const stub = stubFor(body);
    bodies.set(pointer, { pointer, ref: stub.$blob, body });
    size += Buffer.byteLength(canonicalJson(stub)) - Buffer.byteLength(canonicalJson(text));
  }
  if (size > fitBytes) {
    const message = `the payload has ${size} bytes after offloading; ${fitBytes} is the limit, and no string over ${NAME_BYTES_MAX} bytes is left to offload`;
    throw new VarveError('EVENT_TOO_LARGE', message, { bytes: size, limit: fitBytes });
  }
  const stubs = new Map(Array.from(bodies, ([pointer, { ref }]) => [pointer, { $blob: ref }]));
  return { payload: replace(payload, '', stubs) as JsonObject, bodies: [...bodies.values()] };
}

function replace(value: Json, pointer: string, others: ReadonlyMap<string, Json>): Json {
  const other = others.get(pointer);
  if (other !== undefined) return other;
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) return value.map((element, i) => replace(element, `${pointer}/${i}`, others));
  // A null prototype, so that a key such as `__proto__` stays a key.
  const copy: Record<string, Json> = Object.create(null);
  for (const [key, member] of Object.entries(value as JsonObject)) {
    copy[key] = replace(member, `${pointer}/${escapePointer(key)}`, others);
  }
  return copy;
}

/**
 * The stubs that stand at these JSON pointers.
 *
 * @throws VarveError STUB_MALFORMED where something else stands at one of them
 */
export function stubsAt(payload: JsonObject, pointers: readonly string[]): Map<string, BlobRef> {
  const found = new Map<string, BlobRef>();
  for (const pointer of pointers) {
    const value = valueAt(payload, pointer);
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, '$blob')) {
      throw new VarveError('STUB_MALFORMED', `no stub stands at ${pointer.slice(0, 200)}`, { pointer });
    }
    found.set(pointer, checkStub(value as JsonObject, pointer));
  }
  return found;
}

function valueAt(payload: JsonObject, pointer: string): Json | undefined {
  let value: Json | undefined = payload;
  for (const token of pointer.split('/').slice(1)) {
    const key = token.replaceAll('~1', '/').replaceAll('~0', '~');
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, key)) return undefined;
    value = (value as JsonObject)[key];
  }
  return value;
}

/** The payload with these strings in the places that the pointers name. */
export function putBack(payload: JsonObject, texts: ReadonlyMap<string, string>): JsonObject {
  return replace(payload, '', texts) as JsonObject;
}

function checkStub(value: JsonObject, pointer: string): BlobRef {
  const ref = value['$blob'] as JsonObject | null;
  const legal =
    Object.keys(value).length === 1 &&
    typeof ref === 'object' &&
    ref !== null &&
    !Array.isArray(ref) &&
    Object.keys(ref).length === 3 &&
    typeof ref['sha256'] === 'string' &&
    /^[0-9a-f]{64}$/.test(ref['sha256']) &&
    typeof ref['bytes'] === 'number' &&
    Number.isSafeInteger(ref['bytes']) &&
    ref['bytes'] >= 0 &&
    typeof ref['media_type'] === 'string' &&
    ref['media_type'].length > 0 &&
    Buffer.byteLength(ref['media_type']) <= NAME_BYTES_MAX;
  if (legal) return ref as unknown as BlobRef;
  const message = `${pointer || 'the payload itself'}: an object with the key $blob must be exactly {"$blob":{"bytes":…,"media_type":…,"sha256":…}}`;
  throw new VarveError('STUB_MALFORMED', message, { pointer });
}

/** Visits every value, members in canonical order; `visit` returns false to stay out of a value. */
function walk(value: Json, pointer: string, visit: (value: Json, pointer: string) => boolean): void {
  if (!visit(value, pointer) || typeof value !== 'object' || value === null) return;
  const keys = Array.isArray(value) ? value.keys() : Object.keys(value).toSorted();
  for (const key of keys) {
    walk((value as JsonObject)[key] as Json, `${pointer}/${escapePointer(String(key))}`, visit);
  }
}
