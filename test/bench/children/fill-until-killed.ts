/**
 * A busy worker that will be killed: 512 writers, a new trajectory every 200 events. Says when `events` are durable and
 * goes on appending, so that the kill lands in the middle of a commit.
 */
import { HotLog } from '../../../hot/log.ts';
import { newTrajectoryId } from '../../../schemas/ids.ts';
import { childArgument, tellParent } from '../support/child-result.ts';
import { makeSamples, sampleAt } from '../support/samples.ts';

export type FillUntilKilledArgument = { readonly dir: string; readonly events: number };

const WRITERS = 512;
const EVENTS_OF_A_TRAJECTORY = 200;

const { dir, events } = childArgument() as FillUntilKilledArgument;
const samples = makeSamples();
const log = await HotLog.open(dir);
let durable = 0;

async function write(writer: number): Promise<never> {
  let trajectory = newTrajectoryId();
  for (let n = writer; ; n++) {
    if (n % EVENTS_OF_A_TRAJECTORY === 0) trajectory = newTrajectoryId();
    await log.append(trajectory, sampleAt(samples, n).event);
    if (++durable === events) tellParent('filled');
  }
}

await Promise.all(Array.from({ length: WRITERS }, (_, writer) => write(writer)));
