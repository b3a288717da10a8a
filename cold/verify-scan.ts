/**
 * The rows of a data file, in one scan that DuckDB does vector by vector and without holding more than one: payload
 * hashes, the chain inside each trajectory, numbers, turns, times, tokens, partition. What comes out are the rows at
 * which a trajectory begins, the last row, every row with a flaw, and those whose payload stands for another one.
 *
 * `lag … OVER ()` is a streaming window over the order of the file; that each row's predecessor is the row before it in
 * the file is checked in the same scan, and not assumed. A NULL where a value must be is a flaw of its own, since no
 * comparison with it is ever true.
 *
 * The link of a first row to what stands before it in another file is not known here: whoever has the segments checks it.
 */
import { invariant } from '../schemas/errors.ts';
import { type DuckDb, type DuckRow, type DuckValue, sqlFile } from './duckdb.ts';
import type { CallOptions } from './object-store.ts';
import type { PartitionValues } from './table-actions.ts';

/** Rows of a file, counted from 0: `first` up to and with `last`. */
export type RowRange = { readonly first: number; readonly last: number };

/** An event's own fields, null where the file has none. */
export type ScannedEvent = {
  readonly trajectory_id: string | null;
  readonly sequence_number: number | null;
  readonly turn: number | null;
  readonly created_at: string | null;
  readonly fencing_token: number | null;
  readonly cryptographic_hash: string | null;
};

export type ScannedRow = ScannedEvent & {
  readonly row: number;
  readonly event_type: string | null;
  readonly payload_sha256: string | null;
  /** The row before it; undefined at the beginning of the range. */
  readonly before: ScannedEvent | undefined;
  /** Empty where it only begins or ends something. */
  readonly flaws: readonly Flaw[];
  /** Why its payload has not the hash of the one that was appended, and need not. */
  readonly stands_for: StandsFor | undefined;
};

/** Each with its condition in SQL, of which NULL counts as no; those of `LINKS` hold within a trajectory. */
const FLAWS = {
  null: `trajectory_id IS NULL OR sequence_number IS NULL OR event_type IS NULL OR turn IS NULL OR created_at IS NULL
    OR fencing_token IS NULL OR is_without_payload OR payload_sha256 IS NULL OR cryptographic_hash IS NULL`,
  range: `sequence_number NOT BETWEEN 1 AND ${Number.MAX_SAFE_INTEGER} OR turn < 0
    OR fencing_token NOT BETWEEN 0 AND ${Number.MAX_SAFE_INTEGER}`,
  payload: 'is_other_payload',
  partition: `tenant IS DISTINCT FROM $1 OR strftime(date, '%Y-%m-%d') IS DISTINCT FROM $2
    OR model_version IS DISTINCT FROM $3`,
  precision: 'epoch_us(created_at) % 1000 <> 0',
  order: 'trajectory_id < before_id',
} as const;

const ENVELOPE = `'{"created_at":"' || strftime(make_timestamp(epoch_us(created_at)), '%Y-%m-%dT%H:%M:%S.%gZ')
  || '","event_type":"' || event_type || '","fencing_token":' || fencing_token
  || ',"payload_sha256":"' || payload_sha256 || '","sequence_number":' || sequence_number
  || ',"trajectory_id":"' || trajectory_id || '","turn":' || turn || '}'`;

const LINKS = {
  number: 'sequence_number IS DISTINCT FROM before_number + 1',
  turn: 'turn < before_turn',
  time: 'created_at < before_at',
  token: 'fencing_token < before_token',
  // A hash that is not hex belongs to a row that is named itself, and covers nothing.
  chain: `sha256(coalesce(TRY(unhex(before_hash)), ''::BLOB) || encode(${ENVELOPE})) IS DISTINCT FROM cryptographic_hash`,
} as const;

export type Flaw = keyof typeof FLAWS | keyof typeof LINKS;

const NAMES = [...Object.keys(FLAWS), ...Object.keys(LINKS)] as readonly Flaw[];

/** No flaws: bodies lie in blobs, or an erasure took the payload. */
export type StandsFor = 'offloaded' | 'redacted';

const BITS = [
  ...Object.values(FLAWS),
  ...Object.values(LINKS).map((link) => `trajectory_id = before_id AND (${link})`),
  'is_offloaded',
  'is_redacted',
]
  .map((condition, bit) => `CASE WHEN ${condition} THEN ${2 ** bit} ELSE 0 END`)
  .join(' + ');

const OFFLOADED = 'coalesce(len(offloaded), 0) > 0';
const REDACTED = `starts_with(payload, '{"$redacted":')`;

