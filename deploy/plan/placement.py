"""Which rank runs where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import UsageError
from ..hosts.hostfile import Host
from .launcher import launcher_of
from .spec import LaunchSpec
from .srun import OUTSIDE


@dataclass(frozen=True)
class Place:
    """Where one rank runs."""

    rank: int
    local_rank: int
    host: str


@dataclass(frozen=True)
class Placement:
    """The hosts that get a rank, and the ranks of each. The other hosts are not even connected to."""

    hosts: tuple[Host, ...]
    ranks: Mapping[str, tuple[Place, ...]]
    """By the name of the host, in the order of the hosts."""

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of ranks on each host."""
        return {name: len(places) for name, places in self.ranks.items()}


def place(hosts: Sequence[Host], spec: LaunchSpec) -> Placement:
    """Fill the slots of each host in the order of the file, as mpirun's `--map-by slot` does.

    `UsageError` for what no cluster could run: no host is asked for that.
    """
    slots = sum(host.slots for host in hosts)
    if spec.np is not None and not 1 <= spec.np <= slots:
        raise UsageError(f"--np {spec.np}: the hosts have {slots} slots; raise slots= or lower --np")
    left, first = slots if spec.np is None else spec.np, 0
    used, ranks = [], {}
    for host in hosts:
        if number := min(host.slots, left - first):
            used.append(host)
            ranks[host.name] = tuple(Place(first + local, local, host.name) for local in range(number))
            first += number
    placement = Placement(tuple(used), ranks)
    _check(spec, placement)
    return placement


def _check(spec: LaunchSpec, placement: Placement) -> None:
    hosts = placement.hosts
    if len(hosts) > 1 and (local := [host.name for host in hosts if host.is_local]):
        raise UsageError(f"{local[0]} means another machine on every host; write its name in the hosts file")
    if spec.launcher == "srun" and not spec.allocation:
        raise UsageError(OUTSIDE)
    launcher_of(spec.launcher).check_shape(spec.backend, placement.counts)
