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
from .lateness import Pace
from .positions import Rank
from .words import named


@dataclass(frozen=True)
class Straggler:
    """A rank that the others wait for. Seconds; `since` is a time of the driver's clock.

    `often`: in which share of the last `steps` steps. `regular`: the steps are those of the program; else
    each is just a number of collectives. `to`: the collective to which it comes late. `cause`: empty if it is
    not known.
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
        """Of the time of all other ranks, the share that they wait for this one."""
        return self.late / self.step_seconds if self.step_seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        """Plain values, for programs."""
        return asdict(self)


def stragglers(pace: Pace | None, known: Surroundings) -> list[Straggler]:
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
            cause=likely_cause(rank, late, known),
        )
        for rank in pace.late
    ]


def lines(found: Sequence[Straggler], now: float, *, ended: bool = False) -> list[str]:
    """The lines about stragglers, those of one host with the same cause together.

    `now`: a time of the driver's clock; `ended`: the job ended then.
    """
    alike = fold((one, (one.host, one.cause, one.to)) for one in found)
    return [line for ranks, _ in alike for line in _lines(ranks, now, ended=ended)]


def _lines(ranks: Sequence[Straggler], now: float, *, ended: bool) -> list[str]:
    first = max(ranks, key=lambda one: one.late)
    who = named([Rank(one.rank, one.host, None) for one in ranks])
    who += f" on {harmless(first.host)}" if len(ranks) > 1 else ""
    step = f"a step of {duration(first.step_seconds)}"
    when = f"in {round(first.often * first.steps)} of the last {first.steps} steps"
    if not first.regular:
        step, when = f"every {duration(first.step_seconds)}", "again and again"
    are = ("was" if ended else "is") if len(ranks) == 1 else ("were" if ended else "are")
    wait = f"the others {'waited' if ended else 'wait'} {duration(first.late)} of {step}"
    since = f"for at least {duration(max(0.0, now - min(one.since for one in ranks)))}"
    return [
        f"{who} {are} late: {wait}, {when}, in {first.to}, {since}",
        f"likely cause: {first.cause or 'not known'}",
    ]


def _site(site: CallSite, group: str) -> str:
    details = [size(site.bytes)] if site.bytes else []
    details += [harmless(site.where)] if site.where else []
    shown = f" ({', '.join(details)})" if details else ""
    return f"{harmless(site.op)} of group {harmless(group)}{shown}"


LATELY, MOST_OF_THEM = 5, 3
"""A rank that was late in most of the last looks is named, as is one that was late in half of all looks."""
STACKS = 3
"""In so many looks at a rank its cause is looked for in the stacks."""


class Summary:
    """What the looks at a run have found, one after the other."""

    def __init__(self) -> None:
        self._looks = 0
        self._times: Counter[int] = Counter()
        self._lately: deque[set[int]] = deque(maxlen=LATELY)
        self._last: dict[int, Straggler] = {}
        """Each rank as it was when it was late last, with the cause and the beginning as known by then."""

    def wants_stacks(self, rank: int) -> bool:
        """Whether the stacks may still tell why a rank is late."""
        known = self._last.get(rank)
        return self._times[rank] < STACKS and not (known and known.cause)

    def add(self, late: Sequence[Straggler]) -> None:
        """A look in which these ranks were late."""
        before = self._lately[-1] if self._lately else set()
        for one in late:
            known = self._last.get(one.rank)
            since = min(one.since, known.since) if known and one.rank in before else one.since
            cause = one.cause or (known.cause if known else "")
            self._last[one.rank] = replace(one, since=since, cause=cause)
        self._looks += 1
        self._lately.append({one.rank for one in late})
        self._times.update(one.rank for one in late)

    def stragglers(self) -> list[Straggler]:
        """The ranks that are named at the end, the latest first."""
        lately = Counter(rank for look in self._lately for rank in look)
        named = [
            one
            for rank, one in self._last.items()
            if lately[rank] >= MOST_OF_THEM or 2 * self._times[rank] >= self._looks
        ]
        return sorted(named, key=lambda one: -one.share)
