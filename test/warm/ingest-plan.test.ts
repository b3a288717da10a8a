/** What becomes of each record, decided from plain values: against a model, however the records are cut into batches. */
import assert from 'node:assert/strict';
import * as fc from 'fast-check';
import { newTrajectoryId, type TrajectoryId } from '../../schemas/ids.ts';
import { INITIAL_SUMMARY, step } from '../../schemas/summary.ts';
import {
  type Decision,
  type Fence,
  planIngest,
  type QuarantineReason,
  type TrajectoryState,
  unknownTrajectory,
  type WarmEvent,
  type WarmItem,
} from '../../warm/ingest-plan.ts';
import { planWaiting } from '../../warm/waiting-plan.ts';
import { runs } from '../support/property.ts';
import { Chain, idAt, NOTHING_REFUSED, ScriptLog } from '../support/sidecar-script.ts';

const NOW_MS = Date.now();

type Held = {
  readonly log_id: string;
  readonly lsn: number;
  readonly event: WarmEvent;
  reason: QuarantineReason;
  state: 'held' | 'applied' | 'proven';
};

/** A database that carries plans out, in the order in which warm/ingest.ts does. */
class MemoryWarm {
  readonly states = new Map<TrajectoryId, TrajectoryState>();
  readonly rows = new Map<string, WarmEvent>();
  readonly held: Held[] = [];
  readonly fences = new Map<TrajectoryId, Fence[]>();
  readonly dropped = new Set<string>();
  readonly #parts = new Map<string, Pick<TrajectoryState, 'block' | 'anchor'>>();
  inserted = 0;
  duplicates = 0;

  state(id: TrajectoryId, log_id: string): TrajectoryState {
    const known = this.states.get(id) ?? unknownTrajectory(id);
    const fences = this.fences.get(id) ?? [];
    const waiting = this.held.filter((row) => this.#waits(row, id));
    const waiting_sequence = waiting.findLast((row) => row.log_id === log_id)?.event.sequence_number;
    const part = this.#parts.get(`${log_id} ${id}`) ?? { block: undefined, anchor: undefined };
    return { ...known, ...part, fences, waiting: waiting.length, waiting_sequence };
  }

  apply(log_id: string, items: readonly WarmItem[]): void {
    const plan = planIngest(items, {
      state: (id) => this.state(id, log_id),
      storedHash: (id, sequence) => this.#hash(id, sequence),
      refused: NOTHING_REFUSED,
      conflicting: new Set(),
      now_ms: NOW_MS,
    });
    const events = items.filter((item) => item.kind === 'event').length;
    assert.equal(plan.inserts.length + plan.quarantined.length + plan.duplicates, events, 'an event was dropped');
    this.duplicates += plan.duplicates;
    this.#insert(plan.inserts);
    for (const { lsn, event, reason } of plan.quarantined) {
      if (this.held.some((row) => row.log_id === log_id && row.lsn === lsn)) continue;
      this.held.push({ log_id, lsn, event, reason, state: 'held' });
    }
    const moved = new Set(plan.inserts.map((event) => event.trajectory_id));
    for (const { after, decisions } of plan.changes) {
      const id = after.trajectory_id;
      this.#parts.set(`${log_id} ${id}`, { block: after.block, anchor: after.anchor });
      const state = moved.has(id) && after.waiting > 0 ? this.#applyWaiting(after) : after;
      this.states.set(id, state);
      for (const decision of decisions) this.#decide(log_id, id, decision);
    }
  }

  #applyWaiting(state: TrajectoryState): TrajectoryState {
    const id = state.trajectory_id;
    const waiting = this.held
      .filter((row) => this.#waits(row, id))
      .toSorted((a, b) => a.event.sequence_number - b.event.sequence_number);
    const plan = planWaiting(
      state,
      waiting.map((row) => ({ ...row, row })),
      {
        storedHash: (sequence) => this.#hash(id, sequence),
        refused: () => undefined,
        isConflicting: () => false,
      },
    );
    this.#insert(plan.inserts.map(({ event }) => event));
    for (const { row } of plan.inserts) row.state = 'applied';
    for (const row of plan.duplicates) row.state = 'proven';
    for (const { row, reason, log_id, event } of plan.stopped) {
      row.reason = reason;
      if (reason === 'waiting' || reason === 'unproven') continue;
      const part = this.#parts.get(`${log_id} ${id}`);
      const token = Math.max(part?.block?.fencing_token ?? 0, event.fencing_token);
      this.#parts.set(`${log_id} ${id}`, { anchor: part?.anchor, block: { reason, fencing_token: token } });
    }
    return plan.after;
  }

  #insert(events: readonly WarmEvent[]): void {
    for (const event of events) {
      const key = `${event.trajectory_id} ${event.sequence_number}`;
      assert.ok(!this.rows.has(key) && !this.dropped.has(key), `${key} was inserted twice`);
      this.rows.set(key, event);
      this.inserted += 1;
    }
  }

