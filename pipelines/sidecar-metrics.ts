/** What a sidecar tells a monitoring system: one registry, one set of gauges and counters, labelled by log. */
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import type { LogStatus } from './log-loop.ts';

const REASONS = ['gap', 'fork', 'poison', 'fenced', 'waiting', 'unproven'] as const;

export class SidecarMetrics {
  readonly registry = new Registry();
  readonly #batchRecords: Histogram<'log'>;
  readonly #inserted: Counter<'log'>;
  readonly #duplicates: Counter<'log'>;
  readonly #quarantined: Counter<'log' | 'reason'>;
  readonly #retries: Counter<'log' | 'code'>;
  readonly #missing: Counter<'log'>;

  /** @param statuses what is true now, asked for at every scrape */
  constructor(
    statuses: () => readonly LogStatus[],
    partitionsAhead: () => number,
    clockSkewMs: () => number,
    inDoubt: () => number,
  ) {
    const registers = [this.registry];
    // By default it wakes the process a hundred times a second, which is all that an idle sidecar would cost.
    collectDefaultMetrics({ register: this.registry, eventLoopMonitoringPrecision: 100 });
    const log = ['log'] as const;
    this.#batchRecords = new Histogram({
      name: 'varve_sidecar_batch_records',
      help: 'Records of one transaction',
      labelNames: log,
      buckets: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000],
      registers,
    });
    const counter = (name: string, help: string) => new Counter({ name, help, labelNames: log, registers });
    this.#inserted = counter('varve_sidecar_inserted_total', 'Events that became visible in warm');
    this.#duplicates = counter('varve_sidecar_duplicates_total', 'Events that warm had already');
    this.#missing = counter('varve_sidecar_missing_total', 'Records that the log had trimmed and warm does not have');
    this.#quarantined = new Counter({
      name: 'varve_sidecar_quarantined_total',
      help: 'Events that went to quarantine',
      labelNames: ['log', 'reason'],
      registers,
    });
    this.#retries = new Counter({
      name: 'varve_sidecar_retries_total',
      help: 'Tries that failed and were repeated',
      labelNames: ['log', 'code'],
      registers,
    });
    const gauge = (name: string, help: string, value: (status: LogStatus) => number) => {
      new Gauge({
        name,
        help,
        labelNames: log,
        registers,
        collect() {
          this.reset();
          for (const status of statuses()) this.set({ log: status.directory }, value(status));
        },
      });
    };
    gauge('varve_sidecar_replicated_lsn', 'Last LSN that warm has taken over', (s) => s.replicated_lsn);
    gauge('varve_sidecar_durable_lsn', 'Last LSN of the log, as far as the sidecar knows', (s) => s.durable_lsn);
    gauge(
      'varve_sidecar_unreplicated_records',
      'Records of the log that warm does not have',
      (s) => s.durable_lsn - s.replicated_lsn,
    );
    gauge('varve_sidecar_queued_bytes', 'Bytes received that are not in warm', (s) => s.queued_bytes);
    gauge(
      'varve_sidecar_oldest_seconds',
      'Age of the oldest record received that is not in warm',
      (s) => s.oldest_ms / 1000,
    );
    gauge('varve_sidecar_following', '1: following or draining; 0: anything else', (s) =>
      s.state === 'following' || s.state === 'draining' ? 1 : 0,
    );
    gauge('varve_sidecar_needs_a_person', '1: the log or the database refuses what only a person can mend', (s) =>
      s.state === 'refused' ? 1 : 0,
    );
    gauge(
      'varve_sidecar_held_trajectories',
      'Trajectories of which warm holds something of this log back',
      (s) => s.held.length,
    );
    this.#heldByReason(statuses);
    const single = (name: string, help: string, value: () => number) => {
      new Gauge({
        name,
        help,
        registers,
        collect() {
          this.set(value());
        },
      });
    };
    single('varve_warm_partitions_ahead', 'Days ahead of today for which partitions exist', partitionsAhead);
    single('varve_warm_clock_skew_seconds', "The database's clock less this host's", () => clockSkewMs() / 1000);
    single(
      'varve_warm_in_doubt',
      'Intents without a result, of trajectories that have not finished and of fenced logs, in all of warm',
      inDoubt,
    );
  }

  batch(log: string, records: number, inserted: number, duplicates: number, missing: number): void {
    this.#batchRecords.observe({ log }, records);
    this.#inserted.inc({ log }, inserted);
    this.#duplicates.inc({ log }, duplicates);
    this.#missing.inc({ log }, missing);
  }

  quarantined(log: string, reason: string, count: number): void {
    this.#quarantined.inc({ log, reason }, count);
  }

  retried(log: string, code: string): void {
    this.#retries.inc({ log, code });
  }

  #heldByReason(statuses: () => readonly LogStatus[]): void {
    new Gauge({
      name: 'varve_sidecar_held_events',
      help: 'Events of this log in quarantine, by the reason of the first one of their trajectory',
      labelNames: ['log', 'reason'],
      registers: [this.registry],
      collect() {
        this.reset();
        for (const { directory, held } of statuses()) {
          for (const reason of REASONS) {
            const events = held
              .filter((entry) => entry.reason === reason)
              .reduce((sum, entry) => sum + entry.events, 0);
            this.set({ log: directory, reason }, events);
          }
        }
      },
    });
  }
}
