/**
 * A look at the table files of a database that was opened read-only, before anything is read from them.
 *
 * Where one is missing or cut short, a read fails in a way that the binding does not survive: it can neither end the
 * iterator nor close the database (see `Rocks.close`). Half-written files of a crash are not among them, because no
 * MANIFEST names them.
 */
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { errnoOf } from './files.ts';
import type { Rocks } from './rocks.ts';

/** What is wrong with the first table file that is not as the database expects it; undefined: they all are. */
export async function brokenTable(db: Rocks, databaseDir: string): Promise<string | undefined> {
  for (const { name, bytes } of db.tables()) {
    try {
      const { size } = await stat(join(databaseDir, name));
      if (size !== bytes) return `${name} has ${size} bytes where ${bytes} were written`;
    } catch (error) {
      return `${name} cannot be read (${errnoOf(error) ?? 'unknown error'})`;
    }
  }
  return undefined;
}