  #decide(log_id: string, id: TrajectoryId, { after_lsn, before_lsn, below, proven }: Decision): void {
    for (const row of this.held) {
      const isMeant = row.log_id === log_id && row.event.trajectory_id === id && row.state === 'held';
      if (
        !isMeant ||
        row.reason !== 'unproven' ||
        row.lsn <= after_lsn ||
        row.lsn >= before_lsn ||
        row.event.sequence_number >= below
      )
        continue;
      if (proven) row.state = 'proven';
      else row.reason = 'fork';
    }
  }

  #waits(row: Held, id: TrajectoryId): boolean {
    return row.state === 'held' && row.reason === 'waiting' && row.event.trajectory_id === id;
  }

  #hash(id: TrajectoryId, sequence: number): string | undefined {
    return this.rows.get(`${id} ${sequence}`)?.cryptographic_hash;
  }

  /** Its partition is dropped: the head alone is known. */
  drop(id: TrajectoryId): void {
    for (const key of [...this.rows.keys()].filter((key) => key.startsWith(id))) {
      this.rows.delete(key);
      this.dropped.add(key);
    }
  }

  /** All that can be seen of it, in a form to compare. */
  picture(): { rows: string[]; held: string[]; heads: string[]; blocks: string[] } {
    return {
      rows: Array.from(this.rows, ([key, event]) => `${key} ${event.cryptographic_hash}`).toSorted(),
      held: this.held
        .filter(({ state }) => state === 'held')
        .map(({ log_id, lsn, reason }) => `${log_id} ${lsn} ${reason}`)
        .toSorted(),
      heads: Array.from(this.states.values(), ({ trajectory_id, last_sequence_number, head_hash, summary }) =>
        JSON.stringify([trajectory_id, last_sequence_number, head_hash, summary]),
      ).toSorted(),
      blocks: Array.from(
        this.#parts,
        ([key, { block }]) => `${key} ${block?.reason} ${block?.fencing_token}`,
      ).toSorted(),
    };
  }
}

/** The rules again, one event at a time and with the links of the chain instead of hashes. */
class Model {
  readonly rows = new Map<string, string>();
  readonly held = new Map<string, string>();
  readonly #last = new Map<string, number>();
  readonly #blocks = new Map<string, { reason: string; token: number; lsn: number }>();
  readonly #awaited = new Map<string, Set<number>>();
  #waiting: { log: string; lsn: number; event: WarmEvent; previous: string }[] = [];
  readonly #previous: (event: WarmEvent) => string;
  readonly #fences: ReadonlyMap<string, readonly Fence[]>;

  constructor(previous: (event: WarmEvent) => string, fences: ReadonlyMap<string, readonly Fence[]>) {
    this.#previous = previous;
    this.#fences = fences;
  }

  take(log: string, item: WarmItem): void {
    if (item.kind === 'missing') return;
    if (item.kind === 'anchor') {
      this.#awaitedBy(log, item.position.trajectory_id).add(item.position.sequence_number + 1);
      return;
    }
    const entry = { log, lsn: item.lsn, event: item.event, previous: this.#previous(item.event) };
    const fate = this.#fate(entry);
    if (fate === 'in' || fate === 'duplicate') return;
    if (fate === 'early') {
      const { trajectory_id, sequence_number } = item.event;
      const awaited = this.#awaitedBy(log, trajectory_id);
      if (awaited.has(sequence_number)) {
        awaited.add(sequence_number + 1);
        this.#waiting.push(entry);
        this.held.set(`${log} ${item.lsn}`, 'waiting');
        return;
      }
      this.#stop(entry, 'gap');
      return;
    }
    this.#stop(entry, fate);
  }

  #awaitedBy(log: string, id: string): Set<number> {
    const key = `${log} ${id}`;
    const awaited = this.#awaited.get(key) ?? new Set();
    this.#awaited.set(key, awaited);
    return awaited;
  }

