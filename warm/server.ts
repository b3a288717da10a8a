/** Which PostgreSQL the warm tier uses: the caller's where there is a URL, else our own on this machine. */
import { type EmbeddedOptions, type EmbeddedServer, startEmbedded } from './embedded.ts';

export type WarmServer = {
  readonly url: string;
  /** Only where it is our own: it outlives its starter until somebody calls its `stop`. */
  readonly embedded?: EmbeddedServer;
};

/**
 * When it resolves, our own server takes connections; one behind a URL has not been asked.
 * @param databaseUrl DATABASE_URL; it wins, and nothing is started beside it
 * @param folder of our own server, `.varve/warm`
 * @throws VarveError WARM_NO_SERVER where there is neither, WARM_START_FAILED, WARM_NOT_READY
 */
export async function findServer(
  databaseUrl: string | undefined,
  folder: string,
  options: EmbeddedOptions = {},
): Promise<WarmServer> {
  if (databaseUrl !== undefined && databaseUrl !== '') return { url: databaseUrl };
  const embedded = await startEmbedded(folder, options);
  return { url: embedded.url, embedded };
}
