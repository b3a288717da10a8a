/** What `varve verify` says of the cold tier, for people, for scripts and as an exit code. */
import type { ColdProblem } from '../cold/findings.ts';
import type { TableVerdict } from '../cold/verify-table.ts';
import { ERROR_CODES } from '../schemas/errors.ts';
import type { ColdVerdict } from './verify-cold.ts';

export function isColdWhole(verdict: ColdVerdict | undefined): boolean {
  if (verdict === undefined) return true;
  return !('refused' in verdict) && verdict.problems.length + verdict.unverified_count === 0;
}

/** 5 where anything is bad; else of what could not be verified; else 0. */
export function coldExit(verdict: ColdVerdict | undefined): number {
  if (verdict === undefined) return 0;
  if ('refused' in verdict) return ERROR_CODES[verdict.refused.code].exit;
  if (verdict.problems.length > 0) return 5;
  return Math.max(0, ...verdict.unverified.map(({ code }) => ERROR_CODES[code].exit));
}

export function coldJson(verdict: ColdVerdict | undefined): object | undefined {
  if (verdict === undefined || !('refused' in verdict)) return verdict;
  const { code, message } = verdict.refused;
  return { store: verdict.store, refused: { code, message } };
}

export function coldText(verdict: ColdVerdict): string {
  if ('refused' in verdict) {
    return `${verdict.store}: NOT VERIFIED: ${verdict.refused.message} [${verdict.refused.code}]\n`;
  }
  const { problems, unverified, unverified_count, first } = verdict;
  const what = `${verdict.store}: ${countsOf(verdict)}`;
  if (isColdWhole(verdict)) return `${what}: whole${restOf(verdict)}\n`;
  const lines = [
    ...(first === undefined ? [] : [`  FIRST BAD EVENT: ${nameOf(first)} in ${first.key}`]),
    ...problems.map((problem) => `  BAD ${problem.kind} ${problem.key}${placeOf(problem)}: ${problem.what}`),
    ...unnamedOf(verdict),
    ...unverified.map(({ key, code, message }) => `  NOT VERIFIED ${key}: ${message} [${code}]`),
    ...(unverified_count > unverified.length
      ? [`  and ${unverified_count - unverified.length} more NOT VERIFIED`]
      : []),
  ];
  return `${what}${restOf(verdict)}\n${lines.join('\n')}\n`;
}

function countsOf({ version, files, live_files, events, segments, trajectories, blobs, sample }: TableVerdict): string {
  const of = trajectories === undefined ? '' : ` of ${trajectories} trajectories`;
  const deep = blobs === undefined ? '' : `, ${blobs} blobs`;
  const chosen =
    sample === undefined ? `${files} files` : `a sample of ${files} of ${live_files} files (seed ${sample.seed})`;
  return `version ${version}, ${chosen}: ${events} events in ${segments} segments${of}${deep}`;
}

/** What nobody looked at, or could. */
function restOf({ sample, trajectories, blobs, offloaded, redacted }: TableVerdict): string {
  const rest = [
    ...(offloaded > 0 && blobs === undefined ? [`the bodies of ${offloaded} events lie in blobs (--deep)`] : []),
    ...(redacted > 0 ? [`the payloads of ${redacted} events were erased`] : []),
    ...(sample !== undefined ? ['other files were not looked at'] : []),
    ...(trajectories === undefined ? ['chains over all files were not looked at'] : []),
  ];
  return rest.map((text) => `; ${text}`).join('');
}

function placeOf(problem: ColdProblem): string {
  return problem.trajectory_id === undefined ? '' : ` at event ${nameOf(problem)}`;
}

function nameOf({ trajectory_id, sequence_number }: ColdProblem): string {
  return `${sequence_number ?? '?'} of ${trajectory_id}`;
}

function unnamedOf({ problems, counts }: TableVerdict): string[] {
  return Object.entries(counts).flatMap(([kind, count]) => {
    const unnamed = count - problems.filter((problem) => problem.kind === kind).length;
    return unnamed > 0 ? [`  and ${unnamed} more BAD ${kind}`] : [];
  });
}
