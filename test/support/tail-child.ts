/**
 * Follows a log's tail from outside of the writer and prints `received <LSN> <hash>` for every record, before anything
 * else is done about it. Argument: the log's directory. Waits for the writer to be there.
 */
import { writeSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { TailReader } from '../../hot/tail-reader.ts';
import { isVarveError } from '../../schemas/errors.ts';

const directory = JSON.parse(process.argv[2] as string) as string;
// Whoever started this has died.
process.stdin.on('end', () => process.exit(1)).resume();
writeSync(1, 'started\n');
const reader = await connect();
for await (const batch of reader) {
  const lines = batch.records.map((record) =>
    record.kind === 'trimmed' ? '' : `received ${record.lsn} ${record.hash}\n`,
  );
  writeSync(1, lines.join(''));
}

async function connect(): Promise<TailReader> {
  for (;;) {
    try {
      return await TailReader.connect(directory);
    } catch (error) {
      if (!isVarveError(error, 'TAIL_NO_WRITER')) throw error;
      await sleep(2);
    }
  }
}
