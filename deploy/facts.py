"""What the driver knows about the hosts before it plans. Pure: gathered by `cluster`, judged here."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .decode import from_json
from .errors import HostError, UnfitError
from .hostfile import Host

OPEN_MPI_FAMILIES = ("4.1", "5.0")
"""What `openmpi` knows how to start."""


def nonsense(error: Exception) -> HostError:
    """A host whose keeper does not talk as ours do."""
    text = f"what its keeper says makes no sense: {type(error).__name__}: {error}"
    return HostError("host.nonsense", text, "is this host trustworthy, and its Python intact?")


@dataclass(frozen=True)
class Facts:
    """One host, as its keeper describes it. None: not installed there."""

    hostname: str
    home: str
    uid: int
    python: str
    executable: str
    torch: str | None
    mpi4py: str | None
    mpirun: str | None
    mpi: str | None
    cores: int
    gpus: int
    addresses: tuple[str, ...]
    interfaces: Mapping[str, str]
    """The interface of each address."""

    @staticmethod
    def from_frame(frame: Mapping[str, Any]) -> Facts:
        """From the keeper's answer; what it says beyond these fields is ignored."""
        facts: Facts = from_json(Facts, frame)
        return facts


def on_network(facts: Facts, network: str) -> tuple[str, ...]:
    """The host's addresses in a network such as 10.1.0.0/16, or on the interface of that name."""
    if "/" not in network:
        return tuple(one for one in facts.addresses if facts.interfaces.get(one) == network)
    wanted = ipaddress.ip_network(network)
    return tuple(one for one in facts.addresses if ipaddress.ip_address(one) in wanted)


@dataclass(frozen=True)
class Meeting:
    """Where the ranks meet: an address and port of the head, and each host's interface on the way there."""

    address: str
    port: int
    interfaces: Mapping[str, str | None]


@dataclass(frozen=True)
class ClusterFacts:
    """The facts of every host by its name, and where the ranks meet."""

    hosts: Mapping[str, Facts]
    meeting: Meeting


def require(hosts: Iterable[Host], facts: Mapping[str, Facts], *, launcher: str) -> None:
    """Raise `UnfitError` that names every host which the launcher cannot use, and what to do there."""
    judge = unfit_for_mpirun if launcher == "mpirun" else unfit_for_torch
    reasons = [(host.name, str(reason)) for host in hosts if (reason := judge(facts[host.name]))]
    if launcher == "mpirun" and not reasons:
        reasons = _mixed_versions({host.name: facts[host.name].mpi or "" for host in hosts})
    if reasons:
        raise UnfitError(reasons)


def unfit_for_mpirun(facts: Facts) -> HostError | None:
    """Why a host cannot run Open MPI's part of a job."""
    if facts.mpirun is None:
        text = f"no mpirun beside {facts.executable} nor on PATH"
        return HostError("mpi.missing", text, "install Open MPI 4.1 or 5.0 there")
    if facts.mpi is None:
        text = f"{facts.mpirun} is not Open MPI's"
        return HostError("mpi.foreign", text, "put Open MPI 4.1 or 5.0 first on PATH")
    if not facts.mpi.startswith(tuple(f"{family}." for family in OPEN_MPI_FAMILIES)):
        return HostError("mpi.unsupported", f"Open MPI {facts.mpi} is not supported", "install 4.1 or 5.0")
    return None


def unfit_for_torch(facts: Facts) -> HostError | None:
    """Why a host cannot run a PyTorch program."""
    if facts.torch is None:
        text = f"{facts.executable} has no torch"
        return HostError("torch.missing", text, "install it, or name another interpreter with --python")
    return None


def _mixed_versions(versions: Mapping[str, str]) -> list[tuple[str, str]]:
    """Daemons of different versions do not understand each other: every host must have the same."""
    if len(set(versions.values())) < 2:
        return []
    return [
        (host, f"Open MPI {version}; install one version on all hosts") for host, version in versions.items()
    ]
