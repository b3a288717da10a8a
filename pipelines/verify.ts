/**
 * `varve verify`: every hash, link and blob, of hot logs, of the warm and of the cold tier. Exit code 5 where anything
 * does not hold; the first bad event is named, and then the others, up to a hundred of each partition of warm and of each
 * kind in cold. 2 or 4 where all that could be read is whole and something could not be.
 *
 * `--deep` also hashes every blob of the logs again, steps the warm tier's summaries again, looks whether the store has
 * the body of every blob that warm refers to, and reads every blob that cold refers to, putting bodies back.
 */
import { hasBlob } from '../cold/blobs.ts';
import type { Config } from '../schemas/config.ts';
import { ERROR_CODES, isVarveError, VarveError } from '../schemas/errors.ts';
import type { Session } from '../warm/pool.ts';
import {
  brokenChains,
  brokenHeads,
  brokenPayloads,
  countEvents,
  type Partition,
  readPartitions,
  referencedBlobs,
  type WarmProblem,
} from '../warm/verify.ts';
import { openColdStore } from './open-cold.ts';
import { isWarmThere, openWarm } from './open-warm.ts';
import { print, printJson } from './print.ts';
import { Progress } from './progress.ts';
import { findLogs } from './sidecar.ts';
import { type VerifyColdOptions, verifyCold } from './verify-cold.ts';
import { coldExit, coldJson, coldText, isColdWhole } from './verify-cold-text.ts';
import { type HotVerdict, verifyHot } from './verify-hot.ts';

export type VerifyOptions = VerifyColdOptions & {
  /** undefined: if there is any. */
  readonly hot: boolean | undefined;
  readonly warm: boolean | undefined;
  readonly json: boolean;
};

/** Problems that are named, of one partition and one kind of check. */
const NAMED_MAX = 100;

export type WarmVerdict = {
  readonly server: string;
  readonly partitions: number;
  readonly trajectories: number;
  readonly events: number;
  readonly problems: readonly WarmProblem[];
  /** Blobs (with `--deep`) that the store does not have, each with an event that refers to it. */
  readonly missing_blobs: readonly string[];
};

export async function verify(config: Config, options: VerifyOptions, signal: AbortSignal): Promise<number> {
  const progress = new Progress();
  const directories = options.hot === false ? [] : await findLogs(config.hot.logs);
  const isWarm = options.warm ?? (await isWarmThere(config));
  const noLog = new VarveError('HOT_NOT_A_LOG', `there is no hot log at ${config.hot.logs}`);
  if (directories.length === 0 && options.hot === true) throw noLog;
  const hot = await verifyLogs(directories, options.deep, signal, progress);
  const warm = isWarm ? await verifyWarm(config, options.deep, signal, progress) : undefined;
  const cold = await verifyCold(config, options, signal, progress);
  progress.end();
  if (directories.length === 0 && warm === undefined && cold === undefined) throw noLog;
  const isWarmWhole = warm === undefined || warm.problems.length + warm.missing_blobs.length === 0;
  const isWhole = isWarmWhole && hot.every(isWholeLog) && isColdWhole(cold);
  if (options.json) printJson({ whole: isWhole, hot: hot.map(jsonOf), warm, cold: coldJson(cold) });
  else {
    const texts = [...hot.map(hotText), ...(warm === undefined ? [] : [warmText(warm)])];
    print([...texts, ...(cold === undefined ? [] : [coldText(cold)])].join(''));
  }
  if (isWhole) return 0;
  const isBad = !isWarmWhole || hot.some((verdict) => !('refused' in verdict) && !isWholeLog(verdict));
  return isBad ? 5 : Math.max(coldExit(cold), ...hot.map(exitOf));
}

function exitOf(verdict: HotVerdict | Refused): number {
  return 'refused' in verdict ? ERROR_CODES[verdict.refused.code].exit : 0;
}

async function verifyLogs(directories: readonly string[], deep: boolean, signal: AbortSignal, progress: Progress) {
  const verdicts: (HotVerdict | Refused)[] = [];
  for (const directory of directories) {
    const onProgress = (lsn: number, durable: number) =>
      progress.at(() => `${directory}: ${lsn} of ${durable} records verified`);
    try {
      verdicts.push(await verifyHot(directory, { deep, signal, onProgress }));
    } catch (error) {
      // One log that cannot be read keeps nobody from the others.
      if (!isVarveError(error) || error.code === 'ABORTED') throw error;
      verdicts.push({ directory, refused: error });
    }
  }
  return verdicts;
}

/** A log that could not be verified at all. */
type Refused = { readonly directory: string; readonly refused: VarveError };

