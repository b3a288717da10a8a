/** What a benchmark says about numbers: medians and percentiles of samples, and ratios round by round. */

/** One figure for each round, in the order of the rounds. */
export type Series = readonly number[];

/** NaN for no samples. */
export function median(values: Series): number {
  return percentile(values, 0.5);
}

/** @param share from 0 to 1; 0.99 is the 99th percentile, by the nearest rank. */
export function percentile(values: Series, share: number): number {
  if (values.length === 0) return Number.NaN;
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] as number;
}

/**
 * Ratio of two series, round by round. Contenders of one round ran within seconds of each other, so what the disk or
 * another process did in the meantime meets both and cancels out; a ratio of two medians would keep it.
 */
export function ratios(above: Series, below: Series): Series {
  return above.map((value, round) => value / (below[round] as number));
}

/** The smallest of several series in each round. */
export function smallest(series: readonly Series[]): Series {
  return (series[0] ?? []).map((_, round) => Math.min(...series.map((one) => one[round] as number)));
}
