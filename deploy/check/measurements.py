"""What `fab check` knows of the hosts. Pure: gathered by `examine`, judged by `check`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..connect.answers import Health, Reached
from ..errors import HostError
from ..hosts.facts import Facts


@dataclass(frozen=True)
class Clock:
    """Seconds that a host's clock is ahead of the driver's, and by how much that may be wrong."""

    ahead: float
    uncertainty: float


@dataclass(frozen=True)
class Examined:
    """One host that answered."""

    facts: Facts
    health: Health
    clock: Clock
    addresses: tuple[str, ...]
    """Where other hosts tried to reach it."""
    rendezvous: int | HostError
    """The port where they tried, or why it could give none."""
    reached: Mapping[str, Reached]
    """Itself and every other host, as reached from here."""


@dataclass(frozen=True)
class Examination:
    """Every host: what it is, or why it could not be asked."""

    hosts: Mapping[str, Examined]
    errors: Mapping[str, HostError]
