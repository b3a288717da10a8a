/** The alert rules: about metrics that there are, and each with what to do. */
import assert from 'node:assert/strict';
import { SidecarMetrics } from '../../pipelines/sidecar-metrics.ts';
import { ALERT_RULES, alertsYaml } from '../../schemas/alerts.ts';

const { registry } = new SidecarMetrics(
  () => [],
  () => 0,
  () => 0,
  () => 0,
);

describe('alert rules', () => {
  const labels = new Map(
    registry.getMetricsAsArray().map((metric) => [metric.name, metric as unknown as { labelNames?: string[] }]),
  );

  it('use only metrics and labels that a sidecar has', () => {
    for (const { alert, expr } of ALERT_RULES) {
      const names = expr.match(/varve_[a-z_]+/g) ?? [];
      assert.ok(names.length > 0, alert);
      for (const name of names) assert.ok(labels.has(name.replace(/_(bucket|sum|count)$/, '')), `${alert}: ${name}`);
      for (const [, name, selector] of expr.matchAll(/(varve_[a-z_]+)\{(\w+)/g)) {
        const known = labels.get(name ?? '')?.labelNames ?? [];
        assert.ok(known.includes(selector ?? ''), `${alert}: ${name} has no label ${selector}`);
      }
    }
  });

  it('name what is wrong and what to do, each under a name of its own', () => {
    assert.equal(new Set(ALERT_RULES.map(({ alert }) => alert)).size, ALERT_RULES.length);
    for (const { alert, summary, action, for: after } of ALERT_RULES) {
      assert.match(after, /^\d+[mh]$/, alert);
      assert.ok(summary.length > 20 && action.length > 20, alert);
    }
  });

  it('mention only commands that there are', () => {
    const commands = ALERT_RULES.flatMap(({ action }) =>
      [...action.matchAll(/varve ([a-z]+)/g)].map(([, name]) => name),
    );
    for (const name of commands)
      assert.ok(['doctor', 'status', 'config', 'sidecar', 'quarantine'].includes(name ?? ''), name);
  });

  it('are published as YAML whose every text stands in quotes', () => {
    const lines = alertsYaml().split('\n');
    assert.equal(lines.filter((line) => line.includes('- alert: ')).length, ALERT_RULES.length);
    for (const line of lines.filter((text) => /^ +(expr|summary|action): /.test(text))) {
      assert.doesNotThrow(() => JSON.parse(line.slice(line.indexOf(': ') + 2)) as unknown, line);
    }
  });
});
