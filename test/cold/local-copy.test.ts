/** Objects as local files: what fails on this machine is told from what fails in the store. */
import assert from 'node:assert/strict';
import { FileStore } from '../../cold/file-store.ts';
import { localCopy } from '../../cold/local-copy.ts';
import { isVarveError } from '../../schemas/errors.ts';
import { TempDirectory } from '../support/temp.ts';

describe('cold/local-copy', () => {
  it('an object that is there is never said to be missing because the scratch folder is', async () => {
    using directory = new TempDirectory('local-copy');
    const store = await FileStore.open(directory.join('store'));
    await store.put('there', Buffer.from('bytes'));
    const options = { scratchDir: directory.join('gone') };
    await assert.rejects(localCopy(store, 'there', options), (error) => isVarveError(error, 'COLD_FILE_UNREADABLE'));
  });
});
