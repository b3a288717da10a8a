/**
 * Names of partition folders: ASCII, for values that may be any text of 1 to 256 code points.
 *
 *   a value of 1 to 80 characters [a-z0-9._-] that begins with a letter and is no reserved word is its own slug;
 *   every other one becomes `v-`, what is left of its beginning, `~` and 16 hex digits of its SHA-256
 *
 * So no slug is empty, over 100 bytes, `.`, a number, a date or null to a reader that guesses types, differs from
 * another only in case, or needs escaping in a URL, a Hive path or a file name. No value that is its own slug has a `~`,
 * so slugs of different values differ, but for a collision in 64 bits of SHA-256; then two partitions share a folder,
 * which harms nothing: the true values are in the table log and in the files, and no folder's name is ever read back.
 *
 * The rule is part of the format: files of one partition must find one folder.
 */
import { hash } from 'node:crypto';

export const SLUG_BYTES_MAX = 100;

const KEPT = /^[a-z][a-z0-9._-]{0,79}$/;
/** What Hive, DuckDB or Spark read as something else than this text. */
const RESERVED: ReadonlySet<string> = new Set(['null', 'nan', 'inf', 'infinity', 'true', 'false']);
const READABLE_CHARACTERS = 60;
const HASH_DIGITS = 16;

/** Total and pure. */
export function slugOf(value: string): string {
  if (KEPT.test(value) && !RESERVED.has(value)) return value;
  const readable = value
    .slice(0, READABLE_CHARACTERS)
    .toLowerCase()
    .replaceAll(/[^a-z0-9._-]+/g, '-')
    .replaceAll(/^[^a-z0-9]+|[^a-z0-9]+$/g, '');
  // Of the UTF-16 units, so that values which are not well-formed have different names as well.
  const digits = hash('sha256', Buffer.from(value, 'utf16le'), 'hex').slice(0, HASH_DIGITS);
  return `v-${readable}~${digits}`;
}

/** Folder of a partition below the table's, with the slash behind it. */
export function partitionFolder(place: { tenant: string; date: string; model_version: string }): string {
  return `tenant=${slugOf(place.tenant)}/date=${place.date}/model_version=${slugOf(place.model_version)}/`;
}
