/**
 * SQLSTATE → code: the one table (PostgreSQL's appendix A).
 *
 * Five characters decide if they are listed, else their class, the first two; the rest is WARM_SQL, a bug of ours.
 * Nothing of a row may leave with an error. `detail`, `where`, `hint` and the driver's own error object are dropped;
 * the server's message is kept only for classes whose texts name objects, users and limits and never a value.
 */
import { type ErrorCode, VarveError } from '../schemas/errors.ts';

const BY_STATE: Readonly<Record<string, ErrorCode>> = {
  '23514': 'WARM_CONSTRAINT',
  '25006': 'WARM_READ_ONLY',
  '25P03': 'WARM_UNAVAILABLE', // idle in transaction for too long: the connection is gone
  '25P04': 'WARM_TIMEOUT',
  '26000': 'WARM_UNAVAILABLE', // the prepared statement is not on this connection: a pooler swapped it
  '3D000': 'WARM_REFUSED_LOGIN',
  '40003': 'WARM_OUTCOME_UNKNOWN',
  '42501': 'WARM_FORBIDDEN',
  '53100': 'WARM_DISK_FULL',
  '55006': 'WARM_LOCKED',
  '55P03': 'WARM_LOCKED',
  '57014': 'WARM_TIMEOUT',
  '57P01': 'WARM_UNAVAILABLE',
  '57P02': 'WARM_UNAVAILABLE',
  '57P03': 'WARM_UNAVAILABLE',
  '57P05': 'WARM_UNAVAILABLE',
  XX001: 'WARM_DAMAGED',
  XX002: 'WARM_DAMAGED',
};

const BY_CLASS: Readonly<Record<string, ErrorCode>> = {
  '08': 'WARM_UNAVAILABLE',
  '0A': 'WARM_UNSUPPORTED',
  '22': 'WARM_REFUSED_DATA',
  '23': 'WARM_CONSTRAINT',
  '28': 'WARM_REFUSED_LOGIN',
  '40': 'WARM_CONFLICT',
  '53': 'WARM_OVERLOADED',
  // Too deep for the stack, too long for jsonb or an index: the values are at fault, not the statement.
  '54': 'WARM_REFUSED_DATA',
  '58': 'WARM_SERVER_FAILED',
  F0: 'WARM_SERVER_FAILED',
  XX: 'WARM_SERVER_FAILED',
};

const CLASSES_WITHOUT_VALUES: ReadonlySet<string> = new Set([
  '08',
  '0A',
  '25',
  '26',
  '28',
  '3D',
  '40',
  '42',
  '53',
  '55',
  '57',
  '58',
]);

/** What is taken over from a server's error. */
export type ServerError = {
  readonly code?: string | undefined;
  readonly message: string;
  readonly schema?: string | undefined;
  readonly table?: string | undefined;
  readonly constraint?: string | undefined;
};

export function codeOf(error: ServerError): ErrorCode {
  const state = error.code ?? '';
  // A row for which no partition is there: the same SQLSTATE as a failed CHECK, which has a name.
  if (state === '23514' && error.constraint === undefined && error.table !== undefined) return 'WARM_NO_PARTITION';
  return BY_STATE[state] ?? BY_CLASS[state.slice(0, 2)] ?? 'WARM_SQL';
}

/**
 * @param doing what was being done, for people: a statement's name, a migration's
 * @param ifLost the code where the connection was lost
 */
export function fromServerError(error: ServerError, doing: string, ifLost: ErrorCode = 'WARM_UNAVAILABLE'): VarveError {
  const state = error.code ?? 'unknown';
  const text = CLASSES_WITHOUT_VALUES.has(state.slice(0, 2)) ? error.message : 'refused by the server';
  const { schema, table, constraint } = error;
  const at = [table, constraint].filter((name) => name !== undefined).join(', ');
  const message = `${doing}: ${text}${at === '' ? '' : ` (${at})`} [SQLSTATE ${state}]`;
  const code = codeOf(error);
  const details = { sqlstate: state, doing, schema, table, constraint };
  return new VarveError(code === 'WARM_UNAVAILABLE' ? ifLost : code, message, details);
}
