/**
 * How far a long command has come, on standard error: one line that is written over on a terminal, and elsewhere a plain
 * line now and then, so that a log of it stays short. Standard output is for the answer alone.
 */
const TERMINAL_EVERY_MS = 100;
const PLAIN_EVERY_MS = 10_000;

export class Progress {
  readonly #isTerminal = process.stderr.isTTY;
  #shownAt = performance.now();
  #isShown = false;

  /** Says where the command stands, unless it just did. */
  at(text: () => string): void {
    const now = performance.now();
    if (now - this.#shownAt < (this.#isTerminal ? TERMINAL_EVERY_MS : PLAIN_EVERY_MS)) return;
    this.#shownAt = now;
    this.#isShown = true;
    process.stderr.write(this.#isTerminal ? `\r\u001b[K${text()}` : `${text()}\n`);
  }

  /** Takes the line away from the terminal. */
  end(): void {
    if (this.#isTerminal && this.#isShown) process.stderr.write('\r\u001b[K');
    this.#isShown = false;
  }
}
