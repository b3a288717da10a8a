import assert from 'node:assert/strict';
import { copyFile, mkdir, readdir, rm, truncate } from 'node:fs/promises';
import fc from 'fast-check';
import type { EventInput, RecordedEvent } from '../../hot/door.ts';
import { HotLog } from '../../hot/log.ts';
import type { HotLogOptions } from '../../hot/options.ts';
import type { Position, StoredEvent } from '../../hot/record.ts';
import { canonicalJson, type JsonObject } from '../../schemas/canonical.ts';
import { chainHash, formatEnvelope, payloadSha256 } from '../../schemas/chain.ts';
import { isVarveError } from '../../schemas/errors.ts';
import { newTrajectoryId, type SequenceNumber, type TrajectoryId } from '../../schemas/ids.ts';
import { KIB } from '../../schemas/limits.ts';
import { stubFor } from '../../schemas/stubs.ts';
import { anyText } from '../support/events.ts';
import { runs } from '../support/property.ts';
import { TempDirectory } from '../support/temp.ts';
import { ackTo, all, crashCopy, FINISH, intent, note, refused, result, SMALL } from './support/hot.ts';

const TRAJECTORIES = 5;
const OFFLOAD_OVER = 2 * KIB;
const OPTIONS = { ...SMALL, offloadOverBytes: OFFLOAD_OVER } satisfies HotLogOptions;
const ZEROS = '0'.repeat(64);

// What the model remembers.

type ModelEvent = {
  readonly lsn: number;
  readonly sequence: number;
  readonly event_type: string;
  readonly turn: number;
  readonly token: number;
  readonly created_at: string;
  readonly text: string;
  readonly payload: JsonObject;
  readonly hash: string;
  /** Itself and the events before it that this log holds without an anchor between. */
  readonly readable: readonly ModelEvent[];
};

type Trajectory = {
  readonly id: TrajectoryId;
  sequence: number;
  hash: string;
  turn: number;
  token: number;
  created_at: string;
  lsn: number;
  /** Records of the log, anchors too, in order. */
  readonly chain: (ModelEvent | { readonly lsn: number })[];
  readable: readonly ModelEvent[];
  trimmedSequence: number;
  trimmedLsn: number;
  finished: boolean;
  checkpoint: ModelEvent | undefined;
  context: ModelEvent | undefined;
  intents: Map<string, ModelEvent>;
};

// What the fuzzer may do. An index of a trajectory, or anything that makes no sense, is bent until it does.

type At = 'none' | 'next' | 'past' | 'past-other' | 'future';
type Kind = 'note' | 'large' | 'intent' | 'result' | 'checkpoint' | 'context' | 'based-context' | 'finish' | 'unknown';
type Snapshots = 'kept' | 'lost' | 'torn' | 'older';

type Step =
  | { readonly do: 'append'; readonly t: number; readonly kind: Kind; readonly text: string; readonly at: At }
  | { readonly do: 'append-all'; readonly t: number; readonly kinds: readonly Kind[]; readonly text: string }
  | { readonly do: 'append-recorded'; readonly t: number; readonly count: number; readonly ms: number }
  | { readonly do: 'burst'; readonly ts: readonly number[]; readonly text: string }
  | { readonly do: 'bulk'; readonly t: number }
  | { readonly do: 'reopen'; readonly how: 'close' | 'crash'; readonly snapshots: Snapshots }
  | { readonly do: 'ack'; readonly behind: number; readonly held: number }
  | { readonly do: 'trim' }
  | { readonly do: 'adopt'; readonly t: number; readonly where: 'ahead' | 'here' | 'back' | 'foreign-back' }
  | { readonly do: 'clock'; readonly ms: number }
  | { readonly do: 'verify' };

