/**
 * A process that starts the embedded server or attaches to it, prints one line of JSON about it, and stays until it is
 * killed. An error is printed by its code and message.
 */
import { writeSync } from 'node:fs';
import { VarveError } from '../../schemas/errors.ts';
import { type EmbeddedOptions, startEmbedded } from '../../warm/embedded.ts';

export type EmbeddedChildArgument = { readonly folder: string; readonly options: EmbeddedOptions };

/** What it prints after 'server ' or 'error '. */
export type EmbeddedChildServer = { readonly pid: number; readonly attached: boolean; readonly url: string };
export type EmbeddedChildError = { readonly code: string; readonly message: string };

const { folder, options } = JSON.parse(process.argv[2] as string) as EmbeddedChildArgument;
try {
  const { pid, attached, url } = await startEmbedded(folder, options);
  writeSync(1, `server ${JSON.stringify({ pid, attached, url } satisfies EmbeddedChildServer)}\n`);
} catch (error) {
  const code = error instanceof VarveError ? error.code : 'none';
  writeSync(1, `error ${JSON.stringify({ code, message: String(error) } satisfies EmbeddedChildError)}\n`);
}
setInterval(() => undefined, 1000);
