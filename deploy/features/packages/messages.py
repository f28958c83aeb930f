"""Requests about environments of packages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ...core.connect.reports import Report
from ...core.connect.requests.request import Nothing, Request
from ...core.decode import AtMost, lazy_dataclass
from ...core.hosts.bounds import Bytes, Seconds, Text
from ...core.hosts.host_facts import MOST_ENVIRONMENTS, Environment, HostEnvironments, Key


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
