/**
 * The physical limit: the same bytes, written and synced with blocking calls, no database, no second thread.
 *
 * `rawOne` is one write and one fdatasync an event. `rawGrouped` is one gathered write and one fdatasync a group.
 */
import * as fs from 'node:fs';
import * as path from 'node:path';
import type { Contender } from '../support/contender.ts';
import { GroupCoordinator } from '../support/group-coordinator.ts';

function openLog(dir: string): number {
  fs.mkdirSync(dir);
  return fs.openSync(path.join(dir, 'log'), 'a');
}

export const rawOne: Contender = {
  name: 'raw write + fdatasync',
  async open(dir) {
    const fd = openLog(dir);
    return {
      append(_, { record }) {
        fs.writeSync(fd, record);
        fs.fdatasyncSync(fd);
        return Promise.resolve();
      },
      close: async () => fs.closeSync(fd),
    };
  },
};

export const rawGrouped: Contender = {
  name: 'raw writev + fdatasync',
  async open(dir) {
    const fd = openLog(dir);
    const group = new GroupCoordinator<Buffer>((records, done) => {
      fs.writevSync(fd, records);
      fs.fdatasyncSync(fd);
      // The loop must get its turn: what never returns to it could not serve anything.
      setImmediate(done);
    });
    return {
      append: (_, { record }) => group.append(record),
      barriers: () => group.barriers,
      close: async () => fs.closeSync(fd),
    };
  },
};
