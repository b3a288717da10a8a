/**
 * Tolerant reads of a payload. What folds and assembles events must be total: after an erasure a payload has no fields,
 * and after offloading a text is a stub.
 */
import type { Json, JsonObject } from './canonical.ts';
import type { Stub } from './stubs.ts';

export type Text = string | Stub;

export function stringOf(value: Json | undefined): string | undefined {
  return typeof value === 'string' ? value : undefined;
}

/** An integer from 0 to 2^53 − 1. */
export function countOf(value: Json | undefined): number | undefined {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0 ? value : undefined;
}

export function objectOf(value: Json | undefined): JsonObject | undefined {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as JsonObject) : undefined;
}

/** The objects of a list; empty where there is no list. */
export function objectsOf(value: Json | undefined): readonly JsonObject[] {
  return Array.isArray(value) ? value.filter((element) => objectOf(element) !== undefined) : [];
}

export function isStub(value: Json | undefined): value is Stub & JsonObject {
  const ref = objectOf(objectOf(value)?.['$blob']);
  return ref !== undefined && typeof ref['sha256'] === 'string';
}

export function textOf(value: Json | undefined): Text | undefined {
  return typeof value === 'string' || isStub(value) ? value : undefined;
}