  #fate({ log, lsn, event, previous }: { log: string; lsn: number; event: WarmEvent; previous: string }): string {
    const { trajectory_id: id, sequence_number: n, fencing_token: token } = event;
    const last = this.#last.get(id) ?? 0;
    if (this.rows.get(`${id} ${n}`) === event.cryptographic_hash) return 'duplicate';
    const block = this.#blocks.get(`${log} ${id}`);
    if (block !== undefined && token <= block.token && lsn > block.lsn) return block.reason;
    const fences = this.#fences.get(id) ?? [];
    if (fences.some((fence) => token < fence.fencing_token && n > fence.sequence_number)) return 'fenced';
    if (n <= last) return 'fork';
    if (n > last + 1) return 'early';
    if (previous !== (this.rows.get(`${id} ${last}`) ?? '')) return 'fork';
    this.rows.set(`${id} ${n}`, event.cryptographic_hash);
    this.#last.set(id, n);
    this.#release(id);
    return 'in';
  }

  #release(id: string): void {
    const mine = this.#waiting.filter(({ event }) => event.trajectory_id === id);
    for (const entry of mine.toSorted((a, b) => a.event.sequence_number - b.event.sequence_number)) {
      if (!this.#waiting.includes(entry)) continue;
      const fate = this.#fate(entry);
      if (fate === 'early') continue;
      this.#waiting = this.#waiting.filter((other) => other !== entry);
      if (fate === 'in' || fate === 'duplicate') this.held.delete(`${entry.log} ${entry.lsn}`);
      else this.#stop(entry, fate);
    }
  }

  #stop({ log, lsn, event }: { log: string; lsn: number; event: WarmEvent }, reason: string): void {
    this.held.set(`${log} ${lsn}`, reason);
    const key = `${log} ${event.trajectory_id}`;
    const block = this.#blocks.get(key);
    if (block === undefined || block.token < event.fencing_token || lsn < block.lsn)
      this.#blocks.set(key, { reason, token: event.fencing_token, lsn });
  }
}

/** A trajectory that moves from log to log; now and then somebody else goes on with an old copy of it. */
const anyStory = fc.record({
  /** Lengths of the runs, each in the next log. */
  stays: fc.array(fc.integer({ min: 1, max: 4 }), { minLength: 1, maxLength: 5 }),
  tokens: fc.boolean(),
  fork: fc.option(fc.record({ at: fc.nat(12), length: fc.integer({ min: 1, max: 4 }), log: fc.nat(2) })),
  skip: fc.option(fc.nat(12), { freq: 4 }),
});

/** The logs that come of stories, the events' predecessors, and the claims behind the moves. */
function tell(stories: readonly { stays: number[]; tokens: boolean; fork: Fork | null; skip: number | null }[]) {
  const logs = [new ScriptLog(), new ScriptLog(), new ScriptLog()];
  const previous = new Map<WarmEvent, string>();
  const fences = new Map<TrajectoryId, Fence[]>();
  const chains: Chain[] = [];
  for (const [s, { stays, tokens, fork, skip }] of stories.entries()) {
    const chain = new Chain();
    chains.push(chain);
    const mine: Fence[] = [];
    for (const [i, length] of stays.entries()) {
      const log = logs[(s + i) % logs.length] as ScriptLog;
      const token = tokens ? i * 10 : 0;
      if (i > 0) log.anchor(chain.at(chain.length));
      if (tokens && i > 0) mine.push({ fencing_token: token, sequence_number: chain.length });
      for (let n = 0; n < length; n++) {
        const event = chain.add({ fencing_token: token, payload: { n, i, s } });
        if (skip !== event.sequence_number) log.add(event);
      }
    }
    for (const event of chain.events) {
      previous.set(event, chain.events[event.sequence_number - 2]?.cryptographic_hash ?? '');
    }
    if (tokens) fences.set(chain.id, mine);
    if (fork === null || fork.at >= chain.length) continue;
    const other = chain.fork(fork.at);
    const log = logs[(s + fork.log) % logs.length] as ScriptLog;
    if (fork.at > 0) log.anchor(chain.at(fork.at));
    const token = tokens ? (other.events.at(-1)?.fencing_token ?? 0) : 0;
    for (let n = 0; n < fork.length; n++) {
      const before = other.events.at(-1)?.cryptographic_hash ?? '';
      const event = other.add({ payload: { forked: n, s }, fencing_token: token });
      previous.set(event, before);
      log.add(event);
    }
  }
  return { logs, previous, fences, chains };
}

type Fork = { readonly at: number; readonly length: number; readonly log: number };
type Story = ReturnType<typeof tell>;

