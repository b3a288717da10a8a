/**
 * Making a cluster: initdb under a temporary name, then one rename. So `<folder>/data` is a whole cluster or is not there,
 * whatever was killed; of many that make one at once the first wins and the others take his.
 *
 * UTF8, C collation (bytes decide the order, in every PostgreSQL), checksums on pages. The only user is `postgres`; who
 * reaches the socket is trusted, who comes over TCP is rejected.
 */
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { chown, mkdir, open, readdir, readFile, rename, rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { VarveError } from '../schemas/errors.ts';
import type { Binaries } from './binaries.ts';
import type { Identity } from './identity.ts';
import { isAlive } from './postmaster.ts';

const INITDB = [
  '--username=postgres',
  '--auth-local=trust',
  '--auth-host=reject',
  '--encoding=UTF8',
  '--locale=C',
  '--data-checksums',
  '--no-instructions',
] as const;

const run = promisify(execFile);

/** The version that made the data; undefined where there is no cluster. */
export async function majorOf(dataFolder: string): Promise<number | undefined> {
  const text = await readFile(join(dataFolder, 'PG_VERSION'), 'utf8').catch(() => undefined);
  return text === undefined ? undefined : Number(text);
}

/** When it resolves and `durable`, the cluster survives a power cut. @throws VarveError WARM_START_FAILED */
export async function createCluster(
  root: string,
  binaries: Binaries,
  identity: Identity,
  durable: boolean,
): Promise<void> {
  const data = join(root, 'data');
  if ((await majorOf(data)) !== undefined) return;
  await removeAbandoned(root);
  const temporary = join(root, `data.${process.pid}.${randomBytes(4).toString('hex')}.tmp`);
  await makeOwned(temporary, identity);
  const [command, ...rest] = [...identity.prefix, join(binaries.folder, 'initdb'), ...INITDB, `--pgdata=${temporary}`];
  if (!durable) rest.push('--no-sync');
  try {
    await run(command, rest, { env: binaries.env, cwd: '/' });
    await rename(temporary, data);
  } catch (error) {
    await rm(temporary, { recursive: true, force: true });
    // Another starter was faster, and its cluster is as good as ours.
    if ((await majorOf(data)) !== undefined) return;
    const said = String((error as { stderr?: string }).stderr ?? error).trim();
    throw new VarveError('WARM_START_FAILED', `no cluster could be made in ${root}: ${said}`, { root }, error);
  }
  if (durable) await syncFolder(root);
}

/** The folder of it all; with `durable` its name, too, survives a power cut. */
export async function makeRoot(root: string, durable: boolean): Promise<void> {
  const first = await mkdir(root, { recursive: true });
  if (first === undefined || !durable) return;
  for (let folder = root; folder.length >= first.length; folder = dirname(folder)) await syncFolder(dirname(folder));
}

/** A folder for the server alone. */
export async function makeOwned(folder: string, identity: Identity): Promise<void> {
  await mkdir(folder, { recursive: true, mode: 0o700 });
  if (identity.owner !== undefined) await chown(folder, identity.owner.uid, identity.owner.gid);
}

async function removeAbandoned(root: string): Promise<void> {
  for (const name of await readdir(root)) {
    const pid = /^data\.(\d+)\.[0-9a-f]+\.tmp$/.exec(name)?.[1];
    if (pid !== undefined && !isAlive(Number(pid))) await rm(join(root, name), { recursive: true, force: true });
  }
}

async function syncFolder(folder: string): Promise<void> {
  await using handle = await open(folder, 'r');
  await handle.sync();
}
