"""Simulated runs: when each rank came to each collective, as its host's agent would say it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from muster.deploy.features.why.lateness import Arriving, HostClock, Pace, paces
from muster.deploy.features.why.messages import Arrivals, CallSite, GroupArrivals, Pressure
from muster.deploy.features.why.stragglers import LateScores, latest

BEGAN = 1_000_000.0
NO_CLOCKS: dict[str, HostClock] = {}
LOSS = CallSite("all_reduce", "train.py:90", 4, waits=True)
GRADIENTS = CallSite("all_reduce", "train.py:88", 4000, waits=True)
BUCKETS = tuple(CallSite("all_reduce", "", 25_000_000 + number, waits=False) for number in range(6))


def nobody(rank: int, step: int, part: int) -> float:
    """No rank is slower than another."""
    return 0.0


@dataclass(frozen=True)
class Run:
    """A program of so many ranks, which makes these collectives in each step, each after its part of a step.

    `slower`: seconds that a rank takes longer for a part of a step. `noise`: the spread of the time of a
    part, as a share of it. `per_host`: how many ranks a host has. `ahead`: how far its clock is ahead.
    """

    ranks: int = 3
    steps: int = 40
    slower: Callable[[int, int, int], float] = nobody
    sites: Sequence[CallSite] = (GRADIENTS,)
    step_seconds: float = 0.1
    noise: float = 0.02
    per_host: int = 1
    ahead: Mapping[str, float] | None = None
    seed: int = 0
    most: int = 256

    def arriving(self, pressures: Mapping[int, Pressure] | None = None) -> list[Arriving]:
        """What the agents say of the ranks after the last step."""
        chance = random.Random(self.seed)  # noqa: S311  # the same again
        times: list[list[float]] = [[] for _ in range(self.ranks)]
        ready = [BEGAN] * self.ranks
        for step in range(self.steps):
            for part, site in enumerate(self.sites):
                for rank in range(self.ranks):
                    usual = self.step_seconds / len(self.sites) * max(0.1, chance.gauss(1, self.noise))
                    ready[rank] += usual + self.slower(rank, step, part)
                    times[rank].append(ready[rank])
                if site.waits or part == len(self.sites) - 1:  # at its end, a backward waits for all buckets
                    ready = [max(ready)] * self.ranks
        return [self._rank(rank, row, (pressures or {}).get(rank)) for rank, row in enumerate(times)]

    def _rank(self, rank: int, times: Sequence[float], pressure: Pressure | None) -> Arriving:
        host = f"node{rank // self.per_host + 1}"
        ahead = (self.ahead or {}).get(host, 0.0)
        total = len(times)
        places = range(max(0, total - self.most), total)
        track = GroupArrivals(
            "0",
            "call" if self.sites[0].waits else "torch",
            total,
            tuple(place + 1 for place in places),
            tuple(times[place] + ahead for place in places),
            tuple(place % len(self.sites) for place in places),
        )
        return Arriving(rank, host, Arrivals(tuple(self.sites), (track,), pressure))


def pace(ranks: Sequence[Arriving], clocks: Mapping[str, HostClock] = NO_CLOCKS) -> Pace | None:
    """The pace of the latest group by one look; None where nothing can be compared."""
    with_clocks = [replace(rank, clock=clocks.get(rank.host, HostClock())) for rank in ranks]
    return latest(LateScores().add(paces(with_clocks)))
