/**
 * `varve quarantine replay`, `accept` and `branch`: what is held back is taken in after all, left where it is, or given
 * a trajectory of its own. Each is one transaction; a dry run does the same and takes it back.
 *
 * Exit code 3 where something of the trajectory is still held.
 */
import { hasBlob, putBlob } from '../cold/blobs.ts';
import type { ObjectStore } from '../cold/object-store.ts';
import { BlobStore } from '../hot/blobs.ts';
import type { Config } from '../schemas/config.ts';
import type { TrajectoryId } from '../schemas/ids.ts';
import { mayHoldStub, stubsOf } from '../schemas/stubs.ts';
import type { WarmPool } from '../warm/pool.ts';
import { acceptQuarantined, type HeldByReason, listQuarantine, quarantineEntries } from '../warm/quarantine.ts';
import { branchQuarantined } from '../warm/quarantine-branch.ts';
import { replayQuarantined } from '../warm/quarantine-replay.ts';
import { eventOf } from '../warm/quarantine-rows.ts';
import { openColdStore } from './open-cold.ts';
import { openWarm } from './open-warm.ts';
import { print, printJson } from './print.ts';
import { findLogs } from './sidecar.ts';

export type SettleOptions = { readonly dryRun: boolean; readonly json: boolean };

/** Trajectories that one `--all` takes up. */
const ALL_MAX = 10_000;

/** @param of a trajectory, or all of which something could be mended */
export async function replayHeld(
  config: Config,
  of: TrajectoryId | 'all',
  options: SettleOptions,
  signal: AbortSignal,
): Promise<number> {
  await using warm = await openWarm(config);
  const { pool } = warm;
  let isHeld = false;
  for (const id of of === 'all' ? await mendable(pool) : [of]) {
    if (signal.aborted) break;
    const unfit = await missingBlobs(pool, id, config, options.dryRun, signal);
    const replayed = await replayQuarantined(pool, id, { dryRun: options.dryRun, unfit });
    const { applied, proven, held } = replayed;
    isHeld ||= Object.keys(held).length > 0;
    if (options.json) printJson({ ...replayed, dry_run: options.dryRun });
    else
      print(
        `${id}: ${would(options, 'took in', 'would take in')} ${applied}, ${proven} duplicates; ${heldText(held)}\n`,
      );
  }
  return isHeld ? 3 : 0;
}

async function mendable(pool: WarmPool): Promise<TrajectoryId[]> {
  const groups = await pool.lend((session) => listQuarantine(session, {}, ALL_MAX));
  const ids = groups
    .filter(({ reason }) => reason !== 'fork' && reason !== 'fenced')
    .map((group) => group.trajectory_id);
  return [...new Set(ids)];
}

/**
 * Rows whose bodies neither the store nor a log of this machine has. A body that a log has is put into the store, as
 * its sidecar would have done.
 */
async function missingBlobs(
  pool: WarmPool,
  id: TrajectoryId,
  config: Config,
  dryRun: boolean,
  signal: AbortSignal,
): Promise<Map<number, string>> {
  const unfit = new Map<number, string>();
  let store: ObjectStore | undefined;
  try {
    for await (const entry of quarantineEntries(pool, id)) {
      if (entry.state !== 'held' || !mayHoldStub(entry.payload.toString('utf8'))) continue;
      store ??= await openColdStore(config);
      for (const { sha256 } of stubsOf(eventOf(entry).payload)) {
        if (await isThere(store, sha256, config, dryRun, signal)) continue;
        unfit.set(entry.id, `blob ${sha256} is neither in the store nor in a log of this machine`);
      }
    }
  } finally {
    await store?.[Symbol.asyncDispose]();
  }
  return unfit;
}

async function isThere(
  store: ObjectStore,
  sha256: string,
  config: Config,
  dryRun: boolean,
  signal: AbortSignal,
): Promise<boolean> {
  if (await hasBlob(store, sha256, { signal })) return true;
  for (const directory of await findLogs(config.hot.logs)) {
    const blobs = BlobStore.of(directory);
    if ((await blobs.size(sha256)) === undefined || !(await blobs.verify(sha256))) continue;
    if (!dryRun) await putBlob(store, sha256, blobs.get(sha256), { signal });
    return true;
  }
  return false;
}

export async function acceptHeld(
  config: Config,
  id: TrajectoryId,
  why: string,
  options: SettleOptions,
): Promise<number> {
  await using warm = await openWarm(config);
  const accepted = await acceptQuarantined(warm.pool, id, why, { dryRun: options.dryRun });
  if (options.json) {
    printJson({ ...accepted, dry_run: options.dryRun });
  } else {
    const { intents, held } = accepted;
    const verb = would(options, 'accepted', 'would accept');
    print(`${id}: ${verb} ${accepted.accepted} events; ${heldText(held)}\n`);
    if (intents > 0) print(`  ${intents} of them are intents: what they asked for may have been done\n`);
  }
  return Object.keys(accepted.held).length > 0 ? 3 : 0;
}

export async function branchHeld(
  config: Config,
  id: TrajectoryId,
  why: string,
  options: SettleOptions & { readonly log?: string },
): Promise<number> {
  await using warm = await openWarm(config);
  const { log, dryRun } = options;
  const branched = await branchQuarantined(warm.pool, id, why, {
    dryRun,
    ...(log === undefined ? {} : { log_id: log }),
  });
  if (options.json) {
    printJson({ ...branched, dry_run: dryRun });
  } else {
    const { branch_id, events, parent_sequence_number, grown, left } = branched;
    const verb = would(options, grown ? 'grew by' : 'has', grown ? 'would grow by' : 'would have');
    const parent = parent_sequence_number === null ? 'no proven parent' : `event ${parent_sequence_number} of ${id}`;
    print(`${dryRun && !grown ? 'a branch' : branch_id}: ${verb} ${events} events, behind ${parent}\n`);
    if (left > 0) print(`  ${left} events lie behind a break and were left: run it again for them\n`);
  }
  return branched.left > 0 ? 3 : 0;
}

function would({ dryRun }: SettleOptions, done: string, planned: string): string {
  return dryRun ? planned : done;
}

function heldText(held: HeldByReason): string {
  const parts = Object.entries(held).map(([reason, events]) => `${events} ${reason}`);
  return parts.length === 0 ? 'nothing is held any more' : `still held: ${parts.join(', ')}`;
}
