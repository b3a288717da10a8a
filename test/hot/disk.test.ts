import assert from 'node:assert/strict';
import * as fs from 'node:fs';
import * as os from 'node:os';
import * as path from 'node:path';
import { fileSystemNamed, fileSystemOf, measureDisk } from '../../hot/disk.ts';
import { isVarveError } from '../../schemas/errors.ts';
import { skipAloud } from '../support/skip.ts';

describe('the disk under a log', () => {
  let dir: string;

  beforeEach(() => {
    dir = fs.mkdtempSync(path.join(os.tmpdir(), 'varve-disk-test-'));
  });

  afterEach(() => {
    fs.rmSync(dir, { recursive: true, force: true });
  });

  it('names file systems by their magic number, and an unknown one by the number', () => {
    assert.equal(fileSystemNamed(0xef53).type, 'ext4');
    assert.equal(fileSystemNamed(0x58465342).type, 'xfs');
    assert.equal(fileSystemNamed(0x1234).type, 'unknown (0x1234)');
  });

  it('warns of file systems in memory, of containers, of networks and of user space, and of no local disk', () => {
    const magic = {
      tmpfs: 0x01021994,
      overlay: 0x794c7630,
      nfs: 0x6969,
      smb2: 0xfe534d42,
      '9p': 0x01021997,
      fuse: 0x65735546,
    };
    for (const [type, number] of Object.entries(magic)) {
      assert.equal(fileSystemNamed(number).type, type);
      assert.ok(fileSystemNamed(number).warning, `${type} deserves a warning`);
    }
    for (const number of [0xef53, 0x58465342, 0x9123683e, 0x2fc12fc1]) {
      assert.equal(fileSystemNamed(number).warning, undefined);
    }
  });

  it('looks at the real file system', async () => {
    assert.match((await fileSystemOf(dir)).type, /./);
  });

  it('recognises a file system in memory', async function () {
    if (!fs.existsSync('/dev/shm')) skipAloud(this, 'there is no /dev/shm');
    assert.equal((await fileSystemOf('/dev/shm')).type, 'tmpfs');
  });

  it('reports every interface of table 2 and every group, in figures that belong together', async () => {
    const report = await measureDisk(dir, { rounds: 3, bytes: 512 });
    assert.deepEqual(
      report.interfaces.map(({ name }) => name),
      [
        'write',
        'write + O_SYNC',
        'write + O_DSYNC',
        'write + fdatasync',
        'write + fsync',
        'preallocated write + fdatasync',
      ],
    );
    assert.deepEqual(
      report.groups.map(({ events }) => events),
      [1, 8, 64, 512],
    );
    for (const { latency } of report.interfaces) assert.ok(latency.p50Us > 0 && latency.p50Us <= latency.p99Us);
    for (const group of report.groups) {
      assert.equal(group.perEventUs, group.total.p50Us / group.events);
      assert.ok(group.predictedPerEventUs > 0);
    }
    assert.equal(report.bytes, 512);
    assert.equal(report.rounds, 3);
  });

  it('leaves nothing behind, measured or aborted', async () => {
    await measureDisk(dir, { rounds: 1 });
    assert.deepEqual(fs.readdirSync(dir), []);
    const aborted = measureDisk(dir, { signal: AbortSignal.abort() });
    await assert.rejects(aborted, (error) => isVarveError(error, 'ABORTED'));
    assert.deepEqual(fs.readdirSync(dir), []);
  });

  it('refuses what it cannot measure with a code', async () => {
    const missing = path.join(dir, 'missing');
    await assert.rejects(measureDisk(missing), (error) => isVarveError(error, 'HOT_UNWRITABLE'));
    for (const options of [{ rounds: 0 }, { rounds: 1.5 }, { bytes: 0 }, { bytes: 2 ** 30 }]) {
      await assert.rejects(measureDisk(dir, options), (error) => isVarveError(error, 'INVALID_OPTION'));
    }
  });

  it('writes over its files once they are full', async () => {
    // 512 events of 100,000 bytes: the second round does not fit behind the first.
    const report = await measureDisk(dir, { rounds: 2, bytes: 100_000 });
    assert.equal(report.groups.length, 4);
  });
});
