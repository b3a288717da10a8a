/** `varve quarantine list` and `show`: what is held back, why, and what became of it. They change nothing. */
import type { Config } from '../schemas/config.ts';
import type { TrajectoryId } from '../schemas/ids.ts';
import { listQuarantine, type QuarantineEntry, type QuarantineFilter, quarantineEntries } from '../warm/quarantine.ts';
import { openWarm } from './open-warm.ts';
import { print, printFlowing, printJson, table } from './print.ts';

/** Lines of one listing; more are named, and narrowed down by a filter. */
const LIST_MAX = 10_000;

export async function listHeld(config: Config, filter: QuarantineFilter, json: boolean): Promise<void> {
  await using warm = await openWarm(config);
  const found = await warm.pool.lend((session) => listQuarantine(session, filter, LIST_MAX + 1));
  const groups = found.slice(0, LIST_MAX);
  const more = found.length > LIST_MAX;
  if (json) {
    printJson({ quarantine: groups, more });
    return;
  }
  if (groups.length === 0) {
    print('nothing is held back\n');
    return;
  }
  const rows = groups.map((group) => [
    group.trajectory_id,
    group.reason,
    group.state,
    group.events,
    group.intents,
    `${group.from_sequence_number}–${group.to_sequence_number}`,
    group.since,
    group.directory ?? group.log_id,
    group.detail,
  ]);
  const header = ['trajectory', 'reason', 'state', 'events', 'intents', 'numbers', 'since', 'log', 'why'];
  print(table(header, rows));
  if (more) print(`… and more: narrow it down with --reason, --log, --trajectory or --since\n`);
  const reasons = new Set(groups.filter(({ state }) => state === 'held').map(({ reason }) => reason));
  for (const [names, advice] of ADVICE) if (names.some((name) => reasons.has(name))) print(`${advice}\n`);
}

const ADVICE: readonly (readonly [readonly QuarantineEntry['reason'][], string])[] = [
  [
    ['gap', 'poison', 'unproven'],
    'gap, poison, unproven: when what was missing has come, `varve quarantine replay <trajectory>` takes them in',
  ],
  [['waiting'], 'waiting: the predecessor is to come from another log; they go in with it'],
  [
    ['fork', 'fenced'],
    'fork, fenced: decide with `varve quarantine accept <trajectory> --reason …` or `varve quarantine branch <trajectory>`',
  ],
];

export type ShowHeldOptions = {
  /** Payloads may hold what must not be on a screen: only where they are asked for. */
  readonly payload: boolean;
  /** One JSON object a line. */
  readonly json: boolean;
};

/** Returns the exit code: 2 where there is no such row. */
export async function showHeld(config: Config, of: number | TrajectoryId, options: ShowHeldOptions): Promise<number> {
  await using warm = await openWarm(config);
  let shown = 0;
  for await (const entry of quarantineEntries(warm.pool, of)) {
    shown += 1;
    const { json, payload } = options;
    await printFlowing(json ? `${JSON.stringify(jsonOf(entry, payload))}\n` : textOf(entry, payload));
  }
  if (shown > 0) return 0;
  process.stderr.write(`varve: quarantine has nothing of ${of}\n`);
  return 2;
}

function jsonOf({ payload, hash, ...entry }: QuarantineEntry, withPayload: boolean): object {
  const envelope: unknown = JSON.parse(entry.envelope);
  const shown = { ...entry, envelope, cryptographic_hash: hash, payload_bytes: payload.length };
  return withPayload ? { ...shown, payload: JSON.parse(payload.toString('utf8')) as unknown } : shown;
}

function textOf(entry: QuarantineEntry, withPayload: boolean): string {
  const { id, log_id, lsn, reason, detail, sqlstate, state, taken_at, settled_at, settled_why, branch_id } = entry;
  const lines = [
    `#${id}  ${reason}, ${state}`,
    `  envelope  ${entry.envelope}`,
    `  hash      ${entry.hash}`,
    `  log       ${log_id} at LSN ${lsn}, taken in at ${taken_at}`,
    `  why       ${detail ?? ''}${sqlstate === null ? '' : ` [SQLSTATE ${sqlstate}]`}`,
  ];
  if (settled_at !== null) lines.push(`  settled   ${settled_at}${settled_why === null ? '' : `: ${settled_why}`}`);
  if (branch_id !== null) lines.push(`  branch    ${branch_id}`);
  lines.push(
    withPayload
      ? `  payload   ${entry.payload.toString('utf8')}`
      : `  payload   ${entry.payload.length} bytes (--payload shows them)`,
  );
  return `${lines.join('\n')}\n\n`;
}
