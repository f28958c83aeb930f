"""What a launcher has to know about a job: the number of ranks on each host, and their rendezvous."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ..hosts.facts import Facts
from ..hosts.rendezvous import Rendezvous


@dataclass(frozen=True)
class Layout:
    """One attempt, as a launcher sees it."""

    job: str
    ranks: Mapping[str, int]
    """The number of ranks on each host, in the order of the hosts; the first is the head."""
    facts: Mapping[str, Facts]
    rendezvous: Rendezvous
    hostfile: str
    """Path of the hostfile on the head."""
    allocation: str
    """Slurm's number of the allocation that the hosts belong to; empty for other hosts."""
    program: tuple[str, ...]
    """What each rank runs: the argv of `muster-rank` and its program."""

    @cached_property
    def index(self) -> Mapping[str, int]:
        """The place of each host in their order."""
        return {name: index for index, name in enumerate(self.ranks)}

    @cached_property
    def is_even(self) -> bool:
        """Whether every host has the same number of ranks."""
        return len({*self.ranks.values()}) == 1

    @cached_property
    def has_interfaces(self) -> bool:
        """Whether the interface of every host towards the head is known."""
        return all(self.rendezvous.interfaces.values())

    @property
    def head(self) -> str:
        """The first host."""
        return next(iter(self.ranks))
