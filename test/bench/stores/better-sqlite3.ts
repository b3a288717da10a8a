/**
 * better-sqlite3 as its documentation advises: `journal_mode = WAL`, prepared statements, and many inserts in one
 * transaction. `synchronous = FULL`, because WAL with its default NORMAL syncs at checkpoints only.
 */
import * as fs from 'node:fs';
import * as path from 'node:path';
import type { Contender } from '../support/contender.ts';
import { GroupCoordinator } from '../support/group-coordinator.ts';
import { type EncodedEvent, indexBlock, PeerEncoder } from '../support/peer-encoder.ts';
import { loadPeer } from './peer-package.ts';

type Statement = { run(...values: unknown[]): unknown };
type Database = {
  pragma(text: string): unknown;
  exec(text: string): void;
  prepare(text: string): Statement;
  close(): void;
};

export function betterSqlite3(): Contender {
  const Database = loadPeer('better-sqlite3') as new (file: string) => Database;
  return {
    name: 'better-sqlite3',
    async open(dir) {
      fs.mkdirSync(dir);
      const db = new Database(path.join(dir, 'events.db'));
      db.pragma('journal_mode = WAL');
      db.pragma('synchronous = FULL');
      db.exec('create table events (lsn integer primary key, value blob)');
      db.exec('create table batches (lsn integer primary key, value blob)');
      const encoder = new PeerEncoder();
      const group = new GroupCoordinator<EncodedEvent>(committer(db));
      return {
        append: (trajectory, sample) => group.append(encoder.encode(trajectory, sample)),
        barriers: () => group.barriers,
        close: async () => db.close(),
      };
    },
  };
}

function committer(db: Database) {
  const begin = db.prepare('begin immediate');
  const commit = db.prepare('commit');
  const insertEvent = db.prepare('insert into events values (?, ?)');
  const insertBatch = db.prepare('insert into batches values (?, ?)');
  return (events: readonly EncodedEvent[], done: () => void): void => {
    begin.run();
    for (const event of events) insertEvent.run(event.lsn, event.value);
    insertBatch.run((events[events.length - 1] as EncodedEvent).lsn, indexBlock(events).value);
    commit.run();
    // It blocks the loop; without this the loop would never get its turn.
    setImmediate(done);
  };
}
