/** What every measurement is given and what it must be able to say about itself. */

import type { Contender } from './contender.ts';
import type { Report } from './report.ts';

/** How much is measured, and on what. */
export type Plan = {
  readonly rounds: number;
  /** Smaller and shorter, for a first look: about two minutes in all. Its figures are not for quoting. */
  readonly quick: boolean;
  /** An empty directory on the disk that is measured; whoever made it removes it. */
  readonly dir: string;
  /** Databases that could be installed here. */
  readonly peers: readonly Contender[];
  /** A line about progress. */
  readonly say: (text: string) => void;
};

export type Measurement = {
  /** As on the command line. */
  readonly name: string;
  readonly title: string;
  run(plan: Plan): Promise<Report>;
};
