/**
 * One error class for all of varve, one table of its codes.
 *
 * Branch on `code`, never on text. `retry` says whether the same call may succeed later with nothing else changed; only
 * pipelines retry. `exit` is the exit status of the CLI: 2 the caller's input, 3 done with losses, 4 the environment
 * (disk, lock, peer), 5 data that must not be trusted.
 */

type CodeEntry = { readonly retry: boolean; readonly exit: 2 | 3 | 4 | 5 };

const USAGE = { retry: false, exit: 2 } as const;
const ENVIRONMENT = { retry: false, exit: 4 } as const;
const LATER = { retry: true, exit: 4 } as const;
const DAMAGE = { retry: false, exit: 5 } as const;

export const ERROR_CODES = {
  // What a caller gave: refused before anything is written.
  INVALID_OPTION: USAGE,
  INVALID_CONFIG: USAGE,
  INVALID_ID: USAGE,
  ID_AHEAD_OF_CLOCK: USAGE,
  INVALID_EVENT_TYPE: USAGE,
  INVALID_TURN: USAGE,
  INVALID_FENCING_TOKEN: USAGE,
  INVALID_CREATED_AT: USAGE,
  INVALID_PAYLOAD: USAGE,
  INVALID_JSONL: USAGE,
  NUMBER_NOT_FINITE: USAGE,
  STRING_NOT_WELL_FORMED: USAGE,
  NESTING_TOO_DEEP: USAGE,
  EVENT_TOO_LARGE: USAGE,
  STUB_MALFORMED: USAGE,
  REDACTED_AT_DOOR: USAGE,
  CONTEXT_INCOMPLETE: USAGE,
  TURN_WENT_BACK: USAGE,
  CREATED_AT_WENT_BACK: USAGE,
  FENCING_TOKEN_WENT_BACK: USAGE,
  SEQUENCE_TAKEN: USAGE,
  SEQUENCE_AHEAD: USAGE,
  CHAIN_BROKEN: USAGE,
  BLOB_MISSING: USAGE,
  NOT_AN_LSN: USAGE,

  // The hot log and its surroundings.
  HOT_CLOSED: ENVIRONMENT,
  HOT_FAILED: ENVIRONMENT,
  HOT_LOCKED: LATER,
  HOT_OVERLOADED: LATER,
  HOT_DAMAGED: DAMAGE,
  HOT_NOT_A_LOG: USAGE,
  HOT_FORMAT_NEWER: USAGE,
  HOT_FORMAT_UNKNOWN: DAMAGE,
  HOT_UNWRITABLE: ENVIRONMENT,
  HOT_DISK_FULL: ENVIRONMENT,
  HOT_OVER_BUDGET: LATER,
  HOT_FENCED: USAGE,
  HOT_TRIMMED: USAGE,
  HOT_UNKNOWN_TRAJECTORY: USAGE,
  ADOPT_BEHIND: USAGE,
  SOCKET_PATH_TOO_LONG: USAGE,
  REPLICATION_HELD: ENVIRONMENT,
  ABORTED: LATER,

  // The tail.
  TAIL_NO_WRITER: LATER,
  TAIL_LOST: LATER,
  TAIL_CURSOR_UNKNOWN: DAMAGE,
  TAIL_CURSOR_AHEAD: DAMAGE,
  TAIL_PROTOCOL: DAMAGE,
  TAIL_GAP: DAMAGE,

  // Object stores. Every operation of the port is idempotent or conditional, so each may be sent again.
  STORE_UNAVAILABLE: LATER,
  STORE_THROTTLED: LATER,
  /** Another operation on the same key was under way; this one had no effect. */
  STORE_CONFLICT: LATER,
  /** The effect may have happened. Sending again is safe; after a conditional put, look at what is there. */
  STORE_AMBIGUOUS: LATER,
  STORE_DENIED: ENVIRONMENT,
  STORE_REFUSED: ENVIRONMENT,
  STORE_FULL: ENVIRONMENT,
  /** The store overwrites what a conditional put must not. */
  STORE_UNCONDITIONAL: ENVIRONMENT,
  STORE_MISSING: ENVIRONMENT,
  STORE_KEY_INVALID: USAGE,
  STORE_TOO_LARGE: USAGE,
  /** What was read back is not what was put. */
  STORE_CORRUPT: DAMAGE,
  /** What was to be put has not the length or the hash that it was announced with; nothing was stored. */
  STORE_BODY_MISMATCH: DAMAGE,

  // The cold tier: DuckDB, data files, the table log.
  COLD_CLOSED: ENVIRONMENT,
  COLD_SQL: ENVIRONMENT,
  COLD_OUT_OF_MEMORY: ENVIRONMENT,
  COLD_DISK_FULL: ENVIRONMENT,
  COLD_FILE_UNREADABLE: ENVIRONMENT,
  /** DuckDB found its own state broken; nothing of this instance is to be trusted. */
  COLD_ENGINE_FAILED: ENVIRONMENT,
  /** Rows that are to be written do not follow each other, or are not what their hashes say. */
  COLD_ROWS_BROKEN: DAMAGE,
  COLD_ROW_TOO_LARGE: USAGE,
  /** A data file is not what was written. */
  COLD_FILE_DIFFERS: DAMAGE,
  COLD_SEGMENTS_INVALID: DAMAGE,
  /** The newest snapshot names it, and it is not in the store. */
  COLD_OBJECT_MISSING: DAMAGE,
  COLD_NO_TABLE: USAGE,
  COLD_NO_VERSION: USAGE,
  /** SQL of a user that DuckDB refused, in DuckDB's own words, or that would do more than read. */
  COLD_QUERY_REFUSED: USAGE,
  /** The files of one query are larger than the cache may be. */
  COLD_CACHE_TOO_SMALL: USAGE,
  /** Queries that run hold what is in the cache. */
  COLD_CACHE_BUSY: LATER,
  COLD_TABLE_NEWER: USAGE,
  COLD_LOG_INVALID: DAMAGE,
  /** A commit that no table could take: it removes what it adds, or names something twice. */
  COLD_COMMIT_INVALID: USAGE,
  /** This database moves its events to another cold table. */
  COLD_OTHER_TABLE: USAGE,
  /** The table log is older than what this database has seen of it: the store was restored, or is another copy. */
  COLD_WENT_BACK: DAMAGE,
  /** This run slept past its claims; nothing more of it is committed. */
  COLD_CLAIM_LAPSED: LATER,

  // A trajectory over all tiers.
  /** Events in the middle of it are in no tier. */
  TRAJECTORY_GAP: DAMAGE,
  /** What a tier has does not follow what another one has, or is not what its hashes say. */
  TRAJECTORY_BROKEN: DAMAGE,
  /** Two logs have different events of one number, and nothing decides between them. */
  TRAJECTORY_FORK: DAMAGE,

  // What a command writes for its caller.
  OUTPUT_UNWRITABLE: ENVIRONMENT,

  // The warm tier: its server and its schema.
  WARM_NO_SERVER: ENVIRONMENT,
  WARM_START_FAILED: ENVIRONMENT,
  WARM_STOP_FAILED: ENVIRONMENT,
  WARM_NOT_READY: LATER,
  WARM_SERVER_TOO_OLD: USAGE,
  WARM_NOT_MIGRATED: USAGE,
  WARM_TOO_NEW: USAGE,
  WARM_MIGRATION_CHANGED: USAGE,
  WARM_MIGRATION_INVALID: USAGE,

  // What PostgreSQL or the way to it answers (warm/sqlstate.ts).
  WARM_CLOSED: ENVIRONMENT,
  WARM_UNAVAILABLE: LATER,
  WARM_OUTCOME_UNKNOWN: LATER,
  WARM_OVERLOADED: LATER,
  WARM_DISK_FULL: LATER,
  WARM_CONFLICT: LATER,
  WARM_LOCKED: LATER,
  WARM_TIMEOUT: LATER,
  WARM_READ_ONLY: LATER,
  WARM_NO_PARTITION: ENVIRONMENT,
  WARM_REFUSED_DATA: USAGE,
  WARM_REFUSED_LOGIN: USAGE,
  WARM_FORBIDDEN: USAGE,
  WARM_CONSTRAINT: ENVIRONMENT,
  WARM_UNSUPPORTED: ENVIRONMENT,
  WARM_SQL: ENVIRONMENT,
  WARM_SERVER_FAILED: ENVIRONMENT,
  WARM_DAMAGED: DAMAGE,
  WARM_UNREADABLE_VALUE: DAMAGE,
} as const satisfies Record<string, CodeEntry>;

export type ErrorCode = keyof typeof ERROR_CODES;

export class VarveError extends Error {
  override readonly name = 'VarveError';
  readonly code: ErrorCode;
  /** Facts for machines: ids, numbers, paths. Never payloads or secrets. */
  readonly details: Readonly<Record<string, unknown>>;

  constructor(code: ErrorCode, message: string, details: Record<string, unknown> = {}, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.code = code;
    this.details = details;
  }

  get retry(): boolean {
    return ERROR_CODES[this.code].retry;
  }
}

export function isVarveError(error: unknown, code?: ErrorCode): error is VarveError {
  return error instanceof VarveError && (code === undefined || error.code === code);
}

/** For bugs in varve itself. Nothing catches it. */
export function invariant(condition: boolean, message: string): asserts condition {
  if (!condition) throw new Error(`invariant broken: ${message}`);
}
