"""Requests about environments of packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from ...decode import AtMost
from ...hosts.bounds import Bytes, Name, Text
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


@dataclass(frozen=True)
class Described:
    """The values of a host that should be equal on all hosts of a job, by name."""

    facts: Annotated[Mapping[Name, Annotated[str, AtMost(4096)]], AtMost(1 << 14)]


ENVIRONMENTS = Request("envs", HostEnvironments)
ENVIRONMENT_REACH = Request("env_reach", IndexRefusal)
ENVIRONMENT_MAKE = Request("env_make", Nothing)
ENVIRONMENT_REMOVE = Request("env_remove", EnvironmentsRemoved)
ENVIRONMENT_FACTS = Request("env_facts", Described)
