/**
 * What varve publishes of its formats: the JSON Schema of the event line, of every kind's payload and of `varve.json`,
 * alert rules, and the test vectors. Pure: file name → content. `schemas/publish.ts` writes the files, a test fails where they differ.
 *
 * JSON Schema cannot say everything: names are limited in bytes of UTF-8 and not in characters, and `from` ≤ `to`. What
 * the schemas refuse is always refused at the door; the reverse does not hold.
 */
import { z } from 'zod';
import { alertsYaml } from './alerts.ts';
import { Config } from './config.ts';
import { count, json, sequenceNumber, sha256, time, trajectoryId, turnNumber } from './fields.ts';
import { KINDS } from './kinds.ts';
import { buildVectors } from './vectors.ts';

const eventLine = z.strictObject({
  trajectory_id: trajectoryId,
  sequence_number: sequenceNumber,
  event_type: z.string().regex(/^[A-Za-z][A-Za-z0-9._:/-]{0,127}$/),
  turn: turnNumber,
  created_at: time,
  fencing_token: count,
  payload: z.record(z.string(), json),
  cryptographic_hash: sha256,
});

export function publishedFiles(): ReadonlyMap<string, string> {
  const files = new Map<string, string>();
  files.set('event.json', pretty({ title: 'Event', ...z.toJSONSchema(eventLine) }));
  for (const [event_type, schema] of Object.entries(KINDS)) {
    files.set(`${event_type}.json`, pretty({ title: event_type, ...z.toJSONSchema(schema) }));
  }
  files.set('varve.json.schema.json', pretty({ title: 'varve.json', ...z.toJSONSchema(Config, { io: 'input' }) }));
  files.set('alerts.yaml', alertsYaml());
  files.set('vectors.json', pretty({ format: 1, vectors: buildVectors() }));
  return files;
}

function pretty(value: unknown): string {
  return `${JSON.stringify(value, null, 2)}\n`;
}
