/** Opens a log, trims it and closes it; a failpoint may end it on the way. */
import { HotLog } from '../../../hot/log.ts';
import type { HotLogOptions } from '../../../hot/options.ts';

const { directory, options } = JSON.parse(process.argv[2] as string) as { directory: string; options: HotLogOptions };
const log = await HotLog.open(directory, options);
await log.trim();
await log.close();
process.exit(0);
