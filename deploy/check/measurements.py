"""What `fab check` measures on the hosts. Pure: `measure` gathers it, `judge` judges it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..connect.requests.hosts import HostHealth, Reached
from ..errors import HostError
from ..hosts.facts import Facts


@dataclass(frozen=True)
class Clock:
    """By how many seconds a host's clock is ahead of the driver's, and the uncertainty of that."""

    ahead: float
    uncertainty: float


@dataclass(frozen=True)
class Measured:
    """What was measured on a host that answered."""

    facts: Facts
    health: HostHealth
    clock: Clock
    addresses: tuple[str, ...]
    """The addresses where other hosts tried to reach it."""
    rendezvous: int | HostError
    """The port where they tried, or the error that it could open none."""
    reached: Mapping[str, Reached]
    """How this host reaches itself and the other hosts."""


@dataclass(frozen=True)
class Measurements:
    """What was measured on each host, or the error of a host that could not be asked."""

    hosts: Mapping[str, Measured]
    errors: Mapping[str, HostError]
