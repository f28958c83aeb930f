"""Requests about environments of packages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ...core.connect.requests.request import Nothing, Request
from ...core.decode import AtMost
from ...core.hosts.bounds import Bytes, Text
from ...core.hosts.facts import MOST_ENVIRONMENTS, HostEnvironments, Key


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


ENVIRONMENTS = Request("envs", HostEnvironments)
ENVIRONMENT_REACH = Request("env_reach", IndexRefusal)
ENVIRONMENT_MAKE = Request("env_make", Nothing)
ENVIRONMENT_HOLD = Request("env_hold", Nothing)
ENVIRONMENT_REMOVE = Request("env_remove", EnvironmentsRemoved)
