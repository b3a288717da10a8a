/**
 * `varve runs`: the history of compaction, and what is left to move. Exit code 3 where a person should look: the last
 * run failed or died, or the backlog grew from one finished run to the next.
 */
import type { Config } from '../schemas/config.ts';
import { type Backlog, type RunRow, readBacklog, readRuns } from '../warm/compaction-rows.ts';
import { dueRuleOf } from './compact.ts';
import { openWarm } from './open-warm.ts';
import { print, printJson, table } from './print.ts';

/** What a run's report has at least. */
type Reported = {
  readonly trajectories?: number;
  readonly events?: number;
  readonly files?: number;
  readonly skipped?: number;
  readonly seconds?: number;
  readonly backlog?: Backlog;
  /** Of the backlog: they wait for more of the same partition, as they should. */
  readonly held_trajectories?: number;
};

export async function showRuns(config: Config, last: number, json: boolean): Promise<number> {
  await using warm = await openWarm(config);
  const rule = dueRuleOf(config);
  const [runs, backlog] = await warm.pool.lend(async (session) => [
    await readRuns(session, last),
    await readBacklog(session, rule),
  ]);
  const concern = concernOf(runs);
  if (json) printJson({ runs, backlog, concern: concern ?? null });
  else print(format(runs, backlog, concern));
  return concern === undefined ? 0 : 3;
}

/** Why a person should look; undefined: all is well. Runs are newest first. Pure. */
export function concernOf(runs: readonly RunRow[]): string | undefined {
  const [newest] = runs;
  if (newest?.is_lapsed === true) return `run ${newest.run_id} died or sleeps: start varve compact again`;
  if (newest?.state === 'failed') return `the last run failed (${newest.error_code ?? 'no code'}): start it again`;
  const [now, before] = runs
    .filter(({ state }) => state === 'finished' || state === 'stopped')
    .map(({ report }) => leftOf((report ?? {}) as Reported));
  if (now === undefined || before === undefined || now <= before) return undefined;
  return `the backlog grew from ${before} to ${now} trajectories: give compact more time, or more machines`;
}

function leftOf({ backlog, held_trajectories = 0 }: Reported): number | undefined {
  return backlog === undefined ? undefined : Math.max(0, backlog.trajectories - held_trajectories);
}

function format(runs: readonly RunRow[], backlog: Backlog, concern: string | undefined): string {
  const rows = runs.map((run) => {
    const report = (run.report ?? {}) as Reported;
    const { trajectories, events, files, skipped, seconds } = report;
    const state = run.is_lapsed ? 'died' : run.state;
    const what = run.error_code === null ? state : `${state}: ${run.error_code}`;
    return [
      run.started_at,
      what,
      trajectories,
      events,
      files,
      skipped,
      seconds,
      report.backlog?.trajectories,
      run.run_id,
    ];
  });
  const header = ['started', 'state', 'trajectories', 'events', 'files', 'skipped', 'seconds', 'left', 'run'];
  const history = runs.length === 0 ? 'no run yet\n' : table(header, rows);
  const oldest = backlog.oldest;
  const left =
    oldest === null
      ? 'nothing is left to move\n'
      : `${backlog.trajectories} trajectories are old enough and not in cold; the oldest, ${oldest.trajectory_id}, since ${oldest.ripe_at}\n`;
  return `${history}${left}${concern === undefined ? '' : `LOOK: ${concern}\n`}`;
}
