/**
 * The table log's files and actions: Delta Lake's protocol, reader version 1 and writer version 2, of which varve writes
 * this part (github.com/delta-io/delta, PROTOCOL.md).
 *
 *   events/_delta_log/<20 digits>.json                  a commit; versions 0, 1, 2 … without gaps, never overwritten
 *   events/_delta_log/<20 digits>.checkpoint.parquet    what all commits up to that version add up to
 *   events/_delta_log/_last_checkpoint                  which of those to begin with; the one file that is overwritten
 *
 * A commit is lines of JSON, one action each, every line with its newline. The first is `commitInfo`; its timestamp is
 * greater than that of the commit before, and its `varve.sha256` is the SHA-256 of the canonical JSON of all its other
 * fields, a newline, and all bytes after its line. A commit is valid if and only if that holds and every action is one
 * of those below: so a torn, changed or foreign commit is never taken for one of ours.
 *
 * Every `add` has the SHA-256 and the number of segments of its `.segments` in its tags, the smallest and largest id
 * in its statistics, and the true partition values.
 */
import { hash } from 'node:crypto';
import { canonicalJson, type Json } from '../schemas/canonical.ts';
import { VarveError } from '../schemas/errors.ts';
import { MIB } from '../schemas/limits.ts';
import { COLUMNS, COLUMNS_FORMAT, type Column, PARTITION_COLUMNS } from '../schemas/parquet.ts';
import { commitKey } from './table-keys.ts';

/** Longest commit, in bytes: some 100,000 files. */
export const COMMIT_BYTES_MAX = 128 * MIB;

export type PartitionValues = { readonly tenant: string; readonly date: string; readonly model_version: string };

export type Add = {
  /** Relative to the table; has nothing to escape. */
  readonly path: string;
  readonly partitionValues: PartitionValues;
  readonly size: number;
  readonly modificationTime: number;
  readonly dataChange: boolean;
  /** JSON. */
  readonly stats: string;
  readonly tags: AddTags;
};

export type AddTags = {
  readonly columns_format: string;
  readonly segments: string;
  readonly segments_sha256: string;
  /** SHA-256, and so the name, of the files of derived rows (derived-file.ts). */
  readonly trajectories?: string;
  readonly imports?: string;
  /** Trajectory whose segment was cut where the file was full: the file of the same commit that ends it has its row. */
  readonly cut?: string;
};

export type Remove = {
  readonly path: string;
  readonly deletionTimestamp: number;
  readonly dataChange: boolean;
  readonly extendedFileMetadata: boolean;
  readonly partitionValues: PartitionValues;
  readonly size: number;
};

/** What a run has committed: its last step. */
export type Txn = { readonly appId: string; readonly version: number; readonly lastUpdated: number };

export type Protocol = { readonly minReaderVersion: number; readonly minWriterVersion: number };

export type MetaData = {
  readonly id: string;
  readonly format: { readonly provider: string; readonly options: Readonly<Record<string, string>> };
  readonly schemaString: string;
  readonly partitionColumns: readonly string[];
  readonly configuration: Readonly<Record<string, string>>;
  readonly createdTime: number;
};

export type Action =
  | { readonly protocol: Protocol }
  | { readonly metaData: MetaData }
  | { readonly txn: Txn }
  | { readonly remove: Remove }
  | { readonly add: Add };

export type CommitInfo = {
  /** Milliseconds since the epoch. */
  readonly timestamp: number;
  readonly operation: string;
};

export type Commit = {
  readonly version: number;
  readonly info: CommitInfo;
  readonly actions: readonly Action[];
};

const ENGINE = 'varve';
const READER_VERSION = 1;
const WRITER_VERSION = 2;
const FORMAT_KEY = 'varve.columns_format';
const KINDS: ReadonlySet<string> = new Set(['protocol', 'metaData', 'txn', 'remove', 'add']);

/** The first actions of a table. */
export function newTable(id: string, createdTime: number): Action[] {
  return [
    { protocol: { minReaderVersion: READER_VERSION, minWriterVersion: WRITER_VERSION } },
    {
      metaData: {
        id,
        format: { provider: 'parquet', options: {} },
        schemaString: schemaString(),
        partitionColumns: PARTITION_COLUMNS,
        configuration: { [FORMAT_KEY]: String(COLUMNS_FORMAT) },
        createdTime,
      },
    },
  ];
}

