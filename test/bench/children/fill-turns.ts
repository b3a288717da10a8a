/** A worker that fills a log: trajectories side by side, one event of each after another, 200 events each; then it ends. */
import { HotLog } from '../../../hot/log.ts';
import { childArgument, tellParent } from '../support/child-result.ts';
import { interleaved } from '../support/interleaved.ts';
import { Turns } from '../support/turns.ts';

export type FillTurnsArgument = {
  readonly dir: string;
  readonly events: number;
  readonly concurrent: number;
  readonly smallest: number;
  readonly largest: number;
};

/** Appends under way at once: more only fill memory. */
const UNDER_WAY_MAX = 2000;

const { dir, events, concurrent, smallest, largest } = childArgument() as FillTurnsArgument;
const turns = new Turns(smallest, largest);
const log = await HotLog.open(dir);
let pending: Promise<unknown>[] = [];
let appended = 0;
for (const { id, trajectory, sequence_number } of interleaved(concurrent)) {
  if (appended === events) break;
  appended += 1;
  pending.push(log.append(id, turns.at(trajectory, sequence_number)));
  if (pending.length < UNDER_WAY_MAX) continue;
  await Promise.all(pending);
  pending = [];
}
await Promise.all(pending);
await log.close();
tellParent(appended);
