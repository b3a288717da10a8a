/** What an import did, or would do: counts, refused lines by file and number, contradicted trajectories by name. */
import type { TrajectoryPlan, Verdict } from './import-plan.ts';

/** Lines that are named; beyond it they are counted. */
const NAMED_MAX = 1000;
const SHOWN_MAX = 20;

type BadLine = { readonly file: string; readonly line: number; readonly why: string };

export class ImportReport {
  lines = 0;
  appended = 0;
  #planned = 0;
  #same = 0;
  #trimmed = 0;
  #badLines = 0;
  #afterBad = 0;
  #trajectories = 0;
  readonly #bad: BadLine[] = [];
  readonly #contradicted: { readonly trajectory_id: string; readonly why: string }[] = [];
  readonly #cut: { readonly trajectory_id: string; readonly last: number }[] = [];
  readonly #log: string;
  readonly #dryRun: boolean;

  constructor(log: string, dryRun: boolean) {
    this.#log = log;
    this.#dryRun = dryRun;
  }

  get isClean(): boolean {
    return this.#badLines + this.#afterBad + this.#contradicted.length === 0;
  }

  verdict(file: string, line: number, verdict: Verdict): void {
    switch (verdict.kind) {
      case 'append':
        break;
      case 'same':
        this.#same += 1;
        break;
      case 'trimmed':
        this.#trimmed += 1;
        break;
      case 'after_bad':
        this.#afterBad += 1;
        break;
      case 'bad':
      case 'contradiction':
        this.bad(file, line, verdict.why);
        break;
    }
  }

  bad(file: string, line: number, why: string): void {
    this.#badLines += 1;
    if (this.#bad.length < NAMED_MAX) this.#bad.push({ file, line, why });
  }

  trajectory({ trajectory_id, contradiction, refused_at, stored, last }: TrajectoryPlan): void {
    this.#trajectories += 1;
    if (contradiction !== undefined) this.#contradicted.push({ trajectory_id, why: contradiction });
    else this.#planned += last - stored;
    if (contradiction === undefined && refused_at !== undefined) this.#cut.push({ trajectory_id, last });
  }

  toJSON(): object {
    return {
      log: this.#log,
      dry_run: this.#dryRun,
      lines: this.lines,
      trajectories: this.#trajectories,
      to_append: this.#planned,
      appended: this.appended,
      already_there: this.#same,
      trimmed: this.#trimmed,
      bad_lines: this.#badLines,
      behind_bad_lines: this.#afterBad,
      contradicted: this.#contradicted,
      cut_short: this.#cut,
      bad: this.#bad,
    };
  }

  text(): string {
    const done = this.#dryRun ? `${this.#planned} would be appended` : `${this.appended} appended`;
    const lines = [
      `${this.#log}: ${this.lines} lines of ${this.#trajectories} trajectories: ${done}, ${this.#same} already there`,
    ];
    if (this.#trimmed > 0) lines.push(`  ${this.#trimmed} are of events that the log has trimmed`);
    for (const { file, line, why } of this.#bad.slice(0, SHOWN_MAX)) lines.push(`  ${file}:${line}: ${why}`);
    if (this.#badLines > SHOWN_MAX)
      lines.push(`  … ${this.#badLines - SHOWN_MAX} more bad lines (--report names them)`);
    if (this.#afterBad > 0) lines.push(`  ${this.#afterBad} lines follow a refused one in their trajectory`);
    for (const { trajectory_id, last } of this.#cut.slice(0, SHOWN_MAX))
      lines.push(`  ${trajectory_id}: ${this.#dryRun ? 'would end' : 'ends'} at event ${last}`);
    for (const { trajectory_id, why } of this.#contradicted.slice(0, SHOWN_MAX))
      lines.push(`  CONTRADICTED ${trajectory_id}: nothing of it was appended; ${why}`);
    return `${lines.join('\n')}\n`;
  }
}
