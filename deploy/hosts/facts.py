"""What the driver knows about the hosts before it plans. Pure: gathered by `cluster`, judged here."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..decode import from_json
from ..errors import HostError


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
