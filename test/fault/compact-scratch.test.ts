/**
 * A scratch folder or a store without room: compaction ends by name, whichever of its steps it hits, with nothing lost;
 * and the next run, with room, moves everything.
 */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { idAt } from '../support/cold-rows.ts';
import { CompactPlace } from '../support/compact-place.ts';
import { whyNoLoopDisk } from '../support/disk.ts';
import { exec } from '../support/sidecar-warm.ts';
import { skipAloud } from '../support/skip.ts';

const DAY = Date.UTC(2024, 10, 20);

describe('fault/compact-scratch', () => {
  let place: CompactPlace;

  beforeEach(async () => {
    place = await CompactPlace.create('compact-scratch');
  });
  afterEach(async () => await place[Symbol.asyncDispose]());

  it('what is no folder is named', async () => {
    writeFileSync(place.temp.join('file'), '');
    place.settings = { VARVE_COLD_SCRATCH: place.temp.join('file') };
    const ended = await place.compact();
    assert.equal(ended.code, 4, ended.err);
    assert.match(ended.err, /scratch.*COLD_FILE_UNREADABLE/);
  });

  for (const [which, folder, code] of [
    ['scratch folder', 'scratch', 'COLD_DISK_FULL'],
    ['store', 'cold', 'STORE_FULL'],
  ] as const) {
    it(`a full ${which} ends the run by name at every step, and nothing is lost`, async function () {
      const why = whyNoLoopDisk();
      if (why !== undefined) skipAloud(this, why);
      const chain = await place.finished(idAt(0, DAY), { turns: 1, textBytes: 40_000 });
      const at = place.temp.join(folder);
      mkdirSync(at);
      let ended = await place.compact('--tenant', 'nobody', '--dry-run');
      // One file or folder more each time, until it is enough.
      for (let inodes = 2; inodes === 2 || ended.code !== 0; inodes++) {
        execFileSync('mount', ['-t', 'tmpfs', '-o', `size=2m,nr_inodes=${inodes}`, 'tmpfs', at]);
        try {
          ended = await place.compact();
          const named = /\[\w+\]/.exec(ended.err)?.[0];
          if (ended.code !== 0) assert.deepEqual([ended.code, named], [4, `[${code}]`], ended.err);
          if (folder === 'scratch' && ended.code !== 0) assert.equal((await place.files()).size, 0);
          if (folder === 'cold') {
            execFileSync('mount', ['-o', 'remount,nr_inodes=1000', at]);
            assert.equal((await place.compact()).code, 0);
            await place.assertCold([chain]);
            await exec(place.database.pool, 'DELETE FROM cold_segments; DELETE FROM cold_tables');
          }
        } finally {
          execFileSync('umount', [at]);
        }
      }
      if (folder === 'scratch') await place.assertCold([chain]);
    });
  }
});
