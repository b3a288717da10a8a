/**
 * lmdb as its documentation advises: plain `put`s, all of one turn of the loop gathered into one transaction on its own
 * thread, binary keys and values. Without `overlappingSync` a promise resolves after the fdatasync (seen with strace);
 * with it, and `flushed` awaited, the same load was 5 to 10 % slower. It needs no coordinator, and so it is spared the
 * index block that the others write per batch.
 */
import type { Contender } from '../support/contender.ts';
import { PeerEncoder } from '../support/peer-encoder.ts';
import { loadPeer } from './peer-package.ts';

type Database = { put(key: Buffer, value: Buffer): Promise<boolean>; close(): Promise<void> };
type Lmdb = { open(options: object): Database };

const OPTIONS = {
  keyEncoding: 'binary',
  encoding: 'binary',
  compression: false,
  overlappingSync: false,
  mapSize: 8 * 2 ** 30,
};

export function lmdb(): Contender {
  const lmdbPackage = loadPeer('lmdb') as Lmdb;
  return {
    name: 'lmdb',
    async open(dir) {
      const db = lmdbPackage.open({ path: dir, ...OPTIONS });
      const encoder = new PeerEncoder();
      return {
        append(trajectory, sample) {
          const { key, value } = encoder.encode(trajectory, sample);
          return db.put(key, value);
        },
        close: () => db.close(),
      };
    },
  };
}
