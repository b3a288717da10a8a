/**
 * classic-level as its documentation advises: a chained batch, `sync: true`, Buffers for keys and values. Its write
 * buffer is as large as varve's and compression is off, as varve's is.
 */
import { MIB } from '../../../schemas/limits.ts';
import type { Contender } from '../support/contender.ts';
import { GroupCoordinator } from '../support/group-coordinator.ts';
import { type EncodedEvent, indexBlock, PeerEncoder } from '../support/peer-encoder.ts';
import { loadPeer } from './peer-package.ts';

type ChainedBatch = { put(key: Buffer, value: Buffer): ChainedBatch; write(options: object): Promise<void> };
type Level = { open(): Promise<void>; close(): Promise<void>; batch(): ChainedBatch };
type ClassicLevelPackage = { ClassicLevel: new (location: string, options: object) => Level };

export function classicLevel(): Contender {
  const { ClassicLevel } = loadPeer('classic-level') as ClassicLevelPackage;
  return {
    name: 'classic-level',
    async open(dir) {
      const encodings = { keyEncoding: 'buffer', valueEncoding: 'buffer' };
      const db = new ClassicLevel(dir, { ...encodings, compression: false, writeBufferSize: 16 * MIB });
      await db.open();
      const encoder = new PeerEncoder();
      const group = new GroupCoordinator<EncodedEvent>((events, settle) => {
        const batch = db.batch();
        for (const event of events) batch.put(event.key, event.value);
        const { key, value } = indexBlock(events);
        batch.put(key, value);
        batch.write({ sync: true }).then(() => settle(), settle);
      });
      return {
        append: (trajectory, sample) => group.append(encoder.encode(trajectory, sample)),
        barriers: () => group.barriers,
        close: () => db.close(),
      };
    },
  };
}
