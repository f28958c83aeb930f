"""Which ranks were late over a whole run, from many looks. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace

from .slow import Straggler

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
