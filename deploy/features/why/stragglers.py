"""Which ranks slow the others down, in one look and over a whole run, and the likely cause. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated

from ...core.decode import MALFORMED, AtMost, Between, from_json
from ...core.hosts.bounds import Name, Seconds
from ...core.hosts.bounds import Rank as RankNumber
from ...core.text.fold import fold
from ...core.text.terminal import harmless
from ...core.text.text import duration, size
from .causes import Surroundings, likely_cause
from .descriptions import named
from .late_scores import LateScores, latest
from .lateness import Pace
from .messages import CallSite, Straggler
from .positions import Rank


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
            since=round(rank.since, 3),
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
    late = f"{who} {are} late: {wait}, {when}, in {first.to}, {since}"
    return [late, f"likely cause: {first.cause}"] if first.cause else [late]


def _site(site: CallSite, group: str) -> str:
    details = [size(site.bytes)] if site.bytes else []
    details += [harmless(site.where)] if site.where else []
    shown = f" ({', '.join(details)})" if details else ""
    return f"{harmless(site.op)} of group {harmless(group)}{shown}"


STACKS = 3
"""The looks at a late rank in which its stacks are read for the cause."""


class Summary:
    """The stragglers of a run so far, by the sums of all looks."""

    def __init__(self) -> None:
        self._sums = LateScores()
        self._causes: dict[int, str] = {}
        self._causes_by_stacks: dict[int, str] = {}
        """These stay: a rank that does more than the others also needs its processor for longer."""
        self._searched: Counter[int] = Counter()
        self.late: list[Straggler] = []
        """The latest first, each with the cause that was found last."""

    def add(self, paces: Sequence[Pace], surroundings: Surroundings) -> Pace | None:
        """Add a look; returns the pace of the latest group. A look without any pace changes nothing."""
        if not paces:
            return None
        pace = latest(self._sums.add(paces))
        self._keep(pace, surroundings)
        return pace

    @property
    def needs_stacks(self) -> bool:
        """Whether the stacks may still show why a rank is late: once, and again while that is unknown."""
        return any(self._searched[rank.rank] < (1 if rank.cause else STACKS) for rank in self.late)

    def explain(self, pace: Pace | None, surroundings: Surroundings) -> None:
        """Find the causes in surroundings that have stacks."""
        self._searched.update(rank.rank for rank in self.late)
        self._keep(pace, surroundings)

    def _keep(self, pace: Pace | None, surroundings: Surroundings) -> None:
        found = stragglers(pace, surroundings)
        causes = {rank.rank: rank.cause for rank in found if rank.cause}
        if surroundings.looks:
            self._causes_by_stacks.update(causes)
        self._causes = {**self._causes, **causes, **self._causes_by_stacks}
        self.late = [replace(rank, cause=self._causes.get(rank.rank, "")) for rank in found]


# -- the lines of pace.jsonl --

PACE = "pace.jsonl"
MOST_RANKS = 256
"""Of more ranks, a line of the pace has those that work longest on a step."""


@dataclass(frozen=True)
class RankLook:
    """A rank in a line of the pace: the seconds of a step that it works, and that the others wait for it."""

    rank: RankNumber
    host: Name
    own_seconds: Seconds
    late_seconds: Seconds
    late: bool


@dataclass(frozen=True)
class PaceLook:
    """The part of a line of the pace that is read."""

    attempt: Annotated[int, Between(0, 1 << 20)]
    steps: Annotated[int, Between(0, 1 << 20)]
    ranks: Annotated[tuple[RankLook, ...], AtMost(MOST_RANKS)]


def pace_look(record: object) -> PaceLook | None:
    """A decoded line of pace.jsonl; None for a malformed one."""
    try:
        look: PaceLook = from_json(PaceLook, record)
    except MALFORMED:
        return None
    return look


def pace_line(at: float, attempt: int, pace: Pace, late: Sequence[Straggler]) -> str:
    """The pace of a running attempt as a line, with its newline. Times in seconds."""
    ranks = sorted(sorted(pace.ranks, key=lambda rank: -rank.own)[:MOST_RANKS], key=lambda rank: rank.rank)
    record = {
        "at": round(at, 3),
        "attempt": attempt,
        "group": pace.group,
        "steps": pace.steps,
        "step_seconds": round(pace.step_seconds, 6),
        "regular": pace.regular,
        "ranks": [
            asdict(RankLook(rank.rank, rank.host, round(rank.own, 6), round(rank.late, 6), rank.is_late))
            for rank in ranks
        ],
        "late": [straggler.as_json() for straggler in late],
        "slow": lines(late, at),
    }
    return json.dumps(record, separators=(",", ":")) + "\n"
