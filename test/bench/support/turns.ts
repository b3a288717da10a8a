/**
 * Events as agents write them, for what reads payloads: each turn is a reply, its authorization, an intent and its
 * result, and the payloads are of many sizes. Prepared once; a trajectory walks through them turn by turn.
 */
import { randomBytes } from 'node:crypto';
import { canonicalJson, type JsonObject } from '../../../schemas/canonical.ts';
import { lines } from './samples.ts';

export type TurnEvent = { readonly event_type: string; readonly turn: number; readonly payload: JsonObject };

const EVENTS_OF_A_TURN = 4;
const TURNS = 16;

export class Turns {
  readonly #events: readonly { readonly event_type: string; readonly payload: JsonObject }[];

  /** Payloads from `smallest` to `largest` bytes, as many between 300 and 600 as between 4,000 and 8,000. */
  constructor(smallest: number, largest: number) {
    const count = TURNS * EVENTS_OF_A_TURN;
    const sizes = Array.from({ length: count }, (_, i) =>
      Math.round(smallest * (largest / smallest) ** (i / (count - 1))),
    );
    // 29 and 64 have no common divisor: every size comes once, neighbours differ, and every kind gets all sizes.
    this.#events = sizes.map((_, i) => makeEvent(i, sizes[(i * 29) % count] as number));
  }

  /** The event with this number, from 1 on, of a trajectory. */
  at(trajectory: number, sequence_number: number): TurnEvent {
    const before = sequence_number - 1;
    const at = (trajectory * EVENTS_OF_A_TURN + before) % this.#events.length;
    const event = this.#events[at] as { event_type: string; payload: JsonObject };
    return { ...event, turn: Math.floor(before / EVENTS_OF_A_TURN) + 1 };
  }
}

function makeEvent(i: number, bytes: number): { event_type: string; payload: JsonObject } {
  const tool_call_id = `call_${Math.floor(i / EVENTS_OF_A_TURN)}_${SALT}`;
  switch (i % EVENTS_OF_A_TURN) {
    case 0: {
      const usage = { input_tokens: 18_000, output_tokens: 320, cache_read_tokens: 17_000 };
      return filled('ModelReplied', { model: 'bench', stop_reason: 'tool_use', usage }, 'content', bytes);
    }
    case 1:
      return filled('Authorized', { tool_call_id, decision: 'allow', policy_version: 'bench-1' }, 'reason', bytes);
    case 2:
      return filled('ToolIntent', { tool_call_id, tool_name: 'shell', settle: 'probe' }, 'arguments', bytes);
    default:
      return filled('ToolResult', { tool_call_id, status: 'ok', duration_ms: 12.5 }, 'output', bytes);
  }
}

const SALT = randomBytes(6).toString('hex');

function filled(event_type: string, fields: JsonObject, text: string, bytes: number) {
  const room = bytes - canonicalJson({ ...fields, [text]: '' }).length;
  return { event_type, payload: { ...fields, [text]: lines(room) } };
}
