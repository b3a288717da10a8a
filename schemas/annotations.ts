/**
 * The columns of the table `annotations`: rewards, labels and notes that come after the events and are never events.
 *
 * As in `schemas/parquet.ts`, a column is never renamed, retyped or moved.
 */
import type { ColumnType } from './parquet.ts';

export const ANNOTATION_COLUMNS = [
  { name: 'annotation_id', type: 'string', about: 'Name of the annotation' },
  { name: 'trajectory_id', type: 'string', about: 'Trajectory that it is about' },
  { name: 'sequence_number', type: 'long', about: 'Event that it is about; null: the whole trajectory' },
  { name: 'kind', type: 'string', about: 'What it is, such as reward, label, note' },
  { name: 'name', type: 'string', about: 'Which of that kind, such as the name of a reward' },
  { name: 'value', type: 'double', about: 'Number, where it has one' },
  { name: 'text', type: 'string', about: 'Text, where it has one' },
  { name: 'author', type: 'string', about: 'Who gave it' },
  { name: 'created_at', type: 'timestamp', about: 'When it was given' },
] as const satisfies readonly { readonly name: string; readonly type: ColumnType; readonly about: string }[];
