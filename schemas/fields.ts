/**
 * The building blocks of payloads: names, versions, texts, content blocks, entries of a context.
 *
 * A *name* (id, key, name) has 1 to 1024 UTF-8 bytes and is never offloaded. A *text* is a string kept verbatim, or the
 * stub that stands for it. *Content* is a text, or the blocks in which a provider spoke. Objects are loose: fields
 * that are not named here pass through untouched.
 */
import { z } from 'zod';
import type { Json } from './canonical.ts';
import { parseCreatedAt } from './chain.ts';
import { isVarveError } from './errors.ts';
import { NAME_BYTES_MAX, PARTITION_VALUE_CODE_POINTS_MAX, TURN_MAX } from './limits.ts';

/** Any JSON; whether it has a canonical form is checked when it is encoded. */
export const json = z.unknown() as unknown as z.ZodType<Json>;

/**
 * An object whose unknown fields pass, typed as JSON so that a payload can be given to `append` as it is.
 *
 * Checked as `optional`, typed as exactly optional: zod runs the inner schema of an absent `exactOptional` field and
 * builds its issues (measured: 0.5 µs for each absent text, all of it on the append path). What differs, `undefined` for
 * a value, has no canonical form and is refused there.
 */
export function loose<Shape extends z.ZodRawShape>(
  shape: Shape,
): z.ZodObject<Shape, z.core.$catchall<z.ZodType<Json>>> {
  const quick: Record<string, z.core.$ZodType> = {};
  for (const [key, field] of Object.entries(shape)) {
    quick[key] = field instanceof z.ZodExactOptional ? z.optional(field.unwrap()) : field;
  }
  return z.looseObject(quick) as unknown as z.ZodObject<Shape, z.core.$catchall<z.ZodType<Json>>>;
}

function fitsName(text: string): boolean {
  return text.length * 3 <= NAME_BYTES_MAX || Buffer.byteLength(text) <= NAME_BYTES_MAX;
}

export const name = z
  .string()
  .min(1)
  .max(NAME_BYTES_MAX)
  .refine(fitsName, { error: `more than ${NAME_BYTES_MAX} bytes of UTF-8` })
  .meta({ description: `1 to ${NAME_BYTES_MAX} bytes of UTF-8` });

function fitsPartition(text: string): boolean {
  if (text.length <= PARTITION_VALUE_CODE_POINTS_MAX) return text.length > 0;
  return (
    text.length <= 2 * PARTITION_VALUE_CODE_POINTS_MAX && Array.from(text).length <= PARTITION_VALUE_CODE_POINTS_MAX
  );
}

/** Tenant or version: becomes a partition value of the cold tier, counted in code points. */
export const partitionValue = z
  .string()
  .refine(fitsPartition, { error: `not 1 to ${PARTITION_VALUE_CODE_POINTS_MAX} code points` })
  .meta({ minLength: 1, maxLength: PARTITION_VALUE_CODE_POINTS_MAX });

export const sha256 = z.string().regex(/^[0-9a-f]{64}$/);
export const trajectoryId = z.string().regex(/^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
export const sequenceNumber = z.int().min(1);
export const turnNumber = z.int().min(0).max(TURN_MAX);
export const count = z.int().min(0);

function isTime(text: string): boolean {
  try {
    parseCreatedAt(text);
    return true;
  } catch (error) {
    if (isVarveError(error, 'INVALID_CREATED_AT')) return false;
    throw error;
  }
}

/** `YYYY-MM-DDTHH:mm:ss.sssZ`, as `created_at`. */
export const time = z
  .string()
  .refine(isTime, { error: 'not YYYY-MM-DDTHH:mm:ss.sssZ in the years 1970 to 9999' })
  .meta({ pattern: '^\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2}:\\d{2}\\.\\d{3}Z$' });

/** See `schemas/stubs.ts`. */
export const stub = z.strictObject({ $blob: z.strictObject({ sha256, bytes: count, media_type: name }) });

export const text = z.union([z.string(), stub], { error: 'neither a string nor a stub' });

/**
 * One block of a reply, a message or an output, as the provider gave it and in its order. What is read is `text`, and of
 * a block with `tool_call_id` (in a reply) its place among the others; every other field travels along: signatures of
 * thinking, encrypted reasoning, image data.
 */
export const block = loose({ type: name, text: text.exactOptional(), tool_call_id: name.exactOptional() });

export const content = z.union([z.string(), stub, z.array(block)], {
  error: 'not a string, a stub or a list of blocks',
});

/** `arguments` is the string that the model wrote, never a parsed and printed copy of it. */
export const toolCall = loose({
  tool_call_id: name,
  tool_name: name.exactOptional(),
  arguments: text.exactOptional(),
});

/**
 * Tokens of one model call. `input_tokens` is all of the input, cached or not, and the two cache figures are parts of
 * it; `reasoning_tokens` is a part of `output_tokens`.
 */
export const usage = loose({
  input_tokens: count.exactOptional(),
  output_tokens: count.exactOptional(),
  cache_read_tokens: count.exactOptional(),
  cache_write_tokens: count.exactOptional(),
  reasoning_tokens: count.exactOptional(),
  cost_usd: z.number().exactOptional(),
});

/** A tool as it was offered to the model; `input_schema` is its JSON Schema, as an object or verbatim. */
export const tool = loose({
  name,
  description: text.exactOptional(),
  input_schema: json.exactOptional(),
  version: partitionValue.exactOptional(),
});

/** The tools in force: a list, or the text in which the harness sent them. */
export const tools = z.union([z.string(), stub, z.array(tool)], { error: 'not a string, a stub or a list of tools' });

/** The fields that tell the forms of a context's entries apart; each form forbids the others'. */
const not = z.never().exactOptional();
const none = { base: not, at: not, from: not, text: not, trajectory_id: not };

function isRange(entry: { from: number; to: number }): boolean {
  return entry.from <= entry.to;
}
const RANGE = { error: '`from` is past `to`', path: ['to'] };

/** First in its list: the messages of an earlier ContextBuilt of this trajectory. */
const baseEntry = loose({ ...none, base: sequenceNumber });
/** The messages among these events, both ends included. */
const rangeEntry = loose({ ...none, from: sequenceNumber, to: sequenceNumber }).refine(isRange, RANGE);
/** The same, of the parent. */
const parentEntry = loose({ ...none, trajectory_id: trajectoryId, from: sequenceNumber, to: sequenceNumber });
/** One message of which at most `cut` bytes of UTF-8 were shown; `shown_sha256` is the hash of what was. */
const cutEntry = loose({ ...none, at: sequenceNumber, cut: count, shown_sha256: sha256 });
/** A message that no event holds. */
const textEntry = loose({ ...none, text, role: name.exactOptional(), tool_call_id: name.exactOptional() });

export const contextEntry = z.union([baseEntry, rangeEntry, parentEntry.refine(isRange, RANGE), cutEntry, textEntry], {
  error: 'not an entry of a context',
});
export type ContextEntry = z.infer<typeof contextEntry>;

export const contextEntries = z
  .array(contextEntry)
  .refine((entries) => entries.every((entry, i) => i === 0 || entry.base === undefined), {
    error: '`base` stands only first',
  });
