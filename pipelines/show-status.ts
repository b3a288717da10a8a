/**
 * `varve status`: the fleet at a glance. Exit code 3 where something is held back or missing: a person must look.
 */
import type { Config } from '../schemas/config.ts';
import { statement, type WarmPool } from '../warm/pool.ts';
import { openWarm } from './open-warm.ts';
import { print, printJson, table } from './print.ts';

type LagRow = {
  readonly log_id: string;
  readonly host: string;
  readonly directory: string;
  readonly lsn: number;
  readonly durable_lsn: number;
  readonly unreplicated_records: number;
  readonly updated_at: string;
};
type StatusRow = { readonly status: string; readonly trajectories: number; readonly events: number };
type HeldRow = {
  readonly reason: string;
  readonly trajectories: number;
  readonly events: number;
  readonly oldest: string;
};
type MissingRow = { readonly log_id: string; readonly from_lsn: number; readonly to_lsn: number };

const LAG = statement<LagRow>(
  'status.lag',
  `SELECT log_id, host, directory, lsn, durable_lsn, unreplicated_records, updated_at FROM replication_lag ORDER BY host, directory`,
);
const STATUSES = statement<StatusRow>(
  'status.statuses',
  `SELECT status, count(*) AS trajectories, sum(last_sequence_number)::bigint AS events FROM trajectories GROUP BY status ORDER BY status`,
);
const HELD = statement<HeldRow>(
  'status.held',
  `SELECT reason, count(DISTINCT trajectory_id) AS trajectories, count(*) AS events, min(taken_at) AS oldest
   FROM quarantine WHERE state = 'held' GROUP BY reason ORDER BY reason`,
);
const MISSING = statement<MissingRow>(
  'status.missing',
  `SELECT log_id, from_lsn, to_lsn FROM missing_records ORDER BY log_id, from_lsn`,
);

export async function showStatus(config: Config, json: boolean): Promise<number> {
  await using warm = await openWarm(config);
  const status = await readStatus(warm.pool);
  if (json) printJson(status);
  else print(formatStatus(status));
  return status.held.length + status.missing.length > 0 ? 3 : 0;
}

type Status = {
  readonly server: string;
  readonly logs: readonly LagRow[];
  readonly trajectories: readonly StatusRow[];
  readonly held: readonly HeldRow[];
  readonly missing: readonly MissingRow[];
};

async function readStatus(pool: WarmPool): Promise<Status> {
  return pool.lend(async (session) => ({
    server: pool.server,
    logs: await session.query(LAG),
    trajectories: await session.query(STATUSES),
    held: await session.query(HELD),
    missing: await session.query(MISSING),
  }));
}

function formatStatus({ server, logs, trajectories, held, missing }: Status): string {
  const parts = [`${server}\n`];
  parts.push(
    table(
      ['log', 'host', 'directory', 'replicated', 'behind', 'last batch'],
      logs.map((log) => [log.log_id, log.host, log.directory, log.lsn, log.unreplicated_records, log.updated_at]),
    ),
    table(
      ['trajectories', 'count', 'events'],
      trajectories.map((row) => [row.status, row.trajectories, row.events]),
    ),
  );
  if (held.length > 0) {
    const rows = held.map((row) => [row.reason, row.trajectories, row.events, row.oldest]);
    parts.push(
      `HELD BACK: see \`varve quarantine list\`\n${table(['reason', 'trajectories', 'events', 'since'], rows)}`,
    );
  }
  for (const { log_id, from_lsn, to_lsn } of missing) {
    parts.push(
      `MISSING: records ${from_lsn} to ${to_lsn} of log ${log_id} were trimmed there and are not in this database\n`,
    );
  }
  return parts.join('\n');
}
