/** All peers that work on this machine. One that does not is skipped aloud, and the others go on. */
import type { Contender } from '../support/contender.ts';
import { betterSqlite3 } from './better-sqlite3.ts';
import { classicLevel } from './classic-level.ts';
import { lmdb } from './lmdb.ts';
import { installPeers } from './peer-package.ts';

const LOADERS: Readonly<Record<string, () => Contender>> = {
  'better-sqlite3': betterSqlite3,
  lmdb,
  'classic-level': classicLevel,
};

export function loadPeers(say: (text: string) => void): Contender[] {
  const problem = installPeers(say);
  if (problem !== undefined) {
    say(`NO PEERS: ${problem}`);
    return [];
  }
  const peers: Contender[] = [];
  for (const [name, load] of Object.entries(LOADERS)) {
    try {
      peers.push(load());
    } catch (error) {
      say(`SKIPPED ${name}: ${error instanceof Error ? error.message.split('\n')[0] : String(error)}`);
    }
  }
  return peers;
}
