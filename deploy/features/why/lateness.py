"""How late each rank begins the collectives of a step, and whether all call the same ones. Pure.

The lateness of a rank at a collective is its arrival minus the median arrival. The lateness of a step is the
sum over its collectives that wait for all ranks, and the most of those that run in the background, as the
buckets of a backward do: a rank that is late for the first bucket is as late for the next.

A step has a score for each rank: the share of the other ranks that it is later than, minus the share that it
is not, where a lateness of MARGIN of the step is not counted. stragglers.py adds the scores up.

Ranks that do not call the same collectives in the same order hang, or under MPI go on with wrong data. The
line of a call proves nothing: ranks may call the same collective from different lines.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from ...core.text.fold import fold
from ...core.text.terminal import harmless
from ...core.text.text import size, span
from .messages import SETUP, Arrivals, CallSite, GroupArrivals
from .positions import UNEVEN, compared_kind, distinct_names, renamed

UNCERTAINTIES = 3.0
"""Lateness below this multiple of the clock uncertainty is ignored."""
LEAST_SECONDS = 0.0005
"""Lateness below 0.5 ms is scheduling jitter and is ignored."""


@dataclass(frozen=True)
class HostClock:
    """By how much a host's time of day is ahead of the driver's, and the uncertainty of that. Seconds."""

    ahead: float = 0.0
    uncertainty: float = 0.0


@dataclass(frozen=True)
class Arriving:
    """A rank with its host, the clock of that, and its arrivals."""

    number: int
    host: str
    arrivals: Arrivals
    clock: HostClock = HostClock()


@dataclass(frozen=True)
class SharedCollectives:
    """The collectives of a group that every rank has: `at[rank][index]` by the driver's clock."""

    group: str
    ranks: tuple[Arriving, ...]
    seqs: tuple[int, ...]
    sites: tuple[CallSite, ...]
    at: tuple[tuple[float, ...], ...]
    guard: tuple[float, ...]
    """For each rank, the lateness that is ignored: the uncertainty of clocks, and jitter."""


@dataclass(frozen=True)
class Departure:
    """The first number in a group as which ranks called different collectives; most of them the first one."""

    group: str
    seq: int
    sides: Sequence[tuple[Sequence[int], CallSite]]

    def __str__(self) -> str:
        """`rank 1 left the order of the others at #6 of group 0 (train.py:14): it called ...`."""
        at = f"#{self.seq} of group {harmless(self.group)}"
        (most, theirs), (first, site), *_ = self.sides
        if len(most) == len(first):  # each order may be right
            parts = ", ".join(f"{span(ranks)} {_called(site)}" for ranks, site in self.sides)
            return f"the ranks call different collectives as {at}: {parts}"
        odd = sorted(rank for ranks, _ in self.sides[1:] for rank in ranks)
        where = f" ({harmless(site.where)})" if site.where else ""
        called = f"{'it' if len(odd) == 1 else 'each'} called {_called(site._replace(where=''))}"
        return (
            f"{span(odd)} left the order of the others at {at}{where}: {called}, the others {_called(theirs)}"
        )


def _called(site: CallSite) -> str:
    where = f" ({harmless(site.where)})" if site.where else ""
    return f"{harmless(site.op)}{f' of {size(site.bytes)}' if site.bytes else ''}{where}"


def departures(ranks: Sequence[Arriving]) -> list[Departure]:
    """For each group the first number at which the ranks differ in operation or size."""
    ranks = with_distinct_groups(ranks)
    found = []
    for group in groups(ranks):
        rows = {
            rank.number: {
                seq: _site(rank, index) for seq, index in zip(track.seqs, track.sites, strict=False)
            }
            for rank, track in _tracks(group, ranks)
        }
        common = set.intersection(*(set(row) for row in rows.values())) if len(rows) > 1 else set()
        last = min((max(row, default=0) for row in rows.values()), default=0)  # it may be half written
        for seq in sorted(seq for seq in common if seq < last):
            sides = fold((rank, _meaning(row[seq])) for rank, row in rows.items())
            if len(sides) > 1:
                found.append(Departure(group, seq, [(ranks, rows[ranks[0]][seq]) for ranks, _ in sides]))
                break
    return found


def _meaning(site: CallSite) -> tuple[str, int]:
    return site.op, 0 if site.op in UNEVEN else site.bytes


