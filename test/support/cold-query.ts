/** A small table with everything that is awkward, for queries. */
import { DuckDb } from '../../cold/duckdb.ts';
import type { ObjectStore } from '../../cold/object-store.ts';
import type { Run } from '../../cold/row-check.ts';
import type { JsonObject } from '../../schemas/canonical.ts';
import { chain, DAY_MS, GENESIS, idAt, PLACE, runOf } from './cold-rows.ts';
import { ColdTable } from './cold-table.ts';

export const DAY_AFTER_MS = DAY_MS + 24 * 3600 * 1000;

/** Texts that parsers of folders, CSV and JSON take for something else. */
export const AWKWARD = ['a/b', '..', '007', '4.10', 'NULL', 'ü 漢字 🦆', '%41', 'x'.repeat(256)] as const;

/** One event of a kind that no column knows. */
export function noted(n: number, payload: JsonObject, place = PLACE, startMs = DAY_MS): Run {
  return runOf(chain(idAt(n, startMs), [{ event_type: 'Noted', payload }]), GENESIS, place);
}

/** A whole session, with a reward. */
export function session(n: number, reward: number, place = PLACE, startMs = DAY_MS): Run {
  const drafts = [
    { event_type: 'TaskStarted', payload: { agent: 'a', model: 'm' } },
    { event_type: 'ModelReplied', payload: { content: 'x', usage: { input_tokens: 7, output_tokens: 3 } } },
    { event_type: 'TaskFinished', payload: { status: 'completed', outcome: { reward } } },
  ];
  return runOf(chain(idAt(n, startMs), drafts), GENESIS, place);
}

export async function makeTable(store: ObjectStore, directory: string): Promise<ColdTable & AsyncDisposable> {
  const duck = await DuckDb.open({ tempDir: `${directory}/writer` });
  const table = await ColdTable.create(store, duck, directory);
  return Object.assign(table, { [Symbol.asyncDispose]: () => duck.close() });
}
