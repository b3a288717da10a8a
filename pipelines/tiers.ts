/**
 * The tiers that a trajectory may be in, opened for reading: all that are there, or one.
 *
 * A tier that is configured and cannot be asked keeps nobody from the others; it is a trouble, to be told with whatever
 * was read. Where one tier is named, its trouble is the caller's error.
 */
import { findInCold, type PlacedSegment, segmentsOfTrajectories } from '../cold/locate.ts';
import type { ObjectStore } from '../cold/object-store.ts';
import { SegmentReader } from '../cold/segment-reader.ts';
import type { TableLog } from '../cold/table-log.ts';
import type { Snapshot } from '../cold/table-log-plan.ts';
import { readLogFile } from '../hot/meta.ts';
import type { Cursor } from '../hot/tail-protocol.ts';
import type { Config } from '../schemas/config.ts';
import { isVarveError, VarveError } from '../schemas/errors.ts';
import { parseTrajectoryId, type TrajectoryId } from '../schemas/ids.ts';
import { readCursor } from '../warm/cursor-rows.ts';
import type { WarmPool } from '../warm/pool.ts';
import { findTrajectories, warmHeadOf } from '../warm/trajectory-reader.ts';
import { type HotParts, lookInHot } from './hot-parts.ts';
import { openCold } from './open-cold.ts';
import { isWarmThere, openWarm } from './open-warm.ts';
import { findLogs } from './sidecar.ts';

export const TIERS = ['hot', 'warm', 'cold'] as const;
export type Tier = (typeof TIERS)[number];

/** Trajectories that begin alike and are named in an error. */
const NAMED_MAX = 10;

/** The cold tier at a snapshot that is taken again when something has moved. */
export class ColdSide {
  readonly reader: SegmentReader;
  readonly #log: TableLog;
  #snapshot: Snapshot;

  constructor(store: ObjectStore, log: TableLog, snapshot: Snapshot) {
    this.reader = new SegmentReader(store, log);
    this.#log = log;
    this.#snapshot = snapshot;
  }