def with_distinct_groups(ranks: Sequence[Arriving]) -> list[Arriving]:
    """The ranks, with distinct names for groups of different members."""
    names = distinct_names(rank.arrivals.tracks for rank in ranks)
    return [
        replace(rank, arrivals=replace(rank.arrivals, tracks=renamed(rank.arrivals.tracks, own)))
        if own
        else rank
        for rank, own in zip(ranks, names, strict=True)
    ]


def groups(ranks: Sequence[Arriving]) -> list[str]:
    """The names of all groups except SETUP."""
    return list(
        dict.fromkeys(track.group for rank in ranks for track in rank.arrivals.tracks if track.group != SETUP)
    )


def join(group: str, ranks: Sequence[Arriving]) -> SharedCollectives | None:
    """The collectives that all ranks of a group have in common; None for fewer than two ranks."""
    tracks = _tracks(group, ranks)
    if len(tracks) < 2:
        return None
    rows = [dict(zip(track.seqs, track.at, strict=False)) for _, track in tracks]
    seqs = sorted(set(rows[0]).intersection(*rows[1:]))
    first, of_first = tracks[0]
    site_of = dict(zip(of_first.seqs, of_first.sites, strict=False))
    sites = tuple(_site(first, site_of.get(seq, -1)) for seq in seqs)
    members = tuple(rank for rank, _ in tracks)
    at = tuple(
        tuple(row[seq] - rank.clock.ahead for seq in seqs) for rank, row in zip(members, rows, strict=True)
    )
    return SharedCollectives(group, members, tuple(seqs), sites, at, _guards(members))


def _tracks(group: str, ranks: Sequence[Arriving]) -> list[tuple[Arriving, GroupArrivals]]:
    """The ranks of a group, each with what the counter that is compared has counted."""
    kind = compared_kind(
        {track.kind: track.count for track in rank.arrivals.tracks if track.group == group} for rank in ranks
    )
    return [(rank, track) for rank in ranks if (track := _track(rank, group, kind))]


def _track(rank: Arriving, group: str, kind: str) -> GroupArrivals | None:
    return next((track for track in rank.arrivals.tracks if (track.group, track.kind) == (group, kind)), None)


def _site(rank: Arriving, index: int) -> CallSite:
    sites = rank.arrivals.sites
    return sites[index] if 0 <= index < len(sites) else CallSite("", "", 0, True)


def _guards(ranks: Sequence[Arriving]) -> tuple[float, ...]:
    """Ranks of one host have the same clock; between hosts, both clocks may be wrong."""
    wrong = {rank.host: rank.clock.uncertainty for rank in ranks}
    if len(wrong) == 1:
        return tuple(LEAST_SECONDS for _ in ranks)
    usual = {host: median(wrong[other] for other in wrong.keys() - {host}) for host in wrong}
    return tuple(max(LEAST_SECONDS, UNCERTAINTIES * (wrong[rank.host] + usual[rank.host])) for rank in ranks)


STEPS = 30
"""The number of the last steps that are judged."""
LEAST_STEPS = 8
MARGIN = 0.04
"""A rank is late if it is later than others by more than this share of a step."""
_REGULAR = 0.9
_BLOCKS = 20


@dataclass(frozen=True)
class RankPace:
    """How a rank goes through a step, in seconds. `late`: how long the others wait for it.

    `own`: the part of the step without waits for others. `often`: in which share of the steps it is late.
    `since`: the time of the first collective that it begins late, by the driver's clock; 0 for a rank that is
    not late.
    """

    rank: int
    host: str
    late: float
    own: float
    often: float = 0.0
    is_late: bool = False
    since: float = 0.0
    site: CallSite | None = None
    """The collective that it begins late."""


@dataclass(frozen=True)
class Step:
    """A step: the numbers of its first and last collective, and the time of the first by the driver's clock.

    `scores` and `excess`: for each rank of the pace, its score, and its lateness minus that of the others.
    """

    first: int
    last: int
    at: float
    scores: tuple[float, ...]
    excess: tuple[float, ...]


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
    latest: tuple[Step, ...] = ()

    @property
    def late(self) -> list[RankPace]:
        """The ranks that are late, the latest first."""
        return sorted((rank for rank in self.ranks if rank.is_late), key=lambda rank: -rank.late)


