/**
 * Syncs are counted: no acknowledgement leaves before an fdatasync that covers its bytes has returned, and no event is
 * written before the bytes and the folders of its blobs are synced.
 *
 * A writer runs under strace. Its WALs say at which byte each event ends; the calls say when that byte was written, when
 * a sync of that file began and returned, and when the acknowledgement was printed. A binding that loses its sync (they
 * exist, silently) or an acknowledgement that overtakes its barrier fails here.
 */
import assert from 'node:assert/strict';
import { hash } from 'node:crypto';
import { readFileSync, realpathSync } from 'node:fs';
import { join } from 'node:path';
import type { HotLogOptions } from '../../hot/options.ts';
import { brokenBarriers, type EventPlace } from '../support/barriers.ts';
import { type Acknowledged, acknowledgedIn } from '../support/check-log.ts';
import { FaultLog } from '../support/fault-log.ts';
import { modestOrSoak, summarize } from '../support/scale.ts';
import { hasCommand, skipAloud } from '../support/skip.ts';
import { type Call, parseStrace, straceCommand } from '../support/strace.ts';
import { TempDirectory } from '../support/temp.ts';
import { readWal, walFiles } from '../support/wal.ts';
import { eventFor, offloadedBody } from '../support/workload.ts';

const CALLS = [
  'write',
  'pwrite64',
  'writev',
  'fsync',
  'fdatasync',
  'rename',
  'renameat',
  'renameat2',
  'mkdir',
  'mkdirat',
];

describe('syncs', () => {
  before(function () {
    if (process.platform !== 'linux') skipAloud(this, 'strace needs Linux');
    if (!hasCommand('strace')) skipAloud(this, 'strace is not installed');
  });

  it('an acknowledgement is preceded by an fdatasync that covers its bytes and everything it refers to', async function () {
    this.timeout(120_000);
    const { broken, acknowledged, syncs, blobs } = await traced({});
    assert.deepEqual(broken.slice(0, 5), [], `${broken.length} broken barriers`);
    assert.ok(blobs > 0, 'no event had a blob: that part proved nothing');
    assert.ok(syncs < acknowledged, `${syncs} syncs for ${acknowledged} events: nothing shared a barrier`);
    summarize({ traced_acknowledgements: acknowledged, wal_syncs: syncs, traced_blobs: blobs });
  });

  it('without sync every acknowledgement is found unsound, so a missing barrier cannot hide', async function () {
    this.timeout(120_000);
    const { broken, acknowledged } = await traced({ commit: { sync: false } });
    const unsound = broken.filter((what) => what.includes('acknowledged before a sync'));
    assert.equal(unsound.length, acknowledged);
  });
});

async function traced(options: HotLogOptions) {
  using directory = new TempDirectory('syncs');
  const root = realpathSync(directory.path);
  const log = new FaultLog(join(root, 'log'), join(root, 'ids'), 60);
  const output = join(root, 'strace');
  // Dies with the log open: its WALs stay as they were written.
  await using child = log.start(
    [
      { do: 'open', options: { ...options, tail: false } },
      { do: 'append', events: modestOrSoak(600, 3000) },
      { do: 'die' },
    ],
    { under: straceCommand(output, CALLS) },
  );
  const { signal } = await child.exit(100_000);
  assert.equal(signal, 'SIGKILL', child.stderr);

  const calls = parseStrace(readFileSync(output, 'latin1'));
  const acknowledgements = calls.flatMap((call) => acknowledgementOf(call));
  assert.equal(acknowledgements.length, log.acknowledged.length, 'the trace does not show every acknowledgement');
  const wals = walFiles(join(log.directory, 'db'));
  const places = placesOf(log, wals);
  const broken = brokenBarriers(calls, acknowledgements, places);
  const syncs = calls.filter((call) => call.name === 'fdatasync' && wals.includes(call.path ?? '')).length;
  const blobs = [...places.values()].reduce((sum, place) => sum + place.blobs.length, 0);
  return { broken, acknowledged: acknowledgements.length, syncs, blobs };
}

/** A write to stdout that starts with `ack`; not one that failed because the pipe was full, which is repeated. */
function acknowledgementOf(call: Call): { key: string; call: Call }[] {
  const isOutput = call.name === 'write' && call.args.startsWith('1<') && call.result > 0;
  const text = isOutput ? /"(ack [^"\\]*)/.exec(call.args)?.[1] : undefined;
  return text === undefined ? [] : acknowledgedIn([text]).map((one) => ({ key: keyOf(one), call }));
}

function keyOf({ n, sequence_number }: Pick<Acknowledged, 'n' | 'sequence_number'>): string {
  return `event ${sequence_number} of trajectory ${n}`;
}

/** Finds every acknowledged event in the WALs by its envelope and its payload, byte for byte. */
function placesOf(log: FaultLog, wals: readonly string[]): Map<string, EventPlace> {
  const places = new Map<string, EventPlace>();
  for (const wal of wals) {
    for (const record of readWal(wal)) {
      for (const one of log.eventsIn(record.bytes)) {
        const body = offloadedBody(eventFor(one.n, one.sequence_number));
        const blobs = body === undefined ? [] : [blobPath(log.directory, hash('sha256', body, 'hex'))];
        places.set(keyOf(one), { wal, end: record.end, blobs });
      }
    }
  }
  return places;
}

function blobPath(directory: string, sha256: string): string {
  return join(directory, 'blobs', 'sha256', sha256.slice(0, 2), sha256.slice(2, 4), sha256);
}