/** Cuts what the logs send into batches, in an order that keeps each log's own. */
function interleave(logs: readonly ScriptLog[], picks: readonly { log: number; count: number }[]) {
  const at = logs.map(() => 0);
  const batches: { log: ScriptLog; items: WarmItem[] }[] = [];
  const take = (l: number, count: number) => {
    const log = logs[l] as ScriptLog;
    const items = log.items.slice(at[l], (at[l] as number) + count);
    at[l] = (at[l] as number) + items.length;
    if (items.length > 0) batches.push({ log, items });
  };
  for (const { log, count } of picks) take(log % logs.length, count);
  for (const [l, log] of logs.entries()) take(l, log.items.length);
  return batches;
}

type Batches = readonly { readonly log: ScriptLog; readonly items: readonly WarmItem[] }[];

function singly(batches: Batches): Batches {
  return batches.flatMap(({ log, items }) => items.map((item) => ({ log, items: [item] })));
}

const anyPicks = fc.array(fc.record({ log: fc.nat(2), count: fc.integer({ min: 1, max: 6 }) }), { maxLength: 16 });
const anyStories = fc.array(anyStory, { minLength: 1, maxLength: 3 });

function warmOf(story: Story, batches: Batches): MemoryWarm {
  const warm = new MemoryWarm();
  for (const [id, fences] of story.fences) warm.fences.set(id, fences);
  for (const { log, items } of batches) warm.apply(log.log_id, items);
  return warm;
}

