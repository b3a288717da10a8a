/** The process that starts after a crash: how long until the log is open, and until it has taken one more event. */
import { HotLog } from '../../../hot/log.ts';
import { newTrajectoryId } from '../../../schemas/ids.ts';
import { childArgument, tellParent } from '../support/child-result.ts';
import { makeSamples, sampleAt } from '../support/samples.ts';

export type OpenLogArgument = { readonly dir: string };
export type OpenLogResult = {
  readonly openMs: number;
  /** From the start of the opening. */
  readonly firstAppendMs: number;
  /** Last LSN that was there when the log was open. */
  readonly durableLsn: number;
  readonly rssMiB: number;
};

const { dir } = childArgument() as OpenLogArgument;
const start = performance.now();
const log = await HotLog.open(dir);
const openMs = performance.now() - start;
const durableLsn = Number(log.durableLsn);
await log.append(newTrajectoryId(), sampleAt(makeSamples(), 0).event);
const firstAppendMs = performance.now() - start;
const rssMiB = process.memoryUsage.rss() / 2 ** 20;
tellParent({ openMs, firstAppendMs, durableLsn, rssMiB } satisfies OpenLogResult);
// Nobody needs a tidy end, and closing is not what is measured.
process.exit(0);
