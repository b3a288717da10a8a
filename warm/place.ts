/**
 * Where an event stands against the head of its trajectory: the rules that hold for an event that arrives and for one
 * that has waited, whichever log it came from.
 */
import { chainHash, formatEnvelope } from '../schemas/chain.ts';
import type { BlockReason, TrajectoryState, WarmEvent } from './ingest-plan.ts';

/** Where an event stands against the head of its trajectory. */
export type Place =
  | { readonly kind: 'insert' }
  | { readonly kind: 'duplicate' }
  | { readonly kind: 'unproven' }
  /** Behind the next one. */
  | { readonly kind: 'early' }
  | { readonly kind: 'block'; readonly reason: BlockReason; readonly detail: string };

/** Why an event must not become visible. */
export type Refusal = { readonly detail: string; readonly sqlstate?: string };

export const STOPPED_EARLIER = 'an earlier event of this log was stopped';

/** Hash that warm has in an event's place; undefined where it has none, or no longer knows it. */
export function storedAt(
  state: TrajectoryState,
  { sequence_number }: WarmEvent,
  storedHash: (sequence: number) => string | undefined,
): string | undefined {
  if (sequence_number > state.last_sequence_number) return undefined;
  return sequence_number === state.last_sequence_number ? state.head_hash : storedHash(sequence_number);
}

export function placeOf(state: TrajectoryState, event: WarmEvent, stored: string | undefined): Place {
  const { sequence_number, fencing_token } = event;
  const next = state.last_sequence_number + 1;
  if (sequence_number < next && stored === event.cryptographic_hash) return { kind: 'duplicate' };
  const fence = state.fences.find(
    (claim) => fencing_token < claim.fencing_token && sequence_number > claim.sequence_number,
  );
  if (fence !== undefined) {
    const { fencing_token: token, sequence_number: at } = fence;
    return block('fenced', `token ${fencing_token} was passed by ${token} at event ${at}`);
  }
  if (sequence_number < next) {
    // At or below the head: it is never inserted again.
    return stored === undefined ? { kind: 'unproven' } : block('fork', `warm has another event ${sequence_number}`);
  }
  if (sequence_number > next) return { kind: 'early' };
  const previous = Buffer.from(state.head_hash, 'hex');
  if (chainHash(previous, formatEnvelope(event)).toString('hex') !== event.cryptographic_hash) {
    return block('fork', `its hash does not cover the event ${sequence_number - 1} that warm has`);
  }
  const goesBack =
    event.turn < state.turn || fencing_token < state.fencing_token || Date.parse(event.created_at) < state.created_ms;
  return goesBack ? block('poison', 'its turn, time or token went back') : { kind: 'insert' };
}

/** What was learnt of an event in an earlier try, or is known of it otherwise, matters only where it would go in. */
export function allowed(place: Place, refusal: Refusal | undefined, isConflicting: boolean, event: WarmEvent): Place {
  if (place.kind !== 'insert' && place.kind !== 'early') return place;
  if (refusal !== undefined) return block('poison', refusal.detail);
  if (place.kind === 'insert' && isConflicting) return block('fork', `warm has another event ${event.sequence_number}`);
  return place;
}

export function block(reason: BlockReason, detail: string): Place & { kind: 'block' } {
  return { kind: 'block', reason, detail };
}

/** The state behind an event that is inserted. The summary follows at the end, in one go. */
export function advanced(state: TrajectoryState, event: WarmEvent): TrajectoryState {
  return {
    ...state,
    last_sequence_number: event.sequence_number,
    head_hash: event.cryptographic_hash,
    turn: event.turn,
    created_ms: Date.parse(event.created_at),
    fencing_token: event.fencing_token,
  };
}
