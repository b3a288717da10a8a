/**
 * Text as agents and their tools write it: real trajectories of public agents where they lie beside the checkout, else
 * this project's own sources and documents. What it is made of is said with the result.
 */
import * as fs from 'node:fs';
import * as path from 'node:path';

const ROOT = path.join(import.meta.dirname, '..', '..', '..');
const BESIDE = path.join(ROOT, '..', 'shared', 'data');
const BYTES_MAX = 32_000_000;
const OWN = ['README.md', 'schemas', 'hot', 'warm', 'cold', 'pipelines', 'test'];

export class AgentText {
  readonly source: string;
  readonly #text: string;
  #at = 0;

  private constructor(source: string, text: string) {
    this.source = source;
    this.#text = text;
  }

  static load(): AgentText {
    const isBeside = fs.existsSync(BESIDE);
    const files = isBeside ? filesBelow(BESIDE) : OWN.flatMap((name) => filesBelow(path.join(ROOT, name)));
    let text = '';
    for (const file of files) {
      if (!/\.(jsonl?|traj|md|ts|sql|txt)$/.test(file)) continue;
      text += fs.readFileSync(file, 'utf8');
      if (text.length > BYTES_MAX) break;
    }
    // U+0000 is rare in such text, and would move every event that has it to another column of warm.
    const source = isBeside ? 'trajectories of public agents' : 'the sources of this project';
    return new AgentText(`${(text.length / 1e6).toFixed(1)} MB of ${source}`, text.replaceAll('\0', ' '));
  }

  get length(): number {
    return this.#text.length;
  }

  /** The next so many characters; from the beginning again where it ends. */
  take(characters: number): string {
    if (this.#at + characters > this.#text.length) this.#at = 0;
    const piece = this.#text.slice(this.#at, this.#at + characters).toWellFormed();
    this.#at += characters;
    return piece;
  }
}

function filesBelow(name: string): string[] {
  if (fs.statSync(name).isFile()) return [name];
  return fs
    .readdirSync(name, { withFileTypes: true })
    .filter((entry) => entry.name !== 'node_modules' && entry.name !== 'results' && entry.name !== 'fixtures')
    .toSorted((a, b) => (a.name < b.name ? -1 : 1))
    .flatMap((entry) => filesBelow(path.join(name, entry.name)));
}
