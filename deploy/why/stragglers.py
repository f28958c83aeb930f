"""Which ranks slow the others down, in one look and over a whole run, and the likely cause. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..connect.requests.why import CallSite
from ..console.fold import fold
from ..console.terminal import harmless
from ..console.text import duration, size
from .causes import Surroundings, likely_cause
from .descriptions import named
from .lateness import Pace
from .positions import Rank


@dataclass(frozen=True)
class Straggler:
    """A rank that the others wait for. Seconds; `since` is a time by the driver's clock.

    `often`: in which share of the last `steps` steps. `regular`: the steps are those of the program; else
    each is just a number of collectives. `to`: the collective that it begins late. `cause`: empty if it is
    unknown.
    """

    rank: int
    host: str
    late: float
    step_seconds: float
    often: float
    steps: int
    regular: bool
    to: str
    since: float
    cause: str = ""

    @property
    def share(self) -> float:
        """The share of a step in which the other ranks wait for this one."""
        return self.late / self.step_seconds if self.step_seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        """Plain values, for programs."""
        return asdict(self)


def stragglers(pace: Pace | None, surroundings: Surroundings) -> list[Straggler]:
    """The ranks that are late, the latest first, each with the likely cause."""
    if pace is None:
        return []
    late = {rank.rank for rank in pace.late}
    return [
        Straggler(
            rank=rank.rank,
            host=rank.host,
            late=round(rank.late, 6),
            step_seconds=round(pace.step_seconds, 6),
            often=round(rank.often, 3),
            steps=pace.steps,
            regular=pace.regular,
            to=_site(rank.site, pace.group) if rank.site else "",
            since=round(rank.since_at, 3),
            cause=likely_cause(rank, late, surroundings),
        )
        for rank in pace.late
    ]


def lines(ranks: Sequence[Straggler], now: float, *, ended: bool = False) -> list[str]:
    """The lines about stragglers, those of one host with the same cause together.

    `now`: a time by the driver's clock; `ended`: the job ended then.
    """
    alike = fold((rank, (rank.host, rank.cause, rank.to)) for rank in ranks)
    return [line for same, _ in alike for line in _lines(same, now, ended=ended)]


def _lines(ranks: Sequence[Straggler], now: float, *, ended: bool) -> list[str]:
    first = max(ranks, key=lambda rank: rank.late)
    who = named([Rank(rank.rank, rank.host, None) for rank in ranks])
    who += f" on {harmless(first.host)}" if len(ranks) > 1 else ""
    step = f"a step of {duration(first.step_seconds)}"
    when = f"in {round(first.often * first.steps)} of the last {first.steps} steps"
    if not first.regular:
        step, when = f"every {duration(first.step_seconds)}", "again and again"
    are = ("was" if ended else "is") if len(ranks) == 1 else ("were" if ended else "are")
    wait = f"the others {'waited' if ended else 'wait'} {duration(first.late)} of {step}"
    since = f"for at least {duration(max(0.0, now - min(rank.since for rank in ranks)))}"
    return [
        f"{who} {are} late: {wait}, {when}, in {first.to}, {since}",
        f"likely cause: {first.cause or 'unknown'}",
    ]


def _site(site: CallSite, group: str) -> str:
    details = [size(site.bytes)] if site.bytes else []
    details += [harmless(site.where)] if site.where else []
    shown = f" ({', '.join(details)})" if details else ""
    return f"{harmless(site.op)} of group {harmless(group)}{shown}"


LATELY, MOST_OF_THEM = 5, 3
"""A rank that was late in most of the last looks is named, as is one that was late in half of all looks."""
STACKS = 3
"""The looks at a late rank in which its stacks are read for the cause."""


class Summary:
    """The stragglers of a run, from one look after the other."""

    def __init__(self) -> None:
        self._looks = 0
        self._times: Counter[int] = Counter()
        self._lately: deque[set[int]] = deque(maxlen=LATELY)
        self._last: dict[int, Straggler] = {}
        """Each rank in the last look in which it was late, with the cause and the beginning so far."""

    def needs_stacks(self, rank: int) -> bool:
        """Whether the stacks may still show why a rank is late."""
        last = self._last.get(rank)
        return self._times[rank] < STACKS and not (last and last.cause)

    def add(self, late: Sequence[Straggler]) -> None:
        """Add a look in which these ranks were late."""
        before = self._lately[-1] if self._lately else set()
        for straggler in late:
            rank, last = straggler.rank, self._last.get(straggler.rank)
            since = min(straggler.since, last.since) if last and rank in before else straggler.since
            cause = straggler.cause or (last.cause if last else "")
            self._last[rank] = replace(straggler, since=since, cause=cause)
        ranks = {straggler.rank for straggler in late}
        self._looks += 1
        self._lately.append(ranks)
        self._times.update(ranks)

    def stragglers(self) -> list[Straggler]:
        """The ranks that are named at the end, the latest first."""
        lately = Counter(rank for look in self._lately for rank in look)
        named = [
            straggler
            for rank, straggler in self._last.items()
            if lately[rank] >= MOST_OF_THEM or 2 * self._times[rank] >= self._looks
        ]
        return sorted(named, key=lambda straggler: -straggler.share)
