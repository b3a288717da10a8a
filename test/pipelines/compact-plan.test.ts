/** The plan of compaction: every trajectory that may move is in one lot, once; the others stay with a reason. */
import assert from 'node:assert/strict';
import * as fc from 'fast-check';
import type { PlacedSegment } from '../../cold/locate.ts';
import { examine, type Group, groupByPartition, isHeld, lotsOf, type Member } from '../../pipelines/compact-plan.ts';
import type { Candidate } from '../../warm/compaction-rows.ts';
import { GENESIS, idAt } from '../support/cold-rows.ts';
import { runs } from '../support/property.ts';

const DAY = Date.UTC(2024, 10, 20);
const HASH = 'ab'.repeat(32);

function candidate(n: number, more: Partial<Candidate> = {}): Candidate {
  return {
    trajectory_id: idAt(n, DAY),
    tenant: 'acme',
    model_version: 'm-1',
    last_sequence_number: 9,
    head_hash: HASH,
    ripe_at: '2024-12-01T00:00:00.000Z',
    blocked: null,
    ...more,
  };
}

function placed(
  first: number,
  last: number,
  previous_hash: string,
  head_hash: string,
  tenant = 'first',
): PlacedSegment {
  const segment = {
    trajectory_id: idAt(1, DAY),
    first_sequence_number: first,
    last_sequence_number: last,
    previous_hash,
    head_hash,
    row_groups: [0, 0] as const,
  };
  const partitionValues = { tenant, date: '2024-11-20', model_version: 'm-0' };
  return { segment, file: { add: { partitionValues } } as PlacedSegment['file'] };
}

const anyMember = fc
  .record({
    n: fc.integer({ min: 0, max: 5000 }),
    tenant: fc.constantFrom('a', 'b/c', '["x"'),
    model: fc.constantFrom('m', 'n'),
    after: fc.integer({ min: 0, max: 50 }),
    events: fc.oneof(fc.integer({ min: 1, max: 200 }), fc.integer({ min: 100_000, max: 900_000 })),
  })
  .map(
    ({ n, tenant, model, after, events }): Member => ({
      trajectory_id: idAt(n, DAY),
      after,
      previous_hash: GENESIS,
      last_sequence_number: after + events,
      ripe_at: '2024-12-01T00:00:00.000Z',
      partition: { tenant, date: '2024-11-20', model_version: model },
    }),
  );

const anyMembers = fc.uniqueArray(anyMember, { selector: ({ trajectory_id }) => trajectory_id, maxLength: 300 });

describe('pipelines/compact-plan', () => {
  it('exports what is behind cold’s last event, into the partition of the first segment', () => {
    const fresh = examine(candidate(1), []);
    assert.ok(fresh.kind === 'move');
    assert.deepEqual([fresh.member.after, fresh.member.previous_hash], [0, GENESIS]);
    assert.deepEqual(fresh.member.partition, { tenant: 'acme', date: '2024-11-20', model_version: 'm-1' });
    const grown = examine(candidate(1), [placed(1, 4, GENESIS, 'c'.repeat(64)), placed(5, 6, 'c'.repeat(64), HASH)]);
    assert.ok(grown.kind === 'move');
    assert.deepEqual([grown.member.after, grown.member.previous_hash], [6, HASH]);
    assert.deepEqual(grown.member.partition, { tenant: 'first', date: '2024-11-20', model_version: 'm-0' });
    const nameless = examine(candidate(1, { model_version: null }), []);
    assert.ok(nameless.kind === 'move' && nameless.member.partition.model_version === 'unknown');
  });

  it('leaves what cold has, and names what is blocked, forked, or broken in cold', () => {
    const whole = [placed(1, 9, GENESIS, HASH)];
    assert.equal(examine(candidate(1), whole).kind, 'in-cold');
    assert.equal(examine(candidate(1, { last_sequence_number: 5 }), whole).kind, 'in-cold', 'warm went back');
    const skips = [
      examine(candidate(1, { blocked: 'gap' }), []),
      examine(candidate(1, { head_hash: 'c'.repeat(64) }), whole),
      examine(candidate(1), [placed(2, 4, GENESIS, HASH)]),
      examine(candidate(1), [placed(1, 4, GENESIS, HASH), placed(6, 7, HASH, HASH)]),
      examine(candidate(1), [placed(1, 4, GENESIS, HASH), placed(5, 7, GENESIS, HASH)]),
    ].map((verdict) => (verdict.kind === 'skip' ? verdict.skip.why : verdict.kind));
    const wanted = [/quarantine \(gap\)/, /a fork/, /event 2/, /event 6/, /event 5/];
    for (const [i, why] of skips.entries()) assert.match(why, wanted[i] as RegExp);
  });

  it('has every member in one lot, once; groups of one partition, ascending by id', () => {
    fc.assert(
      fc.property(anyMembers, (members) => {
        const groups = groupByPartition(members);
        const lots = lotsOf(groups);
        const moved = lots.flat().flatMap((group) => group.members);
        assert.deepEqual(new Set(moved), new Set(members));
        assert.equal(moved.length, members.length);
        for (const lot of lots) {
          assert.ok(lot.length > 0);
          const events = lot.reduce((sum, group) => sum + group.events, 0);
          const isOne = lot.length === 1 && (lot[0] as Group).members.length === 1;
          assert.ok(lot.length <= 64 && (events <= 400_000 || isOne), `${lot.length} groups, ${events} events`);
          for (const { partition, members, events } of lot) {
            for (const member of members) assert.deepEqual(member.partition, partition);
            const ids = members.map(({ trajectory_id }) => trajectory_id);
            assert.deepEqual(ids, ids.toSorted());
            assert.equal(
              events,
              members.reduce((sum, { after, last_sequence_number }) => sum + last_sequence_number - after, 0),
            );
          }
        }
      }),
      runs(200),
    );
  });

  it('plans the same whatever the order in which candidates came', () => {
    fc.assert(
      fc.property(anyMembers, fc.infiniteStream(fc.nat()), (members, chance) => {
        const shuffled = members
          .map((member) => [chance.next().value as number, member] as const)
          .toSorted(([a], [b]) => a - b)
          .map(([, member]) => member);
        assert.deepEqual(lotsOf(groupByPartition(shuffled)), lotsOf(groupByPartition(members)));
      }),
      runs(100),
    );
  });

  it('lets a partition with too little wait, until its oldest has waited long enough', () => {
    const [group] = groupByPartition([
      { ...(fc.sample(anyMember, 1)[0] as Member), ripe_at: '2024-12-01T00:00:00.000Z' },
    ]) as [Group];
    const at = (hours: number) => ({ minFileBytes: 100, maxHoldMs: 3_600_000, nowMs: Date.UTC(2024, 11, 1, hours) });
    assert.deepEqual(
      [isHeld(group, 99, at(0)), isHeld(group, 100, at(0)), isHeld(group, 99, at(1))],
      [true, false, false],
    );
  });
});
