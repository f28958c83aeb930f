"""Requests about environments of packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from ...core.connect.reports import Report
from ...core.connect.requests import Nothing, Request
from ...core.decode import AtMost, Like, lazy_dataclass
from ...core.hosts.bounds import Bytes, Count, Name, Seconds, Text
from ...core.hosts.host_facts import Interpreter

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
    """The user's name of the file of requirements."""
    packages: Count
    bytes: Bytes
    used: Seconds
    """When a launch last used it."""


@dataclass(frozen=True)
class HostEnvironments:
    """The environments of a host, and the properties that decide which wheels run on it."""

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


@dataclass(frozen=True)
class IndexRefusal:
    """Why a host does not reach an index; empty if it does."""

    refusal: Text


@dataclass(frozen=True)
class EnvironmentsRemoved:
    """The environments that were removed, those that are in use, and the bytes that are free again."""

    removed: Annotated[tuple[Key, ...], AtMost(MOST_ENVIRONMENTS)]
    kept: Annotated[tuple[Key, ...], AtMost(MOST_ENVIRONMENTS)]
    freed: Bytes


@lazy_dataclass(frozen=True)
class EnvironmentMade(Report, event="env-made"):
    """A host has made an environment, in so many seconds, or why it could not."""

    seconds: Seconds
    environment: Environment | None = None
    error: Text = ""


ENVIRONMENTS = Request("envs", HostEnvironments)
ENVIRONMENT_REACH = Request("env_reach", IndexRefusal)
ENVIRONMENT_MAKE = Request("env_make", Nothing)
ENVIRONMENT_HOLD = Request("env_hold", Nothing)
ENVIRONMENT_REMOVE = Request("env_remove", EnvironmentsRemoved)