  async segmentsOf(id: TrajectoryId, signal: AbortSignal): Promise<readonly PlacedSegment[]> {
    return (await segmentsOfTrajectories(this.#log, this.#snapshot, [id], { signal })).get(id) ?? [];
  }

  find(prefix: string, signal: AbortSignal): Promise<TrajectoryId[]> {
    return findInCold(this.#log, this.#snapshot, prefix, NAMED_MAX, { signal });
  }

  async refresh(signal: AbortSignal): Promise<void> {
    this.#snapshot = await this.#log.snapshot({ signal });
  }
}

/** A tier or a log that could not be asked, or not wholly. */
export type Trouble = { readonly text: string; readonly error: VarveError };

export class Tiers implements AsyncDisposable {
  /** The only tier that is asked; undefined: all that are there. */
  readonly only: Tier | undefined;
  readonly cold: ColdSide | undefined;
  readonly warm: WarmPool | undefined;
  /** Directories of hot logs. */
  readonly logs: readonly string[];
  /** For bodies: there where the cold tier has a store, also before its first table. */
  readonly store: ObjectStore | undefined;
  readonly #troubles: readonly Trouble[];
  readonly #open: readonly AsyncDisposable[];
  #hot: HotParts | undefined;

  private constructor(
    parts: Pick<Tiers, 'only' | 'cold' | 'warm' | 'logs' | 'store'>,
    open: readonly AsyncDisposable[],
    troubles: readonly Trouble[],
  ) {
    this.only = parts.only;
    this.cold = parts.cold;
    this.warm = parts.warm;
    this.logs = parts.logs;
    this.store = parts.store;
    this.#open = open;
    this.#troubles = troubles;
  }

  /**
   * @param only the tier that is read; the store is opened for bodies in any case
   * @param except a log that is not read, because it is written
   */
  static async open(config: Config, only: Tier | undefined, signal: AbortSignal, except?: string): Promise<Tiers> {
    const open: AsyncDisposable[] = [];
    const troubles: Trouble[] = [];
    const ask = async <T extends AsyncDisposable>(tier: Tier, opening: () => Promise<T | undefined>) => {
      try {
        const opened = await opening();
        if (opened !== undefined) open.push(opened);
        return opened;
      } catch (error) {
        if (only === tier || !isVarveError(error) || error.code === 'ABORTED') throw error;
        troubles.push({ text: `${tier} cannot be asked (${error.code}): ${error.message}`, error });
        return undefined;
      }
    };
    try {
      const cold = await ask('cold', () => openCold(config, signal));
      const isWarmAsked = only === 'warm' || (only === undefined && (await isWarmThere(config)));
      const warm = isWarmAsked ? await ask('warm', () => openWarm(config)) : undefined;
      const table = only === undefined || only === 'cold' ? cold?.table : undefined;
      const side = cold && table && new ColdSide(cold.store, table.log, table.snapshot);
      const found = only === undefined || only === 'hot' ? await findLogs(config.hot.logs) : [];
      const logs = found.filter((directory) => directory !== except);
      return new Tiers({ only, cold: side, warm: warm?.pool, logs, store: cold?.store }, open, troubles);
    } catch (error) {
      for (const part of open.toReversed()) await part[Symbol.asyncDispose]();
      throw error;
    }
  }

  get troubles(): readonly Trouble[] {
    const inHot = this.#hot?.troubles ?? [];
    return [
      ...this.#troubles,
      ...inHot.map(({ directory, error }) => ({ text: `${directory} (${error.code}): ${error.message}`, error })),
    ];
  }

  /** Parts of trajectories in hot logs, once `resolve` has looked for them. */
  get hot(): HotParts | undefined {
    return this.#hot;
  }

  /**
   * The trajectories that are meant, each by its id or by the beginning of one that no other has. Hot logs are looked
   * through for them: behind what warm has taken over, where that is enough.
   *
   * @throws VarveError INVALID_OPTION where none or several begin so
   */
  async resolve(names: readonly string[], signal: AbortSignal): Promise<TrajectoryId[]> {
    const known = new Map<string, TrajectoryId>();
    for (const name of names) {
      const id = isWhole(name) ? parseTrajectoryId(name) : await this.#findOutside(checkPrefix(name), signal);
      if (id !== undefined) known.set(name, id);
    }
    const rest = names.filter((name) => !known.has(name));
    const ids = new Set(known.values());
    const isWanted = (id: TrajectoryId) => ids.has(id) || rest.some((prefix) => id.startsWith(prefix));
    const after = rest.length === 0 ? await this.#takenOver([...ids]) : undefined;
    this.#hot = await lookInHot(this.logs, isWanted, signal, after);
    for (const name of rest) {
      const found = this.#hot.ids.filter((id) => id.startsWith(name));
      const [only] = found;
      if (only === undefined) throw this.notFound(name);
      if (found.length > 1) throw ambiguous(name, found);
      known.set(name, only);
    }
    return [...new Set(names.map((name) => known.get(name) as TrajectoryId))];
  }

  notFound(name: string): VarveError {
    const [trouble] = this.troubles;
    if (trouble !== undefined) return trouble.error;
    const looked = [this.cold && 'cold', this.warm && 'warm', this.logs.length > 0 && 'hot'].filter(Boolean);
    const where = looked.length === 0 ? 'any tier: none is here' : looked.join(', ');
    return new VarveError('INVALID_OPTION', `there is no trajectory ${name} in ${where}`, { prefix: name });
  }

  async #findOutside(prefix: string, signal: AbortSignal): Promise<TrajectoryId | undefined> {
    const inWarm = this.warm === undefined ? [] : await findTrajectories(this.warm, prefix, NAMED_MAX);
    const found = new Set(inWarm.map(({ trajectory_id }) => trajectory_id));
    for (const id of (await this.cold?.find(prefix, signal)) ?? []) found.add(id);
    if (found.size > 1) throw ambiguous(prefix, [...found].toSorted());
    return [...found][0];
  }

  /** Where each log may be taken up: warm has everything before, and holds nothing of these trajectories back. */
  async #takenOver(ids: readonly TrajectoryId[]): Promise<ReadonlyMap<string, Cursor>> {
    const after = new Map<string, Cursor>();
    const { warm } = this;
    if (warm === undefined) return after;
    for (const id of ids) {
      const head = await warmHeadOf(warm, id);
      if (head === undefined || head.held > 0) return after;
    }
    for (const directory of this.logs) {
      const log = await readLogFile(directory).catch(() => undefined);
      if (log === undefined) continue;
      const { lsn, hash } = await warm.lend((session) => readCursor(session, log.log_id));
      if (lsn > 0) after.set(directory, { lsn, hash });
    }
    return after;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const part of this.#open.toReversed()) await part[Symbol.asyncDispose]();
  }
}

function isWhole(name: string): boolean {
  return name.length === 36;
}

function checkPrefix(prefix: string): string {
  if (/^[0-9a-f-]{1,36}$/.test(prefix)) return prefix;
  throw new VarveError('INVALID_OPTION', 'the id of a trajectory, or its beginning, is needed');
}

function ambiguous(prefix: string, ids: readonly TrajectoryId[]): VarveError {
  const named = ids.slice(0, NAMED_MAX).join(', ');
  return new VarveError('INVALID_OPTION', `several trajectories begin with ${prefix}: ${named} …`, { prefix });
}
