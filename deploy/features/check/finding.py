"""A finding: one problem of a host. And helpers for the texts of findings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...core.errors import HostError

Severity = Literal["error", "warning"]
MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class Finding:
    """A problem, its host, and its remedy. `peer`: the other host of a pair. Without a host: the driver."""

    id: str
    host: str
    severity: Severity
    text: str
    remedy: str
    peer: str = ""


def error(kind: str, host: str, text: str, remedy: str, *, peer: str = "") -> Finding:
    """A finding for which a launch would fail."""
    return Finding(kind, host, "error", text, remedy, peer)


def warning(kind: str, host: str, text: str, remedy: str) -> Finding:
    """A finding with which a launch works, but slowly or not with every program."""
    return Finding(kind, host, "warning", text, remedy)


def of_error(name: str, reason: HostError) -> Finding:
    """The error of a host that cannot take part."""
    return error(reason.kind, name, reason.text, reason.remedy)


def have(number: int) -> str:
    """`has` for one, `have` for more."""
    return "has" if number == 1 else "have"
