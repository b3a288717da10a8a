/**
 * Appends to a log until it is killed or told to `stop`: several trajectories at once, one of them now and then finished.
 * Prints `open`, `acked <LSN> <hash>` for every acknowledgement, and `trimmed <floor>` for each `trim` on stdin, which
 * takes what was acked over the tail.
 */
import { writeSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { HotLog } from '../../../hot/log.ts';
import type { HotLogOptions } from '../../../hot/options.ts';
import { newTrajectoryId } from '../../../schemas/ids.ts';
import { FINISH, note } from './hot.ts';

const { directory, options } = JSON.parse(process.argv[2] as string) as { directory: string; options: HotLogOptions };
const log = await HotLog.open(directory, options);
writeSync(1, 'open\n');
let stopped = false;
const writers = Array.from({ length: 8 }, async () => {
  while (!stopped) {
    const id = newTrajectoryId();
    for (let n = 0; n < 5 && !stopped; n++) {
      const { lsn, cryptographic_hash } = await log.append(id, n === 4 ? FINISH : note('x'.repeat(n * 400)));
      writeSync(1, `acked ${lsn} ${cryptographic_hash}\n`);
    }
  }
});
for await (const line of createInterface({ input: process.stdin })) {
  if (line === 'stop') break;
  if (line === 'trim') writeSync(1, `trimmed ${(await log.trim()).floor_lsn}\n`);
}
stopped = true;
await Promise.all(writers);
await log.close();
writeSync(1, `closed ${log.durableLsn}\n`);
process.exit(0);
