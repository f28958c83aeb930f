"""From the records of the ranks to a verdict in two lines. Pure: records in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ..connect.requests.why import SETUP, RecordedCall
from ..console.fold import fold
from ..console.terminal import harmless
from ..console.text import span
from . import rendezvous
from . import waits as waiting
from .descriptions import doing, evidence_lines, fate, named, operation, plural, stack_line, waits_or_wait
from .positions import Positions, Rank
from .waits import Mismatch, Wait

Kind = Literal[
    "absent", "fate", "different", "unmet", "deadlock", "network", "present", "slow", "stacks", "nothing"
]

# A wait is long if it is longer than these, and longer than three times the longest that the run had before.
LONG_SECONDS, LONG_WITHOUT_HISTORY, TIMES = 5.0, 10.0, 3.0
SURE_SECONDS = 1.0
"""A difference, a circle or a rank that is gone shows in any wait longer than this."""


@dataclass(frozen=True)
class Verdict:
    """Why a job stands still: two lines, the ranks that cause it, and the evidence of each rank.

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


def explain(ranks: Sequence[Rank], *, stalled: bool = False) -> Verdict:
    """The verdict on a job. `stalled`: no rank has made progress for long."""
    return _Case(ranks, stalled=stalled).verdict()


class _Case:
    def __init__(self, ranks: Sequence[Rank], *, stalled: bool) -> None:
        self.ranks = {rank.number: rank for rank in ranks}
        self.stalled = stalled
        self.positions = Positions(ranks)
        self.waits = waiting.waits(self.positions)
        self.evidence = tuple(
            evidence_lines(ranks, {rank: self._last(rank) for rank in self.ranks}) if ranks else ()
        )

    def verdict(self) -> Verdict:
        if not self.ranks:
            return Verdict("nothing", "no rank of the job is running", "nothing to explain", hang=False)
        if not self.waits:
            return self._without_waits()
        for difference in waiting.differences(self.positions):
            if self._age(difference.group, difference.seq) >= SURE_SECONDS or self.stalled:
                return self._different(difference)
        if culprits := self._culprits():
            return self._absent(culprits)
        if meeting := self._unmet():
            return meeting
        if circle := waiting.cycle(self.waits):
            return self._deadlock(circle)
        return self._all_present()

    # -- the kinds of verdict --

    def _different(self, mismatch: Mismatch) -> Verdict:
        """Ranks that call the same collective with different properties: the smaller part is the odd one."""
        sides = fold((rank, mismatch.meaning(entry)) for rank, entry in sorted(mismatch.entries.items()))
        most, others = sides[0][0], sides[1:]
        shape = mismatch.what in {"size", "type"}
        parts = [f"{span(most)} {waits_or_wait(most)} in {operation(mismatch.entries[most[0]], shape=shape)}"]
        odd: list[int] = []
        for numbers, _ in others:
            odd += numbers
            who = named([self.ranks[number] for number in numbers])
            entry = mismatch.entries[numbers[0]]
            parts.append(f"{who} {'is' if len(numbers) == 1 else 'are'} in {operation(entry, shape=shape)}")
        clear = len(others) == 1 and len(most) > len(others[0][0])
        cause = {
            "operation": "they call different operations as the same collective",
            "size": "the tensors differ in size",
            "type": "the tensors differ in type",
            "root": "they name different roots",
        }[mismatch.what]
        if clear:
            cause += f": {span(odd)} left the common order"
        where = tuple(dict.fromkeys(mismatch.entries[rank].where for rank in odd))
        return self._make(
            "different", "; ".join(parts), cause, odd if clear else sorted(mismatch.entries),
            operation=operation(mismatch.entries[most[0]]), where=where, certain=True,
        )  # fmt: skip

    def _absent(self, culprits: list[int]) -> Verdict:
        """Ranks that others wait for, and that do not wait themselves."""
        wait = next(wait for wait in self.waits if {*wait.awaited} & {*culprits})
        culprits = [rank for rank in culprits if rank in wait.awaited]
        reasons = fold((rank, fate(self.ranks[rank]) or self._where(rank)) for rank in culprits)
        cause = "; ".join(
            f"{named([self.ranks[rank] for rank in numbers])} {self._coming(numbers, text)}"
            for numbers, text in reasons
        )
        fated = [rank for rank in culprits if fate(self.ranks[rank])]
        sure = any(self._is_certain(rank) for rank in culprits)
        summary = "; ".join(
            f"{named([self.ranks[rank] for rank in numbers])} "
            + (text if fate(self.ranks[numbers[0]]) else f"never came to {operation(wait.entry)}: it {text}")
            for numbers, text in reasons
        )
        return self._make(
            "fate" if fated else "absent", self._waiters(wait), cause, culprits, summary=summary,
            operation=operation(wait.entry), where=self._lines(culprits), wait=wait, certain=sure,
        )  # fmt: skip

    def _deadlock(self, circle: list[Wait]) -> Verdict:
        parts = [
            f"rank {wait.rank} waits in {operation(wait.entry)}"
            + ("" if wait.entry.kind == "message" else f" for rank {after.rank}")
            for wait, after in zip(circle, [*circle[1:], circle[0]], strict=True)
        ]
        ring = " -> ".join(str(wait.rank) for wait in [*circle, circle[0]])
        oldest = min(circle, key=lambda wait: wait.since)
        where = tuple(dict.fromkeys(wait.entry.where for wait in circle))
        return self._make(
            "deadlock", "; ".join(parts), f"each waits for the next in a circle: ranks {ring}",
            sorted(wait.rank for wait in circle), operation=operation(oldest.entry), where=where,
            wait=oldest, certain=True,
        )  # fmt: skip

    def _unmet(self) -> Verdict | None:
        """Ranks in `init_process_group` that cannot meet by what they gave to it."""
        for wait in self.waits:
            if wait.entry.group != SETUP or wait.entry.meets is None:
                continue
            by_rank = self.positions.collectives[SETUP].items()
            same = {
                rank: entry for rank, entries in by_rank for entry in entries if entry.seq == wait.entry.seq
            }
            if found := rendezvous.unmet(self.ranks, same):
                where = tuple(dict.fromkeys(same[rank].where for rank in found.odd or same))
                return self._make(
                    "unmet", self._waiters(wait), found.cause, found.odd,
                    operation=operation(wait.entry), where=where, wait=wait,
                )  # fmt: skip
        return None

    def _all_present(self) -> Verdict:
        """Every rank that is awaited is in the same operation: it moves, or is held up below the program."""
        wait = self.waits[0]
        kind: Kind = "present"
        cause, held = "every rank has come", self._fated()
        unanswered = self._unanswered(wait)
        if held:
            kind, cause = "fate", f"{cause}, but {self._fates(held)}"
        elif self._is_hang(wait) and unanswered:
            kind, cause = "network", f"{cause}, but {unanswered}: look at the network between the hosts"
        elif self._is_hang(wait):
            cause += ", but it does not end, and no TCP connection of theirs lacks an answer"
        return self._make(kind, self._waiters(wait), cause, held, operation=operation(wait.entry), wait=wait)

    def _unanswered(self, wait: Wait) -> str:
        """`rank 0 on node1 has no answer from 10.0.0.3:29500`, of the ranks in the same operation."""
        parts = []
        for other in self.waits:
            rank = self.ranks[other.rank]
            process = rank.evidence.process if rank.evidence else None
            if process and process.unanswered and self._key(other) == self._key(wait):
                addresses = ", ".join(map(harmless, process.unanswered))
                parts.append(f"{named([rank])} has no answer from {addresses}")
        return "; ".join(dict.fromkeys(parts))

    def _without_waits(self) -> Verdict:
        """No rank waits in a recorded call: stacks and processes are left."""
        fated = self._fated()
        recorded = [rank for rank in self.ranks.values() if rank.evidence and not rank.evidence.missing]
        locations = fold((number, self._where(number)) for number in self.ranks if number not in fated)
        parts = [f"{span(numbers)} {plural(numbers, text)}" for numbers, text in locations[:4]]
        missing = next((rank.evidence.missing for rank in self.ranks.values() if rank.evidence), "")
        note = (
            "no rank waits in a collective"
            if recorded
            else f"only stacks and /proc are available ({missing})"
        )
        odd = [rank for numbers, _ in locations[1:] for rank in numbers]
        clear = bool(locations) and 2 * len(locations[0][0]) > len(self.ranks)
        culprits = fated or (odd if clear and not recorded else [])
        if fated:
            stops = any(self._is_certain(rank) and not self._ended_well(rank) for rank in fated)
            return self._make(
                "fate",
                "; ".join(parts) or note,
                self._fates(fated),
                fated,
                where=self._lines(fated),
                certain=stops,
            )
        if culprits:
            ranks = [self.ranks[rank] for rank in culprits]
            note += f"; {named(ranks)} {plural(culprits, 'is elsewhere in the code')}"
        kind: Kind = "nothing" if recorded else "stacks"
        return self._make(kind, "; ".join(parts), note, culprits, where=self._lines(culprits))

    # -- parts of a verdict --

    def _fated(self) -> list[int]:
        return [rank for rank in self.ranks if fate(self.ranks[rank])]

    def _fates(self, numbers: Sequence[int]) -> str:
        ranks = [self.ranks[number] for number in numbers]
        return "; ".join(f"{named([rank])} {fate(rank)}" for rank in ranks)

    def _make(
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
    ) -> Verdict:
        seconds = self._waited(wait) if wait else 0.0
        hang = self._is_hang(wait, certain=certain)
        if wait and not hang:
            usual = self.positions.usual_gap()
            before = f"waits of up to {usual:.1f} s were usual so far" if usual else "it has only begun"
            headline = f"no hang: the longest wait is {seconds:.1f} s, and {before}; {headline}"
            kind, cause = "slow", cause.replace("never came:", "has not come yet:")
        blocked = sorted({wait.rank for wait in self.waits} - {*culprits})
        return Verdict(
            kind, headline, cause, hang, tuple(culprits), tuple(blocked), operation,
            tuple(line for line in where if line), round(seconds, 3), self.evidence,
            summary or f"{headline}; {cause}",
        )  # fmt: skip

    def _is_hang(self, wait: Wait | None, *, certain: bool = False) -> bool:
        """Whether a wait is longer than the run explains; `certain`: it cannot end."""
        seconds = self._waited(wait) if wait else 0.0
        if self.stalled or wait is None or (certain and seconds >= SURE_SECONDS):
            return self.stalled or certain
        usual = self.positions.usual_gap()
        return seconds > (LONG_WITHOUT_HISTORY if usual is None else max(LONG_SECONDS, TIMES * usual))

    def _culprits(self) -> list[int]:
        """The ranks that are awaited and do not wait themselves, or cannot continue."""
        blocked = {wait.rank for wait in self.waits if wait.awaited and wait.sure}
        awaited = {rank for wait in self.waits for rank in wait.awaited}
        return sorted(rank for rank in awaited if rank not in blocked or self._is_certain(rank))

    def _is_certain(self, rank: int) -> bool:
        """Whether a rank can certainly not begin the collective any more."""
        evidence = self.ranks[rank].evidence
        return evidence is not None and bool(
            evidence.end or (evidence.process and evidence.process.state == "T")
        )

    def _ended_well(self, rank: int) -> bool:
        evidence = self.ranks[rank].evidence
        return bool(evidence and evidence.end and evidence.end.code == 0)

    def _waiters(self, wait: Wait) -> str:
        """`ranks 0-5 wait in all_reduce #812 of group 0 (25 MiB, train.py:88)`."""
        same = {
            other.rank: operation(other.entry) for other in self.waits if self._key(other) == self._key(wait)
        }
        return "; ".join(
            f"{span(sorted(ranks))} {waits_or_wait(ranks)} in {text}" for ranks, text in fold(same.items())
        )

    @staticmethod
    def _key(wait: Wait) -> tuple[object, ...]:
        """Equal for waits in the same operation."""
        return wait.entry.kind == "message", wait.entry.group, wait.entry.seq, wait.entry.op

    def _coming(self, numbers: Sequence[int], text: str) -> str:
        """Culprits in text: their fate, or that they never came, where they are and since when."""
        if fate(self.ranks[numbers[0]]):
            after = self._last(numbers[0])
            return text + (f", after {operation(after)}" if after else "")
        ages = [seconds for number in numbers if (seconds := self._since(number)) is not None]
        since = f", {max(ages):.0f} s" if ages else ""
        return f"never came: {'it' if len(numbers) == 1 else 'each'} {text}{since}"

    def _since(self, rank: int) -> float | None:
        """Seconds since a rank ended its last collective or message."""
        evidence, last = self.ranks[rank].evidence, self._last(rank)
        return max(0.0, evidence.now - max(last.end, last.at, last.wait)) if evidence and last else None

    def _where(self, rank: int) -> str:
        evidence = self.ranks[rank].evidence
        return doing(evidence) if evidence else fate(self.ranks[rank])

    def _lines(self, ranks: Sequence[int]) -> tuple[str, ...]:
        """`loader.py:40` of each of these ranks."""
        lines = []
        for rank in ranks:
            evidence = self.ranks[rank].evidence
            lines += [stack_line(evidence)] if evidence else []
        return tuple(dict.fromkeys(lines))

    def _last(self, rank: int) -> RecordedCall | None:
        entries = self.positions.all_entries(rank)
        return entries[-1] if entries else None

    def _waited(self, wait: Wait) -> float:
        evidence = self.ranks[wait.rank].evidence
        return max(0.0, evidence.now - wait.since) if evidence else 0.0

    def _age(self, group: str, seq: int) -> float:
        """The longest wait of a rank in a collective of this group from this number on, in seconds."""
        return max(
            (
                self._waited(wait)
                for wait in self.waits
                if wait.entry.group == group and wait.entry.kind != "message" and wait.entry.seq >= seq
            ),
            default=0.0,
        )
