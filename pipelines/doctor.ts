/**
 * `varve doctor`: looks at everything and touches nothing. `--copy` copies the evidence of damaged logs, `--fix` removes
 * what is provably nobody's, and says so; a second run then finds nothing to fix.
 *
 * Exit code of the worst finding: 0, 3 (a person should look), 4 (something does not work), 5 (damage).
 */
import { cp, mkdir, readdir, rm, stat } from 'node:fs/promises';
import { join, resolve, sep } from 'node:path';
import { databasePath } from '../hot/open.ts';
import type { Config } from '../schemas/config.ts';
import { VarveError } from '../schemas/errors.ts';
import { hotFacts, judgeStore, warmFacts } from './doctor-facts.ts';
import { exitCodeOf, type Finding, type HotFacts, judgeHot, judgeWarm, type Level } from './doctor-plan.ts';
import { print, printJson } from './print.ts';
import { findLogs } from './sidecar.ts';

export type DoctorOptions = {
  /** Only the logs. */
  readonly hotOnly: boolean;
  /** Copy damaged logs below this folder, each under the id of its log. */
  readonly copy?: string;
  readonly fix: boolean;
  readonly json: boolean;
};

type Fixed = Finding & { readonly fixed?: true };

export async function doctor(config: Config, options: DoctorOptions): Promise<number> {
  const findings: Finding[] = [];
  const directories = await findLogs(config.hot.logs);
  if (directories.length === 0) {
    const what = 'there is no hot log';
    findings.push({ level: options.hotOnly ? 'problem' : 'note', subject: resolve(config.hot.logs), what });
  }
  for (const directory of directories) {
    const facts = await hotFacts(directory);
    findings.push(...judgeHot(await withCopy(facts, options.copy)));
  }
  if (!options.hotOnly) findings.push(...judgeWarm(await warmFacts(config)), await judgeStore(config));
  const all: Fixed[] = [];
  for (const finding of findings) all.push(options.fix ? await fixed(finding) : finding);
  if (options.json) printJson({ findings: all });
  else print(all.map(textOf).join(''));
  return exitCodeOf(findings);
}

async function withCopy(facts: HotFacts, copy: string | undefined): Promise<HotFacts> {
  const isDamaged = facts.unreadable !== undefined || (facts.check !== undefined && 'reason' in facts.check);
  if (copy === undefined || !isDamaged || facts.holder !== undefined) return facts;
  const copied = join(resolve(copy), facts.log_id ?? 'unknown');
  await copyEvidence(facts.directory, copied);
  return { ...facts, copied };
}

/**
 * All files of a log but its lock: closing any descriptor of `db/LOCK` would release the lock that this very process
 * may hold on it.
 *
 * @throws VarveError INVALID_OPTION where something is there already
 */
export async function copyEvidence(directory: string, target: string): Promise<void> {
  if (`${resolve(target)}${sep}`.startsWith(`${resolve(directory)}${sep}`)) {
    throw new VarveError('INVALID_OPTION', `${target} lies in the log itself`, { target });
  }
  const names = await readdir(target).catch(() => []);
  if (names.length > 0)
    throw new VarveError('INVALID_OPTION', `${target} is not empty: evidence is not overwritten`, { target });
  await mkdir(target, { recursive: true, mode: 0o700 });
  const lock = join(databasePath(directory), 'LOCK');
  await cp(directory, target, {
    recursive: true,
    preserveTimestamps: true,
    errorOnExist: true,
    force: false,
    // By name, before anything is opened; a socket cannot be copied.
    filter: async (source) => source !== lock && !(await stat(source)).isSocket(),
  });
}

async function fixed(finding: Finding): Promise<Fixed> {
  if (finding.remove === undefined) return finding;
  await rm(finding.remove, { force: true });
  return { ...finding, fixed: true };
}

const MARK: Readonly<Record<Level, string>> = {
  ok: 'ok       ',
  note: 'note     ',
  attention: 'ATTENTION',
  problem: 'PROBLEM  ',
  damage: 'DAMAGE   ',
};

function textOf({ level, subject, what, next = [], remove, fixed: isFixed }: Fixed): string {
  const lines = [`${MARK[level]}  ${subject}: ${what}${isFixed === true ? '; removed' : ''}`];
  for (const step of next) lines.push(`             ${step}`);
  if (remove !== undefined && isFixed !== true) lines.push('             varve doctor --fix      # removes it');
  return `${lines.join('\n')}\n`;
}
