/**
 * Failpoints: named places where a test can make this process die, as `kill -9` would.
 *
 * `failpoint('hot.commit.before-write')` does nothing unless the process was started with
 * `VARVE_FAILPOINT=hot.commit.before-write`, or `…:N` for the Nth time that the place is reached (N counts from 1).
 * Then the process sends itself SIGKILL and the call never returns: no `finally`, no exit handler, no flush of streams,
 * and nothing after the call has happened. With `/stop` behind it, it sends itself SIGSTOP instead, and goes on there
 * when somebody wakes it: a process that slept past what it held.
 *
 * A name says what is true there: everything before it was done, nothing after it. Each tier calls only its own names;
 * tests iterate `FAILPOINTS`, so a name that no code reaches fails them. A name that is not in the list stops the
 * process at start: a misspelt failpoint would otherwise pass every test.
 */

export const FAILPOINTS = [
  'hot.open.before-create',
  'hot.open.after-create',
  'hot.open.before-epoch',
  'hot.open.after-epoch',
  'hot.commit.before-write',
  'hot.commit.after-write',
  'hot.commit.before-release',
  'hot.blob.before-sync',
  'hot.blob.before-rename',
  'hot.blob.after-rename',
  'hot.heads.before-rename',
  'hot.heads.after-rename',
  'hot.ack.before-rename',
  'hot.trim.after-marks',
  'hot.trim.mid-delete',
  'hot.trim.before-floor',
  'hot.trim.after-floor',
  'hot.close.before-snapshot',
  'cold.file.before-put',
  'cold.file.after-put',
  'cold.segments.after-put',
  'cold.commit.before-put',
  'cold.commit.after-put',
  'cold.checkpoint.after-put',
  'compact.run.begun',
  'compact.lot.claimed',
  'compact.blob.after-put',
  'compact.derived.after-put',
  'compact.file.read-back',
  'compact.commit.before-mark',
  'compact.commit.after-mark',
  'compact.run.before-end',
] as const;

export type FailpointName = (typeof FAILPOINTS)[number];

/** The variable that arms a failpoint: `name` or `name:N`, with `/stop` to sleep there. */
export const FAILPOINT_VARIABLE = 'VARVE_FAILPOINT';

interface Armed {
  readonly name: FailpointName;
  /** How often the place must still be reached; the process dies when it falls to 0. */
  left: number;
  readonly signal: 'SIGKILL' | 'SIGSTOP';
}

// The one place outside pipelines/config.ts that reads the environment: it arms a test, it configures nothing,
// and it must be known before any code of ours runs.
const armed = parseFailpoint(process.env[FAILPOINT_VARIABLE]);

/** Returns at once unless this process was started to die here; then it never returns. */
export function failpoint(name: FailpointName): void {
  if (armed === undefined || armed.name !== name) return;
  armed.left -= 1;
  if (armed.left !== 0) return;
  process.kill(process.pid, armed.signal);
  if (armed.signal === 'SIGSTOP') return;
  // The kernel ends the calling thread before kill() returns to it; on a system that delivers later, nothing may run on.
  for (;;);
}

function parseFailpoint(value: string | undefined): Armed | undefined {
  if (value === undefined || value === '') return undefined;
  const [, text, count = '1', stop] = /^([a-z.-]+)(?::([1-9]\d*))?(\/stop)?$/.exec(value) ?? [];
  const name = FAILPOINTS.find((known) => known === text);
  if (name === undefined) throw new Error(`${FAILPOINT_VARIABLE}=${value}: no such failpoint`);
  return { name, left: Number(count), signal: stop === undefined ? 'SIGKILL' : 'SIGSTOP' };
}
