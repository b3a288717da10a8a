/**
 * The store that a URL names.
 *
 *   file:///srv/varve/cold          an absolute path, percent-encoded as URLs are
 *   file:cold, file:/srv/a b        a path as it is, relative to the working directory
 *   s3://bucket, s3://bucket/root   a bucket, or a folder in one
 *
 * URLs hold no credentials: those of S3 come from its usual chain.
 */
import { fileURLToPath } from 'node:url';
import { VarveError } from '../schemas/errors.ts';
import { FileStore } from './file-store.ts';
import type { CallOptions, ObjectStore } from './object-store.ts';
import { type S3Options, S3Store } from './s3-store.ts';

export type OpenStoreOptions = CallOptions &
  Pick<S3Options, 'endpoint' | 'region' | 'pathStyle' | 'timeoutMs' | 'readOnly'>;

export type StoreAddress =
  | { readonly kind: 'file'; readonly path: string }
  | { readonly kind: 's3'; readonly bucket: string; readonly root: string | undefined };

/**
 * Ready and proven to keep conditional puts when it resolves, unless it is only read. The caller closes it.
 * @throws VarveError INVALID_OPTION: no such URL. STORE_UNCONDITIONAL and others: it cannot be used
 */
export async function openStore(url: string, options: OpenStoreOptions = {}): Promise<ObjectStore> {
  const address = parseStoreUrl(url);
  if (address.kind === 'file') return await FileStore.open(address.path, options);
  const { signal, ...rest } = options;
  return await S3Store.open({ ...rest, bucket: address.bucket, root: address.root }, { signal });
}

/** @throws VarveError INVALID_OPTION, STORE_KEY_INVALID */
export function parseStoreUrl(url: string): StoreAddress {
  if (url.startsWith('file://')) return { kind: 'file', path: pathOfUrl(url) };
  const [, scheme, rest = ''] = /^(file|s3):(.*)$/s.exec(url) ?? [];
  if (scheme === 'file' && rest !== '') return { kind: 'file', path: rest };
  const [, bucket, root] = /^\/\/([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:\/(.*?))?\/?$/s.exec(rest) ?? [];
  if (scheme === 's3' && bucket !== undefined) return { kind: 's3', bucket, root: root === '' ? undefined : root };
  // Not the URL itself: somebody may have put a secret into it.
  throw new VarveError('INVALID_OPTION', 'a store is file:<path>, file://<path> or s3://<bucket>[/<folder>]');
}

function pathOfUrl(url: string): string {
  try {
    return fileURLToPath(url);
  } catch (error) {
    throw new VarveError('INVALID_OPTION', 'a file: URL has an absolute path and no host', {}, error);
  }
}
