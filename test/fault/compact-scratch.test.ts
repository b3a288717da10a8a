/**
 * A scratch folder that has no room: compaction ends by name, whichever of its steps it hits, with nothing lost; and the
 * next run, with room, moves everything.
 */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { idAt } from '../support/cold-rows.ts';
import { CompactPlace } from '../support/compact-place.ts';
import { whyNoLoopDisk } from '../support/disk.ts';
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

  it('a full one ends the run by name at every step, and nothing is lost', async function () {
    const why = whyNoLoopDisk();
    if (why !== undefined) skipAloud(this, why);
    const chain = await place.finished(idAt(0, DAY), { textBytes: 40_000 });
    place.settings = { VARVE_COLD_SCRATCH: place.temp.join('small') };
    mkdirSync(place.temp.join('small'));
    let code: number | null = 4;
    // One file, folder or page more each time, until it is enough.
    for (let inodes = 2; code !== 0; inodes++) {
      const options = `size=1m,nr_inodes=${inodes}`;
      execFileSync('mount', ['-t', 'tmpfs', '-o', options, 'tmpfs', place.temp.join('small')]);
      try {
        const ended = await place.compact();
        if (process.env['SHOW']) console.log(inodes, ended.code, ended.err);
        code = ended.code;
        if (code === 0) break;
        assert.equal(code, 4, ended.err);
        assert.match(ended.err, /\[(COLD_DISK_FULL|COLD_FILE_UNREADABLE)\]/);
        assert.equal((await place.files()).size, 0);
      } finally {
        execFileSync('umount', [place.temp.join('small')]);
      }
    }
    await place.assertCold([chain]);
  });
});
