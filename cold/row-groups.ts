/**
 * How many rows a row group may have so that its payloads stay within bounds: DuckDB counts rows, memory counts bytes.
 *
 * Of some sizes, the largest whose every run of so many rows, counted from the first row on, has at most
 * ROW_GROUP_BYTES of payloads. A file of small rows with a large one here and there has large groups, which compress
 * well; one with many large rows in a row has small ones. Where DuckDB's own boundaries lie otherwise, a group has twice
 * as much at most, and a block more. A function of the rows alone, so that the same rows give the same file. Pure.
 */
import { MIB } from '../schemas/limits.ts';

/**
 * Whoever writes a row group holds it, and whoever reads one row of it: with twice as many bytes, restoring 500 MB takes
 * 100 MB more (allocators keep what large pages took).
 */
const ROW_GROUP_BYTES = 8 * MIB;
/** Larger ones save half a percent, and make the lookup of one trajectory seven times slower. */
const ROW_GROUP_MAX = 10_240;
const ROW_GROUP_MIN = 8;

const SIZES: readonly number[] = [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, ROW_GROUP_MAX];

export class RowGroupSizer {
  readonly #sums: number[] = SIZES.map(() => 0);
  readonly #largest: number[] = SIZES.map(() => 0);
  #rows = 0;

  /** `bytes` of the next row's payload. */
  add(bytes: number): void {
    this.#rows += 1;
    for (let i = 0; i < SIZES.length; i++) {
      const sum = (this.#sums[i] as number) + bytes;
      if (sum > (this.#largest[i] as number)) this.#largest[i] = sum;
      this.#sums[i] = this.#rows % (SIZES[i] as number) === 0 ? 0 : sum;
    }
  }

  get size(): number {
    const at = this.#largest.findLastIndex((bytes) => bytes <= ROW_GROUP_BYTES);
    return SIZES[at] ?? ROW_GROUP_MIN;
  }
}
