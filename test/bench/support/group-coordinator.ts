/**
 * The least that group commit needs, for every contender that has none of its own: one commit in flight, and the next
 * takes what arrived meanwhile. A commit begins on the next tick when nothing is in flight, and at once when one ends.
 *
 * There is no failure handling: an error of a benchmark's commit ends the benchmark.
 */
export type Commit<Item> = (items: readonly Item[], done: (error?: unknown) => void) => void;

export class GroupCoordinator<Item> {
  readonly #commit: Commit<Item>;
  #items: Item[] = [];
  #releases: (() => void)[] = [];
  #inFlight = false;
  #scheduled = false;
  #barriers = 0;

  constructor(commit: Commit<Item>) {
    this.#commit = commit;
  }

  get barriers(): number {
    return this.#barriers;
  }

  /** Resolves when the commit that took the item is done. */
  append(item: Item): Promise<void> {
    this.#items.push(item);
    if (!this.#inFlight && !this.#scheduled) {
      this.#scheduled = true;
      process.nextTick(this.#tick);
    }
    return new Promise((resolve) => {
      this.#releases.push(resolve);
    });
  }

  readonly #tick = (): void => {
    this.#scheduled = false;
    this.#flush();
  };

  #flush(): void {
    if (this.#inFlight || this.#items.length === 0) return;
    const items = this.#items;
    const releases = this.#releases;
    this.#items = [];
    this.#releases = [];
    this.#inFlight = true;
    this.#barriers++;
    this.#commit(items, (error) => {
      if (error) throw error;
      this.#inFlight = false;
      this.#flush();
      for (const release of releases) release();
    });
  }
}
