/**
 * The binding alone: a coordinator over the public `batch(array, { sync: true })` of the same RocksDB, opened with the
 * same options, fed with bytes that are ready. What varve adds to this is its own work: checking, encoding, hashing,
 * indexing, serving the tail.
 */
import { createRequire } from 'node:module';
import { MIB } from '../../../schemas/limits.ts';
import type { Contender } from '../support/contender.ts';
import { GroupCoordinator } from '../support/group-coordinator.ts';
import { eventKey } from '../support/peer-encoder.ts';

type Put = { readonly type: 'put'; readonly key: Buffer; readonly value: Buffer };
type Done = (error?: Error | null) => void;
type Database = {
  open(options: object, done: Done): void;
  batch(operations: readonly Put[], options: { readonly sync: boolean }, done: Done): void;
  close(done: Done): void;
};

const openDatabase = createRequire(import.meta.url)('rocksdb') as (location: string) => Database;

/** As `hot/rocks.ts` opens it. */
const OPTIONS = { writeBufferSize: 16 * MIB, compression: false, infoLogLevel: null };

export const bare: Contender = {
  name: 'bare batch(sync)',
  async open(dir) {
    const db = openDatabase(dir);
    await called((done) => db.open(OPTIONS, done));
    let lsn = 0;
    const group = new GroupCoordinator<Put>((puts, done) => db.batch(puts, { sync: true }, done));
    return {
      append: (_, { record }) => group.append({ type: 'put', key: eventKey(++lsn), value: record }),
      barriers: () => group.barriers,
      close: () => called((done) => db.close(done)),
    };
  },
};

function called(call: (done: Done) => void): Promise<void> {
  return new Promise((resolve, reject) => {
    call((error) => (error ? reject(error) : resolve()));
  });
}
