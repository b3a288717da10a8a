/**
 * The worker of `varve start`: a fleet of scripted agents on one hot log, in a process of its own so that it can be
 * killed. Every step follows the chapter's order: reply, authorization, intent, barrier, effect, result. The effect is
 * a line in a ledger outside the log, which the report later holds against it.
 */
import { appendFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { HotLog } from '../hot/log.ts';
import { newTrajectoryId, type TrajectoryId } from '../schemas/ids.ts';

export type Fleet = { readonly agents: number; readonly turns: number };

export const LEDGER = 'effects.log';
const COMMANDS = ['rg -n "TODO" src', 'npm test', 'git diff --stat', 'sed -n 1,80p src/parser.ts', 'ls -la build'];
const OUTPUT_LINE =
  'src/parser.ts:118:  // expected a closing bracket, found end of input while reading the argument list\n';
/** Now and then a tool says more than belongs into a log. */
const BULKY_EVERY = 40;
const BULKY_LINES = 2000;
const TOOL_MS_MAX = 12;

export async function startWorker(dir: string, { agents, turns }: Fleet): Promise<void> {
  await using log = await HotLog.open(join(dir, 'hot'));
  await Promise.all(Array.from({ length: agents }, (_, agent) => runAgent(log, dir, agent, turns)));
}

async function runAgent(log: HotLog, dir: string, agent: number, turns: number): Promise<void> {
  const id = newTrajectoryId();
  await log.append(id, {
    event_type: 'TaskStarted',
    turn: 0,
    payload: { agent: `demo-${agent}`, task: 'Find out why the parser test fails, and mend it.', model: 'scripted' },
  });
  for (let turn = 1; turn <= turns; turn++) await runTurn(log, dir, id, turn, agent);
  await log.append(id, {
    event_type: 'TaskFinished',
    turn: turns,
    payload: { status: 'completed', outcome: { reward: 1 } },
  });
}

async function runTurn(log: HotLog, dir: string, id: TrajectoryId, turn: number, agent: number): Promise<void> {
  const tool_call_id = `call_${turn}`;
  const command = COMMANDS[(turn + agent) % COMMANDS.length] as string;
  const call = { tool_call_id, tool_name: 'shell', arguments: JSON.stringify({ command }) };
  await log.append(id, {
    event_type: 'ModelReplied',
    turn,
    payload: { content: `Turn ${turn}: I will run \`${command}\`.`, tool_calls: [call], stop_reason: 'tool_use' },
  });
  // One barrier for both; when it returns, the intent is durable and the effect may leave the host.
  await log.appendAll(id, [
    { event_type: 'Authorized', turn, payload: { tool_call_id, decision: 'allow', policy_version: 'demo-1' } },
    {
      event_type: 'ToolIntent',
      turn,
      payload: { ...call, idempotency_key: `${id}/${tool_call_id}`, settle: 'idempotency_key' },
    },
  ]);
  appendFileSync(join(dir, LEDGER), `${id}/${tool_call_id}\n`);
  // Tools take their time, so at any moment some intents are out.
  await sleep((turn + agent) % TOOL_MS_MAX);
  const lines = (turn + agent) % BULKY_EVERY === 0 ? BULKY_LINES : (turn * 7 + agent) % 30;
  await log.append(id, {
    event_type: 'ToolResult',
    turn,
    payload: { tool_call_id, status: 'ok', output: OUTPUT_LINE.repeat(lines), settled_by: 'dispatch', duration_ms: 3 },
  });
}
