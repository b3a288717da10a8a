/**
 * The columns of the derived tables `trajectories/` and `imports/`: what every data file says of whole trajectories, in
 * small files of their own that it names, so that questions about trajectories read no events.
 *
 *   trajectories   one row for each trajectory of the data file, as it was at the end of its segment there. A trajectory
 *                  with several segments has several rows; the one with the greatest `last_sequence_number` counts
 *   imports        one row for each import whose first event lies in the data file
 *
 * They repeat what the events say; where both are there, events decide. As in `schemas/parquet.ts`, a column is never
 * renamed, retyped or moved.
 */
import { canonicalJson, type JsonObject } from './canonical.ts';
import type { TrajectoryId } from './ids.ts';
import { type ColumnType, dateOf, type Placement } from './parquet.ts';
import { countOf, objectOf, stringOf } from './reading.ts';
import type { Summary } from './summary.ts';

type Described<Row> = readonly {
  readonly name: keyof Row & string;
  readonly type: ColumnType;
  readonly about: string;
}[];

export type TrajectoryRow = Placement & {
  readonly trajectory_id: string;
  readonly date: string;
  readonly agent: string | null;
  readonly model: string | null;
  readonly status: string;
  readonly finished_status: string | null;
  readonly reward: number | null;
  readonly imported: boolean;
  readonly parent_trajectory_id: string | null;
  readonly parent_sequence_number: number | null;
  readonly started_at: string | null;
  readonly last_event_at: string | null;
  readonly first_sequence_number: number;
  readonly last_sequence_number: number;
  readonly head_hash: string;
  readonly turns: number;
  readonly model_replies: number;
  readonly tool_intents: number;
  readonly tool_results: number;
  readonly tool_errors: number;
  readonly input_tokens: number;
  readonly output_tokens: number;
  readonly cache_read_tokens: number;
  readonly cache_write_tokens: number;
  readonly summary: string;
};

export type ImportRow = Placement & {
  readonly trajectory_id: string;
  readonly date: string;
  readonly format: string;
  readonly mapping_version: number | null;
  readonly source_id: string | null;
  readonly source: string;
  readonly parent_trajectory_id: string | null;
  readonly parent_sequence_number: number | null;
};

const PLACEMENT = [
  { name: 'tenant', type: 'string', about: 'Who owns the trajectory' },
  { name: 'date', type: 'date', about: "UTC day of the trajectory's start, by its id" },
  { name: 'model_version', type: 'string', about: 'As the events are partitioned' },
] as const;

const PARENT = [
  { name: 'parent_trajectory_id', type: 'string', about: 'Trajectory that this one branched off; null: none' },
  { name: 'parent_sequence_number', type: 'long', about: 'Its last event that this one shares' },
] as const;

export const TRAJECTORY_COLUMNS = [
  { name: 'trajectory_id', type: 'string', about: 'UUIDv7, lower-case' },
  { name: 'agent', type: 'string', about: 'TaskStarted.agent' },
  { name: 'model', type: 'string', about: 'TaskStarted.model' },
  {
    name: 'status',
    type: 'string',
    about:
      'running, waiting_approval, waiting_result, halted, completed, failed, canceled: of the fold at its last event',
  },
  { name: 'finished_status', type: 'string', about: 'TaskFinished.status; null: it did not finish' },
  { name: 'reward', type: 'double', about: 'TaskFinished.outcome.reward; later rewards are annotations' },
  { name: 'imported', type: 'boolean', about: 'TaskStarted has a source' },
  ...PARENT,
  { name: 'started_at', type: 'timestamp', about: 'created_at of its first event' },
  { name: 'last_event_at', type: 'timestamp', about: 'created_at of its last event' },
  { name: 'first_sequence_number', type: 'long', about: 'First event in the data file that named this row' },
  {
    name: 'last_sequence_number',
    type: 'long',
    about: 'Last event in the cold tier; of several rows the greatest counts',
  },
  { name: 'head_hash', type: 'string', about: 'cryptographic_hash of that event, hex' },
  { name: 'turns', type: 'long', about: 'Turns in which anything happened' },
  { name: 'model_replies', type: 'long', about: 'Events ModelReplied' },
  { name: 'tool_intents', type: 'long', about: 'Events ToolIntent' },
  { name: 'tool_results', type: 'long', about: 'Events ToolResult' },
  { name: 'tool_errors', type: 'long', about: 'Events ToolResult with status error' },
  { name: 'input_tokens', type: 'long', about: 'Sum over replies and compactions, rolled-back ones included' },
  { name: 'output_tokens', type: 'long', about: 'Likewise' },
  { name: 'cache_read_tokens', type: 'long', about: 'Likewise' },
  { name: 'cache_write_tokens', type: 'long', about: 'Likewise' },
  { name: 'summary', type: 'string', about: 'Canonical JSON of schemas/summary.ts at its last event' },
  ...PLACEMENT,
] as const satisfies Described<TrajectoryRow>;

export const IMPORT_COLUMNS = [
  { name: 'trajectory_id', type: 'string', about: 'UUIDv7, lower-case' },
  { name: 'format', type: 'string', about: 'TaskStarted.source.format' },
  { name: 'mapping_version', type: 'long', about: 'TaskStarted.source.mapping_version' },
  { name: 'source_id', type: 'string', about: "TaskStarted.source.id, the source's own" },
  { name: 'source', type: 'string', about: 'Canonical JSON of TaskStarted.source' },
  ...PARENT,
  ...PLACEMENT,
] as const satisfies Described<ImportRow>;

/** What a trajectory's row says, from its summary at the end of a segment. Pure. */
export function trajectoryRowOf(
  trajectory_id: TrajectoryId,
  place: Placement,
  summary: Summary,
  segment: { readonly first_sequence_number: number; readonly head_hash: string },
): TrajectoryRow {
  const { counts, tokens } = summary;
  return {
    trajectory_id,
    agent: summary.agent,
    model: summary.model,
    status: summary.status,
    finished_status: summary.finished?.status ?? null,
    reward: summary.reward,
    imported: summary.imported,
    parent_trajectory_id: summary.parent?.trajectory_id ?? null,
    parent_sequence_number: summary.parent?.sequence_number ?? null,
    started_at: summary.started_at,
    last_event_at: summary.last_at,
    first_sequence_number: segment.first_sequence_number,
    last_sequence_number: summary.sequence_number,
    head_hash: segment.head_hash,
    turns: counts.turns,
    model_replies: counts.model_replies,
    tool_intents: counts.tool_intents,
    tool_results: counts.tool_results,
    tool_errors: counts.tool_errors,
    ...tokens,
    summary: canonicalJson(summary),
    tenant: place.tenant,
    date: dateOf(trajectory_id),
    model_version: place.model_version,
  };
}

/** The row of an import, from the payload of its first event; undefined where that is no import's. Pure. */
export function importRowOf(trajectory_id: TrajectoryId, place: Placement, payload: JsonObject): ImportRow | undefined {
  const source = objectOf(payload['source']);
  const format = stringOf(source?.['format']);
  if (source === undefined || format === undefined) return undefined;
  const parent = objectOf(payload['parent']);
  return {
    trajectory_id,
    format,
    mapping_version: countOf(source['mapping_version']) ?? null,
    source_id: stringOf(source['id']) ?? null,
    source: canonicalJson(source),
    parent_trajectory_id: stringOf(parent?.['trajectory_id']) ?? null,
    parent_sequence_number: countOf(parent?.['sequence_number']) ?? null,
    tenant: place.tenant,
    date: dateOf(trajectory_id),
    model_version: place.model_version,
  };
}
