/** The configuration: where a value comes from, what is refused, and what is shown. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { type LoadedConfig, loadConfig, shownValue } from '../../pipelines/config.ts';
import { Config } from '../../schemas/config.ts';
import { isVarveError } from '../../schemas/errors.ts';
import { TempDirectory } from '../support/temp.ts';

describe('pipelines/config', () => {
  let temp: TempDirectory;
  beforeEach(() => {
    temp = new TempDirectory('config');
  });
  afterEach(() => temp[Symbol.dispose]());

  function fileWith(content: unknown): string {
    const path = temp.join('varve.json');
    writeFileSync(path, typeof content === 'string' ? content : JSON.stringify(content));
    return path;
  }

  function settingOf({ settings }: LoadedConfig, key: string) {
    const setting = settings.find((one) => one.key === key);
    assert.ok(setting !== undefined, key);
    return setting;
  }

  function refusedFor(what: RegExp): (error: unknown) => boolean {
    return (error) => {
      assert.ok(isVarveError(error, 'INVALID_CONFIG'), String(error));
      assert.match(error.message, what);
      return true;
    };
  }

  it('takes a flag before the environment, the environment before the file, the file before the default', async () => {
    const file = fileWith({ $schema: 'x', sidecar: { batchEvents: 11, port: 1001, drainTimeoutMs: 77 } });
    const environment = { VARVE_SIDECAR_BATCH_EVENTS: '22', VARVE_SIDECAR_PORT: '1002' };
    const loaded = await loadConfig({ file, environment, flags: { 'sidecar.port': 1003, 'hot.logs': undefined } });
    const { sidecar, hot } = loaded.config;
    assert.deepEqual(
      [sidecar.port, sidecar.batchEvents, sidecar.drainTimeoutMs, hot.logs],
      [1003, 22, 77, '.varve/hot'],
    );
    assert.deepEqual(
      ['sidecar.port', 'sidecar.batchEvents', 'sidecar.drainTimeoutMs', 'hot.logs'].map(
        (key) => settingOf(loaded, key).source,
      ),
      ['flag', 'environment', 'file', 'default'],
    );
    assert.equal(loaded.file, file);
  });

  it('can be set in every key by the environment, and each key says what it is for', async () => {
    const { settings } = await loadConfig({ file: fileWith({}), environment: {} });
    assert.ok(settings.length > 10);
    const other: Record<string, unknown> = {
      'warm.databaseUrl': 'postgresql://h/d',
      'cold.endpoint': 'https://s3.example.net',
      'cold.region': 'eu-1',
      'log.level': 'warn',
    };
    const wanted = settings.map(({ key, value }) => {
      if (key in other) return other[key];
      if (typeof value === 'number') return value + 1;
      if (typeof value === 'boolean') return !value;
      return typeof value === 'string' ? `${value}x` : undefined;
    });
    const environment = Object.fromEntries(settings.map(({ variable }, i) => [variable, String(wanted[i])]));
    assert.equal(new Set(Object.keys(environment)).size, settings.length);
    const loaded = await loadConfig({ file: fileWith({}), environment });
    for (const [i, setting] of loaded.settings.entries()) {
      assert.deepEqual([setting.value, setting.source], [wanted[i], 'environment'], setting.key);
      assert.ok(setting.description.length > 10, setting.key);
    }
  });

  it('reads DATABASE_URL as everybody does, and its own variable before it', async () => {
    const file = fileWith({ warm: { databaseUrl: 'postgresql://file/d' } });
    const environment = { DATABASE_URL: 'postgresql://everybody/d' };
    assert.equal((await loadConfig({ file, environment })).config.warm.databaseUrl, 'postgresql://everybody/d');
    const own = { ...environment, VARVE_WARM_DATABASE_URL: 'postgresql://own/d' };
    assert.equal((await loadConfig({ file, environment: own })).config.warm.databaseUrl, 'postgresql://own/d');
  });

  it('refuses by name a key, a section and a variable that it does not know', async () => {
    for (const [content, what] of [
      [{ sidecar: { batchEvent: 1 } }, /sidecar\.batchEvent\b/],
      [{ sidcar: { batchEvents: 1 } }, /sidcar/],
      [{ sidcar: {} }, /sidcar/],
      [{ sidecar: '' }, /sidecar/],
      ['{"sidecar": {"batchEvents": 1}', /not a JSON object/],
      ['[]', /not a JSON object/],
    ] as const) {
      await assert.rejects(loadConfig({ file: fileWith(content), environment: {} }), refusedFor(what));
    }
    const environment = { VARVE_SIDECAR_BATCHEVENTS: '1' };
    await assert.rejects(loadConfig({ file: fileWith({}), environment }), refusedFor(/VARVE_SIDECAR_BATCHEVENTS/));
    await assert.rejects(loadConfig({ file: temp.join('none.json'), environment: {} }), refusedFor(/none\.json/));
    // Those of tests and failpoints are no settings.
    await loadConfig({ file: fileWith({}), environment: { VARVE_TEST_PG_BIN: 'x', VARVE_FAILPOINT: 'y', PATH: 'z' } });
  });

  it('refuses a value that is not legal, with its key and where it came from, and without the value', async () => {
    for (const [inputs, what] of [
      [{ environment: { VARVE_SIDECAR_BATCH_EVENTS: 'hunter2' } }, /sidecar\.batchEvents \(environment\)/],
      [{ environment: { VARVE_SIDECAR_BATCH_EVENTS: '0' } }, /sidecar\.batchEvents \(environment\)/],
      [{ environment: { VARVE_SIDECAR_BATCH_EVENTS: '1.5' } }, /sidecar\.batchEvents \(environment\)/],
      [{ environment: { VARVE_LOG_LEVEL: 'loud' } }, /log\.level \(environment\)/],
      [{ environment: {}, flags: { 'sidecar.port': 70_000 } }, /sidecar\.port \(flag\)/],
    ] as const) {
      const loading = loadConfig({ file: fileWith({}), ...inputs });
      await assert.rejects(loading, (error) => refusedFor(what)(error) && !String(error).includes('hunter2'));
    }
    const file = fileWith({ sidecar: { batchEvents: '12' } });
    await assert.rejects(loadConfig({ file, environment: {} }), refusedFor(/sidecar\.batchEvents \(file\)/));
  });

  it('shows no password, wherever a URL has it', async () => {
    const { settings } = await loadConfig({ file: fileWith({}), environment: {} });
    const [setting] = settings;
    assert.ok(setting !== undefined);
    for (const url of [
      'postgresql://user:hunter2@host:5432/db',
      'postgresql://user:hun@hunter2@host/db',
      'postgresql://:hunter2@host/db',
      'postgresql://user@host/db?sslmode=require&password=hunter2',
      'postgresql://host/db?password=hunter2&sslmode=require',
      's3://key:hunter2@bucket/prefix',
    ]) {
      const shown = shownValue({ ...setting, value: url });
      assert.ok(!shown.includes('hunter2') && !shown.includes('hun@'), shown);
      assert.match(shown, /\*\*\*/);
      assert.equal(shown.includes('host') || shown.includes('bucket'), true, shown);
    }
    for (const value of ['file:.varve/cold', '/srv/a:b@c', 'postgresql://user@host/db']) {
      assert.equal(shownValue({ ...setting, value }), value);
    }
  });

  it('has defaults that are legal', () => {
    assert.deepEqual(Config.parse({}), Config.parse(Config.parse({})));
  });
});