const t = fc.nat(TRAJECTORIES - 1);
const kind = fc.constantFrom<Kind>(
  'note',
  'note',
  'large',
  'intent',
  'result',
  'checkpoint',
  'context',
  'based-context',
  'finish',
  'unknown',
);
const at = fc.oneof(
  { weight: 4, arbitrary: fc.constant<At>('none') },
  { weight: 3, arbitrary: fc.constantFrom<At>('next', 'past', 'past-other', 'future') },
);
const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 12, arbitrary: fc.record({ do: fc.constant('append' as const), t, kind, text: anyText, at }) },
  {
    weight: 3,
    arbitrary: fc.record({
      do: fc.constant('append-all' as const),
      t,
      kinds: fc.array(kind, { minLength: 1, maxLength: 4 }),
      text: anyText,
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constant('append-recorded' as const), t, count: fc.nat(3), ms: fc.nat(2000) }),
  },
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constant('burst' as const), ts: fc.array(t, { maxLength: 12 }), text: anyText }),
  },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('bulk' as const), t }) },
  {
    weight: 4,
    arbitrary: fc.record({
      do: fc.constant('reopen' as const),
      how: fc.constantFrom('close' as const, 'crash' as const),
      snapshots: fc.constantFrom<Snapshots>('kept', 'lost', 'torn', 'older'),
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({ do: fc.constant('ack' as const), behind: fc.constantFrom(0, 0, 0, 1, 5), held: fc.nat(9) }),
  },
  { weight: 4, arbitrary: fc.constant({ do: 'trim' as const }) },
  {
    weight: 2,
    arbitrary: fc.record({
      do: fc.constant('adopt' as const),
      t,
      where: fc.constantFrom('ahead' as const, 'here' as const, 'back' as const, 'foreign-back' as const),
    }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('clock' as const), ms: fc.integer({ min: -5000, max: 5000 }) }) },
  { weight: 1, arbitrary: fc.constant({ do: 'verify' as const }) },
);

class World {
  readonly #temp: TempDirectory;
  readonly #trajectories: Trajectory[];
  #log: HotLog;
  #dir: string;
  #generation = 0;
  #now = Date.now();
  #latest = 0;
  #lsn = 0;
  /** LSN → what it holds; a trim takes events and anchors away. */
  readonly #events = new Map<number, ModelEvent & { readonly id: TrajectoryId }>();
  readonly #controls = new Map<number, 'anchor' | 'trim'>();
  readonly #gone = new Set<number>();
  #acked = 0;
  readonly #ackedEver = new Set([0]);
  #held = new Set<TrajectoryId>();
  #floor = 0;
  #texts = 0;

