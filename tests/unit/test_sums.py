"""Whether the sums over a run name ranks with more work, and no rank where the work only varies."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import pytest

from benchmarks import stragglers
from muster.deploy.features.why.lateness import MARGIN, Pace, RankPace, Step, excess, scores
from muster.deploy.features.why.stragglers import LateScores

Draw = Callable[[random.Random], float]
WORK: dict[str, Draw] = {
    "lengths of 80 to 120 %": lambda chance: chance.uniform(0.8, 1.2),
    "normal": lambda chance: max(0.1, chance.gauss(1, 0.2)),
    "skewed": lambda chance: chance.lognormvariate(0, 0.4),
    "one step in twenty takes three times as long": lambda chance: 3.0 if chance.random() < 0.05 else 1.0,
}


def named(draw: Draw, ranks: int, steps: int, more: float, seed: int) -> dict[int, int]:
    """The ranks that are named, each with the step at which it is; rank 1 has this much more work."""
    chance, sums = random.Random(seed), LateScores()  # noqa: S311  # the same again
    found: dict[int, int] = {}
    paces = tuple(RankPace(rank, "node1", 0.0, 0.0) for rank in range(ranks))
    for step in range(1, steps + 1):
        work = [draw(chance) * (1 + more * (rank == 1)) for rank in range(ranks)]
        margins = [MARGIN * 1.2] * ranks
        taken = Step(step, step, float(step), scores(work, margins), excess(work))
        (look,) = sums.add([Pace("0", 1, 1.2, 1, True, paces, (taken,))])
        for rank in look.late:
            found.setdefault(rank.rank, step)
    return found


@pytest.mark.parametrize(("ranks", "more"), [(3, 0.25), (8, 0.0), (16, 0.5)])
def test_the_simulation_of_many_runs_names_the_ranks_that_the_sums_name(ranks: int, more: float) -> None:
    chance = np.random.default_rng(ranks)
    work = stragglers.WORK["normal, deviation 20 %"](chance, (2, 300, ranks))
    work[0, :, 1] *= 1 + more
    work[0, 200:, 1] *= 0.5  # it recovers
    found = stragglers.named(work)
    for number, run in enumerate(work.tolist()):
        assert dict(enumerate(found[number])) == {
            rank: by_the_sums(run).get(rank, math.inf) for rank in range(ranks)
        }
    assert np.isfinite(found[0, 1]) == (more > 0)


def by_the_sums(work: Sequence[Sequence[float]]) -> dict[int, int]:
    """The ranks that are named, each with the look at which it is. `work`: by step and rank."""
    ranks, seconds = len(work[0]), median(map(max, work))
    paces = tuple(RankPace(rank, "node1", 0.0, 0.0) for rank in range(ranks))
    margins, sums, found = [MARGIN * seconds] * ranks, LateScores(), dict[int, int]()
    steps = [
        Step(number, number, 0.0, scores(row, margins), excess(row)) for number, row in enumerate(work, 1)
    ]
    for end in range(stragglers.LOOK, len(steps) + 1, stragglers.LOOK):
        seen = tuple(steps[end - stragglers.LOOK : end])
        (look,) = sums.add([Pace("0", stragglers.LOOK, seconds, 1, True, paces, seen)])
        for rank in look.late:
            found.setdefault(rank.rank, end)
    return found


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_no_rank_is_named_where_the_work_only_varies(work: str, ranks: int) -> None:
    """benchmarks/stragglers.py does this a thousand times."""
    for seed in range(1 if ranks > 8 else 2):
        assert not named(WORK[work], ranks, 300, 0.0, seed), seed


@pytest.mark.parametrize(("more", "steps"), [(0.25, 90), (0.15, 250)])
def test_a_rank_with_more_work_is_named_though_the_work_varies(more: float, steps: int) -> None:
    for seed in range(3):
        found = named(WORK["lengths of 80 to 120 %"], 8, steps, more, seed)
        assert [*found] == [1], (seed, found)


def test_a_rank_that_is_later_than_others_by_less_than_the_margin_is_not_named() -> None:
    assert not named(lambda chance: chance.gauss(1, 0.02), 8, 600, MARGIN, 0)


def test_a_rank_is_named_no_longer_soon_after_it_has_recovered() -> None:
    chance, sums = random.Random(1), LateScores()  # noqa: S311
    paces = tuple(RankPace(rank, "node1", 0.0, 0.0) for rank in range(8))
    late = []
    for step in range(1, 1001):
        work = [chance.uniform(0.8, 1.2) * (1 + 0.5 * (rank == 1 and step <= 300)) for rank in range(8)]
        taken = Step(step, step, float(step), scores(work, [0.05] * 8), excess(work))
        (look,) = sums.add([Pace("0", 1, 1.2, 1, True, paces, (taken,))])
        late.append([rank.rank for rank in look.late])
    assert late[299] == [1]
    assert late[-1] == []


def test_a_group_that_begins_again_under_its_name_is_counted_on() -> None:
    paces = tuple(RankPace(rank, "node1", 0.0, 0.0) for rank in range(3))
    sums = LateScores()
    steps = [Step(number, number, 0.0, (1.0, -1.0, -1.0), (0.5, -0.2, -0.2)) for number in range(1, 13)]
    look = Pace("0", 12, 1.0, 1, True, paces, tuple(steps))
    assert not sums.add([look])[0].late
    later = Pace("0", 12, 1.0, 1, True, paces, tuple(steps[:11]))
    assert [rank.rank for rank in sums.add([later])[0].late] == [0]
