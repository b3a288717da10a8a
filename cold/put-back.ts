/** The payload that was appended, from the one that compaction stored and the bodies that it took out. Pure. */
import { escapePointer, type Json, type JsonObject } from '../schemas/canonical.ts';
import { isStub } from '../schemas/reading.ts';
import type { BlobRef } from '../schemas/stubs.ts';

/** The stubs at those JSON pointers; undefined for one where there is none. */
export function stubsAt(payload: JsonObject, pointers: readonly string[]): (BlobRef | undefined)[] {
  return pointers.map((pointer) => {
    const value = valueAt(payload, pointer);
    return isStub(value) ? value.$blob : undefined;
  });
}

/** @param bodies by JSON pointer */
export function putBack(payload: JsonObject, bodies: ReadonlyMap<string, string>): JsonObject {
  return replaced(payload, '', bodies) as JsonObject;
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

function replaced(value: Json, pointer: string, bodies: ReadonlyMap<string, string>): Json {
  const body = bodies.get(pointer);
  if (body !== undefined) return body;
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) return value.map((element, i) => replaced(element, `${pointer}/${i}`, bodies));
  // A null prototype, so that a key such as `__proto__` stays a key.
  const copy: Record<string, Json> = Object.create(null);
  for (const [key, member] of Object.entries(value as JsonObject)) {
    copy[key] = replaced(member, `${pointer}/${escapePointer(key)}`, bodies);
  }
  return copy;
}
