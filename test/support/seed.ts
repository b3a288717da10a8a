/**
 * Repeatable chance. One number, `SEED`, decides everything random of a run; it is printed, and `SEED=<number>` repeats
 * the decisions (not the timing: a kill still lands where the machine is at that moment).
 */
import { hash } from 'node:crypto';

/** The seed of this process. 32 bits, so that it is short to type. */
export const SEED: number = parseSeed(process.env['SEED']);

/** mulberry32: 32 bits of state, good enough to choose moments and sizes, and the same on every machine. */
export class Random {
  #state: number;

  constructor(seed: number) {
    this.#state = seed >>> 0;
  }

  /** From 0 up to, not including, 1. */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let t = this.#state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 0x1_0000_0000;
  }

  /** A whole number from `low` to `high`, both included. */
  between(low: number, high: number): number {
    return low + Math.floor(this.next() * (high - low + 1));
  }

  pick<T>(from: readonly T[]): T {
    if (from.length === 0) throw new Error('nothing to pick from');
    return from[this.between(0, from.length - 1)] as T;
  }
}

/** The chance of one test: independent of which other tests ran. Prints how to repeat it. */
export function seededRandom(label: string): Random {
  console.log(`    ${label}: SEED=${SEED}`);
  return new Random(seedFor(label));
}

export function seedFor(label: string): number {
  return hash('sha256', `${SEED}/${label}`, 'buffer').readUInt32BE(0);
}

function parseSeed(text: string | undefined): number {
  if (text === undefined || text === '') return Math.floor(Math.random() * 0x1_0000_0000);
  if (!/^\d{1,10}$/.test(text)) throw new Error(`SEED=${text} is not a number of 32 bits`);
  return Number(text) >>> 0;
}
