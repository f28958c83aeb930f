"""What hosts say about environments: those that `--requirements` has made there. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from ..decode import AtMost, Like
from .bounds import Bytes, Count, Name, Seconds
from .interpreter import Interpreter

MOST_ENVIRONMENTS = 1024
KEY = r"[0-9a-f]{20}"
Key = Annotated[str, Like(KEY)]
"""The name of an environment: the beginning of its lock's SHA-256."""


@dataclass(frozen=True)
class Environment(Interpreter):
    """An environment that is complete on a host.

    `bytes`: the size of this environment; shared files count in each environment.
    """

    source: Name
    """The file that it was made from, as the user named it."""
    packages: Count
    bytes: Bytes
    used: Seconds
    """When a launch last used it."""


@dataclass(frozen=True)
class EnvironmentsThere:
    """The environments of a host, and what decides which wheels run there."""

    home: Annotated[str, Like(r"[0-9a-f]{32}")]
    """Equal on hosts that share a home folder."""
    machine: Annotated[str, Like(r"\w{1,32}")]
    glibc: Annotated[str, Like(r"(\d{1,3}\.\d{1,3})?")]
    """Empty with another C library."""
    driver: Annotated[str, Like(r"(\d{1,4}(\.\d{1,5}){0,3})?")]
    """The version of NVIDIA's driver; empty without one."""
    environments: Annotated[Mapping[Key, Environment], AtMost(MOST_ENVIRONMENTS)] = field(
        default_factory=dict
    )
