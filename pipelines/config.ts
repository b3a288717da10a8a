/**
 * What is in force, and where it came from. The only file that reads the environment.
 *
 * Later wins: default, `varve.json` (or `--config`), environment, flag. An unknown key, in the file or as a `VARVE_…`
 * variable, is an error: a misspelt setting must not pass for one.
 */
import { readFile } from 'node:fs/promises';
import { resolve } from 'node:path';
import { z } from 'zod';
import { Config } from '../schemas/config.ts';
import { VarveError } from '../schemas/errors.ts';
import { FAILPOINT_VARIABLE } from '../schemas/failpoint.ts';

export type ConfigSource = 'default' | 'file' | 'environment' | 'flag';

export type Setting = {
  /** Dotted path, such as `sidecar.batchEvents`. */
  readonly key: string;
  readonly variable: string;
  readonly value: unknown;
  readonly source: ConfigSource;
  readonly description: string;
};

export type LoadedConfig = {
  readonly config: Config;
  readonly settings: readonly Setting[];
  /** Absolute path of the file that was read. */
  readonly file: string | undefined;
};

export type ConfigInputs = {
  /** Of `--config`; it must exist. Without it `varve.json` of the working directory is read where it exists. */
  readonly file?: string;
  /** Values by dotted path, of flags. */
  readonly flags?: Readonly<Record<string, unknown>>;
  readonly environment?: Readonly<Record<string, string | undefined>>;
};

const FILE = 'varve.json';
const SECRET_PARAMETER = /([?&](?:password|sslpassword|sslkey)=)[^&]*/gi;
/** Variables of ours that are no settings. */
const OTHER_VARIABLES = new Set([FAILPOINT_VARIABLE]);
/** Of the field, not ours: everybody's name for a PostgreSQL. */
const DATABASE_URL = 'DATABASE_URL';

type Key = { readonly key: string; readonly section: string; readonly name: string; readonly schema: z.ZodType };

const KEYS: readonly Key[] = Object.entries(Config.shape).flatMap(([section, schema]) =>
  Object.entries(schema.unwrap().shape).map(([name, member]) => ({
    key: `${section}.${name}`,
    section,
    name,
    schema: member as z.ZodType,
  })),
);

export function variableOf(key: string): string {
  return `VARVE_${key
    .replaceAll('.', '_')
    .replaceAll(/([a-z])([A-Z])/g, '$1_$2')
    .toUpperCase()}`;
}

/** @throws VarveError INVALID_CONFIG, naming the key and where it came from */
export async function loadConfig(inputs: ConfigInputs = {}): Promise<LoadedConfig> {
  const environment = inputs.environment ?? process.env;
  const { path, values } = await readConfigFile(inputs.file);
  const byKey = new Map<string, { value: unknown; source: ConfigSource }>();
  for (const { key, section, name } of KEYS) {
    const value = values[section]?.[name];
    if (value !== undefined) byKey.set(key, { value, source: 'file' });
  }
  refuseUnknown(values, environment, path);
  if (environment[DATABASE_URL])
    byKey.set('warm.databaseUrl', { value: environment[DATABASE_URL], source: 'environment' });
  for (const { key, schema } of KEYS) {
    const text = environment[variableOf(key)];
    if (text !== undefined) byKey.set(key, { value: fromText(text, schema), source: 'environment' });
  }
  for (const [key, value] of Object.entries(inputs.flags ?? {})) {
    if (value !== undefined) byKey.set(key, { value, source: 'flag' });
  }
  const config = parse(byKey);
  const settings = KEYS.map(({ key, section, name, schema }) => ({
    key,
    variable: variableOf(key),
    value: (config[section as keyof Config] as Record<string, unknown>)[name],
    source: byKey.get(key)?.source ?? 'default',
    description: schema.description ?? '',
  }));
  return { config, settings, file: path };
}

/** A setting for people: passwords in URLs are left out, wherever they stand in them. */
export function shownValue({ value }: Setting): string {
  if (value === undefined) return '';
  if (typeof value !== 'string') return JSON.stringify(value);
  // Up to the last @ before the path, as URLs are read: an @ may stand in a password.
  return value.replace(/(:\/\/[^:/?#@]*):[^/?#]*@/, '$1:***@').replaceAll(SECRET_PARAMETER, '$1***');
}

type Sections = Readonly<Record<string, Readonly<Record<string, unknown>> | undefined>>;

async function readConfigFile(named: string | undefined): Promise<{ path: string | undefined; values: Sections }> {
  const path = resolve(named ?? FILE);
  let text: string;
  try {
    text = await readFile(path, 'utf8');
  } catch (cause) {
    if (named === undefined && (cause as NodeJS.ErrnoException).code === 'ENOENT')
      return { path: undefined, values: {} };
    throw new VarveError('INVALID_CONFIG', `${path} cannot be read`, { file: path }, cause);
  }
  try {
    const value: unknown = JSON.parse(text);
    const sections = z.record(z.string(), z.union([z.record(z.string(), z.unknown()), z.string()])).parse(value);
    // `$schema` is for editors.
    const { $schema: _, ...rest } = sections;
    return { path, values: rest as Sections };
  } catch (cause) {
    throw new VarveError('INVALID_CONFIG', `${path} is not a JSON object of sections`, { file: path }, cause);
  }
}

function refuseUnknown(
  values: Sections,
  environment: Readonly<Record<string, string | undefined>>,
  file?: string,
): void {
  const keys = new Set(KEYS.map(({ key }) => key));
  for (const [section, members] of Object.entries(values)) {
    if (!Object.hasOwn(Config.shape, section) || typeof members !== 'object') {
      throw new VarveError('INVALID_CONFIG', `${file}: there is no section ${section}; see \`varve config\``, {});
    }
    for (const name of Object.keys(members ?? {})) {
      if (keys.has(`${section}.${name}`)) continue;
      throw new VarveError(
        'INVALID_CONFIG',
        `${file}: there is no setting ${section}.${name}; see \`varve config\``,
        {},
      );
    }
  }
  const variables = new Set(KEYS.map(({ key }) => variableOf(key)));
  for (const name of Object.keys(environment)) {
    if (
      !name.startsWith('VARVE_') ||
      name.startsWith('VARVE_TEST_') ||
      variables.has(name) ||
      OTHER_VARIABLES.has(name)
    )
      continue;
    throw new VarveError('INVALID_CONFIG', `there is no setting for the variable ${name}; see \`varve config\``, {});
  }
}

/** Numbers and booleans stand as JSON in a variable, text as itself. */
function fromText(text: string, schema: z.ZodType): unknown {
  if (schema.safeParse(text).success) return text;
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}

function parse(byKey: ReadonlyMap<string, { readonly value: unknown; readonly source: ConfigSource }>): Config {
  const sections: Record<string, Record<string, unknown>> = {};
  for (const { key, section, name } of KEYS) {
    const entry = byKey.get(key);
    if (entry !== undefined) (sections[section] ??= {})[name] = entry.value;
  }
  const result = Config.safeParse(sections);
  if (result.success) return result.data;
  const issue = result.error.issues[0];
  const key = issue?.path.join('.') ?? '';
  const source = byKey.get(key)?.source ?? 'default';
  throw new VarveError(
    'INVALID_CONFIG',
    `${key} (${source}): ${issue?.message ?? 'is not valid'}`,
    { key, source },
    result.error,
  );
}
