/**
 * Ingest as a sidecar does it, but fed from memory: what is due by the clock goes into one transaction, then, at a
 * sidecar's distance, what is due by then. Each line on stdin asks for so many events at such a rate; its answer comes when they are in.
 */
import { randomUUID } from 'node:crypto';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { BATCH_EVERY_MS } from '../../../pipelines/follow-log.ts';
import { canonicalJson } from '../../../schemas/canonical.ts';
import { chainHash, formatEnvelope, GENESIS_HASH, payloadSha256 } from '../../../schemas/chain.ts';
import { newTrajectoryId, type SequenceNumber } from '../../../schemas/ids.ts';
import { Ingest } from '../../../warm/ingest.ts';
import type { WarmItem } from '../../../warm/ingest-plan.ts';
import { openPool } from '../../../warm/pool.ts';
import { childArgument, tellParent } from '../support/child-result.ts';
import { makeSamples } from '../support/samples.ts';

export type FeedIngestArgument = { readonly url: string; readonly trajectories: number };
export type FeedIngestRound = { readonly events: number; readonly perSecond: number };

const { url, trajectories } = childArgument() as FeedIngestArgument;
await using pool = await openPool(url, { max: 2 });
const log = { log_id: randomUUID(), epoch: randomUUID(), host: 'bench', directory: '/bench' };
const { ingest, cursor: start } = await Ingest.open(pool, log);
const samples = makeSamples().map(({ event }) => {
  const text = canonicalJson(event.payload);
  return { event, payload_sha256: payloadSha256(text), payload_bytes: Buffer.from(text) };
});
const heads = Array.from({ length: trajectories }, () => ({ id: newTrajectoryId(), sequence: 0, hash: GENESIS_HASH }));
let cursor = start;

function next(lsn: number): WarmItem {
  const head = heads[lsn % heads.length] as (typeof heads)[number];
  const { event, payload_sha256, payload_bytes } = samples[lsn % samples.length] as (typeof samples)[number];
  head.sequence += 1;
  const envelope = {
    created_at: new Date().toISOString(),
    event_type: event.event_type,
    fencing_token: 0,
    payload_sha256,
    sequence_number: head.sequence as SequenceNumber,
    trajectory_id: head.id,
    turn: event.turn,
  };
  head.hash = chainHash(head.hash, formatEnvelope(envelope));
  const cryptographic_hash = Buffer.from(head.hash).toString('hex');
  return {
    kind: 'event',
    lsn,
    event: { ...envelope, cryptographic_hash, payload: event.payload, payload_bytes },
  };
}

async function feed({ events, perSecond }: FeedIngestRound): Promise<void> {
  const begun = performance.now();
  for (let taken = 0; taken < events; ) {
    const takenAt = performance.now();
    const due = Math.min(events, Math.floor(((performance.now() - begun) / 1000) * perSecond) + 1);
    const from = cursor;
    const items = Array.from({ length: due - taken }, (_, i) => next(from.lsn + 1 + i));
    const last = items.at(-1);
    if (last?.kind !== 'event') {
      await sleep(1);
      continue;
    }
    cursor = { lsn: last.lsn, hash: last.event.cryptographic_hash };
    const outcome = await ingest.apply(ingest.prepare(items, from, cursor, cursor.lsn));
    if (outcome.kind !== 'applied' || outcome.counts.inserted !== items.length)
      throw new Error('a batch did not go in');
    taken = due;
    await sleep(Math.max(0, takenAt + BATCH_EVERY_MS - performance.now()));
  }
}

tellParent('ready');
for await (const line of createInterface(process.stdin)) {
  await feed(JSON.parse(line) as FeedIngestRound);
  tellParent('fed');
}
