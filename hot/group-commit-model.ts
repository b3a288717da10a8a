/**
 * The durable-execution chapter's model of group commit (equations 2 and 3; the technique is DeWitt et al. 1984), as
 * functions, so that what it predicts can stand beside what was measured.
 *
 * Two things it does not say. With a window of 0 events still travel together: a flush takes what arrived during the
 * last one, so the window to put into equation 2 is then the duration of a flush. And equation 3 is what an event costs
 * the *device*; a caller waits for its whole barrier, and on average for half of the one under way when it came.
 */

/**
 * Equation 2: events that one barrier is expected to cover.
 *
 * @param eventsPerSecond λ, over all trajectories together
 * @param windowMs W, how long the coordinator collects, in milliseconds
 * @param maxBatch K_max, the most events of one barrier
 */
export function expectedBatch(eventsPerSecond: number, windowMs: number, maxBatch: number): number {
  return Math.min(maxBatch, Math.max(1, (eventsPerSecond * windowMs) / 1000));
}

/**
 * Equation 3: W/2 + (t_writev(k̄) + t_sync) / k̄, in milliseconds. A cost per event, not a caller's latency.
 *
 * @param windowMs W
 * @param writevMs t_writev(k̄): one gathered write of the whole batch
 * @param syncMs t_sync: one barrier
 * @param batch k̄, at least 1; see `expectedBatch`
 */
export function effectiveLatencyMs(windowMs: number, writevMs: number, syncMs: number, batch: number): number {
  return windowMs / 2 + (writevMs + syncMs) / batch;
}
