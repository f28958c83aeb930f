"""A finding: one thing that is wrong with a host. And helpers for the texts of findings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import HostError

Severity = Literal["error", "warning"]
MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class Finding:
    """What is wrong, where, and what to do. `peer`: the other host of a pair. Without a host: the driver."""

    id: str
    host: str
    severity: Severity
    text: str
    remedy: str
    peer: str = ""


def of_error(name: str, error: HostError) -> Finding:
    """The error of a host that cannot take part."""
    return Finding(error.kind, name, "error", error.text, error.remedy)


def have(number: int) -> str:
    """`has` for one, `have` for more."""
    return "has" if number == 1 else "have"


def minor(version: str) -> str:
    """`3.13` of `3.13.5`."""
    return ".".join(version.split(".")[:2])
