/**
 * Configuration of property tests. `SEED` repeats a run (fast-check prints the seed and the path of a failure);
 * `FC_RUNS` multiplies the number of runs, for soaking.
 */
import * as fc from 'fast-check';

const seed = process.env['SEED'];
const factor = Number(process.env['FC_RUNS'] ?? '1');

/** `runs` times, unless FC_RUNS says how many times more. */
export function runs(runs: number): fc.Parameters<unknown> {
  const numRuns = Math.max(1, Math.round(runs * factor));
  return seed === undefined ? { numRuns } : { numRuns, seed: Number(seed) };
}