describe('warm/ingest-plan', () => {
  it('comes to the same however the records are cut into batches', () => {
    // Of two branches the one that arrives first stays; which one that is may depend on the cut where one of them waits.
    const anyLinear = fc.array(
      anyStory.map((story) => ({ ...story, fork: null })),
      { minLength: 1, maxLength: 3 },
    );
    const property = fc.property(anyLinear, anyPicks, (stories, picks) => {
      const story = tell(stories);
      const batches = interleave(story.logs, picks);
      assert.deepEqual(warmOf(story, batches).picture(), warmOf(story, singly(batches)).picture());
    });
    fc.assert(property, runs(400));
  });

  it('agrees with a model that takes one event at a time', () => {
    const property = fc.property(anyStories, anyPicks, (stories, picks) => {
      const story = tell(stories);
      const batches = singly(interleave(story.logs, picks));
      const warm = warmOf(story, batches);
      const model = new Model((event) => story.previous.get(event) ?? '', story.fences);
      for (const { log, items } of batches) for (const item of items) model.take(log.log_id, item);
      const rows = Array.from(warm.rows, ([key, event]) => [key, event.cryptographic_hash] as const);
      assert.deepEqual(new Map(rows), model.rows);
      const held = warm.held.filter(({ state }) => state === 'held');
      assert.deepEqual(new Map(held.map((row) => [`${row.log_id} ${row.lsn}`, row.reason])), model.held);
    });
    fc.assert(property, runs(400));
  });

  it('drops no event and keeps every chain whole, whatever forks and is missing', () => {
    const property = fc.property(anyStories, anyPicks, (stories, picks) => {
      const story = tell(stories);
      const warm = warmOf(story, interleave(story.logs, picks));
      for (const { id } of story.chains) {
        let previous = '';
        for (let n = 1; n <= (warm.states.get(id)?.last_sequence_number ?? 0); n++) {
          const event = warm.rows.get(`${id} ${n}`) as WarmEvent;
          assert.equal(story.previous.get(event), previous);
          previous = event.cryptographic_hash;
        }
      }
      for (const log of story.logs) {
        for (const item of log.items) {
          if (item.kind !== 'event') continue;
          const { trajectory_id, sequence_number, cryptographic_hash } = item.event;
          const row = warm.rows.get(`${trajectory_id} ${sequence_number}`);
          const isIn = row?.cryptographic_hash === cryptographic_hash;
          const isHeld = warm.held.some(({ log_id, lsn }) => log_id === log.log_id && lsn === item.lsn);
          assert.ok(isIn || isHeld, `event ${sequence_number} of ${trajectory_id} is nowhere`);
        }
      }
    });
    fc.assert(property, runs(300));
  });

  it('brings a trajectory that moved in whole and in order, whichever log arrives first', () => {
    const anyMove = anyStory.map((story) => ({ ...story, fork: null, skip: null }));
    const property = fc.property(fc.array(anyMove, { minLength: 1, maxLength: 3 }), anyPicks, (stories, picks) => {
      const story = tell(stories);
      const warm = warmOf(story, interleave(story.logs, picks));
      assert.deepEqual(
        warm.held.filter(({ state }) => state === 'held'),
        [],
      );
      for (const chain of story.chains) {
        const state = warm.states.get(chain.id);
        assert.equal(state?.head_hash, chain.at(chain.length).cryptographic_hash);
        assert.equal(state?.last_sequence_number, chain.length);
        assert.deepEqual(state?.summary, step(INITIAL_SUMMARY, chain.events));
        for (const event of chain.events) assert.equal(warm.rows.get(`${chain.id} ${event.sequence_number}`), event);
      }
    });
    fc.assert(property, runs(300));
  });

  it('takes nothing in twice when a log sends any part of itself again, also from another log', () => {
    const property = fc.property(anyStories, anyPicks, fc.nat(20), (stories, picks, from) => {
      const story = tell(stories);
      const warm = warmOf(story, interleave(story.logs, picks));
      const { rows, heads } = warm.picture();
      for (const log of story.logs) warm.apply(log.log_id, log.items.slice(from));
      const copy = new ScriptLog();
      for (const { id } of story.chains) {
        const last = warm.states.get(id)?.last_sequence_number ?? 0;
        copy.add(...Array.from({ length: last }, (_, i) => warm.rows.get(`${id} ${i + 1}`) as WarmEvent));
      }
      warm.apply(copy.log_id, copy.items);
      assert.deepEqual({ rows: warm.picture().rows, heads: warm.picture().heads }, { rows, heads });
      assert.deepEqual(
        warm.held.filter(({ log_id }) => log_id === copy.log_id),
        [],
      );
    });
    fc.assert(property, runs(300));
  });

  it('the first row stays: what a second log has in its place goes to quarantine, in order, and all of the rest', () => {
    const first = new Chain().grow(9);
    const second = first.fork(6);
    second.add({ payload: { other: true } });
    second.grow(3);
    const elsewhere = new Chain().grow(3);
    const a = new ScriptLog().add(...first.events);
    const b = new ScriptLog().anchor(first.at(6)).add(...second.part(7), ...elsewhere.events);
    for (const [one, two] of [
      [a, b],
      [b, a],
    ] as const) {
      const warm = new MemoryWarm();
      warm.apply(one.log_id, one.items);
      warm.apply(two.log_id, two.items);
      assert.deepEqual(
        first.part(1, 9).map((event) => warm.rows.get(`${first.id} ${event.sequence_number}`)),
        first.events,
      );
      const held = warm.held.filter(({ state }) => state === 'held');
      assert.deepEqual(
        held.map(({ event, reason }) => [event, reason]),
        second.part(7).map((event) => [event, 'fork']),
      );
      assert.equal(warm.states.get(elsewhere.id)?.last_sequence_number, 3);
    }
  });

  it('a gap blocks its trajectory of that log and token alone', () => {
    const chain = new Chain().grow(5);
    const other = new Chain().grow(2);
    const log = new ScriptLog().add(chain.at(1), chain.at(3), other.at(1), chain.at(4), other.at(2), chain.at(5));
    const warm = new MemoryWarm();
    warm.apply(log.log_id, log.items);
    assert.deepEqual(
      warm.held.map(({ event, reason }) => [event.sequence_number, reason]),
      [
        [3, 'gap'],
        [4, 'gap'],
        [5, 'gap'],
      ],
    );
    assert.equal(warm.states.get(other.id)?.last_sequence_number, 2);
    // Another log has what this one lacks.
    const whole = new ScriptLog().add(...chain.events);
    warm.apply(whole.log_id, whole.items);
    assert.equal(warm.states.get(chain.id)?.last_sequence_number, 5);
  });

  it('a token that a claim has passed is fenced behind the stated head, also by a claim that is not the newest', () => {
    const id = newTrajectoryId();
    const shared = new Chain(id).grow(5);
    const stale = shared.fork(5).grow(3, { payload: { stale: true } });
    const holder = shared.fork(5);
    holder.add({ fencing_token: 100 });
    holder.grow(2);
    const next = holder.fork(8);
    next.add({ fencing_token: 200 });
    const a = new ScriptLog().add(...stale.events);
    const b = new ScriptLog().anchor(shared.at(5)).add(...holder.part(6));
    const c = new ScriptLog().anchor(holder.at(8)).add(...next.part(9));
    for (const order of [
      [a, b, c],
      [b, c, a],
      [c, a, b],
      [b, a, c],
    ]) {
      const warm = new MemoryWarm();
      // The second claim stated head 8 before anything of the first one's holder had arrived.
      warm.fences.set(id, [
        { fencing_token: 100, sequence_number: 5 },
        { fencing_token: 200, sequence_number: 8 },
      ]);
      for (const log of order) warm.apply(log.log_id, log.items);
      assert.equal(warm.states.get(id)?.head_hash, next.at(9).cryptographic_hash);
      const held = warm.held.filter(({ state }) => state === 'held');
      assert.deepEqual(
        held.map(({ event, reason }) => [event, reason]),
        stale.part(6).map((event) => [event, 'fenced']),
      );
    }
  });

  it('a waiting event that a claim has passed meanwhile does not go in with its predecessor', () => {
    const chain = new Chain().grow(4);
    const stale = chain.fork(4).grow(2, { payload: { stale: true } });
    const a = new ScriptLog().anchor(chain.at(4)).add(...stale.part(5));
    const b = new ScriptLog().add(...chain.events);
    const warm = new MemoryWarm();
    warm.apply(a.log_id, a.items);
    assert.deepEqual(
      warm.held.map(({ reason }) => reason),
      ['waiting', 'waiting'],
    );
    warm.fences.set(chain.id, [{ fencing_token: 7, sequence_number: 4 }]);
    warm.apply(b.log_id, b.items);
    assert.equal(warm.states.get(chain.id)?.head_hash, chain.at(4).cryptographic_hash);
    assert.deepEqual(
      warm.held.map(({ reason, state }) => [reason, state]),
      [
        ['fenced', 'held'],
        ['fenced', 'held'],
      ],
    );
  });

  it('events whose rows are gone are decided by the next known one, and an anchor between them cuts the chain', () => {
    const chain = new Chain().grow(6);
    const log = new ScriptLog().add(...chain.events);
    const warm = new MemoryWarm();
    warm.apply(log.log_id, log.items);
    warm.drop(chain.id);
    const again = new ScriptLog().add(...chain.events);
    for (const item of again.items.slice(0, 5)) warm.apply(again.log_id, [item]);
    assert.deepEqual(
      warm.held.map(({ reason, state }) => [reason, state]),
      Array.from({ length: 5 }, () => ['unproven', 'held']),
    );
    warm.apply(again.log_id, again.items.slice(5));
    assert.deepEqual(new Set(warm.held.map(({ state }) => state)), new Set(['proven']));

    // The log's own 1 to 3 are of another past than the 6 that it adopted.
    const forged = new Chain(chain.id).grow(3, { payload: { other: true } });
    const third = new ScriptLog()
      .add(...forged.events)
      .anchor(chain.at(5))
      .add(chain.at(6));
    for (const cut of [1, third.items.length]) {
      const copy = new MemoryWarm();
      copy.apply(log.log_id, log.items);
      copy.drop(chain.id);
      for (let i = 0; i < third.items.length; i += cut) copy.apply(third.log_id, third.items.slice(i, i + cut));
      assert.deepEqual(
        copy.held.map(({ event, reason, state }) => [event.sequence_number, reason, state]),
        [1, 2, 3].map((n) => [n, 'unproven', 'held']),
      );
    }

    const wrong = new ScriptLog().add(...forged.events, ...forged.grow(3).part(4));
    const copy = new MemoryWarm();
    copy.apply(log.log_id, log.items);
    copy.drop(chain.id);
    for (const item of wrong.items) copy.apply(wrong.log_id, [item]);
    assert.deepEqual(new Set(copy.held.map(({ reason, state }) => `${reason} ${state}`)), new Set(['fork held']));
  });

  it('an id over a day ahead and what goes back in turn, time or token are poison', () => {
    const ahead = new Chain(idAt(NOW_MS + 86_400_000 + 60_000)).grow(2);
    const turn = new Chain();
    turn.add({ turn: 3 });
    turn.add({ turn: 2 });
    const token = new Chain();
    token.add({ fencing_token: 3 });
    token.add({ fencing_token: 2 });
    const time = new Chain();
    time.add({ created_at: '2024-11-27T10:00:00.001Z' });
    time.add({ created_at: '2024-11-27T10:00:00.000Z' });
    const log = new ScriptLog().add(...ahead.events, ...turn.events, ...token.events, ...time.events);
    const warm = new MemoryWarm();
    warm.apply(log.log_id, log.items);
    assert.deepEqual(
      warm.held.map(({ lsn, reason }) => [lsn, reason]),
      [1, 2, 4, 6, 8].map((lsn) => [lsn, 'poison']),
    );
  });
});