/** The columns as Spark's JSON says them; their meaning is in the comments. */
export function schemaString(): string {
  const fields = (COLUMNS as readonly Column[]).map(({ name, type, about }) => ({
    name,
    type: type === 'strings' ? { type: 'array', elementType: 'string', containsNull: true } : type,
    nullable: true,
    metadata: { comment: about },
  }));
  return JSON.stringify({ type: 'struct', fields });
}

/** Does this varve know how to read and write the table? @throws VarveError COLD_TABLE_NEWER */
export function checkKnown(protocol: Protocol, metaData: MetaData): void {
  const { minReaderVersion, minWriterVersion } = protocol;
  const format = Number(metaData.configuration[FORMAT_KEY] ?? Number.NaN);
  if (minReaderVersion === READER_VERSION && minWriterVersion === WRITER_VERSION && format <= COLUMNS_FORMAT) return;
  const found = `reader ${minReaderVersion}, writer ${minWriterVersion}, columns ${format}`;
  const message = `the table needs ${found}; this varve knows ${READER_VERSION}, ${WRITER_VERSION} and ${COLUMNS_FORMAT}`;
  throw new VarveError('COLD_TABLE_NEWER', message, { minReaderVersion, minWriterVersion, format });
}

/** The bytes of a commit. */
export function formatCommit({ info, actions }: Omit<Commit, 'version'>): Buffer {
  const body = actions.map((action) => `${canonicalJson(action)}\n`).join('');
  const rest = { ...info, engineInfo: ENGINE, isBlindAppend: false, operationParameters: {} };
  const commitInfo = { ...rest, varve: { sha256: sealOf(rest, body) } };
  return Buffer.from(`${canonicalJson({ commitInfo })}\n${body}`);
}

function sealOf(rest: object, body: string): string {
  return hash('sha256', `${canonicalJson(rest)}\n${body}`, 'hex');
}

/** @throws VarveError COLD_LOG_INVALID, naming the commit and what is wrong with it; COLD_TABLE_NEWER */
export function parseCommit(bytes: Uint8Array, version: number): Commit {
  const text = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('utf8');
  const end = text.indexOf('\n');
  const body = text.slice(end + 1);
  const info = commitInfoOf(parseLine(text.slice(0, Math.max(end, 0)), version), body, version);
  const actions = body
    .split('\n')
    .slice(0, -1)
    .map((line) => actionOf(parseLine(line, version), version));
  return { version, info, actions };
}

function commitInfoOf(line: object, body: string, version: number): CommitInfo {
  const { commitInfo } = line as { commitInfo?: CommitInfo & { varve?: { sha256?: unknown } } };
  const { varve, ...rest } = commitInfo ?? {};
  const { timestamp, operation } = rest as Partial<CommitInfo>;
  if (typeof timestamp !== 'number' || typeof operation !== 'string' || typeof varve?.sha256 !== 'string') {
    throw invalidCommit(version, 'was not written by varve: nothing else may write to this table');
  }
  if (sealOf(rest, body) === varve.sha256) return { timestamp, operation };
  throw invalidCommit(version, 'is torn or was changed: it has another SHA-256 than its commitInfo says');
}

function actionOf(line: object, version: number): Action {
  const [kind, ...more] = Object.keys(line);
  if (kind !== undefined && more.length === 0 && KINDS.has(kind)) return line as Action;
  const message = `commit ${version} has an action that this varve does not know: ${String(kind)}`;
  throw new VarveError('COLD_TABLE_NEWER', message, { version });
}

function parseLine(line: string, version: number): object {
  try {
    const value = JSON.parse(line) as Json;
    if (typeof value === 'object' && value !== null) return value;
  } catch (cause) {
    throw invalidCommit(version, 'is torn: a line is not JSON', cause);
  }
  throw invalidCommit(version, 'has a line that is no action');
}

export function invalidCommit(version: number, text: string, cause?: unknown): VarveError {
  const key = commitKey(version);
  return new VarveError(
    'COLD_LOG_INVALID',
    `commit ${version} of the table log (${key}) ${text}`,
    { version, key },
    cause,
  );
}
