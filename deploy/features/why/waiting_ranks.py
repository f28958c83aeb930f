"""In which call each rank waits, and for which ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from .descriptions import BUSY, own_line, stack_line
from .messages import SETUP, Evidence, RecordedCall
from .positions import UNEVEN, Positions


@dataclass(frozen=True)
class Wait:
    """A rank waits in a collective or message for other ranks; for none, if all have begun it.

    `sure` is false if C++ has begun the collective, and the rank may be elsewhere meanwhile.
    """

    rank: int
    entry: RecordedCall
    awaited: tuple[int, ...]
    sure: bool = True

    @property
    def since(self) -> float:
        """When the wait began."""
        return max(self.entry.at, self.entry.wait)

    @property
    def is_call(self) -> bool:
        """Whether the program has called it, and its main thread is in it."""
        return self.sure and self.entry.kind in {"call", "message"}


@dataclass(frozen=True)
class Mismatch:
    """The collective of a group and number that the ranks call with different properties."""

    group: str
    seq: int
    entries: Mapping[int, RecordedCall]
    what: str
    """`operation`, `size`, `type` or `root`."""

    def meaning(self, entry: RecordedCall) -> tuple[object, ...]:
        """The properties of a call in which the ranks differ."""
        return {
            "operation": (entry.op,),
            "size": (entry.op, entry.elements),
            "type": (entry.op, entry.dtype),
            "root": (entry.op, entry.root),
        }[self.what]


def waits(positions: Positions) -> list[Wait]:
    """Every wait of every rank that has not ended, the oldest first."""
    waiting: list[Wait] = []
    absent: dict[tuple[str, int], tuple[int, ...]] = {}
    for number, rank in positions.ranks.items():
        if rank.evidence is None:
            continue
        for group, entries in positions.collectives.items():
            for entry in entries.get(number, ()):
                if entry.state == "d":
                    continue
                awaited = absent.get((group, entry.seq))
                if awaited is None:
                    awaited = absent[group, entry.seq] = _absent(positions, group, entry)
                shown = entry if entry.where else replace(entry, where=stack_line(rank.evidence))
                inside = _is_inside(rank.evidence, entry)
                if _waits(rank.evidence, entry, awaited, inside=inside):
                    waiting.append(Wait(number, shown, awaited, inside))
        waiting += _messages(positions, number, rank.evidence)
    return sorted(waiting, key=lambda wait: wait.since)


def _waits(evidence: Evidence, entry: RecordedCall, awaited: Sequence[int], *, inside: bool) -> bool:
    """Whether a rank waits in a collective that is not complete."""
    if evidence.end or entry.state == "f":  # of a rank that has exited, only failed collectives count
        return entry.state == "f" and bool(awaited)
    if entry.state == "i":
        return inside or entry.kind != "work"
    return inside and bool(awaited)  # it ends without this rank once every rank has begun it


def _messages(positions: Positions, number: int, evidence: Evidence) -> Iterator[Wait]:
    """The messages in which a rank waits."""
    for entry in positions.messages(number) if not evidence.end else ():
        if entry.state not in "ia" or not _is_inside(evidence, entry):
            continue
        if not positions.arrived(number, entry):
            yield Wait(number, entry, _other_side(positions, number, entry))
        elif entry.state == "i":
            yield Wait(number, entry, ())


_LIBRARY = (
    *("torch/distributed", "torch/nn/parallel", "torch/autograd", "torch/_tensor", "torch/futures"),
    "mpi_backend",
)


def _is_inside(evidence: Evidence, entry: RecordedCall) -> bool:
    """Whether a rank is in this collective or message, or waits for it.

    A rank that has only begun it is elsewhere, unless its stack is still at the same line, or in torch.
    """
    own = entry.kind in {"call", "message"}
    if own and entry.state != "a":
        return True
    if own and any(call.state == "i" and call.kind in {"call", "message"} for call in evidence.entries):
        return False  # it is in that call
    at = own_line(evidence.frames)
    if at is None or (own and entry.where == stack_line(evidence)):
        return True
    above = evidence.frames[: evidence.frames.index(at)]
    return any(sign in line.file for line in above for sign in _LIBRARY)


def waited(positions: Positions) -> dict[int, float]:
    """For each rank that waits in a call or for other ranks, its longest wait so far, in seconds.

    If all ranks have begun a collective on their GPUs, a rank that uses its processor may still compute.
    """
    seconds: dict[int, float] = {}
    for wait in waits(positions):
        evidence = positions.ranks[wait.rank].evidence
        idle = evidence and evidence.process and evidence.process.busy < BUSY
        if evidence and (wait.awaited or wait.entry.kind != "torch" or idle):
            age = max(0.0, evidence.now - wait.since)
            seconds[wait.rank] = max(age, seconds.get(wait.rank, 0.0))
    return seconds


def _absent(positions: Positions, group: str, entry: RecordedCall) -> tuple[int, ...]:
    """The members that have not begun this collective."""
    members = positions.members(group) if group != SETUP else sorted(positions.ranks)
    reached = {member: positions.reached(member, group) for member in members}
    return tuple(
        member
        for member, count in reached.items()
        if (count is not None and count < entry.seq)
        or (count is None and _is_silent(positions, member))
        or _died_in(positions, member, group, entry.seq)
    )


def _died_in(positions: Positions, rank: int, group: str, seq: int) -> bool:
    """Whether a rank is gone, and was in this collective when it went."""
    evidence, entries = positions.ranks[rank].evidence, positions.collectives[group].get(rank, ())
    gone = evidence is not None and evidence.end is not None
    return gone and any(entry.seq == seq and entry.state == "i" for entry in entries)


def _is_silent(positions: Positions, rank: int) -> bool:
    """Whether a rank of unknown position cannot continue: it is gone, stopped, or its host is silent."""
    evidence = positions.ranks[rank].evidence
    return (
        evidence is None
        or evidence.end is not None
        or (evidence.process is not None and evidence.process.state == "T")
    )


def _other_side(positions: Positions, rank: int, entry: RecordedCall) -> tuple[int, ...]:
    if entry.peer is not None and entry.peer in positions.ranks:
        return (entry.peer,)
    return tuple(member for member in positions.members(entry.group) if member != rank)  # from any rank


def differences(positions: Positions) -> list[Mismatch]:
    """The collectives in which ranks differ, the first of each group.

    Where no rank waits in a collective, the last one of a rank does not count: it may be half written.
    """
    mismatches = []
    for group, by_rank in positions.collectives.items():
        stuck = [entry.seq for entries in by_rank.values() for entry in entries if entry.state in "iaf"]
        begun = [max((entry.seq for entry in entries), default=0) for entries in by_rank.values()]
        first, end = (min(stuck), max(begun) + 1) if stuck else (min(begun), min(begun))
        rows: dict[int, dict[int, RecordedCall]] = {}
        for rank, entries in by_rank.items():
            for entry in entries:
                rows.setdefault(entry.seq, {})[rank] = entry
        for seq in sorted(seq for seq in rows if seq < end):
            what = _difference(list(rows[seq].values()), strict=seq >= first)
            if what:
                mismatches.append(Mismatch(group, seq, rows[seq], what))
                break
    return mismatches


def _difference(entries: list[RecordedCall], *, strict: bool) -> str:
    """The property that differs; sizes matter only in a collective that does not end."""
    if len({entry.op for entry in entries}) > 1:
        return "operation"
    if len({entry.root for entry in entries if entry.root is not None}) > 1:
        return "root"
    if not strict or entries[0].op in UNEVEN:
        return ""
    if len({entry.elements for entry in entries}) > 1:
        return "size"
    return "type" if len({entry.dtype for entry in entries}) > 1 else ""


def cycle(waits: list[Wait]) -> list[Wait]:
    """Ranks that wait for each other in a circle, each for the next; empty if there is none."""
    by_rank: dict[int, Wait] = {}
    for wait in waits:
        if wait.sure:
            by_rank.setdefault(wait.rank, wait)  # the oldest: the later ones wait behind it
    for start in by_rank:
        path = _path_back(start, by_rank)
        if path:
            return [by_rank[rank] for rank in path]
    return []


def _path_back(start: int, by_rank: Mapping[int, Wait]) -> list[int]:
    """The shortest path from a rank, along the ranks that it waits for, back to itself."""
    paths, seen = [[start]], {start}
    for path in paths:  # grows meanwhile
        for awaited in by_rank[path[-1]].awaited:
            if awaited == start:
                return path
            if awaited in by_rank and awaited not in seen:
                seen.add(awaited)
                paths.append([*path, awaited])
    return []
