/** Events on their way out: in the order asked for, byte for byte, at the reader's pace, and never fewer in silence. */
import assert from 'node:assert/strict';
import { canonicalJson, type JsonObject } from '../../schemas/canonical.ts';
import { isVarveError } from '../../schemas/errors.ts';
import { copiedRows } from '../../warm/copy-out.ts';
import { type ExportedEvent, type ExportRange, exportEvents } from '../../warm/export.ts';
import { Ingest } from '../../warm/ingest.ts';
import type { WarmPool } from '../../warm/pool.ts';
import { eventually } from '../support/eventually.ts';
import { createDatabase, type TestDatabase } from '../support/postgres.ts';
import { Chain, Feed, ScriptLog } from '../support/sidecar-script.ts';
import { exec, select } from '../support/sidecar-warm.ts';

const HOSTILE: readonly JsonObject[] = [
  { text: 'U+0000 \u0000 beside \\u0000', ['\u0000']: 1 },
  { number: 1e21, small: 5e-324, verbatim: '9007199254740993 1.10 -0', ['__proto__x']: [null, true, {}] },
  { pair: '\u{1f600}', controls: '\u0001\u001f\u007f', quotes: '"\\"' },
];

describe('warm/export', () => {
  let database: TestDatabase;
  let pool: WarmPool;
  const chains = [new Chain(), new Chain(), new Chain()];

  before(async () => {
    database = await createDatabase();
    pool = database.pool;
    const log = new ScriptLog();
    const feed = new Feed(log, (await Ingest.open(pool, log.identity)).ingest);
    for (const chain of chains) {
      for (let i = 0; i < 200; i++)
        chain.add({ payload: { ...HOSTILE[i % 3], i }, turn: i, fencing_token: 2 ** 40 + i });
      log.add(...chain.events);
    }
    await feed.apply();
  });
  after(async () => await database[Symbol.asyncDispose]());

  function range(chain: Chain, after = 0, upTo = chain.length): ExportRange {
    return { trajectory_id: chain.id, after, upTo };
  }

  async function all(ranges: readonly ExportRange[]): Promise<ExportedEvent[]> {
    const events: ExportedEvent[] = [];
    for await (const some of exportEvents(pool, ranges)) events.push(...some);
    return events;
  }

  it('come range by range in the order asked for, each ascending, as they were taken in', async () => {
    const [a, b, c] = chains as [Chain, Chain, Chain];
    const events = await all([range(c, 10, 20), range(a), range(b, 199)]);
    assert.deepEqual(
      events.map(({ cryptographic_hash }) => cryptographic_hash),
      [...c.part(11, 20), ...a.events, ...b.part(200)].map(({ cryptographic_hash }) => cryptographic_hash),
    );
    for (const event of events.slice(10, 210)) {
      const wanted = a.at(event.sequence_number);
      assert.equal(canonicalJson(JSON.parse(event.payload_text)), Buffer.from(wanted.payload_bytes).toString('utf8'));
      const { payload: _, payload_bytes: __, ...rest } = wanted;
      const { payload_text: ___, isExact, ...found } = event;
      assert.deepEqual(found, rest);
      assert.equal(isExact, event.payload_text.includes('\\u0000'));
    }
  });

  it('what is not there is not in the stream, and nothing else is missing', async () => {
    const [a] = chains as [Chain];
    assert.deepEqual(await all([range(new Chain())]), []);
    assert.equal((await all([range(new Chain()), range(a, 0, 500)])).length, 200);
  });

  it('a reader that stops ends the copy and its connection', async () => {
    for await (const _ of exportEvents(
      pool,
      chains.map((chain) => range(chain)),
    ))
      break;
    await eventually('the end of the connection', async () => {
      const rows = await select(
        pool,
        `SELECT 1 FROM pg_stat_activity WHERE query LIKE 'COPY%' AND datname = current_database()`,
      );
      return rows.length === 0 ? true : undefined;
    });
  });

  it('a connection that dies in the middle is an error, and no short answer', async () => {
    // Far more than what lies in sockets' buffers.
    const many = Array.from({ length: 300 }, () => chains.map((chain) => range(chain))).flat();
    await assert.rejects(
      async () => {
        for await (const _ of exportEvents(pool, many)) {
          await exec(pool, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'COPY%'`);
        }
      },
      (error) => isVarveError(error, 'WARM_UNAVAILABLE'),
    );
  });

  it('a stream without its trailer, or of another form, is refused', async () => {
    const unreadable = (error: unknown) => isVarveError(error, 'WARM_UNREADABLE_VALUE');
    const header = Buffer.from('PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0', 'latin1');
    const row = Buffer.from([0, 1, 0, 0, 0, 1, 65]);
    const end = Buffer.from([255, 255]);
    const read = async (...chunks: Buffer[]) => {
      const rows: unknown[] = [];
      async function* stream() {
        yield* chunks;
      }
      for await (const some of copiedRows(stream())) rows.push(...some);
      return rows;
    };
    const whole = Buffer.concat([header, row, row, end]);
    assert.equal((await read(whole)).length, 2);
    // However it is cut.
    assert.equal((await read(...[...whole].map((byte) => Buffer.from([byte])))).length, 2);
    await assert.rejects(read(whole.subarray(0, -2)), unreadable);
    await assert.rejects(read(whole.subarray(0, -1)), unreadable);
    await assert.rejects(read(Buffer.from('COPYPG'), whole), unreadable);
  });
});
