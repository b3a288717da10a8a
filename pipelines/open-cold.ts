/** The object store that the configuration names. */
import type { ObjectStore } from '../cold/object-store.ts';
import { type OpenStoreOptions, openStore } from '../cold/open-store.ts';
import type { Config } from '../schemas/config.ts';

/** The caller closes it. @throws VarveError as `openStore` */
export async function openColdStore(
  { cold }: Config,
  options: Pick<OpenStoreOptions, 'signal' | 'readOnly'> = {},
): Promise<ObjectStore> {
  const { store, endpoint, region, pathStyle } = cold;
  return await openStore(store, {
    ...options,
    pathStyle,
    ...(endpoint === undefined ? {} : { endpoint }),
    ...(region === undefined ? {} : { region }),
  });
}
