/**
 * Which parts of trajectories hot logs hold, found by reading each log once, and the events of such a part.
 *
 * A log may hold several runs of one trajectory: it adopts one at an anchor, goes on from there, and what it had behind
 * the anchor is no part of the trajectory any more. A log that cannot be read, or only up to its damage, keeps nobody
 * from the others: it is among the troubles.
 */

import type { Cursor } from '../hot/tail-protocol.ts';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import type { ProvenEvent } from '../schemas/event.ts';
import type { TrajectoryId } from '../schemas/ids.ts';
import { readLog } from './read-hot.ts';

export type HotPart = {
  readonly directory: string;
  readonly first: number;
  readonly last: number;
  /** Hash of the last one. */
  readonly head_hash: string;
  /** Where the log took the trajectory up again behind fewer events than it had. */
  readonly cuts: readonly { readonly lsn: bigint; readonly sequence_number: number }[];
  /** The log was looked through behind this record only. */
  readonly after: Cursor | undefined;
};

export type HotParts = {
  readonly of: (id: TrajectoryId) => readonly HotPart[];
  readonly ids: readonly TrajectoryId[];
  readonly troubles: readonly { readonly directory: string; readonly error: VarveError }[];
};

type Growing = { -readonly [K in keyof HotPart]: HotPart[K] };

/**
 * @param after where a log may be taken up, because the caller needs nothing before it
 * @throws VarveError ABORTED
 */
export async function lookInHot(
  directories: readonly string[],
  isWanted: (id: TrajectoryId) => boolean,
  signal: AbortSignal,
  after: ReadonlyMap<string, Cursor> = new Map(),
): Promise<HotParts> {
  const found = new Map<TrajectoryId, HotPart[]>();
  const troubles: { directory: string; error: VarveError }[] = [];
  for (const directory of directories) {
    const from = after.get(directory);
    const parts = new Map<TrajectoryId, Growing>();
    try {
      for await (const item of readLog(directory, signal, from)) {
        if (item.kind === 'event') {
          const { trajectory_id, sequence_number, cryptographic_hash } = item.event;
          if (!isWanted(trajectory_id)) continue;
          const part = parts.get(trajectory_id);
          if (part === undefined) {
            const only = { first: sequence_number, last: sequence_number, head_hash: cryptographic_hash };
            parts.set(trajectory_id, { directory, ...only, cuts: [], after: from });
          } else {
            part.last = sequence_number;
            part.head_hash = cryptographic_hash;
          }
        } else if (item.kind === 'anchor') {
          const { trajectory_id, sequence_number, cryptographic_hash } = item.position;
          const part = parts.get(trajectory_id);
          if (part === undefined || part.last <= sequence_number) continue;
          part.cuts = [...part.cuts, { lsn: item.lsn, sequence_number }];
          part.last = sequence_number;
          part.head_hash = cryptographic_hash;
        }
      }
    } catch (error) {
      if (!isVarveError(error) || error.code === 'ABORTED') throw error;
      troubles.push({ directory, error });
    }
    for (const [id, part] of parts) {
      if (part.last >= part.first) found.set(id, [...(found.get(id) ?? []), part]);
    }
  }
  return { of: (id) => found.get(id) ?? [], ids: [...found.keys()], troubles };
}

/** Events of a part from a number on, in order. @throws VarveError as `readLog` */
export async function* readPart(
  part: HotPart,
  id: TrajectoryId,
  from: number,
  signal: AbortSignal,
): AsyncGenerator<ProvenEvent> {
  for await (const item of readLog(part.directory, signal, part.after)) {
    if (item.kind !== 'event' || item.event.trajectory_id !== id || item.event.sequence_number < from) continue;
    const { lsn, event } = item;
    if (part.cuts.some((cut) => cut.lsn > lsn && cut.sequence_number < event.sequence_number)) continue;
    yield event;
  }
}
