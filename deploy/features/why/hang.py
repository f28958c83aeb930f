"""The ranks of a job that may hang, and the parts of a verdict on them. Pure: records in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ...core.text.fold import fold
from ...core.text.text import span
from . import waiting_ranks as waiting
from .descriptions import came, evidence_lines, fate, named, operation, plural, stack_line, waits_or_wait
from .messages import RecordedCall
from .positions import Positions, Rank
from .waiting_ranks import Wait

Kind = Literal[
    "absent", "fate", "different", "unmet", "deadlock", "network", "present", "slow", "stacks", "nothing"
]

# A wait is long if it is longer than these, and longer than three times the longest that the run had before.
LONG_SECONDS, LONG_WITHOUT_HISTORY, TIMES = 5.0, 10.0, 3.0
SURE_SECONDS = 1.0
"""A difference, a circle or a rank that is gone shows in any wait longer than this."""


@dataclass(frozen=True)
class HangVerdict:
    """Why a job stalls: two lines, the ranks that cause it, and the evidence of each rank.

    `hang` is false if the job may well continue. `where`: the lines of the program in which culprits are.
    """

    kind: Kind
    headline: str
    cause: str
    hang: bool
    culprits: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    operation: str = ""
    where: tuple[str, ...] = ()
    seconds: float = 0.0
    evidence: tuple[str, ...] = ()
    summary: str = ""
    """The same in one line."""

    def __str__(self) -> str:
        return "\n".join([self.headline, self.cause, *(f"    {line}" for line in self.evidence)]) + "\n"

    def as_json(self) -> dict[str, Any]:
        """Plain values, for programs."""
        return asdict(self)


class Case:
    """What the ranks show, and how a verdict describes it."""

    def __init__(self, ranks: Sequence[Rank], *, stalled: bool) -> None:
        self.ranks = {rank.number: rank for rank in ranks}
        self.stalled = stalled
        self.positions = Positions(ranks)
        self.waits = waiting.waits(self.positions)
        self.evidence = tuple(
            evidence_lines(ranks, {rank: self.last(rank) for rank in self.ranks}) if ranks else ()
        )

    def fated(self) -> list[int]:
        """The ranks whose process shows that they do not come."""
        return [rank for rank in self.ranks if fate(self.ranks[rank])]

    def fates(self, numbers: Sequence[int]) -> str:
        """`rank 3 on node4 is stopped (SIGSTOP)`, of each of these ranks."""
        ranks = [self.ranks[number] for number in numbers]
        return "; ".join(f"{named([rank])} {fate(rank)}" for rank in ranks)

    def make(
        self,
        kind: Kind,
        headline: str,
        cause: str,
        culprits: Sequence[int],
        *,
        operation: str = "",
        where: tuple[str, ...] = (),
        wait: Wait | None = None,
        certain: bool = False,
        summary: str = "",
    ) -> HangVerdict:
        """The verdict of this kind. `wait`: what it explains; without one, only `certain` is a hang."""
        seconds = self.waited(wait) if wait else 0.0
        hang = self.is_hang(wait, certain=certain)
        if wait and not hang:
            usual = self.positions.usual_gap()
            before = f"waits of up to {usual:.1f} s were usual so far" if usual else "it has only begun"
            headline = f"no hang: the longest wait is {seconds:.1f} s, and {before}; {headline}"
            kind, cause = "slow", cause.replace("never came:", "has not come yet:")
        blocked = sorted({wait.rank for wait in self.waits} - {*culprits})
        return HangVerdict(
            kind, headline, cause, hang, tuple(culprits), tuple(blocked), operation,
            tuple(line for line in where if line), round(seconds, 3), self.evidence,
            summary or f"{headline}; {cause}",
        )  # fmt: skip

    def is_hang(self, wait: Wait | None, *, certain: bool = False) -> bool:
        """Whether a wait is longer than the run explains; `certain`: it cannot end."""
        seconds = self.waited(wait) if wait else 0.0
        if self.stalled or wait is None or (certain and seconds >= SURE_SECONDS):
            return self.stalled or certain
        usual = self.positions.usual_gap()
        return seconds > (LONG_WITHOUT_HISTORY if usual is None else max(LONG_SECONDS, TIMES * usual))

    def culprits(self) -> list[int]:
        """The ranks that are awaited and do not wait themselves, or cannot continue."""
        blocked = {wait.rank for wait in self.waits if wait.awaited and wait.sure}
        awaited = {rank for wait in self.waits for rank in wait.awaited}
        return sorted(rank for rank in awaited if rank not in blocked or self.is_certain(rank))

    def is_certain(self, rank: int) -> bool:
        """Whether a rank can certainly not begin the collective any more."""
        evidence = self.ranks[rank].evidence
        return evidence is not None and bool(
            evidence.end or (evidence.process and evidence.process.state == "T")
        )

    def ended_well(self, rank: int) -> bool:
        """Whether a rank has ended with status 0."""
        evidence = self.ranks[rank].evidence
        return bool(evidence and evidence.end and evidence.end.code == 0)

    def waiters(self, wait: Wait) -> str:
        """`ranks 0-5 wait in all_reduce #812 of group 0 (25 MiB, train.py:88)`."""
        same = {
            other.rank: operation(other.entry) for other in self.waits if self.key(other) == self.key(wait)
        }
        return "; ".join(
            f"{span(sorted(ranks))} {waits_or_wait(ranks)} in {text}" for ranks, text in fold(same.items())
        )

    @staticmethod
    def key(wait: Wait) -> tuple[object, ...]:
        """Equal for waits in the same operation."""
        return wait.entry.kind == "message", wait.entry.group, wait.entry.seq, wait.entry.op

    def coming(self, numbers: Sequence[int], text: str) -> str:
        """Culprits in text: their fate, or that they never came, where they are and since when."""
        if fate(self.ranks[numbers[0]]):
            after = self.last(numbers[0])
            return plural(numbers, text) + (f", after {operation(after)}" if after else "")
        if self.ranks[numbers[0]].ended_with_job:
            before = f"; its last was {operation(last)}" if (last := self.last(numbers[0])) else ""
            return f"never came: {'it' if len(numbers) == 1 else 'each'} {text}{before}"
        ages = [seconds for number in numbers if (seconds := self.since(number)) is not None]
        since = f", {max(ages):.0f} s" if ages else ""
        return f"{came(text)}: {'it' if len(numbers) == 1 else 'each'} {text}{since}"

    def since(self, rank: int) -> float | None:
        """Seconds since a rank ended its last collective or message."""
        evidence, last = self.ranks[rank].evidence, self.last(rank)
        return max(0.0, evidence.now - max(last.end, last.at, last.wait)) if evidence and last else None

    def lines(self, ranks: Sequence[int]) -> tuple[str, ...]:
        """`loader.py:40` of each of these ranks."""
        lines = []
        for rank in ranks:
            evidence = self.ranks[rank].evidence
            lines += [stack_line(evidence)] if evidence else []
        return tuple(dict.fromkeys(lines))

    def last(self, rank: int) -> RecordedCall | None:
        entries = self.positions.all_entries(rank)
        return entries[-1] if entries else None

    def waited(self, wait: Wait) -> float:
        evidence = self.ranks[wait.rank].evidence
        return max(0.0, evidence.now - wait.since) if evidence else 0.0

    def age(self, group: str, seq: int) -> float:
        """The longest wait of a rank in a collective of this group from this number on, in seconds."""
        return max(
            (
                self.waited(wait)
                for wait in self.waits
                if wait.entry.group == group and wait.entry.kind != "message" and wait.entry.seq >= seq
            ),
            default=0.0,
        )
