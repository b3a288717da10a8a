/**
 * A bounded queue between a log's tail and the database: what arrives while a transaction runs goes into the next one.
 *
 * `push` resolves when there is room for more, so the tail's socket is read no faster than the database takes. One
 * item may always enter, however large.
 */
import type { TailItem } from '../hot/read-check.ts';

export class RecordQueue {
  readonly #bytesMax: number;
  readonly #items: { readonly item: TailItem; readonly bytes: number; readonly atMs: number }[] = [];
  #bytes = 0;
  #wake: (() => void)[] = [];
  #ended: { readonly error: unknown } | undefined;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  get length(): number {
    return this.#items.length;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** When the oldest item came, in milliseconds of `performance.now()`; undefined where there is none. */
  get oldestAtMs(): number | undefined {
    return this.#items[0]?.atMs;
  }

  async push(items: readonly TailItem[]): Promise<void> {
    const atMs = performance.now();
    for (const item of items) {
      const bytes = item.kind === 'event' ? item.event.payload_bytes.length + 512 : 512;
      this.#items.push({ item, bytes, atMs });
      this.#bytes += bytes;
    }
    this.#notify();
    while (this.#bytes > this.#bytesMax && this.#ended === undefined) await this.#changed();
  }

  /** Nothing more comes. With an error, `take` throws it once everything was taken. */
  end(error?: unknown): void {
    this.#ended ??= { error };
    this.#notify();
  }

  /** The next items, as many as fit; empty when nothing more comes. Waits for the first one. */
  async take(countMax: number, bytesMax: number): Promise<TailItem[]> {
    while (this.#items.length === 0) {
      if (this.#ended !== undefined) {
        if (this.#ended.error !== undefined) throw this.#ended.error;
        return [];
      }
      await this.#changed();
    }
    let count = 0;
    let bytes = 0;
    for (const entry of this.#items) {
      if (count === countMax || (count > 0 && bytes + entry.bytes > bytesMax)) break;
      count += 1;
      bytes += entry.bytes;
    }
    this.#bytes -= bytes;
    const taken = this.#items.splice(0, count).map(({ item }) => item);
    this.#notify();
    return taken;
  }

  #changed(): Promise<void> {
    return new Promise((resolve) => this.#wake.push(resolve));
  }

  #notify(): void {
    const waiting = this.#wake;
    this.#wake = [];
    for (const resolve of waiting) resolve();
  }
}
