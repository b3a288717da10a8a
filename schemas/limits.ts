/**
 * Every limit that all tiers agree on, with its unit and its reason. Relations between limits are asserted at load, so
 * that nobody can edit one into nonsense.
 */

export const KIB = 1024;
export const MIB = 1024 * KIB;
export const GIB = 1024 * MIB;

/** Largest canonical event (envelope and payload together), in bytes, after offloading. */
export const EVENT_BYTES_MAX = MIB;

/** Room kept for the envelope, in bytes. The longest legal envelope has 410 (see `schemas/chain.ts`). */
export const ENVELOPE_BYTES_MAX = KIB;

/** Largest canonical payload, in bytes. Does not depend on the envelope, so that imports are reproducible. */
export const PAYLOAD_BYTES_MAX = EVENT_BYTES_MAX - ENVELOPE_BYTES_MAX;

/** Strings with more UTF-8 bytes than this become blobs when they are appended. */
export const OFFLOAD_OVER_BYTES = 64 * KIB;

/** Ids, names, keys and tenants, in UTF-8 bytes. They are indexed and never offloaded. */
export const NAME_BYTES_MAX = KIB;

/** Tenant and model version, in code points: they become partition values of the cold tier. */
export const PARTITION_VALUE_CODE_POINTS_MAX = 256;

/** Deepest nesting of arrays and objects in a payload; the payload itself is level 1. */
export const NESTING_MAX = 256;

/** Turns are 32-bit in every tier. */
export const TURN_MAX = 2 ** 31 - 1;

/** A new trajectory's id may be ahead of this worker's clock by at most this, in milliseconds. */
export const ID_AHEAD_MS_MAX = 60_000;

/** `created_at` lies in the years 1970 to 9999, in milliseconds since the epoch. */
export const CREATED_AT_MS_MAX = Date.UTC(9999, 11, 31, 23, 59, 59, 999);

/** A `ContextBuilt` names its messages whole (without `base`) at least this often. */
export const CONTEXT_BASE_EVERY = 32;

/**
 * Changes that a record keeps so that a rollback can take them back. Past it a rollback is approximate, and says so; a
 * record stays below some hundred KiB instead.
 */
export const RECORD_JOURNAL_MAX = 1024;

/** Open calls that a `Summary` lists by name; beyond it only a number is kept. */
export const SUMMARY_OPEN_CALLS_MAX = 64;

if (OFFLOAD_OVER_BYTES >= PAYLOAD_BYTES_MAX || NAME_BYTES_MAX >= OFFLOAD_OVER_BYTES) {
  throw new Error('limits contradict each other');
}
