"""Which ranks begin collectives late, how late, and since when. Pure: times of arrival in, lateness out.

The lateness of a rank is its arrival time minus the median arrival time of the other ranks. The lateness of
a step is the sum over its collectives that wait for all ranks, and the most of those that run in the
background, as the buckets of a backward do: a rank that is late for the first bucket is as late for the next.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from ..connect.requests.why import CallSite
from .meetings import Arriving, HostClock, Meetings, groups, join, with_distinct_groups

STEPS = 30
"""The number of the last steps that are judged."""
LEAST_STEPS = 8
SLOW = 0.1
"""A rank is late in a step if the others wait for it for more than this share of the step."""
MOST_STEPS = 0.75
"""A rank is late if it is late in at least this share of the steps."""
SURE = 4.0
"""Lateness below this multiple of the noise is ignored."""
_REGULAR = 0.9
_BLOCKS = 10


@dataclass(frozen=True)
class RankPace:
    """How a rank goes through a step, in seconds. `late`: how long the others wait for it.

    `own`: the part of the step without waits for others. `often`: in which share of the steps it is late.
    `since`: the number of the first collective that it begins late, and `since_at` its time by the driver's
    clock; 0 for a rank that is not late.
    """

    rank: int
    host: str
    late: float
    own: float
    often: float = 0.0
    is_late: bool = False
    since: int = 0
    since_at: float = 0.0
    site: CallSite | None = None
    """The collective that it begins late."""


@dataclass(frozen=True)
class Pace:
    """How the ranks of a group go through their steps. `per_step`: collectives in a step.

    `regular` is false if the collectives do not repeat: then a step is just this number of them.
    """

    group: str
    steps: int
    step_seconds: float
    per_step: int
    regular: bool
    ranks: tuple[RankPace, ...]

    @property
    def late(self) -> list[RankPace]:
        """The ranks that are late, the latest first."""
        return sorted((rank for rank in self.ranks if rank.is_late), key=lambda rank: -rank.late)


def pace(ranks: Sequence[Arriving], clocks: Mapping[str, HostClock]) -> Pace | None:
    """The pace of the group with the latest rank, or with most ranks; None where nothing can be compared."""
    ranks = with_distinct_groups(ranks)
    paces = [
        judged
        for group in groups(ranks)
        if (meetings := join(group, ranks, clocks)) and (judged := _judge(meetings)) is not None
    ]
    return max(paces, key=_weight, default=None)


def _weight(judged: Pace) -> tuple[float, int, int]:
    latest = max((rank.late for rank in judged.late), default=0.0)
    return latest / (judged.step_seconds or 1.0), len(judged.ranks), judged.steps


def _judge(meetings: Meetings) -> Pace | None:
    """Judge the steps that the program repeats; if no rank is late in these, perhaps equal parts.

    Equal parts count if the program repeats nothing, or if a step seems to be one collective: it may be more.
    """
    total = len(meetings.seqs)
    period = _period(meetings.sites)
    new = _new_lateness(meetings)
    by_steps = None
    if total >= LEAST_STEPS * (period or 1):
        by_steps = _by_steps(meetings, new, period or 1, regular=period is not None)
    part = total // _BLOCKS
    if (by_steps is None or not by_steps.late) and (period or 1) == 1 < part:
        by_parts = _by_steps(meetings, new, part, regular=False)
        if by_parts and (by_steps is None or by_parts.late):
            return by_parts
    return by_steps


def _period(sites: Sequence[CallSite]) -> int | None:
    """The number of collectives after which the program now repeats itself; None if it does not.

    Collectives before the judged steps do not matter: they may be of another part of the program.
    """
    for period in range(1, len(sites) // LEAST_STEPS + 1):
        lately = sites[-(STEPS + 1) * period :]
        same = sum(site == again for site, again in zip(lately, lately[period:], strict=False))
        if same >= _REGULAR * (len(lately) - period):
            return period
    return None


def _new_lateness(meetings: Meetings) -> list[list[float]]:
    """For each rank and collective, its lateness; if no rank has waited since the last one, the increase."""
    count = len(meetings.ranks)
    new: list[list[float]] = [[] for _ in range(count)]
    carried = [0.0] * count
    before = [-math.inf] * count
    for index in range(len(meetings.seqs)):
        times = [meetings.at[rank][index] for rank in range(count)]
        ordered = sorted(times)
        for rank, at in enumerate(times):
            others = _median_without(ordered, at)
            late = at - others
            late = late if late > meetings.guard[rank] else 0.0
            waited_for = others >= before[rank]
            background = not meetings.sites[index].waits
            new[rank].append(late if waited_for or background else max(0.0, late - carried[rank]))
            carried[rank] = late
        before = times
    return new


def _median_without(ordered: Sequence[float], value: float) -> float:
    """The median of sorted numbers without one of them."""
    index, rest = bisect_left(ordered, value), len(ordered) - 1
    middle = rest // 2
    upper = ordered[middle + (middle >= index)]
    if rest % 2:
        return upper
    return (ordered[middle - 1 + (middle - 1 >= index)] + upper) / 2


@dataclass(frozen=True)
class _Steps:
    """Meetings cut into steps of `size`; the last one is whole."""

    meetings: Meetings
    size: int

    @property
    def starts(self) -> range:
        """The index of the first meeting of each step."""
        total = len(self.meetings.seqs)
        return range(total % self.size, total, self.size)

    def seconds(self) -> float:
        """How long a step takes."""
        begins = [max(row[start] for row in self.meetings.at) for start in self.starts]
        return median(end - begin for begin, end in pairwise(begins))

    def excess(self, new: Sequence[Sequence[float]]) -> list[list[float]]:
        """For each rank and step, how much later it is than the median of the others."""
        sites, size = self.meetings.sites, self.size
        sums = [[_whole(row, sites, start, start + size) for start in self.starts] for row in new]
        ordered = [sorted(step) for step in zip(*sums, strict=True)]
        return [
            [value - _median_without(step, value) for value, step in zip(row, ordered, strict=True)]
            for row in sums
        ]


def _by_steps(meetings: Meetings, new: Sequence[Sequence[float]], size: int, *, regular: bool) -> Pace | None:
    """Add up the new lateness over steps of `size` collectives; None if these are too few."""
    cut = _Steps(meetings, size)
    if len(cut.starts) < LEAST_STEPS:
        return None
    excess, seconds = cut.excess(new), cut.seconds()
    last = min(STEPS, len(cut.starts))
    lates = [max(0.0, median(row[-last:])) for row in excess]
    paces = []
    for index, rank in enumerate(meetings.ranks):
        own = max(0.0, seconds - (max(lates) - lates[index]))
        measured = _RankExcess(excess[index], max(SLOW * seconds, meetings.guard[index]), last)
        rank_pace = RankPace(rank.number, rank.host, lates[index], own, measured.often)
        if measured.is_late(len(meetings.ranks)):
            rank_pace = _located(rank_pace, measured, cut, new[index])
        paces.append(rank_pace)
    return Pace(meetings.group, last, seconds, size, regular, tuple(paces))


def _whole(new: Sequence[float], sites: Sequence[CallSite], start: int, end: int) -> float:
    """The lateness of a step."""
    waited = sum(new[index] for index in range(start, end) if sites[index].waits)
    return waited + max((new[index] for index in range(start, end) if not sites[index].waits), default=0.0)


@dataclass(frozen=True)
class _RankExcess:
    """By how much a rank is later than the others in each step; only the `last` steps are judged."""

    excess: Sequence[float]
    tolerance: float
    last: int

    @property
    def often(self) -> float:
        """The share of the steps in which it is late."""
        return sum(value > self.tolerance for value in self.excess[-self.last :]) / self.last

    def is_late(self, ranks: int) -> bool:
        """Whether it is late in most steps, the newest and those before, and by more than the noise."""
        values = self.excess[-self.last :]
        middle = median(values)
        half, newest = self.last // 2, values[-max(2, self.last // 4) :]
        if middle <= self.tolerance or self.often < MOST_STEPS or median(newest) <= self.tolerance:
            return False
        if min(median(values[:half]), median(values[half:])) <= self.tolerance / 2:
            return False
        spread = median(abs(value - middle) for value in values)
        # 1.86: from the median deviation to the standard error of a median, of normal noise.
        return middle > (SURE + math.log(ranks) / 2) * 1.86 * spread / math.sqrt(self.last)

    def first(self) -> int:
        """The first step of those in most of which it is late."""
        late = [value > self.tolerance for value in self.excess]
        total, first = 0, len(late) - 1
        for step in range(len(late) - 1, -1, -1):
            total += late[step]
            if late[step] and total >= MOST_STEPS * (len(late) - step):
                first = step
        return first


def _located(rank_pace: RankPace, measured: _RankExcess, cut: _Steps, new: Sequence[float]) -> RankPace:
    """The pace of a rank that is late, with the collective that it begins late, and since which one."""
    meetings, starts = cut.meetings, cut.starts
    by_site: dict[CallSite, float] = {}
    for index in range(starts[-measured.last], len(new)):
        by_site[meetings.sites[index]] = by_site.get(meetings.sites[index], 0.0) + new[index]
    step = starts[measured.first()]
    since = max(range(step, min(step + cut.size, len(new))), key=lambda index: new[index])
    return replace(
        rank_pace,
        is_late=True,
        since=meetings.seqs[since],
        since_at=median(row[since] for row in meetings.at),
        site=max(by_site, key=lambda site: by_site[site]),
    )
