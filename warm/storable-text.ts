/**
 * Names in PostgreSQL's text and json, which cannot hold U+0000, or cannot be looked into where they do.
 *
 * U+0000 is stored as U+0001 and `0`, and U+0001 as U+0001 and `1`, so nothing is lost. A name with either is rare; its
 * events have it as it is.
 */

// oxlint-disable-next-line no-control-regex -- control characters are the point
const SPECIAL = /[\u0000\u0001]/g;
// oxlint-disable-next-line no-control-regex -- control characters are the point
const ESCAPED = /\u0001([01])/g;

export function storable(text: string): string;
export function storable(text: string | null): string | null;
export function storable(text: string | null): string | null {
  return text === null ? null : text.replace(SPECIAL, (character) => `\u0001${character.charCodeAt(0)}`);
}

export function restored(text: string): string {
  return text.replace(ESCAPED, (_, digit) => String.fromCharCode(Number(digit)));
}
