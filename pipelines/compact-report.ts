/** What a run of compaction did, or would do: for its row in the database, for people, and for progress. */
import type { Backlog, RunEnd } from '../warm/compaction-rows.ts';
import type { LotOutcome } from './compact-lot.ts';
import type { Group, Skip } from './compact-plan.ts';
import { bytesText } from './print.ts';

/** Skips that are named; the rest is counted. */
const NAMED_MAX = 1000;
const SHOWN_MAX = 20;

export class CompactReport {
  run_id: string | undefined;
  readonly dry_run: boolean;
  end: RunEnd = 'failed';
  error: { readonly code: string; readonly message: string } | undefined;
  trajectories = 0;
  events = 0;
  files = 0;
  payload_bytes = 0;
  file_bytes = 0;
  blobs = 0;
  blob_bytes = 0;
  retries = 0;
  repaired_marks = 0;
  /** Held-back events that cold has: duplicates; and those of which it has another one. */
  settled_unproven = 0;
  found_forks = 0;
  busy = 0;
  overtaken = 0;
  skipped = 0;
  held_trajectories = 0;
  held_partitions = 0;
  planned_trajectories = 0;
  planned_events = 0;
  planned_files = 0;
  /** Events that have left warm, also those of files that are not committed yet. */
  streamed = 0;
  backlog: Backlog | undefined;
  readonly skips: Skip[] = [];
  readonly #startedMs = performance.now();

  constructor(dryRun: boolean) {
    this.dry_run = dryRun;
  }

  planned(groups: readonly Group[]): void {
    this.planned_files += groups.length;
    for (const { members, events } of groups) {
      this.planned_trajectories += members.length;
      this.planned_events += events;
    }
  }

  hold(groups: readonly Group[]): void {
    this.held_partitions += groups.length;
    for (const { members } of groups) this.held_trajectories += members.length;
  }

  skip(skips: readonly Skip[]): void {
    this.skipped += skips.length;
    this.skips.push(...skips.slice(0, Math.max(0, NAMED_MAX - this.skips.length)));
  }

  moved(outcome: LotOutcome): void {
    this.trajectories += outcome.trajectories;
    this.events += outcome.events;
    this.files += outcome.files;
    this.payload_bytes += outcome.payload_bytes;
    this.file_bytes += outcome.file_bytes;
    this.busy += outcome.busy;
    this.overtaken += outcome.overtaken;
    this.skip(outcome.skipped);
  }

  get seconds(): number {
    return (performance.now() - this.#startedMs) / 1000;
  }

  /** Of the progress line. */
  get line(): string {
    const rate = this.streamed / Math.max(this.seconds, 0.001);
    const left = Math.max(0, this.planned_events - this.streamed);
    const eta = rate > 0 ? `${Math.ceil(left / rate)} s left` : 'starting';
    return `${this.streamed} of ${this.planned_events} events, ${Math.round(rate)}/s, ${this.files} files committed, ${eta}`;
  }

  toJSON(): object {
    const { error, backlog, skips, ...numbers } = this;
    return { ...numbers, seconds: Math.round(this.seconds * 1000) / 1000, error, backlog, skips };
  }

  get text(): string {
    const lines = this.dry_run
      ? [
          `would move ${this.planned_events} events of ${this.planned_trajectories} trajectories into ${this.planned_files} files`,
        ]
      : [
          `moved ${this.events} events of ${this.trajectories} trajectories into ${this.files} files in ${this.seconds.toFixed(1)} s`,
          `  ${bytesText(this.payload_bytes)} of payloads → ${bytesText(this.file_bytes)} of Parquet${ratio(this.payload_bytes, this.file_bytes)}, and ${this.blobs} new blobs of ${bytesText(this.blob_bytes)}`,
        ];
    if (this.end === 'stopped' && !this.dry_run)
      lines.push('  stopped before all was moved; run it again for the rest');
    if (this.held_partitions > 0) {
      lines.push(
        `  ${this.held_trajectories} trajectories wait in ${this.held_partitions} partitions that are too small for a file (compact.minFileBytes); --max-hold 0 moves them now`,
      );
    }
    if (this.repaired_marks > 0)
      lines.push(`  ${this.repaired_marks} marks of what is in cold were missing, and are there again`);
    if (this.settled_unproven > 0)
      lines.push(`  ${this.settled_unproven} events in quarantine were proven to be duplicates of events in cold`);
    if (this.found_forks > 0)
      lines.push(`  ${this.found_forks} events in quarantine are forks: cold has others under their numbers`);
    if (this.busy > 0) lines.push(`  ${this.busy} trajectories were busy or another compactor's`);
    if (this.overtaken > 0) lines.push(`  ${this.overtaken} trajectories had been moved by another compactor`);
    if (this.retries > 0) lines.push(`  ${this.retries} times something was tried again`);
    lines.push(...this.skips.slice(0, SHOWN_MAX).map(({ trajectory_id, why }) => `  SKIPPED ${trajectory_id}: ${why}`));
    if (this.skipped > SHOWN_MAX)
      lines.push(`  and ${this.skipped - SHOWN_MAX} more that were skipped (--json names them)`);
    return `${lines.join('\n')}\n`;
  }
}

function ratio(from: number, to: number): string {
  return to > 0 ? ` (${(from / to).toFixed(1)} to 1)` : '';
}
