"""The placement of ranks on hosts, and the values that launchers derive from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ..hosts.host_facts import Facts
from ..hosts.hostfile import Host
from ..hosts.rendezvous import Rendezvous
from ..wire.paths import JobPaths
from .spec import LaunchSpec


@dataclass(frozen=True)
class PlacedRank:
    """Where one rank runs."""

    rank: int
    local_rank: int
    host: str


@dataclass(frozen=True)
class Placement:
    """The hosts with ranks, the ranks of each, and spares. Muster does not connect to other hosts."""

    hosts: tuple[Host, ...]
    ranks: Mapping[str, tuple[PlacedRank, ...]]
    """By the name of the host, in the order of the hosts."""
    spares: tuple[Host, ...] = ()
    """The hosts without ranks that are made ready for the next attempt."""

    @property
    def connected(self) -> tuple[Host, ...]:
        """The hosts with ranks, then the spares."""
        return self.hosts + self.spares

    @property
    def size(self) -> int:
        """The number of ranks."""
        return sum(self.counts.values())

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """The number of ranks on each host."""
        return {name: len(ranks) for name, ranks in self.ranks.items()}


@dataclass(frozen=True)
class Layout:
    """One attempt on its hosts, for the launcher. The first host is the head."""

    spec: LaunchSpec
    placement: Placement
    facts: Mapping[str, Facts]
    rendezvous: Rendezvous

    @property
    def ranks(self) -> Mapping[str, int]:
        """The number of ranks on each host, in the order of the hosts."""
        return self.placement.counts

    @cached_property
    def index(self) -> Mapping[str, int]:
        """The position of each host in their order."""
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
        return self.placement.hosts[0].name

    @property
    def hostfile(self) -> str:
        """Path of mpirun's hostfile on the head."""
        return JobPaths.of(self.facts[self.head].home, self.spec.job).hostfile

    def rank_command(self, *, mpi: bool) -> tuple[str, ...]:
        """The command of each rank: the argv of `muster-rank` and its program. `mpi`: as ranks of MPI."""
        abort = mpi and all(facts.mpi4py for facts in self.facts.values())
        return ("muster-rank", *self.spec.program.argv(abort_with_mpi=abort))
