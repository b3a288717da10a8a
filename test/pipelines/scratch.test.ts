import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, statSync, writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { basename, join } from 'node:path';
import { openScratch } from '../../pipelines/scratch.ts';
import { TempDirectory } from '../support/temp.ts';

const HOST = hostname().replaceAll(/[^A-Za-z0-9.-]/g, '-');

describe('scratch folders', () => {
  it('go with whoever opened them; what the dead left is removed, what the living have is not', async () => {
    using temp = new TempDirectory('scratch');
    const parent = temp.join('deep', 'scratch');
    const dead = spawnSync(process.execPath, ['--version']).pid;
    const left = [
      `varve-${HOST}-${dead}-00000000`,
      `varve-${HOST}-${process.ppid}-00000000`,
      `varve-elsewhere-${dead}-00000000`,
      'of-somebody-else',
    ] as const;
    for (const name of left) {
      mkdirSync(join(parent, name), { recursive: true });
      writeFileSync(join(parent, name, 'rows.ndjson'), '{}');
    }
    const first = await openScratch(parent);
    const second = await openScratch(parent);
    assert.equal(statSync(first.path).mode & 0o777, 0o700);
    const [, ...others] = left;
    const open = [first, second].map(({ path }) => basename(path));
    assert.deepEqual(readdirSync(parent).toSorted(), [...others, ...open].toSorted());
    writeFileSync(join(first.path, 'half.parquet'), 'x');
    await first[Symbol.asyncDispose]();
    await second[Symbol.asyncDispose]();
    assert.deepEqual(readdirSync(parent).toSorted(), [...others].toSorted());
  });
});