export function sourceOf(path: string): string {
  return `read_parquet([${sqlFile(path)}], hive_partitioning = false, file_row_number = true)`;
}

function scanSql(path: string, { first, last }: RowRange, withPayload: boolean): string {
  const payload = withPayload
    ? `payload IS NULL AS is_without_payload, ${OFFLOADED} AS is_offloaded, ${REDACTED} AS is_redacted,
        NOT ${OFFLOADED} AND NOT ${REDACTED} AND sha256(payload) IS DISTINCT FROM payload_sha256 AS is_other_payload`
    : `false AS is_without_payload, false AS is_offloaded, false AS is_redacted, false AS is_other_payload`;
  return `SELECT "row", trajectory_id, sequence_number, event_type, turn, epoch_ms(created_at) AS created_ms, fencing_token,
      payload_sha256, cryptographic_hash, before_row, before_id, before_number, before_turn,
      epoch_ms(before_at) AS before_ms, before_token, before_hash, bits
    FROM (SELECT *, ${BITS} AS bits FROM (
      SELECT file_row_number AS "row", trajectory_id, sequence_number, event_type, turn, created_at, fencing_token,
        payload_sha256, cryptographic_hash, tenant, date, model_version, ${payload},
        lag(file_row_number) OVER () AS before_row, lag(trajectory_id) OVER () AS before_id,
        lag(sequence_number) OVER () AS before_number, lag(turn) OVER () AS before_turn,
        lag(created_at) OVER () AS before_at, lag(fencing_token) OVER () AS before_token,
        lag(cryptographic_hash) OVER () AS before_hash
      FROM ${sourceOf(path)} WHERE file_row_number BETWEEN ${first} AND ${last}))
    WHERE bits <> 0 OR before_id IS DISTINCT FROM trajectory_id OR "row" = ${last} OR before_row <> "row" - 1`;
}

/**
 * The rows of the range that begin a trajectory, the last one, and those with flaws, in their order.
 * @param withPayload false where the payloads cannot be read: then nothing is said of them
 * @throws what DuckDb does; COLD_SQL where a part of the file cannot be read
 */
export async function* scanRows(
  duck: DuckDb,
  path: string,
  range: RowRange,
  partition: PartitionValues,
  withPayload: boolean,
  options: CallOptions = {},
): AsyncGenerator<ScannedRow[], void, void> {
  const { tenant, date, model_version } = partition;
  const values = [tenant, date, model_version];
  for await (const rows of duck.blocks(scanSql(path, range, withPayload), { ...options, values })) {
    yield rows.map((row) => scannedRow(row, range));
  }
}

function scannedRow(found: DuckRow, { first }: RowRange): ScannedRow {
  const row = Number(found['row']);
  const bits = Number(found['bits']);
  const has = (bit: number) => (bits & (2 ** bit)) !== 0;
  invariant(row === first || Number(found['before_row']) === row - 1, 'DuckDB reads rows in the order of the file');
  return {
    row,
    ...eventOf(found, [
      'trajectory_id',
      'sequence_number',
      'turn',
      'created_ms',
      'fencing_token',
      'cryptographic_hash',
    ]),
    event_type: textOf(found['event_type']),
    payload_sha256: textOf(found['payload_sha256']),
    before:
      row === first
        ? undefined
        : eventOf(found, ['before_id', 'before_number', 'before_turn', 'before_ms', 'before_token', 'before_hash']),
    flaws: NAMES.filter((_, bit) => has(bit)),
    stands_for: has(NAMES.length) ? 'offloaded' : has(NAMES.length + 1) ? 'redacted' : undefined,
  };
}

type Names = readonly [id: string, number: string, turn: string, ms: string, token: string, hash: string];

function eventOf(found: DuckRow, [id, number, turn, ms, token, hash]: Names): ScannedEvent {
  return {
    trajectory_id: textOf(found[id]),
    sequence_number: numberOf(found[number]),
    turn: numberOf(found[turn]),
    created_at: timeOf(found[ms]),
    fencing_token: numberOf(found[token]),
    cryptographic_hash: textOf(found[hash]),
  };
}

function textOf(value: DuckValue | undefined): string | null {
  return typeof value === 'string' ? value : null;
}

/** null past 2^53 − 1: no event has such a number. */
function numberOf(value: DuckValue | undefined): number | null {
  const number = Number(value ?? Number.NaN);
  return Number.isSafeInteger(number) ? number : null;
}

function timeOf(value: DuckValue | undefined): string | null {
  const date = new Date(numberOf(value) ?? Number.NaN);
  return Number.isNaN(date.getTime()) ? null : date.toISOString();
}
