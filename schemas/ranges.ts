/**
 * Which events a context shows, as ranges in the order of showing. Ranges hold events of all kinds; assembly shows the
 * messages among them (`schemas/context.ts`).
 *
 * A compaction puts its summary in the place of what it covers. Three things survive it by rule and not by the summary's
 * grace: calls that are still open (the fold lets it reach only up to their reply), the latest user message (the task
 * under way), and everything that it does not cover. A summary goes when a later one covers any of what it stands for.
 */

export type Range = { readonly from: number; readonly to: number; readonly trajectory_id?: string };

/** A summary that is shown, and the events for which it stands. */
export type Summarised = { readonly sequence_number: number; readonly from: number; readonly to: number };

export type Shown = {
  readonly ranges: readonly Range[];
  readonly summaries: readonly Summarised[];
  /** May the last range be prolonged, or lies something before the next event that must not be shown? */
  readonly prolongable: boolean;
  /** Sequence number of the latest user message; 0: none. */
  readonly latest_user: number;
};

export const NOTHING_SHOWN: Shown = { ranges: [], summaries: [], prolongable: false, latest_user: 0 };

/** Shows one more event, after all others. */
export function showEvent(shown: Shown, at: number, isUserMessage: boolean): Shown {
  const last = shown.ranges.at(-1);
  const ranges =
    shown.prolongable && last !== undefined
      ? [...shown.ranges.slice(0, -1), { ...last, to: at }]
      : [...shown.ranges, { from: at, to: at }];
  return { ...shown, ranges, prolongable: true, latest_user: isUserMessage ? at : shown.latest_user };
}

/**
 * Compaction by the event `at`, which covers `from` (undefined: all from the start, the inherited too) to `to`.
 *
 * @param hasSummary without one, what was covered is gone and nothing stands in its place
 */
export function compact(shown: Shown, at: number, from: number | undefined, to: number, hasSummary: boolean): Shown {
  const first = from ?? 0;
  const covered = (summary: Summarised) => summary.from <= to && summary.to >= first;
  const gone = shown.summaries.filter(covered);
  const holes = gone.map((summary) => ({ from: summary.sequence_number, to: summary.sequence_number }));
  holes.push({ from: first, to: Math.min(to, shown.latest_user - 1) });
  holes.push({ from: Math.max(first, shown.latest_user + 1), to });

  const ranges: Range[] = [];
  let place: number | undefined;
  for (const range of shown.ranges) {
    const pieces = range.trajectory_id === undefined ? withoutHoles(range, holes) : from === undefined ? [] : [range];
    const whole = pieces[0]?.from === range.from && pieces[0].to === range.to;
    // The summary stands where the first event is missing.
    if (!whole) place ??= ranges.length + (pieces[0]?.from === range.from ? 1 : 0);
    ranges.push(...pieces);
  }
  const summaries = shown.summaries.filter((summary) => !covered(summary));
  if (hasSummary) {
    ranges.splice(place ?? ranges.length, 0, { from: at, to: at });
    const all = [{ from: first, to }, ...gone];
    const start = Math.min(...all.map((summary) => summary.from));
    const end = Math.max(...all.map((summary) => summary.to));
    summaries.push({ sequence_number: at, from: start, to: end });
  }
  return { ...shown, ranges, summaries, prolongable: ranges.at(-1)?.to === at };
}

function withoutHoles(range: Range, holes: readonly Range[]): Range[] {
  let pieces = [range];
  for (const hole of holes) {
    pieces = pieces.flatMap((piece) => {
      if (hole.from > hole.to || hole.to < piece.from || hole.from > piece.to) return [piece];
      const before = { from: piece.from, to: hole.from - 1 };
      const after = { from: hole.to + 1, to: piece.to };
      return [before, after].filter((rest) => rest.from <= rest.to);
    });
  }
  return pieces;
}

/** Takes back everything of this trajectory after `target`; the next event starts a range of its own. */
export function clip(shown: Shown, target: number): Shown {
  const ranges: Range[] = [];
  for (const range of shown.ranges) {
    if (range.trajectory_id !== undefined || range.to <= target) ranges.push(range);
    else if (range.from <= target) ranges.push({ ...range, to: target });
  }
  return { ...shown, ranges, prolongable: false };
}
