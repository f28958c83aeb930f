"""What the driver knows about the hosts before it plans. Pure: `cluster` gathers it."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from ..decode import AtMost, Between, Like
from .bounds import AbsolutePath, Address, Bytes, Count, Interface, Name, Version, Words


@dataclass(frozen=True)
class Facts:
    """A host, as its agent describes it. None means that the software is not installed there."""

    hostname: Name
    home: AbsolutePath
    uid: Count
    python: Annotated[str, Like(r"\d{1,4}\.\d{1,4}[\w.+-]{0,64}")]
    executable: AbsolutePath
    torch: Version | None
    mpi4py: Version | None
    mpirun: AbsolutePath | None
    mpi: Annotated[str, Like(r"\d{1,4}\.\d{1,4}\.\d{1,4}")] | None
    cores: Annotated[int, Between(1, 1 << 16)]
    gpus: Annotated[int, Between(0, 1024)]
    addresses: Annotated[tuple[Address, ...], AtMost(4096)]
    interfaces: Annotated[Mapping[Address, Interface], AtMost(4096)]
    """The interface of each address."""
    mpi_error: Words | None = None
    """Why mpirun could not say its version."""
    memory: Bytes | None = None
    """Bytes of the machine's memory."""


def on_network(facts: Facts, network: str) -> tuple[str, ...]:
    """The host's addresses in a network such as 10.1.0.0/16, or on the interface of that name."""
    if "/" not in network:
        return tuple(address for address in facts.addresses if facts.interfaces.get(address) == network)
    wanted = ipaddress.ip_network(network)
    return tuple(address for address in facts.addresses if ipaddress.ip_address(address) in wanted)


@dataclass(frozen=True)
class Rendezvous:
    """An address and port of the head where ranks find each other, and each host's interface towards it."""

    address: str
    port: int
    interfaces: Mapping[str, str | None]


@dataclass(frozen=True)
class ClusterFacts:
    """The facts of every host by its name, and the rendezvous of the ranks."""

    hosts: Mapping[str, Facts]
    rendezvous: Rendezvous
