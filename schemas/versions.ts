/**
 * The versions in force: what a resume or a replay must match, and where the texts in force stand.
 *
 * Where the harness names no version, the SHA-256 is it: of the prompt template's text, or of the tool as it was offered
 * (every string in it by its own hash, so that a stub and its body agree).
 */
import { hash } from 'node:crypto';
import { canonicalJson, type Json, type JsonObject } from './canonical.ts';
import { digested } from './context.ts';
import { objectOf, objectsOf, stringOf, textOf } from './reading.ts';
import type { FoldedEvent } from './tally.ts';

/** Where a text in force stands; `trajectory_id` where it was inherited. */
export type Place = { readonly sequence_number: number; readonly trajectory_id?: string };

export type Versions = {
  readonly model: string | null;
  readonly model_version: string | null;
  readonly served_model_version: string | null;
  readonly prompt_template_version: string | null;
  /** Version by name of the tool, in the order in which they became known. */
  readonly tool_schema_versions: readonly { readonly name: string; readonly version: string }[];
  /** The events whose texts are in force. */
  readonly system_prompt: Place | null;
  readonly prompt_template: Place | null;
  readonly tools: Place | null;
};

export const NO_VERSIONS: Versions = {
  model: null,
  model_version: null,
  served_model_version: null,
  prompt_template_version: null,
  tool_schema_versions: [],
  system_prompt: null,
  prompt_template: null,
  tools: null,
};

/** After a `TaskStarted`. */
export function startedVersions(versions: Versions, event: FoldedEvent): Versions {
  const { payload } = event;
  const next = textsInForce(versions, event);
  return {
    ...next,
    model: stringOf(payload['model']) ?? next.model,
    model_version: stringOf(payload['model_version']) ?? next.model_version,
    prompt_template_version:
      stringOf(payload['prompt_template_version']) ??
      hashOf(payload['prompt_template']) ??
      next.prompt_template_version,
    tool_schema_versions: toolVersions(next.tool_schema_versions, payload),
  };
}

/** After a `DriftCrossed`. */
export function crossedVersions(versions: Versions, event: FoldedEvent): Versions {
  const { payload } = event;
  const next = textsInForce(versions, event);
  const version = stringOf(payload['new_version']);
  const name = stringOf(payload['name']);
  if (payload['what'] === 'model') return { ...next, model: name ?? next.model, model_version: version ?? null };
  if (payload['what'] === 'prompt_template') {
    return { ...next, prompt_template_version: version ?? hashOf(payload['prompt_template']) ?? null };
  }
  if (payload['what'] !== 'tool_schema') return next;
  const tools = toolVersions(next.tool_schema_versions, payload);
  const named = name !== undefined && version !== undefined ? { [name]: version } : {};
  return { ...next, tool_schema_versions: toolVersions(tools, { tool_schema_versions: named }) };
}

function textsInForce(versions: Versions, event: FoldedEvent): Versions {
  const here = { sequence_number: event.sequence_number };
  return {
    ...versions,
    ...('system_prompt' in event.payload ? { system_prompt: here } : {}),
    ...('prompt_template' in event.payload ? { prompt_template: here } : {}),
    ...('tools' in event.payload ? { tools: here } : {}),
  };
}

/** Where the harness gives a tool no version, the hash of the tool is it. A text of tools cannot be taken apart. */
function toolVersions(known: Versions['tool_schema_versions'], payload: JsonObject): Versions['tool_schema_versions'] {
  const versions = new Map(known.map(({ name, version }) => [name, version]));
  for (const tool of objectsOf(payload['tools'])) {
    const name = stringOf(tool['name']);
    const version = stringOf(tool['version']) ?? hash('sha256', canonicalJson(digested(tool)), 'hex');
    if (name !== undefined) versions.set(name, version);
  }
  for (const [name, version] of Object.entries(objectOf(payload['tool_schema_versions']) ?? {})) {
    if (typeof version === 'string') versions.set(name, version);
  }
  return Array.from(versions, ([name, version]) => ({ name, version }));
}

function hashOf(value: Json | undefined): string | undefined {
  const text = textOf(value);
  return text === undefined ? undefined : (digested(text) as string);
}
