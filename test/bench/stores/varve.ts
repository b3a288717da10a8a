/** varve itself, as its documentation shows it, with its defaults. */
import { HotLog } from '../../../hot/log.ts';
import type { Contender } from '../support/contender.ts';

export const varve: Contender = {
  name: 'varve',
  async open(dir) {
    const log = await HotLog.open(dir);
    return {
      append: (trajectory, { event }) => log.append(trajectory, event),
      barriers: () => log.stages.flushes,
      close: () => log.close(),
    };
  },
};
