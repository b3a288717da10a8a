/**
 * How PostgreSQL's values become JavaScript's; warm/pool.ts gives the rules to the driver. Pure: text in, value out.
 *
 * int8 is a number, refused beyond 2^53−1. timestamptz is the text `YYYY-MM-DDTHH:mm:ss.sssZ`, cut to the millisecond, as
 * an event's `created_at`; it counts on a session in UTC with ISO dates. date, timestamp, interval and numeric stay
 * PostgreSQL's own text. Types that are not listed here are the driver's: json and jsonb parsed, bytea a Buffer.
 */
import { VarveError } from '../schemas/errors.ts';

type Parser = (text: string) => unknown;

const TIME = /^(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?\+00$/;

export function parseInt8(text: string): number {
  const value = Number(text);
  if (Number.isSafeInteger(value)) return value;
  throw new VarveError('WARM_UNREADABLE_VALUE', 'a bigint of the database is beyond what a number holds exactly');
}

export function parseTimestamptz(text: string): string {
  const [, day, time, fraction = ''] = TIME.exec(text) ?? [];
  if (day !== undefined) return `${day}T${time}.${fraction.slice(0, 3).padEnd(3, '0')}Z`;
  throw new VarveError('WARM_UNREADABLE_VALUE', 'a time of the database is not between the years 1 and 9999');
}

function asText(text: string): string {
  return text;
}

/** Of one dimension, of elements without commas and quotes of their own. */
function arrayOf(parse: Parser): Parser {
  return (text) => {
    if (!/^\{[^{}]*\}$/.test(text))
      throw new VarveError('WARM_UNREADABLE_VALUE', 'an array has more than one dimension');
    if (text === '{}') return [];
    const elements = text.slice(1, -1).split(',');
    return elements.map((element) => (element === 'NULL' ? null : parse(element.replaceAll('"', ''))));
  };
}

/** By the type's oid, which is the same in every PostgreSQL (pg_type.dat). */
export const PARSERS: ReadonlyMap<number, Parser> = new Map([
  [20, parseInt8],
  [1016, arrayOf(parseInt8)],
  [1184, parseTimestamptz],
  [1185, arrayOf(parseTimestamptz)],
  [1082, asText],
  [1182, arrayOf(asText)],
  [1114, asText],
  [1115, arrayOf(asText)],
  [1186, asText],
  [1231, arrayOf(asText)],
]);
