/**
 * The views of a query as SQL of DuckDB: the columns that varve promises, by name, over an exact list of files. Pure.
 *
 *   events         every event
 *   trajectories   one row for each trajectory: the one that its newest segment names
 *   imports        one row for each import
 *   annotations    none yet
 *
 * A view without files has the same columns and types, and no rows. Folders' names are never read: they are slugs.
 */
import { ANNOTATION_COLUMNS } from '../schemas/annotations.ts';
import { COLUMNS, type ColumnType } from '../schemas/parquet.ts';
import { IMPORT_COLUMNS, TRAJECTORY_COLUMNS } from '../schemas/parquet-trajectories.ts';
import { DUCK_TYPES } from './columns.ts';
import { sqlFile, sqlText } from './duckdb.ts';
import type { FiledView, QueryFiles } from './query-files.ts';

export type ViewName = FiledView | 'annotations';

export type ViewColumn = { readonly name: string; readonly type: ColumnType; readonly about: string };

export const VIEWS = {
  events: COLUMNS,
  trajectories: TRAJECTORY_COLUMNS,
  imports: IMPORT_COLUMNS,
  annotations: ANNOTATION_COLUMNS,
} as const satisfies Record<ViewName, readonly ViewColumn[]>;

export const VIEW_NAMES = Object.keys(VIEWS) as ViewName[];

/** Paths, or URLs that the engine can read. */
export type Locations = Readonly<Record<FiledView, readonly string[]>>;

/** One statement. */
export function viewSql(view: ViewName, files: readonly string[]): string {
  if (files.length === 0) return emptyView(view, 'false');
  const names = VIEWS[view].map(({ name }) => `"${name}"`).join(', ');
  const latest =
    view === 'trajectories'
      ? '\nQUALIFY row_number() OVER (PARTITION BY trajectory_id ORDER BY last_sequence_number DESC) = 1'
      : '';
  const list = files.map((file) => `  ${sqlFile(file)}`).join(',\n');
  return `CREATE OR REPLACE VIEW ${view} AS\nSELECT ${names}\nFROM read_parquet([\n${list}\n], hive_partitioning = false)${latest};\n`;
}

/** A view that fails when it is read: its files were not asked for. */
export function unloadedView(view: ViewName): string {
  return emptyView(
    view,
    `error(${sqlText(`name the view ${view} in the text of the query: its files are not here yet`)}) IS NULL`,
  );
}

/** A script after which any DuckDB that can read these locations has the same views. */
export function viewsScript(files: Pick<QueryFiles, 'version' | 'timestampMs'>, locations: Locations): string {
  const { version, timestampMs } = files;
  const head = [
    `-- The tables of varve at version ${version} of the table log, ${new Date(timestampMs).toISOString()}.`,
    '-- Files that a policy expires later are gone then; the list does not change by itself.',
  ];
  const views = VIEW_NAMES.map((view) => viewSql(view, view === 'annotations' ? [] : locations[view]));
  return `${head.join('\n')}\n\n${views.join('\n')}`;
}

function emptyView(view: ViewName, condition: string): string {
  const columns = VIEWS[view].map(({ name, type }) => `CAST(NULL AS ${DUCK_TYPES[type]}) AS "${name}"`).join(', ');
  return `CREATE OR REPLACE VIEW ${view} AS\nSELECT ${columns}\nWHERE ${condition};\n`;
}
