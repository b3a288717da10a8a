/**
 * Asks a database again and again how far the one log has come, and notes when each LSN was first seen there. The cursor
 * is moved by the transaction that brings the rows, so that is when the rows were first seen, or up to two milliseconds
 * later.
 */
import * as fs from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { openPool } from '../../../warm/pool.ts';
import { childArgument, tellParent } from '../support/child-result.ts';
import { replicatedLsn } from '../support/warm.ts';

export type WatchCursorArgument = { readonly url: string; readonly records: number; readonly timesFile: string };

const { url, records, timesFile } = childArgument() as WatchCursorArgument;
await using pool = await openPool(url, { max: 1 });
/** Of the monotonic clock, which all processes of a machine share, by LSN − 1. */
const seenNs = new BigUint64Array(records);
tellParent('watching');
for (let last = 0; last < records; ) {
  const lsn = Math.min(records, await replicatedLsn(pool));
  seenNs.fill(process.hrtime.bigint(), last, lsn);
  last = lsn;
  await sleep(1);
}
fs.writeFileSync(timesFile, seenNs);
tellParent('done');
