/** Which of these rows does PostgreSQL refuse? Found by halving, in transactions that are all rolled back. */
import { isVarveError } from '../schemas/errors.ts';
import { eventColumns, insertEvents } from './event-rows.ts';
import type { WarmEvent } from './ingest-plan.ts';
import type { Refusal } from './place.ts';
import { transaction, type WarmPool } from './pool.ts';

/** An empty map where each of them is taken by itself. */
export async function findRefused(pool: WarmPool, events: readonly WarmEvent[]): Promise<Map<WarmEvent, Refusal>> {
  const refused = new Map<WarmEvent, Refusal>();
  const search = async (part: readonly WarmEvent[]): Promise<void> => {
    const sqlstate = part.length === 0 ? undefined : await tryInsert(pool, part);
    if (sqlstate === undefined) return;
    const [only] = part;
    if (part.length === 1 && only !== undefined) {
      refused.set(only, { detail: `PostgreSQL refused it (SQLSTATE ${sqlstate})`, sqlstate });
      return;
    }
    const middle = part.length >> 1;
    await search(part.slice(0, middle));
    await search(part.slice(middle));
  };
  await search(events);
  return refused;
}

class RolledBack extends Error {}

/** SQLSTATE with which PostgreSQL refuses these rows, undefined where it takes them. Nothing stays. */
async function tryInsert(pool: WarmPool, events: readonly WarmEvent[]): Promise<string | undefined> {
  try {
    await transaction(pool, async (tx) => {
      await insertEvents(tx, eventColumns(events));
      throw new RolledBack();
    });
  } catch (error) {
    if (isVarveError(error, 'WARM_REFUSED_DATA')) return String(error.details['sqlstate']);
    if (!(error instanceof RolledBack)) throw error;
  }
  return undefined;
}
