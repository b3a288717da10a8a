/** Follows a log from its start and notes when each record arrived; ends with record number `records`. */
import * as fs from 'node:fs';
import { TailReader } from '../../../hot/tail-reader.ts';
import { childArgument, tellParent } from '../support/child-result.ts';

export type TailReaderArgument = { readonly dir: string; readonly records: number; readonly timesFile: string };

const { dir, records, timesFile } = childArgument() as TailReaderArgument;
/** Of the monotonic clock, which all processes of a machine share, by LSN − 1. */
const receivedNs = new BigUint64Array(records);
const reader = await TailReader.connect(dir);
tellParent('connected');
let received = 0;
for await (const batch of reader) {
  const now = process.hrtime.bigint();
  for (const record of batch.records) {
    if (record.kind === 'event') receivedNs[Number(record.lsn) - 1] = now;
  }
  received += batch.records.length;
  if (received >= records) break;
}
await reader.close();
fs.writeFileSync(timesFile, receivedNs);
tellParent('done');
