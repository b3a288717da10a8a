/**
 * Reads a hot log without holding it up: through its writer's tail where one is alive, else from its files, which are
 * opened for reading alone. What is handed out is verified; damage ends it with HOT_DAMAGED, behind all that is whole.
 */
import { readPrefix } from '../hot/drain.ts';
import type { TailItem } from '../hot/read-check.ts';
import type { StoredEvent } from '../hot/record.ts';
import type { Cursor } from '../hot/tail-protocol.ts';
import { TailReader } from '../hot/tail-reader.ts';
import { isVarveError, VarveError } from '../schemas/errors.ts';

/**
 * Everything that the log holds durably when the reading begins, in the order of its LSNs.
 *
 * @param after a record behind which the caller needs nothing; what it saves is up to the log's state
 */
export async function* readLog(directory: string, signal: AbortSignal, after?: Cursor): AsyncGenerator<TailItem> {
  let reader: TailReader;
  try {
    reader = await connect(directory, after);
  } catch (error) {
    if (!isVarveError(error, 'TAIL_NO_WRITER')) throw error;
    yield* readFiles(directory, signal);
    return;
  }
  const end = reader.durableLsn;
  try {
    for await (const { records, cursor } of end <= reader.cursor.lsn ? [] : reader) {
      if (signal.aborted) throw new VarveError('ABORTED', 'reading was aborted');
      yield* records;
      if (cursor.lsn >= end) return;
    }
  } finally {
    await reader.close();
  }
}

async function connect(directory: string, after: Cursor | undefined): Promise<TailReader> {
  if (after !== undefined) {
    try {
      return await TailReader.connect(directory, { cursor: after });
    } catch (error) {
      // A log that went back in time knows the record no more: it is read whole.
      if (!isVarveError(error, 'TAIL_CURSOR_UNKNOWN') && !isVarveError(error, 'TAIL_CURSOR_AHEAD')) throw error;
    }
  }
  return await TailReader.connect(directory);
}

async function* readFiles(directory: string, signal: AbortSignal): AsyncGenerator<TailItem> {
  const batches = readPrefix(directory);
  try {
    for (;;) {
      const next = await batches.next();
      if (signal.aborted) throw new VarveError('ABORTED', 'reading was aborted');
      if (next.done !== true) {
        yield* next.value.records;
        continue;
      }
      const damage = next.value;
      if (damage === undefined) return;
      const message = `${directory} is damaged at LSN ${damage.lsn}: ${damage.reason}; see varve doctor --hot ${directory}`;
      throw new VarveError('HOT_DAMAGED', message, { directory, ...damage });
    }
  } finally {
    await batches.return(undefined);
  }
}

/** Only the events. */
export async function* readEvents(directory: string, signal: AbortSignal): AsyncGenerator<StoredEvent> {
  for await (const item of readLog(directory, signal)) if (item.kind === 'event') yield item.event;
}