  private constructor(temp: TempDirectory, dir: string, log: HotLog) {
    this.#temp = temp;
    this.#dir = dir;
    this.#log = log;
    this.#trajectories = Array.from({ length: TRAJECTORIES }, () => ({
      id: newTrajectoryId(),
      sequence: 0,
      hash: ZEROS,
      turn: 0,
      token: 0,
      created_at: '',
      lsn: 0,
      chain: [],
      readable: [],
      trimmedSequence: 0,
      trimmedLsn: 0,
      finished: false,
      checkpoint: undefined,
      context: undefined,
      intents: new Map(),
    }));
  }

  static async make(temp: TempDirectory): Promise<World> {
    await mkdir(temp.join('stash'));
    let world: World | undefined;
    const dir = temp.join('log-0');
    const log = await HotLog.open(dir, OPTIONS, { clock: () => world?.clock ?? Date.now() });
    world = new World(temp, dir, log);
    return world;
  }

  get clock(): number {
    return this.#now;
  }

  close(): Promise<void> {
    return this.#log.close();
  }

  async carryOut(step: Step): Promise<void> {
    switch (step.do) {
      case 'append':
        return this.#append(step);
      case 'append-all':
        return this.#appendAll(step.t, step.kinds, step.text);
      case 'append-recorded':
        return this.#appendRecorded(step.t, step.count, step.ms);
      case 'burst':
        return this.#burst(step.ts, step.text);
      case 'bulk':
        return this.#bulk(step.t);
      case 'reopen':
        return this.#reopen(step.how, step.snapshots);
      case 'ack':
        return this.#ack(step.behind, step.held);
      case 'trim':
        return this.#trim();
      case 'adopt':
        return this.#adopt(step.t, step.where);
      case 'clock':
        this.#now += step.ms;
        return;
      case 'verify':
        return this.#verify();
    }
  }

  // Appending.

  #inputOf(trajectory: Trajectory, kind: Kind, text: string, ahead = 0): EventInput {
    const { sequence, turn } = trajectory;
    const next = sequence + ahead + 1;
    switch (kind) {
      case 'note':
        return { ...note(text), turn: turn + (text.length % 2) };
      case 'large':
        return { ...note('x'.repeat(OFFLOAD_OVER + (text.length % 2)) + text), turn };
      case 'intent':
        return { ...intent(`call-${text.length % 3}`), turn };
      case 'result':
        return { ...result(`call-${text.length % 3}`), turn };
      case 'checkpoint':
        return { event_type: 'Checkpoint', turn, payload: { covers_sequence_number: Math.max(1, sequence) } };
      case 'context':
        return { event_type: 'ContextBuilt', turn, payload: { messages: [{ from: Math.max(1, next - 3), to: next }] } };
      case 'based-context': {
        // Now and then a base that is no earlier event: the log takes it.
        const base = text.length % 4 === 0 ? next + 1 : (trajectory.context?.sequence ?? next);
        return { event_type: 'ContextBuilt', turn, payload: { messages: [{ base }, { from: next, to: next }] } };
      }
      case 'finish':
        return { ...FINISH, turn };
      case 'unknown':
        return { event_type: 'x.Custom', turn, payload: { text, n: text.length / 3, deep: [[{ text }]] } };
    }
  }

  /** What the log stores of an input; independent of how it finds out. */
  #stored(input: EventInput): { payload: JsonObject; text: string } {
    const text = input.payload['note'];
    const isBlob = typeof text === 'string' && Buffer.byteLength(text) > OFFLOAD_OVER;
    const payload: JsonObject = isBlob ? { ...input.payload, note: stubFor(Buffer.from(text)) } : input.payload;
    return { payload, text: canonicalJson(payload) };
  }

  #take(trajectory: Trajectory, input: EventInput, lsn: number, created_at: string, token: number): ModelEvent {
    const { payload, text } = this.#stored(input);
    const { event_type, turn } = input;
    const sequence = trajectory.sequence + 1;
    const envelope = formatEnvelope({
      created_at,
      event_type,
      fencing_token: token,
      payload_sha256: payloadSha256(text),
      sequence_number: sequence as SequenceNumber,
      trajectory_id: trajectory.id,
      turn,
    });
    const hash = chainHash(Buffer.from(trajectory.hash, 'hex'), envelope).toString('hex');
    const readable: ModelEvent[] = [...trajectory.readable];
    const event = { lsn, sequence, event_type, turn, token, created_at, text, payload, hash, readable };
    readable.push(event);
    this.#events.set(lsn, { ...event, id: trajectory.id });
    Object.assign(trajectory, { sequence, hash, turn, token, created_at, lsn, readable });
    trajectory.chain.push(event);
    trajectory.finished = event_type === 'TaskFinished';
    if (event_type === 'Checkpoint') trajectory.checkpoint = event;
    if (event_type === 'ContextBuilt') trajectory.context = event;
    if (event_type === 'ToolIntent') trajectory.intents.set(payload['tool_call_id'] as string, event);
    if (event_type === 'ToolResult') trajectory.intents.delete(payload['tool_call_id'] as string);
    return event;
  }

  #now24(trajectory: Trajectory): string {
    const now = new Date(this.#now).toISOString();
    return now > trajectory.created_at ? now : trajectory.created_at;
  }

  #appended(trajectory: Trajectory, input: EventInput, receipt: { lsn: bigint; cryptographic_hash: string }): void {
    this.#lsn += 1;
    const event = this.#take(trajectory, input, this.#lsn, this.#now24(trajectory), trajectory.token);
    assert.equal(Number(receipt.lsn), this.#lsn);
    assert.equal(receipt.cryptographic_hash, event.hash);
  }

  async #append({ t, kind, text, at }: Step & { do: 'append' }): Promise<void> {
    const trajectory = this.#trajectory(t);
    const input = this.#inputOf(trajectory, kind, text);
    const next = trajectory.sequence + 1;
    switch (at) {
      case 'none':
        this.#appended(trajectory, input, await this.#log.append(trajectory.id, input));
        return;
      case 'next':
        this.#appended(trajectory, input, await this.#log.append(trajectory.id, input, { at: next }));
        return;
      case 'future':
        await refused(this.#log.append(trajectory.id, input, { at: next + 1 + text.length }), 'SEQUENCE_AHEAD');
        return;
      case 'past':
      case 'past-other': {
        const past = Math.max(1, next - 1 - (text.length % 3));
        if (past >= next) return;
        const stored = trajectory.readable.find(({ sequence }) => sequence === past);
        const repeat = stored && { event_type: stored.event_type, turn: stored.turn, payload: stored.payload };
        const other = at === 'past' && repeat !== undefined ? repeat : note(`other ${past}`);
        const repeated = this.#log.append(trajectory.id, other, { at: past });
        if (stored === undefined) await refused(repeated, 'HOT_TRIMMED');
        else if (at === 'past-other') await refused(repeated, 'SEQUENCE_TAKEN');
        else assert.equal((await repeated).cryptographic_hash, stored.hash);
      }
    }
  }

  async #appendAll(t: number, kinds: readonly Kind[], text: string): Promise<void> {
    const trajectory = this.#trajectory(t);
    const inputs = kinds.map((kind, i) => this.#inputOf(trajectory, kind, text, i));
    // Turns must not go back within the group.
    const ordered = inputs.map((input) => ({ ...input, turn: trajectory.turn + (text.length % 2) }));
    const receipts = await this.#log.appendAll(trajectory.id, ordered);
    assert.equal(receipts.length, ordered.length);
    for (const [i, input] of ordered.entries()) this.#appended(trajectory, input, receipts[i] as (typeof receipts)[0]);
  }

  async #appendRecorded(t: number, count: number, ms: number): Promise<void> {
    const trajectory = this.#trajectory(t);
    const token = trajectory.token + (count % 2);
    const created_at = new Date(Math.max(0, Date.parse(this.#now24(trajectory))) + ms).toISOString();
    const before = { ...trajectory, chain: [...trajectory.chain], intents: new Map(trajectory.intents) };
    const recorded: RecordedEvent[] = [];
    for (let i = 0; i < count; i++) {
      const input = { ...note(`recorded ${i}`), turn: trajectory.turn };
      const { hash, sequence } = this.#take(trajectory, input, this.#lsn + 1 + i, created_at, token);
      recorded.push({
        ...input,
        created_at,
        fencing_token: token,
        sequence_number: sequence,
        cryptographic_hash: hash,
      });
    }
    const last = recorded.at(-1);
    if (last !== undefined) {
      const bent = { ...last, cryptographic_hash: 'f'.repeat(64) };
      await refused(this.#log.appendRecorded(before.id, [...recorded.slice(0, -1), bent]), 'CHAIN_BROKEN');
    }
    const receipts = await this.#log.appendRecorded(before.id, recorded);
    this.#lsn += count;
    assert.deepEqual(
      receipts.map((receipt) => receipt.cryptographic_hash),
      recorded.map((event) => event.cryptographic_hash),
    );
  }

  /** Calls without waiting, small and large mixed: in each trajectory they enter in the order of the calls. */
  async #burst(ts: readonly number[], text: string): Promise<void> {
    const calls = ts.map((t, i) => {
      const trajectory = this.#trajectory(t);
      const kind = i % 3 === 0 ? 'large' : 'note';
      const input = { ...this.#inputOf(trajectory, kind, `${text}${this.#texts++}`), turn: trajectory.turn };
      return { trajectory, input, receipt: this.#log.append(trajectory.id, input) };
    });
    const done = await Promise.all(calls.map(async (call) => ({ ...call, receipt: await call.receipt })));
    const inLogOrder = done.toSorted((a, b) => Number(a.receipt.lsn - b.receipt.lsn));
    for (const trajectory of this.#trajectories) {
      const own = (calls: typeof done) => calls.filter((call) => call.trajectory === trajectory).map((c) => c.input);
      assert.deepEqual(own(inLogOrder), own(done), 'an append overtook one that was called before it');
    }
    for (const { trajectory, input, receipt } of inLogOrder) this.#appended(trajectory, input, receipt);
  }

  /** More than a write buffer: tables and head snapshots come to be. */
  async #bulk(t: number): Promise<void> {
    const trajectory = this.#trajectory(t);
    const inputs = Array.from({ length: 60 }, (_, i) => ({
      ...event(`${i}`.padStart(1500, `${this.#texts++} `)),
      turn: trajectory.turn,
    }));
    const receipts = await Promise.all(inputs.map((input) => this.#log.append(trajectory.id, input)));
    for (const [i, input] of inputs.entries()) this.#appended(trajectory, input, receipts[i] as (typeof receipts)[0]);
  }

  async #adopt(t: number, where: 'ahead' | 'here' | 'back' | 'foreign-back'): Promise<void> {
    const trajectory = this.#trajectory(t);
    const { id, sequence, hash, turn, token, created_at } = trajectory;
    const foreign = 'ab'.repeat(32);
    const older = trajectory.readable.at(-3);
    const created = created_at === '' ? new Date(this.#now).toISOString() : created_at;
    const head = { turn, fencing_token: token + 1, created_at: created };
    const back = Math.max(1, sequence - 2);
    const at = {
      ahead: { ...head, sequence_number: sequence + 7, cryptographic_hash: foreign },
      here: { ...head, sequence_number: Math.max(1, sequence), cryptographic_hash: sequence === 0 ? foreign : hash },
      back: { ...head, sequence_number: older?.sequence ?? back, cryptographic_hash: older?.hash ?? foreign },
      'foreign-back': { ...head, sequence_number: back, cryptographic_hash: foreign },
    }[where] as Omit<Position, 'trajectory_id'>;
    if (at.sequence_number < trajectory.trimmedSequence) {
      await refused(this.#log.adopt(id, at), 'ADOPT_BEHIND');
      return;
    }
    await this.#log.adopt(id, at);
    this.#lsn += 1;
    this.#controls.set(this.#lsn, 'anchor');
    const same = trajectory.chain.findLast(
      (record): record is ModelEvent =>
        'hash' in record && record.sequence === at.sequence_number && record.hash === at.cryptographic_hash,
    );
    Object.assign(trajectory, {
      sequence: at.sequence_number,
      hash: at.cryptographic_hash,
      turn: at.turn,
      token: at.fencing_token,
      created_at: at.created_at,
      lsn: this.#lsn,
      readable: (same?.readable ?? []).filter(({ lsn }) => !this.#gone.has(lsn)),
      finished: false,
      checkpoint: undefined,
      context: undefined,
      intents: new Map(),
    });
    trajectory.chain.push({ lsn: this.#lsn });
  }

  // Opening, acknowledging, letting go.

  async #reopen(how: 'close' | 'crash', snapshots: Snapshots): Promise<void> {
    const next = this.#temp.join(`log-${++this.#generation}`);
    if (how === 'crash') await crashCopy(this.#dir, next);
    await this.#log.close();
    if (how === 'crash') {
      await rm(this.#dir, { recursive: true, force: true });
      this.#dir = next;
    }
    await this.#bendSnapshots(snapshots);
    this.#log = await HotLog.open(this.#dir, OPTIONS, { clock: () => this.#now });
    // An ack that was not written yet is lost with its process.
    const acked = this.#log.acked?.cursor.lsn ?? 0;
    if (how === 'close') assert.equal(acked, this.#acked);
    assert.ok(this.#ackedEver.has(acked), `nobody acknowledged LSN ${acked}`);
    this.#acked = acked;
    this.#held = new Set(this.#log.acked?.held.map(({ trajectory_id }) => trajectory_id as TrajectoryId));
  }

  async #bendSnapshots(how: Snapshots): Promise<void> {
    const names = (await readdir(this.#dir)).filter((name) => name.startsWith('heads-')).toSorted();
    for (const name of names) await copyFile(`${this.#dir}/${name}`, this.#temp.join('stash', name));
    const newest = names.at(-1);
    if (how === 'kept' || newest === undefined) return;
    if (how === 'torn') {
      await truncate(`${this.#dir}/${newest}`, 100);
      return;
    }
    for (const name of names) await rm(`${this.#dir}/${name}`);
    if (how === 'lost') return;
    const stashed = (await readdir(this.#temp.join('stash'))).toSorted();
    const older = stashed[Math.floor(stashed.length / 2)] as string;
    await copyFile(this.#temp.join('stash', older), `${this.#dir}/${older}`);
    // The same content under the newest one's name is none of that LSN.
    if (older !== newest) await copyFile(this.#temp.join('stash', older), `${this.#dir}/${newest}`);
  }

  async #ack(behind: number, heldOf: number): Promise<void> {
    const lsn = Math.max(0, this.#lsn - behind);
    if (lsn === 0 || this.#gone.has(lsn) || lsn < this.#floor) return;
    const held = this.#trajectories[heldOf];
    const list = held === undefined ? [] : [{ trajectory_id: held.id, from_lsn: 1, reason: 'gap' as const }];
    // Where the clock went back, an ack would not count until it has caught up.
    const before = this.#now;
    this.#latest = Math.max(before, this.#latest);
    this.#now = this.#latest;
    await ackTo(this.#log, lsn, list);
    this.#now = before;
    this.#acked = lsn;
    this.#ackedEver.add(lsn);
    this.#held = new Set(held === undefined ? [] : [held.id]);
  }

  /** The last sequence number that may go. */
  #mayGo(trajectory: Trajectory): number {
    const { checkpoint, context, finished, intents, sequence, trimmedLsn } = trajectory;
    if (finished) return sequence;
    const here = (event: ModelEvent | undefined) => event !== undefined && event.lsn > trimmedLsn;
    if (checkpoint === undefined || !here(checkpoint)) return 0;
    let needed = Math.min(checkpoint.sequence, ...[...intents.values()].filter(here).map((event) => event.sequence));
    for (let at = context; at !== undefined && here(at); ) {
      const entries = at.payload['messages'] as { from?: number; base?: number }[];
      needed = Math.min(needed, at.sequence, ...entries.map((entry) => entry.from ?? entry.base ?? at?.sequence ?? 0));
      const base = entries[0]?.base;
      const from: number = at.sequence;
      at = base === undefined || base >= from ? undefined : at.readable.find(({ sequence }) => sequence === base);
    }
    return needed - 1;
  }

  async #trim(): Promise<void> {
    const acked = this.#acked;
    const marks = new Map<TrajectoryId, ModelEvent>();
    for (const trajectory of this.#trajectories) {
      if (this.#held.has(trajectory.id)) continue;
      const through = this.#mayGo(trajectory);
      const last = trajectory.readable.find(({ sequence }) => sequence === through);
      if (last === undefined || this.#gone.has(last.lsn) || through <= trajectory.trimmedSequence) continue;
      if (last.lsn <= acked) marks.set(trajectory.id, last);
    }
    const before = this.#now;
    this.#now = Math.max(before, this.#latest);
    const report = await this.#log.trim();
    this.#now = before;
    for (const trajectory of this.#trajectories) {
      const mark = marks.get(trajectory.id);
      if (mark === undefined) continue;
      this.#lsn += 1;
      this.#controls.set(this.#lsn, 'trim');
      trajectory.trimmedSequence = mark.sequence;
      trajectory.trimmedLsn = mark.lsn;
      for (const { lsn } of trajectory.chain) if (lsn <= mark.lsn) this.#gone.add(lsn);
      trajectory.readable = trajectory.readable.filter(({ lsn }) => lsn > mark.lsn);
    }
    assert.equal(report.trajectories, marks.size);
    const floor = report.floor_lsn;
    assert.ok(
      floor >= this.#floor && floor <= Math.max(acked, this.#floor),
      `the floor went from ${this.#floor} to ${floor}`,
    );
    this.#floor = report.floor_lsn;
    for (let lsn = 1; lsn <= this.#floor; lsn++) {
      assert.ok(this.#gone.has(lsn) || this.#controls.has(lsn), `LSN ${lsn} lies below the floor and is needed`);
      this.#gone.add(lsn);
    }
  }

  // Comparing.

  #trajectory(t: number): Trajectory {
    return this.#trajectories[t] as Trajectory;
  }

  async #verify(): Promise<void> {
    const report = await this.#log.verify({ deep: true });
    assert.equal(report.damage, undefined);
    assert.deepEqual(report.bad_blobs, []);
    assert.equal(report.tip.lsn, this.#lsn);
    assert.equal(report.events, [...this.#events.keys()].filter((lsn) => !this.#gone.has(lsn)).length);
  }

  /** The log says exactly what the model says. */
  async check(): Promise<void> {
    const log = this.#log;
    assert.equal(Number(log.durableLsn), this.#lsn);
    await this.#checkRecords();
    const known = this.#trajectories.filter(({ sequence }) => sequence > 0);
    assert.deepEqual(new Set(log.trajectories()), new Set(known.map(({ id }) => id)));
    for (const trajectory of this.#trajectories) await this.#checkTrajectory(trajectory);
    const open = known.flatMap(({ intents, trimmedLsn }) =>
      [...intents.values()].filter(({ lsn }) => lsn > trimmedLsn).map(({ lsn }) => lsn),
    );
    assert.deepEqual(
      (await log.inDoubt()).map(({ lsn }) => Number(lsn)),
      open.toSorted((a, b) => a - b),
    );
  }

  async #checkRecords(): Promise<void> {
    let last = 0;
    for (const item of await all(this.#log.readLog())) {
      const from = item.kind === 'trimmed' ? item.from_lsn : Number(item.lsn);
      const to = item.kind === 'trimmed' ? item.to_lsn : Number(item.lsn);
      assert.equal(from, last + 1, 'LSNs are dense');
      last = to;
      if (item.kind === 'trimmed') {
        for (let lsn = from; lsn <= to; lsn++) assert.ok(this.#gone.has(lsn), `LSN ${lsn} is gone and was not trimmed`);
      } else if (item.kind === 'event') {
        const wanted = this.#events.get(to);
        assert.equal(item.event.trajectory_id, wanted?.id);
        sameEvent(item.event, wanted as ModelEvent);
      } else {
        assert.equal(item.kind, this.#controls.get(to));
      }
    }
    assert.equal(last, this.#lsn);
  }

  async #checkTrajectory(trajectory: Trajectory): Promise<void> {
    const { id, sequence, hash, lsn, readable } = trajectory;
    const log = this.#log;
    const head = log.head(id);
    if (sequence === 0) {
      assert.equal(head, undefined);
      await refused(all(log.read(id)), 'HOT_UNKNOWN_TRAJECTORY');
      return;
    }
    const said = { sequence: head?.sequence_number, hash: head?.cryptographic_hash, lsn: Number(head?.lsn) };
    assert.deepEqual(said, { sequence, hash, lsn });
    const first = readable[0]?.sequence ?? sequence + 1;
    for (const from of new Set([1, first - 1, first, Math.floor((first + sequence) / 2), sequence + 1])) {
      if (from < 1) continue;
      if (from < first) {
        const error = await refused(all(log.read(id, from)), 'HOT_TRIMMED');
        assert.equal(error.details['tier'], 'warm');
        continue;
      }
      const events = await all(log.read(id, from));
      const wanted = readable.filter((event) => event.sequence >= from);
      assert.deepEqual(
        events.map((event) => event.sequence_number),
        wanted.map((event) => event.sequence),
        `read from ${from}`,
      );
      for (const [i, event] of events.entries()) sameEvent(event, wanted[i] as ModelEvent);
    }
  }
}

function event(text: string): EventInput {
  return note(text);
}

function sameEvent(event: StoredEvent, wanted: ModelEvent): void {
  const said = {
    lsn: Number(event.lsn),
    sequence: Number(event.sequence_number),
    event_type: event.event_type,
    turn: event.turn,
    token: event.fencing_token,
    created_at: event.created_at,
    text: event.payload_text,
    hash: event.cryptographic_hash,
  };
  const { payload: _, readable: __, ...plain } = wanted;
  assert.deepEqual(said, Object.fromEntries(Object.keys(said).map((key) => [key, plain[key as keyof typeof plain]])));
}

describe('a hot log beside its model', function () {
  this.timeout(300_000);

  it('agrees with it after any interleaving of appends, crashes, trims, adoptions and lost head snapshots', async () => {
    const property = fc.asyncProperty(fc.array(step, { minLength: 20, maxLength: 60, size: 'max' }), async (steps) => {
      using temp = new TempDirectory('model');
      const world = await World.make(temp);
      try {
        for (const step of steps) {
          await world.carryOut(step);
          await world.check();
        }
        await world.carryOut({ do: 'verify' });
      } catch (error) {
        if (isVarveError(error)) assert.fail(`${error.code}: ${error.stack}`);
        throw error;
      } finally {
        await world.close();
      }
    });
    await fc.assert(property, { ...runs(8), endOnFailure: process.env['SHRINK'] !== '1' });
  });
});
