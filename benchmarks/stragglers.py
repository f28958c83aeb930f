"""How often the sums of deploy/why/sums.py name a rank in simulated runs: false alarms, and power.

    python -m benchmarks.stragglers [--runs 1000] [--steps 600] [--ranks 8 64]

In balanced runs each rank has the same distribution of work in each step; in the others rank 1 has more. A
step ends with the last rank. Prints the balanced runs in which any rank was named, and after how many
steps the rank with more work was named in half, and in nine tenths, of the runs.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable, Sequence
from statistics import median

from muster.deploy.why.lateness import MARGIN, Pace, RankPace, Step, excess, scores
from muster.deploy.why.sums import Sums

WORK: dict[str, Callable[[random.Random], float]] = {
    "uniform, 80 to 120 %": lambda chance: chance.uniform(0.8, 1.2),
    "normal, deviation 20 %": lambda chance: max(0.1, chance.gauss(1, 0.2)),
    "lognormal, 40 %": lambda chance: chance.lognormvariate(0, 0.4),
}
MORE = (0.25, 0.15, 0.10)
POWER_RUNS = 0.1  # of the balanced runs
LOOK = 30  # steps


def named(work: Sequence[Sequence[float]]) -> dict[int, int]:
    """The ranks that are named, each with the number of steps after which it is."""
    ranks, seconds = len(work[0]), median(map(max, work))
    paces = tuple(RankPace(rank, "node1", 0.0, 0.0) for rank in range(ranks))
    margins = [MARGIN * seconds] * ranks
    steps = [
        Step(number, number, 0.0, scores(row, margins), excess(row)) for number, row in enumerate(work, 1)
    ]
    sums, found = Sums(), dict[int, int]()
    for end in range(LOOK, len(steps) + 1, LOOK):
        (look,) = sums.add([Pace("0", LOOK, seconds, 1, True, paces, tuple(steps[end - LOOK : end]))])
        for rank in look.late:
            found.setdefault(rank.rank, end)
    return found


def simulated(kind: str, ranks: int, steps: int, more: float, chance: random.Random) -> dict[int, int]:
    """One run."""
    draw = WORK[kind]
    return named([[draw(chance) * (1 + more * (rank == 1)) for rank in range(ranks)] for _ in range(steps)])


def _steps(found: Sequence[float], share: float) -> str:
    at = sorted(found)[max(0, math.ceil(share * len(found)) - 1)]
    return "not named" if at == math.inf else f"{at:.0f}"


def main() -> None:
    """Print a line for each kind of work and number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64])
    asked = parser.parse_args()
    for ranks in asked.ranks:
        for kind in WORK:
            chance = random.Random(1)  # noqa: S311  # the same again
            alarms = sum(bool(simulated(kind, ranks, asked.steps, 0.0, chance)) for _ in range(asked.runs))
            line = f"{ranks} ranks, {kind}: {alarms} of {asked.runs} balanced runs had a false alarm"
            for more in MORE:
                runs = [
                    simulated(kind, ranks, asked.steps, more, chance)
                    for _ in range(max(1, round(POWER_RUNS * asked.runs)))
                ]
                after = [found.get(1, math.inf) for found in runs]
                line += f"; {more:.0%} more: {_steps(after, 0.5)}, {_steps(after, 0.9)}"
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
