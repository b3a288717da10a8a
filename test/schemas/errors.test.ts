import assert from 'node:assert/strict';
import { ERROR_CODES, type ErrorCode, invariant, isVarveError, VarveError } from '../../schemas/errors.ts';

describe('errors', () => {
  it('have upper-case codes, an exit status that the CLI documents, and never ask to retry what is damaged', () => {
    for (const [code, { retry, exit }] of Object.entries(ERROR_CODES)) {
      assert.match(code, /^[A-Z][A-Z0-9]*(_[A-Z0-9]+)*$/);
      assert.ok([2, 3, 4, 5].includes(exit), code);
      if (retry) assert.equal(exit, 4, `${code}: only the environment changes by itself`);
    }
  });

  it('carry code, details and cause, and take `retry` from the table', () => {
    const cause = new Error('EAGAIN');
    for (const code of Object.keys(ERROR_CODES) as ErrorCode[]) {
      const error = new VarveError(code, 'text', { lsn: 1 }, cause);
      assert.equal(error.code, code);
      assert.equal(error.retry, ERROR_CODES[code].retry);
      assert.equal(error.cause, cause);
      assert.deepEqual(error.details, { lsn: 1 });
    }
  });

  it('are told apart by code', () => {
    const error: unknown = new VarveError('HOT_LOCKED', 'text');
    assert.ok(isVarveError(error));
    assert.ok(isVarveError(error, 'HOT_LOCKED'));
    assert.ok(!isVarveError(error, 'HOT_FAILED'));
    assert.ok(!isVarveError(new Error('HOT_LOCKED'), 'HOT_LOCKED'));
  });

  it('keep bugs apart: a broken invariant is not a VarveError', () => {
    assert.throws(
      () => invariant(false, 'two is one'),
      (error) => !isVarveError(error) && /two is one/.test(String(error)),
    );
    invariant(true, 'nothing');
  });
});
