"""From the records of the ranks to a verdict in two lines. Pure: records in, text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Literal

from ...core.text.fold import fold, fold_names
from ...core.text.terminal import harmless
from ...core.text.text import count, span
from . import waiting_ranks as waiting
from .descriptions import (
    evidence_lines,
    named,
    operation,
    plural,
    position,
    process_problem,
    stack_line,
)
from .messages import SETUP, Meeting, RecordedCall
from .positions import Positions, Rank
from .waiting_ranks import Mismatch, Wait

Kind = Literal[
    "absent", "process", "different", "unmet", "deadlock", "network", "present", "slow", "stacks", "nothing"
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


_OWN = ("localhost:", "127.", "[::1]:")
"""An address that begins so is that of each host itself."""


@dataclass(frozen=True)
class Unmet:
    """Why they do not meet, and the ranks that differ from most; none if there is no majority."""

    cause: str
    odd: tuple[int, ...] = ()


def unmet(ranks: Mapping[int, Rank], entries: Mapping[int, RecordedCall]) -> Unmet | None:
    """The reason in the same call of each rank; None if all fit together. `ranks`: those of the job."""
    meets = {rank: entry.meets for rank, entry in sorted(entries.items()) if entry.meets is not None}
    return (
        _different(ranks, "address", {rank: meeting.address for rank, meeting in meets.items()})
        or _different(ranks, "size", {rank: meeting.size for rank, meeting in meets.items()})
        or _own_address(ranks, meets)
        or _unlike_the_job(ranks, meets)
        or _same_number(meets)
    )


def _different(ranks: Mapping[int, Rank], what: str, values: Mapping[int, str | int]) -> Unmet | None:
    sides = fold((rank, value) for rank, value in values.items() if value not in {"", -1})
    if len(sides) < 2:
        return None
    verbs = {"address": ("meets at", "meet at"), "size": ("expects", "expect")}[what]
    parts = [
        f"{named([ranks[number] for number in numbers])} {verbs[len(numbers) > 1]} "
        + (count(value, "rank") if isinstance(value, int) else harmless(value))
        for numbers, value in sides
    ]
    odd = [number for numbers, _ in sides[1:] for number in numbers]
    clear = len(sides[0][0]) > len(sides[1][0])
    cause = f"the ranks disagree on the {what} of the process group: {', '.join(parts)}"
    return Unmet(cause, tuple(sorted(odd if clear else values)))


def _own_address(ranks: Mapping[int, Rank], meets: Mapping[int, Meeting]) -> Unmet | None:
    """Ranks of several hosts that meet at `localhost`."""
    hosts = [*dict.fromkeys(ranks[rank].host for rank in meets)]
    address = next((meeting.address for meeting in meets.values()), "")
    if len(hosts) < 2 or not address.startswith(_OWN):
        return None
    each = f"{harmless(address)}, which is another address on each of {harmless(fold_names(hosts))}"
    return Unmet(f"they meet at {each}: use MASTER_ADDR and MASTER_PORT as Muster sets them")


def _unlike_the_job(ranks: Mapping[int, Rank], meets: Mapping[int, Meeting]) -> Unmet | None:
    size = next((meeting.size for meeting in meets.values()), -1)
    if size in {-1, len(ranks)}:
        return None
    return Unmet(f"the process group expects {count(size, 'rank')}, but the job has {len(ranks)}")


def _same_number(meets: Mapping[int, Meeting]) -> Unmet | None:
    numbers = fold((rank, meeting.rank) for rank, meeting in meets.items() if meeting.rank >= 0)
    same = [(mine, number) for mine, number in numbers if len(mine) > 1]
    if not same:
        return None
    parts = [f"{span(mine)} each as rank {number}" for mine, number in same]
    return Unmet(f"several ranks meet under the same number: {', '.join(parts)}")


def explain(ranks: Sequence[Rank], *, stalled: bool = False) -> HangVerdict:
    """The verdict on a job. `stalled`: no rank has made progress for long."""
    return HangExplanation(ranks, stalled=stalled).verdict()


def explain_crash(ranks: Sequence[Rank]) -> HangVerdict | None:
    """The verdict on a job whose rank failed in a collective; None if the records do not explain it."""
    return HangExplanation(ranks, stalled=True).crash()


class HangExplanation:
    """What the ranks show, and the verdict on them."""

    def __init__(self, ranks: Sequence[Rank], *, stalled: bool) -> None:
        self.ranks = {rank.number: rank for rank in ranks}
        self.stalled = stalled
        self.positions = Positions(ranks)
        self.waits = waiting.waits(self.positions)
        self.evidence = tuple(
            evidence_lines(ranks, {rank: self.last(rank) for rank in self.ranks}) if ranks else ()
        )

    def named(self, numbers: Sequence[int]) -> str:
        """`rank 6 on node4`, `ranks 0-5`."""
        return named([self.ranks[number] for number in numbers])

    def with_problem(self) -> list[int]:
        """The ranks whose process shows that they do not come."""
        return [rank for rank in self.ranks if process_problem(self.ranks[rank])]

    def problems(self, numbers: Sequence[int]) -> str:
        """`rank 3 on node4 is stopped (SIGSTOP)`, of each of these ranks."""
        ranks = [self.ranks[number] for number in numbers]
        return "; ".join(f"{named([rank])} {process_problem(rank)}" for rank in ranks)

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
            kind = "slow"
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
            f"{span(sorted(ranks))} {plural(ranks, 'waits')} in {text}" for ranks, text in fold(same.items())
        )

    @staticmethod
    def key(wait: Wait) -> tuple[object, ...]:
        """Equal for waits in the same operation."""
        return wait.entry.kind == "message", wait.entry.group, wait.entry.seq, wait.entry.op

    def coming(self, numbers: Sequence[int], text: str) -> str:
        """Culprits in text: what their process shows, or where they are and since when."""
        if process_problem(self.ranks[numbers[0]]):
            after = self.last(numbers[0])
            return plural(numbers, text) + (f", after {operation(after)}" if after else "")
        if self.ranks[numbers[0]].ended_with_job:
            since = f"; its last was {operation(last)}" if (last := self.last(numbers[0])) else ""
        else:
            ages = [seconds for number in numbers if (seconds := self.since(number)) is not None]
            since = f", {max(ages):.0f} s" if ages else ""
        return f"{plural(numbers, 'has not come')}: {'it' if len(numbers) == 1 else 'each'} {text}{since}"

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

    def verdict(self) -> HangVerdict:
        """The kind that fits first: what is certain comes before what is likely."""
        if not self.ranks:
            return HangVerdict("nothing", "no rank of the job is running", "nothing to explain", hang=False)
        differences = waiting.differences(self.positions)
        if past := next(filter(None, map(self._departed, differences)), None):
            return past
        if not self.waits:
            return self._unmet() or self._without_waits()
        for difference in differences:
            if self.age(difference.group, difference.seq) >= SURE_SECONDS or self.stalled:
                return self._different(difference)
        if culprits := self.culprits():
            # In a call that every rank has begun: the others may have sent their part, and gone on.
            held = {wait.rank: wait for wait in self.waits if wait.is_call and not wait.awaited}
            absent = [rank for rank in culprits if rank not in held or process_problem(self.ranks[rank])]
            return self._unmet() or (self._absent(absent) if absent else self._all_present(held[culprits[0]]))
        circle = waiting.cycle(self.waits)
        return self._unmet() or (self._deadlock(circle) if circle else self._all_present(self.waits[0]))

    def crash(self) -> HangVerdict | None:
        """Ranks that called the same collective with different properties, or could not meet."""
        differences = waiting.differences(self.positions)
        return self._different(differences[0], over=True) if differences else self._unmet()

    def _different(self, mismatch: Mismatch, *, over: bool = False) -> HangVerdict:
        """Ranks that call the same collective with different properties: the smaller part is the odd one.

        `over`: a rank has failed in it.
        """
        sides = fold((rank, mismatch.meaning(entry)) for rank, entry in sorted(mismatch.entries.items()))
        most, others = sides[0][0], sides[1:]
        shape = mismatch.what in {"size", "type"}
        waited = plural(most, "was" if over else "waits")
        parts = [f"{span(most)} {waited} in {operation(mismatch.entries[most[0]], shape=shape)}"]
        odd: list[int] = []
        for numbers, _ in others:
            odd += numbers
            who = self.named(numbers)
            entry = mismatch.entries[numbers[0]]
            is_in = plural(numbers, "was" if over else "is")
            parts.append(f"{who} {is_in} in {operation(entry, shape=shape)}")
        clear = len(others) == 1 and len(most) > len(others[0][0])
        cause = {
            "operation": "they call different operations as the same collective",
            "size": "the tensors differ in size",
            "type": "the tensors differ in type",
            "root": "they name different roots",
        }[mismatch.what]
        if clear:
            cause += f": {span(odd)} {plural(odd, 'differs')} from the others"
        where = tuple(dict.fromkeys(mismatch.entries[rank].where for rank in odd))
        return self.make(
            "different", "; ".join(parts), cause, odd if clear else sorted(mismatch.entries),
            operation=operation(mismatch.entries[most[0]]), where=where, certain=True,
        )  # fmt: skip

    def _departed(self, mismatch: Mismatch) -> HangVerdict | None:
        """Ranks that called another collective than the others, and went on, as MPI lets them."""
        entries = mismatch.entries
        if any(entry.state != "d" for entry in entries.values()):
            return None
        sides = fold((rank, mismatch.meaning(entry)) for rank, entry in sorted(entries.items()))
        at = f"#{mismatch.seq} of group {harmless(mismatch.group)}"
        odd = sorted(rank for ranks, _ in sides[1:] for rank in ranks)
        entry, usual = entries[odd[0]], operation(entries[sides[0][0][0]])
        if len(sides[0][0]) > len(sides[1][0]):
            where = f" ({harmless(entry.where)})" if entry.where else ""
            headline = f"{self.named(odd)} left the order of the others at {at}{where}"
            cause = f"{'it' if len(odd) == 1 else 'each'} called {operation(entry)}, the others {usual}"
        else:  # each order may be right
            headline, odd = f"the ranks call different operations as {at}", sorted(entries)
            cause = "; ".join(
                f"{self.named(ranks)} called {operation(entries[ranks[0]])}" for ranks, _ in sides
            )
        return self.make(
            "different", headline, f"{cause}; what they have exchanged since then is wrong", odd,
            operation=usual, where=tuple(dict.fromkeys(entries[rank].where for rank in odd)),
            certain=self.age(mismatch.group, mismatch.seq) >= SURE_SECONDS,
        )  # fmt: skip

    def _absent(self, culprits: list[int]) -> HangVerdict:
        """Ranks that others wait for, and that do not wait themselves."""
        wait = next(wait for wait in self.waits if {*wait.awaited} & {*culprits})
        culprits = [rank for rank in culprits if rank in wait.awaited]
        reasons = fold((rank, position(self.ranks[rank])) for rank in culprits)
        cause = "; ".join(f"{self.named(numbers)} {self.coming(numbers, text)}" for numbers, text in reasons)
        with_problem = [rank for rank in culprits if process_problem(self.ranks[rank])]
        sure = any(self.is_certain(rank) for rank in culprits)
        summary = "; ".join(
            f"{self.named(numbers)} "
            + (
                plural(numbers, text)
                if process_problem(self.ranks[numbers[0]])
                else f"{plural(numbers, 'has not come')} to {operation(wait.entry)}: "
                f"{'it' if len(numbers) == 1 else 'each'} {text}"
            )
            for numbers, text in reasons
        )
        return self.make(
            "process" if with_problem else "absent", self.waiters(wait), cause, culprits, summary=summary,
            operation=operation(wait.entry), where=self.lines(culprits), wait=wait, certain=sure,
        )  # fmt: skip

    def _deadlock(self, circle: list[Wait]) -> HangVerdict:
        parts = [
            f"rank {wait.rank} waits in {operation(wait.entry)}"
            + ("" if wait.entry.kind == "message" else f" for rank {after.rank}")
            for wait, after in zip(circle, [*circle[1:], circle[0]], strict=True)
        ]
        ring = " -> ".join(str(wait.rank) for wait in [*circle, circle[0]])
        oldest = min(circle, key=lambda wait: wait.since)
        where = tuple(dict.fromkeys(wait.entry.where for wait in circle))
        return self.make(
            "deadlock", "; ".join(parts), f"each waits for the next in a circle: ranks {ring}",
            sorted(wait.rank for wait in circle), operation=operation(oldest.entry), where=where,
            wait=oldest, certain=True,
        )  # fmt: skip

    def _unmet(self) -> HangVerdict | None:
        """Ranks that cannot meet by what they gave to `init_process_group`."""
        by_rank = self.positions.collectives.get(SETUP, {})
        for seq in self._unmet_calls():
            same = {rank: entry for rank, entries in by_rank.items() for entry in entries if entry.seq == seq}
            found = unmet(self.ranks, same)
            if found is None:
                continue
            sides = fold((rank, operation(entry)) for rank, entry in sorted(same.items()))
            headline = "; ".join(f"{span(ranks)} called {text}" for ranks, text in sides)
            where = tuple(dict.fromkeys(same[rank].where for rank in found.odd or same))
            wait = next((wait for wait in self.waits if wait.entry in same.values()), None)
            return self.make(
                "unmet", headline, found.cause, found.odd,
                operation=sides[0][1], where=where, wait=wait,
            )  # fmt: skip
        return None

    def _unmet_calls(self) -> list[int]:
        """The numbers of the calls in which a rank waits; in a stalled job, also of failed ones.

        Only the last call of a rank counts: it may have tried again.
        """
        states = "if" if self.stalled else "i"
        by_rank = self.positions.collectives.get(SETUP, {}).values()
        last = [[entry for entry in entries if entry.meets][-1:] for entries in by_rank]
        return sorted({entry.seq for entry in chain.from_iterable(last) if entry.state in states})

    def _all_present(self, wait: Wait) -> HangVerdict:
        """Every rank has begun this operation: it moves, or is held up below the program."""
        kind: Kind = "present"
        cause, held = "every rank has come", self.with_problem()
        between, elsewhere = self._unanswered()
        if held:
            kind, cause = "process", f"{cause}, but {self.problems(held)}"
        elif self.is_hang(wait) and between:
            kind, cause = "network", f"{cause}, but {between}: look at the network between the hosts"
        elif self.is_hang(wait) and elsewhere:
            cause += f", but it does not end; {elsewhere}, which is not an address of another rank"
        elif self.is_hang(wait):
            cause += ", but it does not end, and no TCP connection of theirs lacks an answer"
        return self.make(kind, self.waiters(wait), cause, held, operation=operation(wait.entry), wait=wait)

    def _unanswered(self) -> tuple[str, str]:
        """`rank 0 on node1 has no answer from 10.0.0.3:29500`, of the ranks that wait.

        First for addresses of other ranks, then for the rest, which may be of any server. A rank whose data
        was lost on the way may already be in its next operation.
        """
        inside = [self.ranks[number] for number in sorted({wait.rank for wait in self.waits})]
        processes = [
            (rank, rank.evidence.process) for rank in inside if rank.evidence and rank.evidence.process
        ]
        parts: tuple[list[str], list[str]] = ([], [])
        for rank, process in processes:
            peers = {address for other, its in processes if other is not rank for address in its.addresses}
            for address in process.unanswered:
                is_peer = address.rpartition(":")[0] in peers
                parts[not is_peer].append(f"{named([rank])} has no answer from {harmless(address)}")
        between, elsewhere = ("; ".join(dict.fromkeys(texts)) for texts in parts)
        return between, elsewhere

    def _without_waits(self) -> HangVerdict:
        """No rank waits in a recorded call: stacks and processes are left."""
        with_problem = self.with_problem()
        recorded = [rank for rank in self.ranks.values() if rank.evidence and not rank.evidence.missing]
        locations = fold(
            (number, position(self.ranks[number])) for number in self.ranks if number not in with_problem
        )
        parts = [f"{span(numbers)} {plural(numbers, text)}" for numbers, text in locations[:4]]
        missing = next((rank.evidence.missing for rank in self.ranks.values() if rank.evidence), "")
        note = (
            "no rank waits in a collective"
            if recorded
            else f"only stacks and /proc are available ({missing})"
        )
        read = {number for number, rank in self.ranks.items() if rank.evidence and rank.evidence.frames}
        odd = [rank for numbers, _ in locations[1:] for rank in numbers if rank in read]
        clear = bool(locations) and 2 * len(locations[0][0]) > len(self.ranks)
        culprits = with_problem or (odd if clear and not recorded else [])
        if with_problem:
            stops = any(self.is_certain(rank) and not self.ended_well(rank) for rank in with_problem)
            return self.make(
                "process",
                "; ".join(parts) or note,
                self.problems(with_problem),
                with_problem,
                where=self.lines(with_problem),
                certain=stops,
            )
        if culprits:
            note += f"; {self.named(culprits)} {plural(culprits, 'is elsewhere in the code')}"
        kind: Kind = "nothing" if recorded else "stacks"
        return self.make(kind, "; ".join(parts), note, culprits, where=self.lines(culprits))
