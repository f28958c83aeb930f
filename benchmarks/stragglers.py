"""How often deploy/features/why/stragglers.py names a rank in simulated runs: false alarms, and power.

    python -m benchmarks.stragglers [--runs 1000] [--steps 600] [--ranks 8 64]

In balanced runs each rank has the same distribution of work in each step; in the others rank 1 has more. A
step ends with the last rank. Prints the balanced runs in which any rank was named, and after how many
steps the rank with more work was named in half, and in nine tenths, of the runs.

All runs are computed at once, with numpy; tests/unit/test_sums.py compares that with the sums themselves.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from muster.deploy.features.why.lateness import MARGIN, STEPS
from muster.deploy.features.why.stragglers import FALSE_ALARMS, SHARES

Floats = NDArray[np.float64]
WORK: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Floats]] = {
    "uniform, 80 to 120 %": lambda chance, shape: chance.uniform(0.8, 1.2, shape),
    "normal, deviation 20 %": lambda chance, shape: np.maximum(0.1, chance.normal(1, 0.2, shape)),
    "lognormal, 40 %": lambda chance, shape: chance.lognormal(0, 0.4, shape),
}
MORE = (0.25, 0.15, 0.10)
POWER_RUNS = 0.1  # of the balanced runs
LOOK = 30  # steps
AT_ONCE = 100  # runs: 60 MiB for 64 ranks


def named(work: Floats) -> Floats:
    """After how many steps each rank of each run is named; infinite if it is not.

    `work`: by run, step and rank.
    """
    runs, steps, ranks = work.shape
    bound, shares = ranks / FALSE_ALARMS, np.array(SHARES)
    margins = MARGIN * np.median(work.max(axis=2), axis=1)
    stakes = np.zeros((runs, ranks, len(SHARES)))
    recent = np.zeros((STEPS, runs, ranks), dtype=np.int64)
    late, late_steps = np.zeros((runs, ranks), dtype=bool), np.zeros((runs, ranks))
    found = np.full((runs, ranks), math.inf)
    for step in range(1, steps + 1):
        earlier = recent[step % STEPS] = _wins(work[:, step - 1], margins)
        growth = 1 + shares * (earlier / (ranks - 1))[..., None]
        stakes = np.minimum(bound * len(SHARES), (stakes + 1 / (step * (step + 1))) * growth)
        over = recent.sum(axis=0) <= 0
        stakes[over & late] = 0.0
        late = ~over & (late | (stakes.mean(axis=2) >= bound))
        late_steps += late
        if step % LOOK == 0:
            found[(late | (2 * late_steps > step)) & np.isinf(found)] = step
    return found


def _wins(work: Floats, margins: Floats) -> NDArray[np.int64]:
    """For each rank of each run, how many others it is later than, less how many it is not later than."""
    least = (work - margins[:, None])[..., None]
    others = work[:, None, :]
    earlier, later = (others < least).sum(axis=2), (others > least).sum(axis=2) - 1  # without the rank itself
    wins: NDArray[np.int64] = earlier - later
    return wins


def simulated(kind: str, shape: tuple[int, int, int], more: float, chance: np.random.Generator) -> Floats:
    """The result of runs of this shape, of which rank 1 has more work."""
    parts = []
    for size in _parts(shape[0]):
        work = WORK[kind](chance, (size, *shape[1:]))
        work[:, :, 1] *= 1 + more
        parts.append(named(work))
    return np.concatenate(parts)


def _parts(runs: int) -> Iterator[int]:
    for begin in range(0, runs, AT_ONCE):
        yield min(AT_ONCE, runs - begin)


def _steps(found: Floats, share: float) -> str:
    at = float(np.sort(found)[max(0, math.ceil(share * len(found)) - 1)])
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
            chance = np.random.default_rng(1)  # the same again
            balanced = simulated(kind, (asked.runs, asked.steps, ranks), 0.0, chance)
            alarms = int(np.isfinite(balanced).any(axis=1).sum())
            line = f"{ranks} ranks, {kind}: {alarms} of {asked.runs} balanced runs had a false alarm"
            for more in MORE:
                shape = (max(1, round(POWER_RUNS * asked.runs)), asked.steps, ranks)
                after = simulated(kind, shape, more, chance)[:, 1]
                line += f"; {more:.0%} more: {_steps(after, 0.5)}, {_steps(after, 0.9)}"
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
