/**
 * One log of a fault test with everything that was ever acknowledged from it, over any number of writers and deaths.
 */
import { writeFileSync } from 'node:fs';
import { HotLog } from '../../hot/log.ts';
import type { HotLogOptions } from '../../hot/options.ts';
import type { TrajectoryId } from '../../schemas/ids.ts';
import type { Step } from './append-child.ts';
import { type Acknowledged, acknowledgedIn, type Checked, checkGoesOn, checkLog, type Place } from './check-log.ts';
import { Child, type ChildOptions } from './child.ts';
import { eventFor, FINISH, newTrajectoryIds, storedPayloadText } from './workload.ts';

/** What `tail-child.ts` received. */
export class TailLines {
  readonly received: Place[] = [];

  take(line: string): void {
    const [word, lsn, hash] = line.split(' ');
    if (word === 'received') this.received.push([BigInt(lsn as string), hash as string]);
  }
}

export class FaultLog {
  readonly directory: string;
  readonly ids: readonly TrajectoryId[];
  readonly acknowledged: Acknowledged[] = [];
  readonly #idFile: string;

  /** @param idFile lies outside of the log: it survives what the log must survive */
  constructor(directory: string, idFile: string, trajectories: number) {
    this.directory = directory;
    this.ids = newTrajectoryIds(trajectories);
    this.#idFile = idFile;
    writeFileSync(idFile, this.ids.join('\n'));
  }

  /** A writer; what it acknowledges counts from the moment that the line is here. */
  start(steps: readonly Step[], options: ChildOptions = {}): Child {
    const onLine = (line: string) => {
      this.acknowledged.push(...acknowledgedIn([line]));
      options.onLine?.(line);
    };
    const plan = { directory: this.directory, idFile: this.#idFile, steps };
    return Child.start('append-child.ts', plan, { ...options, onLine });
  }

  /** The acknowledged events that lie in these bytes: of a record of a WAL. */
  eventsIn(bytes: Buffer): Acknowledged[] {
    return this.acknowledged.filter(({ n, sequence_number }) => {
      const envelope = `"sequence_number":${sequence_number},"trajectory_id":"${this.ids[n]}"`;
      if (!bytes.includes(envelope)) return false;
      const event = eventFor(n, sequence_number);
      return bytes.includes(storedPayloadText(event)) || bytes.includes(storedPayloadText(FINISH));
    });
  }

  /** Opens the log here, holds it against what was acknowledged, goes on with it and closes it. */
  async recover(options: HotLogOptions = {}, directory: string = this.directory): Promise<Checked> {
    const log = await HotLog.open(directory, { lockTimeoutMs: 2000, tail: false, ...options });
    try {
      const checked = await checkLog(log, this.ids, this.acknowledged);
      this.acknowledged.push(...(await checkGoesOn(log, this.ids)));
      return checked;
    } finally {
      await log.close();
    }
  }
}
