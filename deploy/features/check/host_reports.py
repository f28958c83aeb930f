"""The measurements of `muster check` on the hosts. Pure: `measure` makes them, `judge` judges them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...core.connect.requests import Reached
from ...core.errors import HostError
from ...core.hosts.host_facts import Facts
from ..leases.messages import Device
from .messages import HostHealth


@dataclass(frozen=True)
class Clock:
    """By how many seconds a host's clock is ahead of the driver's, and the uncertainty of that."""

    ahead: float
    uncertainty: float


@dataclass(frozen=True)
class HostReport:
    """The measurements of a host that answered."""

    facts: Facts
    health: HostHealth
    clock: Clock
    addresses: tuple[str, ...]
    """The addresses at which other hosts tried to reach it."""
    rendezvous: int | HostError
    """The port that they tried, or the error that it could open none."""
    reached: Mapping[str, Reached]
    """For each host, also itself: at which addresses this host reaches it."""
    leased: tuple[Device, ...] = ()
    """Its GPUs that jobs lease."""


@dataclass(frozen=True)
class HostReports:
    """The measurements of each host, or the error of a host that does not answer."""

    hosts: Mapping[str, HostReport]
    errors: Mapping[str, HostError]
