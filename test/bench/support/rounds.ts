/**
 * Contenders take turns, so that what the machine does meanwhile meets all of them; every second round goes backwards,
 * so that nobody always runs behind the same neighbour. A first round warms up and does not count.
 */
export async function inTurns<Case>(
  cases: readonly Case[],
  rounds: number,
  measure: (one: Case, counts: boolean) => Promise<void>,
): Promise<void> {
  for (let round = -1; round < rounds; round++) {
    for (const one of round % 2 === 0 ? cases : cases.toReversed()) await measure(one, round >= 0);
  }
}
