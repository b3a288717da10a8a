/**
 * Snapshots of the durable heads, so that opening a log does not read all of it.
 *
 *   heads-<LSN, 16 digits>   see `encodeHeads`
 *
 * A snapshot is a hint: it counts only if it is whole and the log has its hash at its LSN; otherwise the heads are
 * rebuilt from an older one or from the beginning. It is written only for an LSN that is durable, so one that is ahead
 * of the log's end proves that acknowledged records are gone.
 */
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { Batch } from './batch.ts';
import type { Tip } from './commit.ts';
import { readIfThere, removeFile, replaceFile } from './files.ts';
import { decodeHeads, encodeHeads, type Heads, type SnapshotPlace } from './heads.ts';

const NAME = /^heads-(\d{16})$/;

export type Snapshot = { readonly heads: Heads; readonly place: SnapshotPlace };

function nameOf(lsn: number): string {
  return `heads-${String(lsn).padStart(16, '0')}`;
}

/** LSNs of the snapshots in a directory, newest first. */
export async function listSnapshots(dir: string): Promise<number[]> {
  const lsns = (await readdir(dir)).flatMap((name) => {
    const match = NAME.exec(name);
    return match === null ? [] : [Number(match[1])];
  });
  return lsns.toSorted((a, b) => b - a);
}

/** undefined: gone, torn, or not what its name says. */
export async function readSnapshot(dir: string, lsn: number): Promise<Snapshot | undefined> {
  const content = await readIfThere(join(dir, nameOf(lsn)));
  const snapshot = content === undefined ? undefined : decodeHeads(content);
  return snapshot?.place.lsn === lsn ? snapshot : undefined;
}

async function saveSnapshot(dir: string, lsn: number, encoded: Buffer): Promise<void> {
  await replaceFile(join(dir, nameOf(lsn)), encoded, {
    beforeRename: 'hot.heads.before-rename',
    afterRename: 'hot.heads.after-rename',
  });
}

/**
 * Removes what no open will need: all behind the newest snapshot that lies at least `windowBytes` before the tip, since
 * a check starts there.
 */
async function pruneSnapshots(dir: string, saved: readonly Tip[], windowBytes: number): Promise<Tip[]> {
  const newest = saved[0];
  if (newest === undefined) return [];
  const last = saved.findIndex((place) => newest.bytes - place.bytes >= windowBytes);
  const kept = last < 0 ? [...saved] : saved.slice(0, last + 1);
  const keep = new Set(kept.map(({ lsn }) => lsn));
  for (const lsn of await listSnapshots(dir)) if (!keep.has(lsn)) await removeFile(join(dir, nameOf(lsn)));
  return kept;
}

/** Saves the heads now and then: encoded when they are exactly at a batch's end, written when that is durable. */
export class SnapshotKeeper {
  readonly #dir: string;
  readonly #heads: Heads;
  readonly #windowBytes: number;
  #saved: readonly Tip[];
  #due: { readonly place: Tip; readonly encoded: Buffer } | undefined;
  #saving: Promise<void> = Promise.resolve();
  #isSaving = false;
  #everyBytes: number;

  /** `saved`: places of the snapshots that are there and count, newest first. */
  constructor(dir: string, heads: Heads, windowBytes: number, saved: readonly Tip[]) {
    this.#dir = dir;
    this.#heads = heads;
    this.#windowBytes = windowBytes;
    this.#everyBytes = windowBytes / 4;
    this.#saved = saved;
  }

  onTaken(batch: Batch): void {
    if (this.#isSaving || batch.logBytes - (this.#saved[0]?.bytes ?? 0) < this.#everyBytes) return;
    const hash = Buffer.from(batch.lastHash, 'latin1').toString('hex');
    const place = { lsn: batch.lastLsn, hash, bytes: batch.logBytes };
    const encoded = encodeHeads(this.#heads, place);
    // Heads are few beside what is written between two snapshots: at most an eighth of it.
    this.#everyBytes = Math.max(this.#windowBytes / 4, encoded.length * 8);
    this.#due = { place, encoded };
    this.#isSaving = true;
  }

  onDurable(batch: Batch, onError: (error: unknown) => void): void {
    const due = this.#due;
    if (due === undefined || due.place.lsn !== batch.lastLsn) return;
    this.#due = undefined;
    this.#saving = this.#save(due.place, due.encoded)
      .catch(onError)
      .finally(() => {
        this.#isSaving = false;
      });
  }

  async close(durable: Tip): Promise<void> {
    await this.#saving;
    if (durable.lsn > 0 && durable.lsn !== this.#saved[0]?.lsn)
      await this.#save(durable, encodeHeads(this.#heads, durable));
  }

  async #save(place: Tip, encoded: Buffer): Promise<void> {
    await saveSnapshot(this.#dir, place.lsn, encoded);
    this.#saved = await pruneSnapshots(this.#dir, [place, ...this.#saved], this.#windowBytes);
  }
}
