"""The position of each rank in each group, joined from the counts of calls, backends and torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import TypeVar

from .messages import SETUP, Evidence, GroupArrivals, GroupCount, RecordedCall

OMITTED = "?"  # muster_ring.OMITTED
UNEVEN = frozenset(
    {"all_gather", "all_gather_coalesced", "all_to_all", "all_to_all_single", "gather", "scatter", "barrier"}
)
"""To these, ranks may pass tensors of different sizes or types."""

_BACKENDS = ("torch", "work")
_CLOCK = 0.001  # seconds: both times are of the same clock, written one after the other
_MOST_GROUPS = 128
_PART = r"\d{1,7}(-\d{1,7}(/[1-9]\d{0,6})?)?"
_Grouped = TypeVar("_Grouped", GroupCount, GroupArrivals, RecordedCall)


def distinct_names(
    groups_of_ranks: Iterable[Sequence[GroupCount] | Sequence[GroupArrivals]],
) -> list[Mapping[str, str]]:
    """For each rank, a distinct name for each group whose name is also that of a group of other ranks.

    `split_group` of torch 2.6 gives all its parts the same name.
    """
    groups = [dict.fromkeys((group.group, group.ranks) for group in of_rank) for of_rank in groups_of_ranks]
    members: dict[str, set[str]] = {}
    for name, ranks in chain.from_iterable(groups):
        members.setdefault(name, set()).add(ranks)
    return [
        {
            name: f"{name} of ranks {ranks}"
            for name, ranks in of_rank
            if len(members[name]) > 1 and ranks not in {"", OMITTED}
        }
        for of_rank in groups
    ]


def renamed(items: Iterable[_Grouped], names: Mapping[str, str]) -> tuple[_Grouped, ...]:
    """The items with the new names of their groups."""
    return tuple(replace(item, group=names.get(item.group, item.group)) for item in items)


def compared_kind(counts: Iterable[Mapping[str, int]]) -> str:
    """Whose count of a group is compared: that of calls if it is complete, else that of the backend.

    `counts`: for each rank, how many collectives each kind has counted.
    """
    of_ranks = [*counts]
    for kind in _BACKENDS:
        if any(of_rank.get(kind, 0) > of_rank.get("call", 0) for of_rank in of_ranks):
            return kind
    return "call"


@dataclass(frozen=True)
class Rank:
    """A rank with its host and evidence; None if its host gave none.

    `answered`: a host without evidence has answered, so that it has no process of the rank.
    `ended_with_job`: the launcher ended the rank after another failure, so its end explains nothing.
    """

    number: int
    host: str
    evidence: Evidence | None
    answered: bool = False
    ended_with_job: bool = False


class Positions:
    """The collectives of every group by rank, and the messages of every rank."""

    def __init__(self, ranks: Sequence[Rank]) -> None:
        ranks = _with_distinct_groups(ranks)
        self.ranks = {rank.number: rank for rank in ranks}
        self._members: dict[str, list[int]] = {}
        self._reached: dict[tuple[int, str], int | None] = {}
        self._kinds = {group: self._kind(group) for group in self._groups()}
        self.collectives: Mapping[str, Mapping[int, tuple[RecordedCall, ...]]] = {
            group: {rank.number: tuple(self._entries(rank, group)) for rank in ranks if rank.evidence}
            for group in self._kinds
        }

    def members(self, group: str) -> list[int]:
        """The ranks of a group; all ranks if no record has them."""
        if group not in self._members:
            self._members[group] = self._find_members(group)
        return self._members[group]

    def reached(self, rank: int, group: str) -> int | None:
        """How many collectives of a group a rank has begun; None if that is unknown."""
        if (rank, group) not in self._reached:
            self._reached[rank, group] = self._find_reached(rank, group)
        return self._reached[rank, group]

    def _find_members(self, group: str) -> list[int]:
        for rank in self.ranks.values():
            for entry in rank.evidence.groups if rank.evidence else ():
                if entry.group == group and entry.ranks == OMITTED:
                    return [number for number in sorted(self.ranks) if self._has(number, group)]
                if entry.group == group and entry.ranks:
                    spans = _spans(entry.ranks)
                    return [number for number in sorted(self.ranks) if _is_in(spans, number)]
        return sorted(self.ranks)

    def _has(self, rank: int, group: str) -> bool:
        """Whether a rank has recorded a group."""
        evidence = self.ranks[rank].evidence
        return evidence is not None and any(entry.group == group for entry in evidence.groups)

    def _find_reached(self, rank: int, group: str) -> int | None:
        evidence = self.ranks[rank].evidence
        if evidence is None or evidence.missing:
            return None if evidence is None else 0
        kind = self._kinds[group]
        if kind == "torch":
            seqs = [entry.seq for entry in evidence.trace if entry.group == group]
            return max(seqs) if seqs else (None if _counted(evidence, group, "call") else 0)
        return _counted(evidence, group, kind)

    def messages(self, rank: int) -> list[RecordedCall]:
        """The messages that a rank has begun, oldest first."""
        evidence = self.ranks[rank].evidence
        return [entry for entry in evidence.entries if entry.kind == "message"] if evidence else []

    def arrived(self, rank: int, entry: RecordedCall) -> bool:
        """Whether the other side of a message has begun its part."""
        if entry.peer is not None and entry.peer < 0:  # a receive from any rank
            return entry.state != "i"
        if entry.peer is None or entry.peer not in self.ranks:
            return False
        mine, theirs = self.messages(rank), self.messages(entry.peer)
        if not (self._is_whole(rank) and self._is_whole(entry.peer)):
            return entry.state != "i"
        receives = entry.op.endswith("recv")
        before = [
            message
            for message in mine
            if _same(message, entry, receives=receives, peer=entry.peer) and message.seq <= entry.seq
        ]
        answers = [message for message in theirs if _same(message, entry, receives=not receives, peer=rank)]
        return len(answers) >= len(before)

    def _is_whole(self, rank: int) -> bool:
        """Whether a rank's record has every call that it has begun, and not only the last ones."""
        evidence = self.ranks[rank].evidence
        numbers = [entry.number for entry in evidence.entries] if evidence else []
        return not numbers or len(numbers) > max(numbers)

    def all_entries(self, rank: int) -> list[RecordedCall]:
        """Every collective and message of a rank, by time."""
        entries = [entry for each in self.collectives.values() for entry in each.get(rank, ())]
        return sorted([*entries, *self.messages(rank)], key=lambda entry: entry.at)

    def usual_gap(self) -> float | None:
        """The longest time between two collectives of a rank; None if there are few.

        Only the later half of the record counts, as the first steps of a program take longer.
        """
        longest, seen = 0.0, 0
        for rank in self.ranks:
            entries = [entry for entry in self.all_entries(rank) if entry.group != SETUP]
            gaps = [after.at - before.at for before, after in pairwise(entries)]
            longest, seen = max([longest, *gaps[len(gaps) // 2 :]]), max(seen, len(gaps))
        return longest if seen >= 3 else None

    # -- joining --

    def _groups(self) -> list[str]:
        names = {
            entry.group: None
            for rank in self.ranks.values()
            if rank.evidence
            for entry in (*rank.evidence.entries, *rank.evidence.trace)
            if entry.kind != "message"
        }
        return list(names)[:_MOST_GROUPS]

    def _kind(self, group: str) -> str:
        return compared_kind(
            {kind: _counted(rank.evidence, group, kind) for kind in ("call", *_BACKENDS)}
            for rank in self.ranks.values()
            if rank.evidence
        )

    def _entries(self, rank: Rank, group: str) -> Iterator[RecordedCall]:
        """A rank's collectives of a group: each with the line of its call and the state of its backend."""
        evidence, kind = rank.evidence, self._kinds[group]
        if evidence is None:
            return
        calls = [entry for entry in evidence.entries if entry.kind == "call" and entry.group == group]
        backend = [
            entry
            for entry in (*evidence.trace, *evidence.entries)
            if entry.group == group and entry.kind in _BACKENDS
        ]
        if kind == "call":
            done = {entry.seq for entry in backend if entry.state == "d"} if _even(evidence, group) else set()
            for call in calls:
                yield replace(call, state="d") if call.state == "a" and call.seq in done else call
            return
        for entry in backend:
            if entry.kind == kind:
                where = next((call.where for call in reversed(calls) if _during(entry, call)), entry.where)
                yield replace(entry, where=where)


def _with_distinct_groups(ranks: Sequence[Rank]) -> list[Rank]:
    """The ranks, with distinct names for groups of different members."""
    names = distinct_names(rank.evidence.groups if rank.evidence else () for rank in ranks)
    return [
        replace(rank, evidence=_with_names(rank.evidence, own)) if rank.evidence and own else rank
        for rank, own in zip(ranks, names, strict=True)
    ]


def _with_names(evidence: Evidence, names: Mapping[str, str]) -> Evidence:
    return replace(
        evidence,
        groups=renamed(evidence.groups, names),
        entries=renamed(evidence.entries, names),
        trace=renamed(evidence.trace, names),
    )


def _counted(evidence: Evidence, group: str, kind: str) -> int:
    if kind == "torch":
        return max((entry.seq for entry in evidence.trace if entry.group == group), default=0)
    counted = (entry.count for entry in evidence.groups if (entry.group, entry.kind) == (group, kind))
    # A record has room for the counts of some groups; of others it has the last calls.
    began = (entry.seq for entry in evidence.entries if (entry.group, entry.kind) == (group, kind))
    return next(counted, None) or max(began, default=0)


def _even(evidence: Evidence, group: str) -> bool:
    """Whether the backend has counted every call, so that both have the same numbers."""
    calls = _counted(evidence, group, "call")
    return group != SETUP and any(_counted(evidence, group, kind) == calls for kind in _BACKENDS)


def _during(entry: RecordedCall, call: RecordedCall) -> bool:
    return call.at - _CLOCK <= entry.at <= (call.end or entry.at) + _CLOCK


def _same(message: RecordedCall, entry: RecordedCall, *, receives: bool, peer: int) -> bool:
    """Whether a message has this direction and peer, and the group and tag of another one."""
    return (
        message.op.endswith("recv") == receives
        and (message.group, message.tag) == (entry.group, entry.tag)
        and message.peer in {peer, -1}
    )


def _spans(text: str) -> list[range]:
    """The ranks of each part of `0-3,6,8-126/2`; none for any other text."""
    if not re.fullmatch(rf"{_PART}(,{_PART})*", text):
        return []
    parts = [re.split("[-/]", part) for part in text.split(",")]
    return [
        range(int(first), int((rest or [first])[0]) + 1, int(rest[1]) if len(rest) == 2 else 1)
        for first, *rest in parts
    ]


def _is_in(spans: Sequence[range], number: int) -> bool:
    return any(number in span for span in spans)
