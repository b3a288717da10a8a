/**
 * The physical limit: the same bytes, written and synced with no database.
 *
 * `rawOne` is one write and one fdatasync an event, `rawGrouped` one gathered write and one fdatasync a group; both block,
 * so no second thread is woken. `rawAwaited` is `rawOne` as a server must do it, on libuv's pool: what it takes longer
 * is the price of not blocking, which every asynchronous store pays.
 */
import * as fs from 'node:fs';
import * as path from 'node:path';
import { promisify } from 'node:util';
import type { Contender } from '../support/contender.ts';
import { GroupCoordinator } from '../support/group-coordinator.ts';

const write = promisify(fs.write);
const fdatasync = promisify(fs.fdatasync);

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

export const rawAwaited: Contender = {
  name: 'raw, awaited',
  async open(dir) {
    const fd = openLog(dir);
    return {
      async append(_, { record }) {
        await write(fd, record);
        await fdatasync(fd);
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
