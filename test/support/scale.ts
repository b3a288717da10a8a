/**
 * How much a fault test does. `npm test` takes modest counts, so that all of them together stay under three minutes on
 * two cores; `FAULT_SCALE=soak` takes the large ones; `FAULT_RUNS=<n>` sets the main count of the test that is run:
 *
 *   FAULT_RUNS=200 npm run test:soak -- kill      two hundred kills and a line that sums them up
 */

const scale = process.env['FAULT_SCALE'] ?? 'modest';
if (scale !== 'modest' && scale !== 'soak') throw new Error(`FAULT_SCALE=${scale} is neither modest nor soak`);

export const SOAK: boolean = scale === 'soak';

/** Is every case taken, not a sample? */
export function modestOrSoak<T>(modest: T, soak: T): T {
  return SOAK ? soak : modest;
}

/** The main count of a test; the environment may set it. */
export function runs(modest: number, soak: number): number {
  const text = process.env['FAULT_RUNS'];
  if (text === undefined || text === '') return modestOrSoak(modest, soak);
  if (!/^[1-9]\d{0,5}$/.test(text)) throw new Error(`FAULT_RUNS=${text} is not a count`);
  return Number(text);
}

/** At most `atMost` of the cases, evenly spread, the first and the last among them; all of them in a soak. */
export function sample<T>(cases: readonly T[], atMost: number): T[] {
  if (SOAK || cases.length <= atMost) return [...cases];
  const step = (cases.length - 1) / (atMost - 1);
  return Array.from({ length: atMost }, (_, i) => cases[Math.round(i * step)] as T);
}

/** One line of counts that `test/soak.ts` adds up: `[fault] kills=12 acknowledged=40321`. */
export function summarize(counts: Readonly<Record<string, number>>): void {
  const pairs = Object.entries(counts).map(([name, count]) => `${name}=${count}`);
  console.log(`    [fault] ${pairs.join(' ')}`);
}