function isWholeLog(verdict: HotVerdict | Refused): boolean {
  return !('refused' in verdict) && verdict.damage === undefined && verdict.bad_blobs.length === 0;
}

async function verifyWarm(
  config: Config,
  deep: boolean,
  signal: AbortSignal,
  progress: Progress,
): Promise<WarmVerdict> {
  await using warm = await openWarm(config);
  const { server } = warm.pool;
  return await warm.pool.dedicate({ statementTimeoutMs: 0 }, async (session) => {
    const partitions = await readPartitions(session);
    const problems: WarmProblem[] = [];
    let trajectories = 0;
    let events = 0;
    for (const partition of partitions) {
      if (signal.aborted) throw new VarveError('ABORTED', 'verifying was aborted');
      const counts = await countEvents(session, partition);
      let done = 0;
      problems.push(
        ...(await verifyPartition(session, partition, deep, signal, (count) => {
          done += count;
          progress.at(() => `${partition.name}: ${done} of ${counts.events} payloads verified`);
        })),
      );
      events += counts.events;
      trajectories += counts.trajectories;
    }
    const missing_blobs = deep ? await missingBlobs(session, config, signal) : [];
    return { server, partitions: partitions.length, trajectories, events, problems, missing_blobs };
  });
}

async function verifyPartition(
  session: Session,
  partition: Partition,
  deep: boolean,
  signal: AbortSignal,
  onPage: (events: number) => void,
): Promise<WarmProblem[]> {
  const problems = [
    ...(await brokenChains(session, partition, NAMED_MAX)),
    ...(await brokenHeads(session, partition, NAMED_MAX)),
  ];
  let payloads = 0;
  for await (const problem of brokenPayloads(session, partition, { summaries: deep, signal, onPage })) {
    problems.push(problem);
    payloads += 1;
    if (payloads === NAMED_MAX) break;
  }
  if (signal.aborted) throw new VarveError('ABORTED', 'verifying was aborted');
  return problems.toSorted(
    (a, b) =>
      (a.trajectory_id < b.trajectory_id ? -1 : Number(a.trajectory_id > b.trajectory_id)) ||
      a.sequence_number - b.sequence_number,
  );
}

async function missingBlobs(session: Session, config: Config, signal: AbortSignal): Promise<string[]> {
  await using store = await openColdStore(config, { signal, readOnly: true });
  const missing: string[] = [];
  for await (const { sha256, trajectory_id, sequence_number } of referencedBlobs(session)) {
    if (signal.aborted) throw new VarveError('ABORTED', 'verifying was aborted');
    if (await hasBlob(store, sha256, { signal })) continue;
    missing.push(`${sha256}: event ${sequence_number} of ${trajectory_id}`);
    if (missing.length === NAMED_MAX) break;
  }
  return missing;
}

function jsonOf(verdict: HotVerdict | Refused): object {
  if (!('refused' in verdict)) return verdict;
  const { code, message } = verdict.refused;
  return { directory: verdict.directory, refused: { code, message } };
}

function hotText(verdict: HotVerdict | Refused): string {
  if ('refused' in verdict) {
    return `${verdict.directory}: NOT VERIFIED: ${verdict.refused.message} [${verdict.refused.code}]\n`;
  }
  const { directory, how, events, trajectories, lsn, blobs, bad_blobs, damage } = verdict;
  if (damage !== undefined) {
    return `${directory}: DAMAGED at LSN ${damage.lsn}: ${damage.reason}\n  what to do: varve doctor --hot ${directory}\n`;
  }
  const read = how === 'followed' ? ', read through its writer' : '';
  const whole = `${directory}: ${events} events of ${trajectories} trajectories up to LSN ${lsn}, ${blobs} blobs${read}`;
  if (bad_blobs.length === 0) return `${whole}: whole\n`;
  return `${whole}\n${bad_blobs.map((sha256) => `  BAD BLOB ${sha256}: missing, or other bytes than its name says\n`).join('')}`;
}

function warmText({ server, partitions, trajectories, events, problems, missing_blobs }: WarmVerdict): string {
  const counted = `${server}: ${events} events of ${trajectories} trajectories in ${partitions} partitions`;
  if (problems.length + missing_blobs.length === 0) return `${counted}: whole\n`;
  const lines = problems.map(
    ({ trajectory_id, sequence_number, what }) => `  BAD event ${sequence_number} of ${trajectory_id}: ${what}\n`,
  );
  return `${counted}\n${lines.join('')}${missing_blobs.map((text) => `  MISSING BLOB ${text}\n`).join('')}`;
}
