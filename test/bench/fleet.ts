/**
 * What people ask of the fleet when a million trajectories have gone through it: one line of a view each time, by its
 * key, with every view as it stands in the schema; and what must look at every trajectory, which is only reported.
 */
import { randomInt } from 'node:crypto';
import { INITIAL_SUMMARY, type Summary, step } from '../../schemas/summary.ts';
import type { FoldedEvent } from '../../schemas/tally.ts';
import { type Statement, statement, type Value, type WarmPool } from '../../warm/pool.ts';
import type { Measurement, Plan } from './support/measurement.ts';
import type { Report } from './support/report.ts';
import { percentile } from './support/statistics.ts';
import { WarmPlace } from './support/warm.ts';

const TRAJECTORIES = 1_000_000;
const TRAJECTORIES_QUICK = 100_000;
const QUERIES = 200;
const QUERIES_OF_ALL = 1;
const LOGS = 500;
const TENANTS = 50;

export const fleet: Measurement = { name: 'fleet', title: 'Views of the fleet', run };

/** A day's worth of ids, and their rows: of a hundred, 2 wait for a result, 1 for a person, 2 run; the rest are done. */
const FILL = statement(
  'bench.fleet.fill',
  `INSERT INTO trajectories (trajectory_id, last_sequence_number, head_hash, turn, created_at, summary, status, tenant,
     agent, model, model_version, started_at)
   SELECT bench_id(i), 200, sha256(i::text::bytea), 50, now(), ($2::json[])[1 + k], ($3::text[])[1 + k],
     'tenant-' || i % ${TENANTS}, 'agent-' || i % 7, 'model', '2026-01', now()
   FROM (SELECT i, CASE WHEN i % 100 < 2 THEN 0 WHEN i % 100 = 2 THEN 1 WHEN i % 100 < 5 THEN 2 ELSE 3 END AS k
     FROM generate_series(1, $1::int) AS i) AS rows`,
);

const PREPARE = `
  CREATE FUNCTION bench_id(i int) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex((extract(epoch FROM timestamptz '2026-01-01') * 1000)::bigint + i * 80), 12, '0')
      || '7' || substr(md5(i::text), 1, 3) || '8' || substr(md5(i::text), 4, 15))::uuid $$`;

const FILL_REST = `
  INSERT INTO leases (trajectory_id, holder, fencing_token, expires_at, claimed_at)
    SELECT trajectory_id, 'worker', 1, now() + interval '1 minute', now() FROM trajectories WHERE status <> 'completed';
  INSERT INTO cursors (log_id, lsn, hash, epoch, host, directory, durable_lsn)
    SELECT bench_id(i), i, sha256(''), bench_id(i), 'host', '/log', i + 1 FROM generate_series(1, ${LOGS}) AS i;
  VACUUM (ANALYZE) trajectories;
  VACUUM (ANALYZE) leases`;

type Question = {
  readonly name: string;
  readonly what: Statement<unknown>;
  readonly values: (trajectories: number) => readonly Value[];
  readonly isPoint: boolean;
};

const anyOf = (trajectories: number): readonly Value[] => [randomInt(1, trajectories + 1)];
const point = (name: string, sql: string, values = anyOf): Question => ({
  name,
  what: statement(`bench.fleet.${name.replaceAll(/\W+/g, '_')}`, sql),
  values,
  isPoint: true,
});

