/**
 * Alert rules for Prometheus over the sidecar's metrics (`pipelines/sidecar-metrics.ts`), published as
 * `schemas/published/alerts.yaml`. Each says what is wrong and what to do about it.
 *
 * `page`: events do not leave their disk, or a person must act. `ticket`: before long somebody should.
 */
export type AlertRule = {
  readonly alert: string;
  readonly expr: string;
  readonly for: string;
  readonly severity: 'page' | 'ticket';
  readonly summary: string;
  /** What to do. */
  readonly action: string;
};

export const ALERT_RULES: readonly AlertRule[] = [
  {
    alert: 'VarveSidecarAbsent',
    expr: 'absent(varve_warm_partitions_ahead)',
    for: '5m',
    severity: 'page',
    summary: 'No varve sidecar is scraped: hot logs are not replicated, or nobody knows.',
    action: 'Start the sidecar (varve sidecar), or mend its scraping. Workers go on; their events stay on their disks.',
  },
  {
    alert: 'VarveReplicationStalled',
    expr: 'varve_sidecar_unreplicated_records > 0 and delta(varve_sidecar_replicated_lsn[5m]) == 0',
    for: '5m',
    severity: 'page',
    summary: '{{ $labels.log }}: {{ $value }} records wait, and none went through for minutes.',
    action: 'varve doctor says what does not answer; varve_sidecar_retries_total names the code of what fails.',
  },
  {
    alert: 'VarveReplicationSlow',
    expr: 'varve_sidecar_oldest_seconds > 60',
    for: '5m',
    severity: 'ticket',
    summary: '{{ $labels.log }}: records wait {{ $value }} s for the database.',
    action: 'Look at the load of PostgreSQL and at sidecar.batchEvents and sidecar.batchBytes (varve config).',
  },
  {
    alert: 'VarveLogNeedsAPerson',
    expr: 'varve_sidecar_needs_a_person == 1',
    for: '1m',
    severity: 'page',
    summary: '{{ $labels.log }}: the log or the database refuses what only a person can mend.',
    action: 'varve doctor --hot names the reason and the next commands. Copy a damaged log before anything else.',
  },
  {
    alert: 'VarveEventsHeldBack',
    expr: 'sum by (log, reason) (varve_sidecar_held_events{reason=~"gap|poison|fork|fenced|unproven"}) > 0',
    for: '5m',
    severity: 'ticket',
    summary: '{{ $labels.log }}: {{ $value }} events are in quarantine ({{ $labels.reason }}).',
    action:
      'varve quarantine list. Then varve quarantine replay <trajectory> for gap, poison and unproven; accept or branch for fork and fenced.',
  },
  {
    alert: 'VarveEventsWaitLong',
    expr: 'sum by (log) (varve_sidecar_held_events{reason="waiting"}) > 0',
    for: '1h',
    severity: 'ticket',
    summary: '{{ $labels.log }}: {{ $value }} events wait for what another log has not brought for an hour.',
    action: 'See whether the other log is replicated (varve status). If its disk is gone, the events before are.',
  },
  {
    alert: 'VarveRecordsMissing',
    expr: 'increase(varve_sidecar_missing_total[1h]) > 0',
    for: '0m',
    severity: 'page',
    summary: '{{ $labels.log }}: {{ $value }} records were trimmed there and are not in warm: the database went back.',
    action: 'varve status names the ranges. Restore them from cold, or from a newer backup of the database.',
  },
  {
    alert: 'VarvePartitionsRunOut',
    expr: 'varve_warm_partitions_ahead < 2',
    for: '10m',
    severity: 'page',
    summary: 'Partitions exist for {{ $value }} days ahead only.',
    action:
      'See why the sidecar cannot make them (its log says warm.maintenance): the right to do so, or a lock that somebody holds.',
  },
  {
    alert: 'VarveClockSkew',
    expr: 'abs(varve_warm_clock_skew_seconds) > 5',
    for: '10m',
    severity: 'ticket',
    summary: "The database's clock is {{ $value }} s off this host's.",
    action: 'Synchronise both clocks: leases and the days of partitions go by that of the database.',
  },
  {
    alert: 'VarveRetries',
    expr: 'sum by (log, code) (rate(varve_sidecar_retries_total[10m])) > 0.1',
    for: '15m',
    severity: 'ticket',
    summary: '{{ $labels.log }}: {{ $labels.code }} fails again and again.',
    action: 'Look the code up in schemas/errors.ts; varve doctor tries the database and the store.',
  },
];

/** Every scalar is a JSON string, which is YAML too. */
export function alertsYaml(rules: readonly AlertRule[] = ALERT_RULES): string {
  const lines = ['groups:', '  - name: varve', '    rules:'];
  for (const { alert, expr, for: after, severity, summary, action } of rules) {
    lines.push(
      `      - alert: ${alert}`,
      `        expr: ${JSON.stringify(expr)}`,
      `        for: ${after}`,
      `        labels: {severity: ${severity}}`,
      '        annotations:',
      `          summary: ${JSON.stringify(summary)}`,
      `          action: ${JSON.stringify(action)}`,
    );
  }
  return `${lines.join('\n')}\n`;
}
