"""Which rank runs where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import UsageError
from ..hosts.hostfile import Host
from .launcher import launcher_of
from .spec import LaunchSpec
from .srun import NO_CONTAINER, OUTSIDE


@dataclass(frozen=True)
class Place:
    """Where one rank runs."""

    rank: int
    local_rank: int
    host: str


def place_ranks(hosts: Sequence[Host], np: int | None) -> tuple[Place, ...]:
    """Fill the slots of each host in the order of the file, as mpirun's `--map-by slot` does."""
    slots = [(host.name, local) for host in hosts for local in range(host.slots)]
    if np is not None and not 1 <= np <= len(slots):
        raise UsageError(f"--np {np}: the hosts have {len(slots)} slots; raise slots= or lower --np")
    return tuple(Place(rank, local, name) for rank, (name, local) in enumerate(slots[:np]))


def check_spec(spec: LaunchSpec) -> None:
    """Refuse a specification that no hosts could run.

    It needs no hosts, so it can be checked before any are known.
    """
    if spec.launcher == "srun" and spec.image:
        raise UsageError(NO_CONTAINER)


def check_shape(spec: LaunchSpec, hosts: Sequence[Host], places: Sequence[Place]) -> None:
    """Refuse what no cluster could run. This needs no facts, so it is checked before any host is asked."""
    check_spec(spec)
    if len(hosts) > 1 and (local := [host.name for host in hosts if host.is_local]):
        raise UsageError(f"{local[0]} means another machine on every host; write its name in the hosts file")
    if spec.launcher == "srun" and not spec.allocation:
        raise UsageError(OUTSIDE)
    counts = {host.name: sum(place.host == host.name for place in places) for host in hosts}
    launcher_of(spec.launcher).check_shape(spec.backend, counts)


def used_hosts(hosts: Sequence[Host], spec: LaunchSpec) -> tuple[Host, ...]:
    """The hosts that get a rank. The other hosts are not even connected to."""
    places = place_ranks(hosts, spec.np)
    names = {place.host for place in places}
    used = tuple(host for host in hosts if host.name in names)
    check_shape(spec, used, places)
    return used