const QUESTIONS: readonly Question[] = [
  point('fleet by trajectory', 'SELECT * FROM fleet WHERE trajectory_id = bench_id($1::int)'),
  point('in_doubt by trajectory', 'SELECT * FROM in_doubt WHERE trajectory_id = bench_id($1::int)'),
  point('pending_approvals by trajectory', 'SELECT * FROM pending_approvals WHERE trajectory_id = bench_id($1::int)'),
  point('replication_lag by log', 'SELECT * FROM replication_lag WHERE log_id = bench_id($1::int)', () => [
    randomInt(1, LOGS + 1),
  ]),
  point(
    'fleet by status and tenant, 50 lines',
    `SELECT * FROM fleet WHERE status = 'waiting_result' AND tenant = 'tenant-' || $1::int % ${TENANTS} LIMIT 50`,
  ),
  { ...point('in_doubt, counted over all', 'SELECT count(*) FROM in_doubt', () => []), isPoint: false },
  { ...point('pending_approvals, all', 'SELECT * FROM pending_approvals', () => []), isPoint: false },
];

async function run(plan: Plan): Promise<Report> {
  const trajectories = plan.quick ? TRAJECTORIES_QUICK : TRAJECTORIES;
  await using place = await WarmPlace.start(plan.dir);
  await using pool = await place.database();
  plan.say(`making ${trajectories.toLocaleString('en-US')} trajectories …`);
  await fill(pool, trajectories);
  const times = new Map<Question, number[][]>(QUESTIONS.map((question) => [question, []]));
  for (let round = -1; round < plan.rounds; round++) {
    for (const [question, rounds] of times) {
      const taken = await ask(pool, question, trajectories);
      if (round >= 0) rounds.push(taken);
    }
  }
  const of = (rounds: readonly number[][], share: number) => rounds.map((round) => percentile(round, share));
  return {
    tables: [
      {
        title: `${trajectories.toLocaleString('en-US')} trajectories, ${plan.rounds} rounds, milliseconds`,
        columns: ['p50', 'p99'],
        rows: Array.from(times, ([{ name }, rounds]) => ({ label: name, cells: [of(rounds, 0.5), of(rounds, 0.99)] })),
      },
    ],
    checks: Array.from(times)
      .filter(([{ isPoint }]) => isPoint)
      .map(([{ name }, rounds]) => ({
        what: `${name}, p50`,
        unit: 'ms',
        series: of(rounds, 0.5),
        bar: { kind: 'at most', limit: 50 },
      })),
    notes: ['The last two look at every trajectory there ever was: they are for people, not for loops.'],
  };
}

async function fill(pool: WarmPool, trajectories: number): Promise<void> {
  const summaries = [CALLED, ASKED, STARTED, FINISHED].map((events) => step(INITIAL_SUMMARY, events));
  await pool.lend(async (session) => {
    await session.exec(PREPARE);
    const texts = summaries.map((summary: Summary) => JSON.stringify(summary));
    await session.execute(FILL, [trajectories, texts, summaries.map(({ status }) => status)]);
    // One by one: VACUUM runs in no transaction, and several statements are one.
    for (const sql of FILL_REST.split(';')) await session.exec(sql);
  });
}

async function ask(pool: WarmPool, { what, values, isPoint }: Question, trajectories: number): Promise<number[]> {
  return await pool.lend(async (session) => {
    const taken: number[] = [];
    for (let n = 0; n < (isPoint ? QUERIES : QUERIES_OF_ALL); n++) {
      const start = performance.now();
      await session.query(what, values(trajectories));
      taken.push(performance.now() - start);
    }
    return taken;
  });
}

const at = (sequence_number: number, event_type: string, payload: FoldedEvent['payload']): FoldedEvent => ({
  sequence_number: sequence_number as FoldedEvent['sequence_number'],
  event_type,
  turn: 1,
  created_at: '2026-01-01T00:00:00.000Z',
  payload,
});
const CALL = { tool_call_id: 'call_1', tool_name: 'shell' };
const STARTED = [at(1, 'TaskStarted', { agent: 'agent', model: 'model' })];
const CALLED = [...STARTED, at(2, 'ToolIntent', CALL)];
const ASKED = [...STARTED, at(2, 'ApprovalRequested', CALL)];
const FINISHED = [...STARTED, at(2, 'TaskFinished', { status: 'completed', outcome: { reward: 1 } })];
