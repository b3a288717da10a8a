/**
 * A bounded queue between a log's tail and the database: what arrives while a transaction runs goes into the next one.
 *
 * Whoever adds waits for `room` before reading on, so the tail's socket is read no faster than the database takes. What
 * was read may always enter, however large.
 */
import type { TailItem } from '../hot/read-check.ts';

/** Items that were taken together. */
export type Taken = {
  readonly items: readonly TailItem[];
  readonly bytes: number;
  /** When the oldest of them came, in milliseconds of `performance.now()`. */
  readonly atMs: number;
};

/** Of an item beside its payload, in bytes: envelope, hashes, objects. */
const ITEM_BYTES = 512;

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

  get isEnded(): boolean {
    return this.#ended !== undefined;
  }

  get hasRoom(): boolean {
    return this.#bytes <= this.#bytesMax;
  }

  add(items: readonly TailItem[]): void {
    const atMs = performance.now();
    for (const item of items) {
      const bytes = item.kind === 'event' ? item.event.payload_bytes.length + ITEM_BYTES : ITEM_BYTES;
      this.#items.push({ item, bytes, atMs });
      this.#bytes += bytes;
    }
    this.#notify();
  }

  /** Resolves when there is room, or the queue has ended. */
  async room(): Promise<void> {
    while (!this.hasRoom && !this.isEnded) await this.changed();
  }

  /** Nothing more comes. With an error, `take` throws it once everything was taken. */
  end(error?: unknown): void {
    this.#ended ??= { error };
    this.#notify();
  }

  /** The next items, as many as fit; undefined when nothing more comes. Waits for the first one. */
  async take(countMax: number, bytesMax: number): Promise<Taken | undefined> {
    while (this.#items.length === 0) {
      if (this.#ended !== undefined) {
        if (this.#ended.error !== undefined) throw this.#ended.error;
        return undefined;
      }
      await this.changed();
    }
    let count = 0;
    let bytes = 0;
    for (const entry of this.#items) {
      if (count === countMax || (count > 0 && bytes + entry.bytes > bytesMax)) break;
      count += 1;
      bytes += entry.bytes;
    }
    this.#bytes -= bytes;
    const atMs = this.#items[0]?.atMs ?? performance.now();
    const items = this.#items.splice(0, count).map(({ item }) => item);
    this.#notify();
    return { items, bytes, atMs };
  }

  /** Resolves at the next change: something was added or taken, or the queue has ended. */
  changed(): Promise<void> {
    return new Promise((resolve) => this.#wake.push(resolve));
  }

  #notify(): void {
    const waiting = this.#wake;
    this.#wake = [];
    for (const resolve of waiting) resolve();
  }
}
