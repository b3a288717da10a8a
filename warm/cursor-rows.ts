/** Rows of `cursors`: how far each hot log has been taken over, and by which opening of it. */
import { statement, type Tx } from './pool.ts';

export type LogIdentity = {
  readonly log_id: string;
  readonly epoch: string;
  readonly host: string;
  readonly directory: string;
};

export type WarmCursor = { readonly lsn: number /** Hex. */; readonly hash: string };

export const NO_CURSOR: WarmCursor = { lsn: 0, hash: '0'.repeat(64) };

const MAKE = statement(
  'cursors.make',
  `INSERT INTO cursors (log_id, lsn, hash, epoch, host, directory) VALUES ($1, 0, decode(repeat('00', 32), 'hex'), $2, $3, $4)
   ON CONFLICT (log_id) DO UPDATE SET epoch = excluded.epoch, host = excluded.host, directory = excluded.directory`,
);

const READ = statement<WarmCursor>(
  'cursors.read',
  `SELECT lsn, encode(hash, 'hex') AS hash FROM cursors WHERE log_id = $1`,
);

const NOW_MS = `floor(extract(epoch FROM varve_now()) * 1000)::bigint AS now_ms`;

const MOVE = statement(
  'cursors.move',
  `UPDATE cursors SET lsn = $4, hash = decode($5, 'hex'), durable_lsn = greatest(durable_lsn, $4, $6), updated_at = varve_now()
   WHERE log_id = $1 AND lsn = $2 AND hash = decode($3, 'hex')`,
);

/** Where a log is taken up again; names it where warm has not seen it yet. */
export async function openCursor(tx: Tx, log: LogIdentity): Promise<WarmCursor> {
  await tx.execute(MAKE, [log.log_id, log.epoch, log.host, log.directory]);
  return readCursor(tx, log.log_id);
}

export async function readCursor(tx: Tx, log_id: string): Promise<WarmCursor> {
  const [cursor] = await tx.query(READ, [log_id]);
  return cursor ?? NO_CURSOR;
}

/**
 * Moves the cursor where it still stands at `from`, and holds it until the transaction ends: of two sidecars on one log,
 * one waits, and then finds it moved.
 *
 * @param durableLsn how far the log itself has come, as its sidecar knows
 * @returns false: it does not stand there
 */
export async function moveCursor(
  tx: Tx,
  log_id: string,
  from: WarmCursor,
  to: WarmCursor,
  durableLsn: number,
): Promise<boolean> {
  return (await tx.execute(MOVE, [log_id, from.lsn, from.hash, to.lsn, to.hash, durableLsn])) === 1;
}

const NOW = statement<{ now_ms: number }>('cursors.now', `SELECT ${NOW_MS}`);

/** The database's clock, in milliseconds since the epoch. */
export async function databaseNow(tx: Tx): Promise<number> {
  const [row] = await tx.query(NOW);
  return row?.now_ms ?? Date.now();
}
