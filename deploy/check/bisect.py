"""Finds the hosts or links that let a collective of all hosts fail, with few collectives of some. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .finding import Finding, error

MOST_CULPRITS = 8
PARTNERS = 2
"""Hosts with which a suspected host is tried alone, to tell a bad host from a bad link."""

Fails = Callable[[Sequence[str]], bool]
"""Whether a collective of these hosts fails."""


@dataclass(frozen=True)
class Culprit:
    """A host that fails with every other one; or a pair of which each works with others."""

    hosts: tuple[str, ...]


def culprits(hosts: Sequence[str], fails: Fails) -> tuple[Culprit, ...]:
    """The culprits among these hosts, MOST_CULPRITS at most; none if the collective of all works."""
    return _Search(hosts, fails).run()


def of_culprit(culprit: Culprit, reason: str) -> Finding:
    """`bisect.host` or `bisect.link`. `reason`: why a collective with it failed."""
    host, *other = culprit.hosts
    if not other:
        drain = f"muster hosts drain {host} keeps jobs off it"
        remedy = f"look at the hardware and the kernel's messages there; {drain}"
        return error("bisect.host", host, f"every all_reduce with it fails: {reason}", remedy)
    text = f"an all_reduce with {other[0]} fails, and each of them works with others: {reason}"
    remedy = "look at cables, switch ports and firewalls between them; muster bench links measures them"
    return error("bisect.link", host, text, remedy, peer=other[0])


class _Search:
    def __init__(self, hosts: Sequence[str], fails: Fails) -> None:
        self._hosts, self._ask = tuple(hosts), fails
        self._known: dict[frozenset[str], bool] = {}
        self._good: set[str] = set()
        """Hosts that took part in a collective that worked."""

    def run(self) -> tuple[Culprit, ...]:
        found: list[Culprit] = []
        left = self._hosts
        while len(left) > 1 and len(found) < MOST_CULPRITS and self._fails(left):
            new = self._judged(self._pair(left))
            found += new
            gone = {each.hosts[-1] for each in new}  # of a pair, one host stays
            left = tuple(host for host in left if host not in gone)
        return tuple(found)

    def _fails(self, hosts: Sequence[str]) -> bool:
        key = frozenset(hosts)
        if key not in self._known:
            self._known[key] = self._ask(hosts)
            if not self._known[key]:
                self._good |= key
        return self._known[key]

    def _pair(self, group: Sequence[str]) -> tuple[str, str]:
        """Two hosts that fail together, of a group that fails."""
        while len(group) > 2:
            first, second = group[: len(group) // 2], group[len(group) // 2 :]
            if len(first) > 1 and self._fails(first):
                group = first
            elif self._fails(second):
                group = second
            else:
                return self._across(first, second)
        return group[0], group[1]

    def _across(self, first: Sequence[str], second: Sequence[str]) -> tuple[str, str]:
        """One host of each group. Each group works alone, and they fail together."""
        for _ in range(2):
            while len(first) > 1:
                part = first[: len(first) // 2]
                first = part if self._fails([*part, *second]) else first[len(part) :]
            first, second = second, first
        return first[0], second[0]

    def _judged(self, pair: tuple[str, str]) -> list[Culprit]:
        """The bad hosts of a pair that fails together; the pair itself if each of them works with others."""
        others = [host for host in self._hosts if host not in pair]
        partners = sorted(others, key=lambda host: host not in self._good)[:PARTNERS]
        bad = [host for host in pair if partners and all(self._fails([host, other]) for other in partners)]
        return [Culprit((host,)) for host in bad] or [Culprit(pair)]
