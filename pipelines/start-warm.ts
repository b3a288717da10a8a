/** The warm part of `varve start`: a sidecar carries the log to our own PostgreSQL, which then proves every chain itself. */
import { VarveError } from '../schemas/errors.ts';
import { statement } from '../warm/pool.ts';
import { Logger } from './logger.ts';
import { openColdStore } from './open-cold.ts';
import { openWarm } from './open-warm.ts';
import { Sidecar } from './sidecar.ts';
import { startConfig } from './start-cold.ts';

export type WarmReport = {
  readonly trajectories: number;
  readonly events: number;
  /** Events whose hash does not cover their envelope and the event before. */
  readonly broken: number;
  readonly in_doubt: number;
  /** Bytes of tables and indexes. */
  readonly bytes: number;
  readonly ms: number;
};

const REPORT = statement<Omit<WarmReport, 'ms'>>(
  'start.report',
  `WITH event AS (
     SELECT *, lag(cryptographic_hash) OVER (PARTITION BY trajectory_id ORDER BY sequence_number) AS previous
     FROM trajectory_events)
   SELECT count(*) AS events, count(DISTINCT trajectory_id) AS trajectories,
     count(*) FILTER (WHERE cryptographic_hash <> sha256(
       coalesce(previous, decode(repeat('00', 32), 'hex')) || convert_to(varve_envelope(trajectory_id, sequence_number,
         event_type, turn, payload_sha256, created_at, fencing_token), 'UTF8'))) AS broken,
     (SELECT count(*) FROM in_doubt) AS in_doubt, pg_database_size(current_database()) AS bytes
   FROM event`,
);

/** Replicates everything, and stops the server again; `varve status` starts it when it is looked at. */
export async function startWarm(dir: string, signal: AbortSignal): Promise<WarmReport> {
  const config = await startConfig(dir);
  await using warm = await openWarm(config);
  await using store = await openColdStore(config);
  const sidecar = new Sidecar({ config, pool: warm.pool, store, logger: new Logger('warn') });
  const started = performance.now();
  if (!(await sidecar.drain(signal))) throw new VarveError('ABORTED', 'stopped before everything was replicated', {});
  const ms = performance.now() - started;
  const [report] = await warm.pool.lend((session) => session.query(REPORT));
  if (report === undefined || report.broken > 0) {
    throw new VarveError('WARM_DAMAGED', `${report?.broken ?? 0} events in warm do not follow the one before`, {});
  }
  return { ...report, ms };
}
