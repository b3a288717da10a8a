/** `varve migrate`. */
import type { Config } from '../schemas/config.ts';
import { migrate, migrationPlan } from '../warm/migrate.ts';
import { openWarm } from './open-warm.ts';
import { print, printJson } from './print.ts';

export async function runMigrate(
  config: Config,
  options: { readonly dryRun?: boolean; readonly json?: boolean },
): Promise<void> {
  await using warm = await openWarm(config, { migrated: false });
  const dryRun = options.dryRun === true;
  const { pending, unknown } = dryRun ? await migrationPlan(warm.pool) : await migrate(warm.pool);
  const names = pending.map(({ name }) => name);
  if (options.json === true) {
    printJson({ server: warm.pool.server, dry_run: dryRun, migrations: names, newer: unknown.map(({ name }) => name) });
    return;
  }
  print(`${warm.pool.server}\n`);
  for (const name of names) print(`${dryRun ? 'would apply' : 'applied'} ${name}\n`);
  if (names.length === 0) print('up to date\n');
  for (const { name } of unknown) print(`the database has ${name}, which this varve does not know; it may be used\n`);
}
