"""What a launcher has to know about a job: the number of ranks on each host, and their rendezvous."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..hosts.facts import Facts, Rendezvous


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

    @property
    def head(self) -> str:
        """The first host."""
        return next(iter(self.ranks))