def paces(ranks: Sequence[Arriving]) -> list[Pace]:
    """The pace of each group, by the steps that the program repeats, and perhaps by equal parts.

    Equal parts count if the program repeats nothing, or if a step seems to be one collective: it may be more.
    """
    ranks = with_distinct_groups(ranks)
    measured = []
    for group in groups(ranks):
        if meetings := join(group, ranks):
            period, total = _period(meetings.sites), len(meetings.seqs)
            part = total // _BLOCKS
            new = _new_lateness(meetings)
            if total >= LEAST_STEPS * (period or 1):
                measured.append(_by_steps(meetings, new, period or 1, regular=period is not None))
            if (period or 1) == 1 < part:
                measured.append(_by_steps(meetings, new, part, regular=False))
    return [pace for pace in measured if pace]


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


def _new_lateness(meetings: SharedCollectives) -> list[list[float]]:
    """For each rank and collective, its lateness; if no rank has waited since the last one, the increase."""
    count = len(meetings.ranks)
    new: list[list[float]] = [[] for _ in range(count)]
    carried = [0.0] * count
    before = [-math.inf] * count
    for index in range(len(meetings.seqs)):
        times = [meetings.at[rank][index] for rank in range(count)]
        ordered = sorted(times)
        middle = median(ordered)
        background = not meetings.sites[index].waits
        for rank, at in enumerate(times):
            late = at - middle
            late = late if abs(late) > meetings.guard[rank] else 0.0
            waited_for = background or _median_without(ordered, at) >= before[rank]
            new[rank].append(late if waited_for else late - carried[rank])
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


def _by_steps(
    meetings: SharedCollectives, new: Sequence[Sequence[float]], size: int, *, regular: bool
) -> Pace | None:
    """The pace by steps of `size` collectives, of which the last one is whole; None if these are too few."""
    total = len(meetings.seqs)
    starts = range(total % size, total, size)
    if len(starts) < LEAST_STEPS:
        return None
    begins = [max(row[start] for row in meetings.at) for start in starts]
    seconds = median(end - begin for begin, end in pairwise(begins))
    margins = [max(MARGIN * seconds, guard) for guard in meetings.guard]
    latest = [_step(meetings, new, start, size, margins) for start in starts[-STEPS:]]
    lates = [max(0.0, median(column)) for column in zip(*(step.excess for step in latest), strict=True)]
    paces = tuple(
        RankPace(
            rank.number,
            rank.host,
            lates[index],
            max(0.0, seconds - (max(lates) - lates[index])),
            sum(step.excess[index] > margins[index] for step in latest) / len(latest),
            site=_late_site(meetings, new[index], starts[-len(latest)]),
        )
        for index, rank in enumerate(meetings.ranks)
    )
    return Pace(meetings.group, len(latest), seconds, size, regular, paces, tuple(latest))


def _step(
    meetings: SharedCollectives,
    new: Sequence[Sequence[float]],
    start: int,
    size: int,
    margins: Sequence[float],
) -> Step:
    end = start + size
    lateness = [_whole(row, meetings.sites, start, end) for row in new]
    at, seqs = median(row[start] for row in meetings.at), meetings.seqs
    return Step(seqs[start], seqs[end - 1], at, scores(lateness, margins), excess(lateness))


def scores(lateness: Sequence[float], margins: Sequence[float]) -> tuple[float, ...]:
    """The score of each rank in a step."""
    ordered, others = sorted(lateness), len(lateness) - 1
    found = []
    for late, margin in zip(lateness, margins, strict=True):
        earlier = bisect_left(ordered, late - margin)
        later = others - bisect_right(ordered, late - margin)  # without the rank itself
        found.append((earlier - later) / others)
    return tuple(found)


def excess(lateness: Sequence[float]) -> tuple[float, ...]:
    """The lateness of each rank minus the median lateness of the others."""
    ordered = sorted(lateness)
    return tuple(late - _median_without(ordered, late) for late in lateness)


def _late_site(meetings: SharedCollectives, new: Sequence[float], start: int) -> CallSite:
    """The collective to which a rank comes later than others, by the sum over the steps from `start` on."""
    by_site: dict[CallSite, float] = {}
    for index in range(start, len(new)):
        by_site[meetings.sites[index]] = by_site.get(meetings.sites[index], 0.0) + new[index]
    return max(by_site, key=lambda site: by_site[site])


def _whole(new: Sequence[float], sites: Sequence[CallSite], start: int, end: int) -> float:
    """The lateness of a step."""
    waited = sum(new[index] for index in range(start, end) if sites[index].waits)
    return waited + max((new[index] for index in range(start, end) if not sites[index].waits), default=0.0)
