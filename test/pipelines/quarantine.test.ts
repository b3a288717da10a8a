/** `varve quarantine`, as a person meets it: what is held, why, and how it goes in. */
import assert from 'node:assert/strict';
import { HotLog } from '../../hot/log.ts';
import { newTrajectoryId, type TrajectoryId } from '../../schemas/ids.ts';
import { event } from '../hot/support/hot.ts';
import { runVarve, varve } from '../support/cli.ts';
import { Place, SERVED, writeLog } from './support.ts';

describe('varve quarantine', () => {
  let place: Place;
  beforeEach(async () => {
    place = await Place.make('quarantine');
  });
  afterEach(() => place[Symbol.asyncDispose]());

  const quarantine = (...args: string[]) => varve('quarantine', ...args, '--config', place.config);

  /** A log that forks a trajectory which another one wrote, behind its third event. */
  async function fork(): Promise<TrajectoryId> {
    const id = newTrajectoryId();
    const start = [event('TaskStarted', { agent: 'a' }), event('Noted', { note: 'secret one' }), event('Noted', {})];
    await using first = await HotLog.open(place.hot, SERVED);
    await first.appendAll(id, start);
    const other = place.temp.join('other');
    await using second = await HotLog.open(other, SERVED);
    const events = [];
    for await (const one of first.read(id)) events.push(one);
    await second.appendRecorded(id, events);
    await first.append(id, event('Noted', { note: 'won' }));
    await second.append(id, event('ToolIntent', { tool_call_id: 'c', tool_name: 'shell' }));
    await place.drain();
    await place.drain(other);
    return id;
  }

  it('lists nothing where nothing is held, and ends with 0', async () => {
    await writeLog(place.hot);
    await place.drain();
    assert.deepEqual(await quarantine('list'), { code: 0, stdout: 'nothing is held back\n', stderr: '' });
  });

  it('lists what is held with the command that helps, and shows payloads only when asked', async () => {
    const id = await fork();
    const list = await quarantine('list');
    assert.match(list.stdout, new RegExp(`${id} +fork +held +1 +1 .*warm has another event 4`));
    assert.match(list.stdout, /varve quarantine accept/);
    const shown = await quarantine('show', id);
    assert.match(shown.stdout, /"event_type":"ToolIntent"/);
    assert.doesNotMatch(shown.stdout, /shell/);
    assert.match((await quarantine('show', id, '--payload')).stdout, /shell/);
    const row = JSON.parse((await quarantine('show', id, '--json')).stdout) as { id: number; payload?: object };
    assert.equal(row.payload, undefined);
    assert.equal((await quarantine('show', String(row.id))).code, 0);
    assert.equal((await quarantine('show', '999999')).code, 2);
  });

  it('accepts with a reason, once, and says which intents it was about', async () => {
    const id = await fork();
    assert.equal((await varve('status', '--config', place.config)).code, 3);
    const accepted = await quarantine('accept', id, '--reason', 'the other one counts');
    assert.equal(accepted.code, 0);
    assert.match(accepted.stdout, /accepted 1 events[\s\S]*1 of them are intents/);
    assert.equal((await varve('status', '--config', place.config)).code, 0);
    assert.match((await quarantine('list', '--all')).stdout, /accepted/);
    assert.match((await quarantine('show', id)).stdout, /the other one counts/);
    assert.equal((await quarantine('accept', id, '--reason', 'again')).code, 2);
  });

  it('branches into a trajectory that can be shown and verified', async () => {
    const id = await fork();
    const { stdout } = await quarantine('branch', id, '--json');
    const { branch_id } = JSON.parse(stdout) as { branch_id: string };
    const shown = await varve('show', branch_id, '--warm', '--config', place.config);
    assert.match(shown.stdout, /ToolIntent/);
    assert.match(shown.stdout, new RegExp(`"trajectory_id":"${id}"`));
    assert.equal((await varve('verify', '--warm', '--deep', '--config', place.config)).code, 0);
  });

  it('a replay of everything ends with 3 while something stays, in a process of its own', async () => {
    const [id] = await writeLog(place.hot);
    await place.drain();
    await place.database.pool.lend((session) =>
      session.exec(`INSERT INTO quarantine (trajectory_id, sequence_number, log_id, lsn, reason, envelope, payload, cryptographic_hash)
        SELECT trajectory_id, sequence_number + 5, gen_random_uuid(), 1, 'gap', replace(varve_envelope(trajectory_id, sequence_number + 5, event_type, turn,
          payload_sha256, created_at, fencing_token), '"x"', '""'), convert_to('{}', 'UTF8'), cryptographic_hash
        FROM trajectory_events WHERE trajectory_id = '${id}' AND sequence_number = 9`),
    );
    const { code, stdout, stderr } = await runVarve(['quarantine', 'replay', '--all', '--config', place.config], {
      cwd: place.temp.path,
    });
    assert.equal(code, 3, stderr);
    assert.match(stdout, /took in 0, 0 duplicates; still held: 1 gap/);
    assert.equal((await quarantine('replay')).code, 2);
    assert.equal((await quarantine('replay', 'nonsense')).code, 2);
  });
});
