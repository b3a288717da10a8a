/**
 * `varve show`: a trajectory's transcript, turn by turn, as Markdown or JSON, or its events as JSONL.
 *
 * It is read twice: once for what it has come to (which calls are still open, the totals), once for what it says, so
 * that memory does not grow with its length. The first events may be elsewhere; that is said. Of a damaged one what is
 * whole is shown, and then the damage named.
 */
import type { Config } from '../schemas/config.ts';
import { ERROR_CODES, isVarveError, type VarveError } from '../schemas/errors.ts';
import { formatEventLine, type TrajectoryEvent } from '../schemas/event.ts';
import { apply, INITIAL_RECORD, type TrajectoryRecord } from '../schemas/fold.ts';
import { KIB } from '../schemas/limits.ts';
import { stubsOf } from '../schemas/stubs.ts';
import { type FoundSource, findTrajectory } from './find-trajectory.ts';
import { printFlowing } from './print.ts';
import type { Tier } from './tiers.ts';
import { describeEvent, type Entry, markdownOf, type Reach, type Totals, totalsOf } from './transcript.ts';

export type ShowOptions = {
  readonly from: Tier | undefined;
  readonly format: 'markdown' | 'json' | 'jsonl';
  /** Show every text whole. */
  readonly full: boolean;
};

const TEXT_BYTES_MAX = 2 * KIB;

export async function show(config: Config, prefix: string, options: ShowOptions, signal: AbortSignal): Promise<void> {
  await using source = await findTrajectory(config, prefix, options.from, signal);
  if (options.format === 'jsonl') {
    for await (const event of source.events()) await printFlowing(`${formatEventLine(event)}\n`);
    return;
  }
  const { record, reach, damage } = await foldAll(source);
  const totals = totalsOf(record, reach);
  const { isWholeLog } = source;
  const textBytesMax = options.full ? Number.MAX_SAFE_INTEGER : TEXT_BYTES_MAX;
  const form = options.format === 'json' ? JSON_FORM : MARKDOWN;
  await printFlowing(form.begin(source, totals));
  let turn: number | undefined;
  for await (const event of wholeEvents(source)) {
    // Events that came since the first reading are of the next transcript.
    if (event.sequence_number > record.sequence_number) break;
    const isNew = event.turn !== turn;
    if (isNew) await printFlowing(form.turn(event.turn, turn === undefined));
    turn = event.turn;
    await printFlowing(form.entry(describeEvent(event, record.calls, { textBytesMax, isWholeLog }), isNew));
  }
  await printFlowing(form.end(totals, turn === undefined));
  if (damage !== undefined) throw damage;
}

/** Events up to damage, which it returns: what is whole is shown all the same. */
async function* wholeEvents(source: FoundSource): AsyncGenerator<TrajectoryEvent, VarveError | undefined> {
  try {
    yield* source.events();
  } catch (error) {
    // Whatever tier it is in; what cannot be asked is no damage.
    if (isVarveError(error) && ERROR_CODES[error.code].exit === 5) return error;
    throw error;
  }
  return undefined;
}

type Folded = { readonly record: TrajectoryRecord; readonly reach: Reach; readonly damage: VarveError | undefined };

async function foldAll(source: FoundSource): Promise<Folded> {
  let record = INITIAL_RECORD;
  let reach: Reach = { events: 0, first: 0, offloaded_bytes: 0, first_at: null, last_at: null };
  const events = wholeEvents(source);
  for (;;) {
    const next = await events.next();
    if (next.done === true) return { record, reach, damage: next.value };
    const event = next.value;
    record = apply(record, event);
    const offloaded = stubsOf(event.payload).reduce((sum, { bytes }) => sum + bytes, 0);
    reach = {
      events: reach.events + 1,
      first: reach.first === 0 ? event.sequence_number : reach.first,
      offloaded_bytes: reach.offloaded_bytes + offloaded,
      first_at: reach.first_at ?? event.created_at,
      last_at: event.created_at,
    };
  }
}

/** How a transcript is written down, piece by piece. */
type Form = {
  readonly begin: (source: FoundSource, totals: Totals) => string;
  readonly turn: (turn: number, isFirst: boolean) => string;
  readonly entry: (entry: Entry, isFirst: boolean) => string;
  readonly end: (totals: Totals, isEmpty: boolean) => string;
};

const MARKDOWN: Form = {
  begin({ trajectory_id, where, held }, { status, first_sequence_number }) {
    const lines = [`# Trajectory ${trajectory_id}`, '', `${status}, from ${where}`, ''];
    if (first_sequence_number > 1) {
      lines.push(
        `Events 1 to ${first_sequence_number - 1} are not here: another log wrote them, or another tier has them.`,
        '',
      );
    }
    if (held > 0) lines.push(`Quarantine holds ${held} more events: \`varve quarantine show ${trajectory_id}\`.`, '');
    return `${lines.join('\n')}\n`;
  },
  turn: (turn) => `## Turn ${turn}\n\n`,
  entry: (entry) => markdownOf(entry),
  end({ status, events, counts, tokens, in_doubt, offloaded_bytes, budgets, first_at, last_at }) {
    const lines = [
      '## Totals',
      '',
      `- ${status}; ${events} events in ${counts.turns} turns, ${first_at ?? ''} to ${last_at ?? ''}`,
      `- ${counts.model_replies} replies, ${counts.tool_intents} intents, ${counts.tool_results} results (${counts.tool_errors} errors), ${in_doubt} in doubt`,
      `- ${tokens.input_tokens} tokens in (${tokens.cache_read_tokens} from cache), ${tokens.output_tokens} out`,
      `- ${counts.checkpoints} checkpoints, ${counts.compactions} compactions, ${counts.rollbacks} rollbacks, ${counts.approvals_requested} approvals asked for`,
      `- ${offloaded_bytes} bytes offloaded`,
      ...budgets.map(({ name, remaining }) => `- budget ${name}: ${remaining} left`),
    ];
    return `${lines.join('\n')}\n`;
  },
};

const JSON_FORM: Form = {
  begin: ({ trajectory_id, where, held }, totals) =>
    `{"trajectory_id":"${trajectory_id}","from":${JSON.stringify(where)},"held":${held},"totals":${JSON.stringify(totals)},"turns":[`,
  turn: (turn, isFirst) => `${isFirst ? '' : ']},'}{"turn":${turn},"entries":[`,
  entry: (entry, isFirst) => `${isFirst ? '' : ','}${JSON.stringify(entry)}`,
  end: (_, isEmpty) => `${isEmpty ? '' : ']}'}]}\n`,
};
