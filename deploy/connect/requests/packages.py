"""Requests about environments of packages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ...decode import AtMost
from ...hosts.bounds import Bytes, Text
from ...hosts.facts import MOST_ENVIRONMENTS, HostEnvironments, Key
from .request import Nothing, Request


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
