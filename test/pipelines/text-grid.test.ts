import assert from 'node:assert/strict';
import * as fc from 'fast-check';
import { type GridCell, TextGrid } from '../../pipelines/text-grid.ts';
import { runs } from '../support/property.ts';

const cell = (text: string | null, isNumber = false): GridCell => ({ text, isNumber });

describe('a grid of text', () => {
  it('aligns what is wide, narrow or nothing, numbers to the right', () => {
    const grid = new TextGrid(['name', 'n'], 80);
    const rows = [
      [cell('漢字'), cell('5', true)],
      [cell('e\u0301'), cell('-12', true)],
      [cell('🦆'), cell(null, true)],
    ];
    assert.equal(grid.format(rows), 'name     n\n────  ────\n漢字     5\ne\u0301      -12\n🦆    NULL\n');
  });

  it('tells NULL from the texts NULL and nothing', () => {
    const grid = new TextGrid(['a', 'b', 'c'], 80);
    assert.match(grid.format([[cell(null), cell('NULL'), cell('')]]), /^NULL {2}"NULL" {2}""$/m);
  });

  it('breaks lines where the text does', () => {
    assert.equal(new TextGrid(['a', 'b'], 80).format([[cell('1\n2'), cell('x')]]), 'a  b\n─  ─\n1  x\n2\n');
  });

  it('shows every character of every cell, within its width', () => {
    const text = fc.string({ unit: fc.constantFrom('x', 'y', ' z', '漢', '\n', '\u001b', '🦆'), maxLength: 200 });
    fc.assert(
      fc.property(
        // Room for twelve columns, whatever comes later.
        fc.integer({ min: 12 * 14, max: 240 }),
        fc
          .integer({ min: 1, max: 12 })
          .chain((columns) =>
            fc.array(fc.array(text, { minLength: columns, maxLength: columns }), { minLength: 1, maxLength: 5 }),
          ),
        (width, rows) => {
          const names = (rows[0] ?? []).map((_, i) => `n${i}`);
          const grid = new TextGrid(names, width);
          // In two goes: later rows find the layout made.
          const out = [rows.slice(0, 1), rows.slice(1)]
            .map((some) => grid.format(some.map((row) => row.map((one) => cell(one)))))
            .join('');
          const all = rows.flat().join('');
          for (const character of ['x', 'y', 'z', '漢', '🦆']) {
            assert.equal(countOf(out, character), countOf(all, character), character);
          }
          assert.ok(!out.includes('\u001b'));
          assert.ok(out.split('\n').every((line) => line.length <= width));
        },
      ),
      runs(200),
    );
  });
});

function countOf(text: string, part: string): number {
  return text.split(part).length - 1;
}
