/** The commands of `varve quarantine`. */
import type { Command } from 'commander';
import type { TrajectoryId } from '../../schemas/ids.ts';
import type { QuarantineReason } from '../../warm/ingest-plan.ts';
import { loadConfig } from '../config.ts';
import { listHeld, showHeld } from '../quarantine-look.ts';
import { acceptHeld, branchHeld, replayHeld } from '../quarantine-settle.ts';
import { type ConfigFlag, fileOf, instant, type JsonFlag, reason, rowOrTrajectory, trajectory } from './options.ts';

type Flags = ConfigFlag & JsonFlag;
type SettleFlags = Flags & { readonly dryRun?: boolean };
type ListFlags = Flags & {
  readonly trajectory?: TrajectoryId;
  readonly log?: string;
  readonly reason?: QuarantineReason;
  readonly since?: string;
  readonly all?: boolean;
};

export function addQuarantine(program: Command, signal: AbortSignal): void {
  const quarantine = program
    .command('quarantine')
    .description('events that do not fit: look at them, take them in after all, or decide about them');
  const command = (name: string, description: string) =>
    quarantine
      .command(name)
      .description(description)
      .option('--json', 'machine-readable output')
      .option('--config <file>', 'configuration file');

  command('list', 'what is held back, and why')
    .option('--trajectory <id>', 'only of this trajectory', trajectory)
    .option('--log <id>', 'only from this log')
    .option('--reason <name>', 'only for this reason', reason)
    .option('--since <time>', 'only what was taken in at that time or later', instant)
    .option('--all', 'what is settled too')
    .action(async ({ trajectory: trajectory_id, log: log_id, reason: why, since, all, ...flags }: ListFlags) => {
      const { config } = await loadConfig(fileOf(flags));
      const filter = {
        ...(trajectory_id === undefined ? {} : { trajectory_id }),
        ...(log_id === undefined ? {} : { log_id }),
        ...(why === undefined ? {} : { reason: why }),
        ...(since === undefined ? {} : { since }),
        ...(all === undefined ? {} : { all }),
      };
      await listHeld(config, filter, flags.json === true);
    });

  command('show', 'one event by its number in quarantine, or all of a trajectory')
    .argument('<id|trajectory>', '', rowOrTrajectory)
    .option('--payload', 'with payloads')
    .action(async (of: number | TrajectoryId, { payload, ...flags }: Flags & { payload?: boolean }) => {
      const { config } = await loadConfig(fileOf(flags));
      process.exitCode = await showHeld(config, of, { payload: payload === true, json: flags.json === true });
    });

  command('replay', 'take in what fits by now: gap, poison, waiting, unproven')
    .argument('[trajectory]', '', trajectory)
    .option('--all', 'of every trajectory')
    .option('--dry-run', 'say what would be done')
    .action(async (id: TrajectoryId | undefined, { all, ...flags }: SettleFlags & { all?: boolean }, self: Command) => {
      if ((id === undefined) !== (all === true)) self.error('either a trajectory or --all is needed');
      const { config } = await loadConfig(fileOf(flags));
      process.exitCode = await replayHeld(config, id ?? 'all', settle(flags), signal);
    });

  command('accept', 'leave what forked or was fenced where it is: nobody has to look at it any more')
    .argument('<trajectory>', '', trajectory)
    .requiredOption('--reason <text>', 'why; it is recorded')
    .option('--dry-run', 'say what would be done')
    .action(async (id: TrajectoryId, { reason: why, ...flags }: SettleFlags & { reason: string }) => {
      const { config } = await loadConfig(fileOf(flags));
      process.exitCode = await acceptHeld(config, id, why, settle(flags));
    });

  command('branch', 'give what forked or was fenced a trajectory of its own')
    .argument('<trajectory>', '', trajectory)
    .option('--log <id>', 'the log whose events are meant, where several have some')
    .option('--reason <text>', 'why; it is recorded', 'branched')
    .option('--dry-run', 'say what would be done')
    .action(
      async (id: TrajectoryId, { reason: why, log, ...flags }: SettleFlags & { reason: string; log?: string }) => {
        const { config } = await loadConfig(fileOf(flags));
        process.exitCode = await branchHeld(config, id, why, {
          ...settle(flags),
          ...(log === undefined ? {} : { log }),
        });
      },
    );
}

function settle({ dryRun, json }: SettleFlags): { dryRun: boolean; json: boolean } {
  return { dryRun: dryRun === true, json: json === true };
}
