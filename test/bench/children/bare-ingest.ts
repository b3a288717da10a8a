/** The bare statement, fed from memory. Each line on stdin is a duration in milliseconds; its answer is what went in. */
import { createInterface } from 'node:readline';
import { openPool } from '../../../warm/pool.ts';
import { ingestBare, makeBareTables } from '../support/bare-ingest.ts';
import { childArgument, tellParent } from '../support/child-result.ts';
import { interleaved } from '../support/interleaved.ts';
import { cpuUsOf } from '../support/processes.ts';
import { Turns } from '../support/turns.ts';

export type BareIngestArgument = {
  readonly url: string;
  readonly concurrent: number;
  readonly smallest: number;
  readonly largest: number;
  readonly batchEvents: number;
};
export type BareIngestResult = { readonly events: number; readonly seconds: number; readonly cpuUs: number };

const { url, concurrent, smallest, largest, batchEvents } = childArgument() as BareIngestArgument;
await using pool = await openPool(url, { max: 1 });
await makeBareTables(pool);
const turns = new Turns(smallest, largest);
const places = interleaved(concurrent);
const position = { at: 0 };

tellParent('ready');
for await (const line of createInterface(process.stdin)) {
  const durationMs = Number(line);
  const cpu = cpuUsOf(process.pid);
  const events = await ingestBare(pool, turns, places, position, { batchEvents, durationMs });
  const result: BareIngestResult = { events, seconds: durationMs / 1000, cpuUs: cpuUsOf(process.pid) - cpu };
  tellParent(result);
}
