/**
 * Opens a log and prints `open`, or `refused <code>`, with the process that holds it, or null. An
 * open log is held until `close` comes on stdin.
 */
import { writeSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { HotLog } from '../../../hot/log.ts';
import type { HotLogOptions } from '../../../hot/options.ts';
import { isVarveError } from '../../../schemas/errors.ts';

const { directory, options } = JSON.parse(process.argv[2] as string) as { directory: string; options: HotLogOptions };
try {
  const log = await HotLog.open(directory, options);
  writeSync(1, 'open\n');
  for await (const line of createInterface({ input: process.stdin })) if (line === 'close') break;
  await log.close();
  writeSync(1, 'closed\n');
} catch (error) {
  if (!isVarveError(error)) throw error;
  writeSync(1, `refused ${error.code} ${JSON.stringify(error.details['pid'] ?? null)}\n`);
}
process.exit(0);
