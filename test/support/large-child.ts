/**
 * A trajectory far larger than memory: appends tool results of about 1 MB, or reads them back and folds them, and
 * prints what the process took at its peak.
 *
 *   done <events> <bytes> <checksum> <peak resident bytes>
 *
 * Two shapes by turns: one string of 1 MB, which becomes a blob, and twenty of 50 KB, which stay in the event.
 */
import { createHash } from 'node:crypto';
import { readFileSync, writeSync } from 'node:fs';
import { HotLog } from '../../hot/log.ts';
import type { JsonObject } from '../../schemas/canonical.ts';
import { apply, INITIAL_RECORD } from '../../schemas/fold.ts';
import type { TrajectoryId } from '../../schemas/ids.ts';
import { Random } from './seed.ts';

export type LargePlan = {
  readonly do: 'append' | 'read' | 'read-log' | 'fold';
  readonly directory: string;
  readonly trajectory_id: TrajectoryId;
  readonly events: number;
};

const LARGE = 1_000_000;
const PART = 50_000;

const plan = JSON.parse(process.argv[2] as string) as LargePlan;
const log = await HotLog.open(plan.directory);
// Whoever started this has died.
process.stdin.on('end', () => process.exit(1)).resume();
const digest = createHash('sha256');
let events = 0;
let bytes = 0;
switch (plan.do) {
  case 'append':
    await append();
    break;
  case 'read':
    await read();
    break;
  case 'read-log':
    await readLog();
    break;
  case 'fold':
    await foldAll();
    break;
}
await log.close();
writeSync(1, `done ${events} ${bytes} ${digest.digest('hex')} ${peakBytes()}\n`);
process.exit(0);

function peakBytes(): number {
  const kib = /^VmHWM:\s+(\d+) kB/m.exec(readFileSync('/proc/self/status', 'latin1'))?.[1];
  return Number(kib) * 1024;
}

function textOf(length: number, seed: number): string {
  const random = new Random(seed);
  const line = Array.from({ length: 997 }, () => random.between(32, 126));
  return Buffer.from(line)
    .toString('latin1')
    .repeat(Math.ceil(length / 997))
    .slice(0, length);
}

function payloadOf(i: number): JsonObject {
  const common = { tool_call_id: `call-${i}`, status: 'ok', settled_by: 'dispatch', duration_ms: i };
  if (i % 2 === 0) return { ...common, output: textOf(LARGE, i) };
  const parts = Array.from({ length: LARGE / PART }, (_, part) => textOf(PART, i * 100 + part));
  return { ...common, output: 'in parts', parts };
}

async function append(): Promise<void> {
  for (let i = 0; i < plan.events; i++) {
    const payload = payloadOf(i);
    await log.append(plan.trajectory_id, { event_type: 'ToolResult', turn: i, payload });
    take(payload);
  }
}

async function read(): Promise<void> {
  for await (const event of log.read(plan.trajectory_id)) await takeStored(event.payload);
}

async function readLog(): Promise<void> {
  for await (const record of log.readLog()) {
    if (record.kind === 'event') await takeStored(record.event.payload);
  }
}

async function foldAll(): Promise<void> {
  let record = INITIAL_RECORD;
  for await (const event of log.read(plan.trajectory_id)) {
    record = apply(record, event);
    bytes += event.payload_bytes.byteLength;
  }
  events = record.counts.tool_results;
}

function take(payload: JsonObject): void {
  const texts = (payload['parts'] as string[] | undefined) ?? [payload['output'] as string];
  for (const text of texts) {
    digest.update(text);
    bytes += text.length;
  }
  events += 1;
}

async function takeStored(payload: JsonObject): Promise<void> {
  const output = payload['output'] as string | { $blob: { sha256: string } };
  if (typeof output === 'string') {
    take(payload);
    return;
  }
  for await (const chunk of log.blobs.get(output.$blob.sha256)) {
    digest.update(chunk);
    bytes += chunk.byteLength;
  }
  events += 1;
}
