"""Adds up over a run how often a rank is later than others, until chance does not explain it. Pure.

For each rank a stake is bet on the score of each step (lateness.py): it is multiplied by 1 + SHARE * score.
If a rank is like the others, its expected score is at most 0, whatever the steps are like, so its stake does
not grow on average, and it ever exceeds 1 / FALSE_ALARMS with a probability of at most FALSE_ALARMS (Ville's
inequality). So a rank is late if its stake reaches the number of all ranks divided by FALSE_ALARMS: in a run
of ranks that are alike, no rank is ever named, with a probability of at least 1 - FALSE_ALARMS.

A rank may become slow at any time. So the stake is divided over all possible beginnings: of the n-th step,
1 / (n * (n + 1)).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .lateness import STEPS, Pace, RankPace, Step

FALSE_ALARMS = 0.001
SHARES = (0.1, 0.25, 0.5, 0.95)
"""Small shares win on small scores, large ones soon: each has a quarter of the stake."""


@dataclass
class _Rank:
    """A rank in the steps of a group. `late`: it was named, and is still later than most."""

    stakes: list[float] = field(default_factory=lambda: [0.0] * len(SHARES))
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS))
    run: float = 0.0
    """How much the scores since `since` favour that it is late."""
    since: float = 0.0
    steps: int = 0
    excess: float = 0.0
    late: bool = False
    late_steps: int = 0

    def add(self, step: Step, index: int, beginning: float, bound: float) -> None:
        """Bet on a step. `beginning`: the part of the stake for this step; `bound`: a stake that is proof."""
        score = step.scores[index]
        self.recent.append(score)
        self._extend(step, index, score)
        most = bound * len(SHARES)  # more proves nothing, and would keep a rank named that has recovered
        self.stakes = [
            min(most, (stake + beginning) * (1 + share * score))
            for share, stake in zip(SHARES, self.stakes, strict=True)
        ]
        if sum(self.recent) <= 0:
            self.late, self.stakes = False, [0.0] * len(SHARES) if self.late else self.stakes
        elif sum(self.stakes) / len(SHARES) >= bound:
            self.late = True
        self.late_steps += self.late

    def _extend(self, step: Step, index: int, score: float) -> None:
        """Since when the rank is late: the scores before do not favour that."""
        if self.run <= 0:
            self.run, self.since, self.steps, self.excess = 0.0, step.at, 0, 0.0
        self.run += math.log1p(0.5 * score)
        self.steps += 1
        self.excess += step.excess[index]


class LateScores:
    """The sums of all groups of a job, from one look after the other."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, bool], _Group] = {}

    def add(self, measured: Sequence[Pace]) -> list[Pace]:
        """Add the steps that are new; returns the paces with the ranks that are late."""
        for look in measured:
            self._groups.setdefault(_key(look), _Group()).size = len(look.ranks)
        bound = sum(group.size for group in self._groups.values()) / FALSE_ALARMS
        return [self._groups[_key(look)].add(look, bound) for look in measured]


def _key(look: Pace) -> tuple[str, bool]:
    return look.group, look.per_step > 1 and not look.regular


class _Group:
    """The sums of the ranks of a group."""

    def __init__(self) -> None:
        self.size = 0
        self._ranks: dict[int, _Rank] = {}
        self._steps = self._last = 0

    def add(self, look: Pace, bound: float) -> Pace:
        """Add the steps that are new; returns the pace with the ranks that are late."""
        if look.latest[-1].last < self._last:  # a new group of the same name
            self._last = 0
        for step in look.latest:
            if step.first <= self._last:
                continue
            self._last = step.last
            self._steps += 1
            beginning = 1 / (self._steps * (self._steps + 1))
            for index, rank in enumerate(look.ranks):
                self._ranks.setdefault(rank.rank, _Rank()).add(step, index, beginning, bound)
        return replace(look, ranks=tuple(self._judged(rank) for rank in look.ranks))

    def _judged(self, rank: RankPace) -> RankPace:
        """The pace of a rank, which is late if it is now, or was in most steps."""
        sums = self._ranks.get(rank.rank)
        if sums is None or not (sums.late or 2 * sums.late_steps > self._steps):
            return rank
        late = max(0.0, sums.excess / sums.steps)
        return replace(rank, is_late=True, since=sums.since, late=late)


def latest(measured: Sequence[Pace]) -> Pace | None:
    """The pace with the latest rank, or with most ranks; rather by the steps of the program than by parts."""
    return max(measured, key=_weight, default=None)


def _weight(measured: Pace) -> tuple[bool, bool, float, int, int]:
    late = max((rank.late for rank in measured.late), default=0.0)
    share = late / (measured.step_seconds or 1.0)
    return bool(measured.late), measured.regular, share, len(measured.ranks), measured.steps
