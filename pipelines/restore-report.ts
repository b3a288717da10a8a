/** What a restore did, or would do: trajectories with where they came from, what is not among them, what failed. */
import { ERROR_CODES, type VarveError } from '../schemas/errors.ts';
import type { TrajectoryId } from '../schemas/ids.ts';
import { type Cell, table } from './print.ts';
import type { ReadPart } from './read-trajectory.ts';
import type { Trouble } from './tiers.ts';

/** Trajectories that are named for people; `--json` names all. */
const SHOWN_MAX = 50;

export type Restored = {
  readonly trajectory_id: TrajectoryId;
  readonly events: number;
  readonly first: number;
  readonly last: number;
  readonly head_hash: string;
  readonly from: readonly ReadPart[];
  /** Events whose payload was erased, on record. */
  readonly erased: number;
  /** Bodies that events refer to. */
  readonly bodies: number;
  readonly losses: readonly string[];
  readonly to: string;
};

type Failed = {
  readonly trajectory_id: TrajectoryId;
  readonly error: VarveError;
  /** Events of it that stay where they were written. */
  readonly kept: number;
};

export class RestoreReport {
  readonly #restored: Restored[] = [];
  readonly #failed: Failed[] = [];
  #troubles: readonly Trouble[] = [];

  restored(restored: Restored): void {
    this.#restored.push(restored);
  }

  failed(failed: Failed): void {
    this.#failed.push(failed);
  }

  troubles(troubles: readonly Trouble[]): void {
    this.#troubles = troubles;
  }

  /** Bodies that JSONL refers to and does not hold. */
  get bodies(): number {
    return this.#restored.reduce((sum, { bodies }) => sum + bodies, 0);
  }

  /**
   * 0: all of it. 3: with losses. 5: something must not be trusted. What the only ones that were asked for failed with,
   * where nothing was restored.
   */
  get exitCode(): number {
    const exits = this.#failed.map(({ error }) => ERROR_CODES[error.code].exit);
    if (exits.includes(5)) return 5;
    if (this.#restored.length === 0 && exits.length > 0) return Math.max(...exits);
    const isLossy = this.#restored.some(({ losses }) => losses.length > 0);
    return exits.length > 0 || isLossy || this.#troubles.length > 0 ? 3 : 0;
  }

  toJSON(): object {
    return {
      restored: this.#restored,
      failed: this.#failed.map(({ trajectory_id, error: { code, message, details }, kept }) => {
        return { trajectory_id, code, message, details, kept };
      }),
      not_asked: this.#troubles.map(({ text }) => text),
    };
  }

  text(): string {
    const lines: string[] = [];
    for (const { trajectory_id, events, first, last, from, erased, losses, to } of this.#restored.slice(0, SHOWN_MAX)) {
      const places = from.map((part) => `${part.first}–${part.last} from ${part.where}`).join(', ');
      lines.push(`${trajectory_id}: ${events} events, ${first} to ${last} (${places}) → ${to}`);
      if (erased > 0) lines.push(`  ${erased} payloads were erased`);
      for (const loss of losses) lines.push(`  LOST: ${loss}`);
    }
    const more = this.#restored.length - SHOWN_MAX;
    if (more > 0) lines.push(`… and ${more} more (--json names them)`);
    for (const { trajectory_id, error, kept } of this.#failed) {
      const rest = kept > 0 ? `; ${kept} events of it stay` : '; nothing of it stays';
      lines.push(`FAILED ${trajectory_id}: ${error.message} [${error.code}]${rest}`);
    }
    for (const { text } of this.#troubles) lines.push(`NOT ASKED: ${text}`);
    return lines.length === 0 ? '' : `${lines.join('\n')}\n`;
  }
}

/** Which tier has which events. */
export type Located = { readonly trajectory_id: TrajectoryId; readonly parts: readonly ReadPart[] };

export function locatedText(located: readonly Located[]): string {
  const rows = located.flatMap(({ trajectory_id, parts }): Cell[][] => {
    if (parts.length === 0) return [[trajectory_id, '–', null, null, 'nowhere']];
    return parts.map(({ tier, first, last, where }) => [trajectory_id, tier, first, last, where]);
  });
  return table(['trajectory', 'tier', 'first', 'last', 'where'], rows);
}
