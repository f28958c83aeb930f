"""Requests to any host: its facts, its ports, which other hosts it reaches, parts of its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated

from ...decode import AtMost, lazy_dataclass
from ...hosts.bounds import (
    MOST_HOSTS,
    AddressOrName,
    Interface,
    Name,
    Port,
    Seconds,
    Text,
)
from ...hosts.host_facts import Facts
from .request import Nothing, Payload, Request

MOST_PART = 1 << 22
"""The most bytes of a file in an answer. A slow link gets smaller parts: the answer must arrive before the
host counts as silent (core/connect/channel.py)."""


@lazy_dataclass(frozen=True)
class Time:
    """The host's time of day, and its monotonic clock (core/wire/clock.py)."""

    time: Seconds
    steady: Seconds


@lazy_dataclass(frozen=True)
class OpenPort:
    """A port at which others try to reach the host, or why the host has none."""

    port: Port | None = None
    refused: Text | None = None


@lazy_dataclass(frozen=True)
class Reached:
    """The routes of a host to another: by address its own interface, or why the address is not reached."""

    interfaces: Annotated[Mapping[AddressOrName, Interface | None], AtMost(4096)] = field(
        default_factory=dict
    )
    refused: Annotated[Mapping[AddressOrName, Text], AtMost(4096)] = field(default_factory=dict)


@lazy_dataclass(frozen=True)
class HostsReached:
    """The routes of a host to others."""

    reached: Annotated[Mapping[Name, Reached], AtMost(MOST_HOSTS)]


@lazy_dataclass(frozen=True)
class HostSampled:
    """A new sample of a host, as JSON that `of_line` of core/hosts/host_sample.py checks."""

    sample: Text


TIME = Request("time", Time)
LOAD = Request("load", Nothing)
MODULES = Request("modules", Nothing)
FACTS = Request("facts", Facts)
OPEN_PORT = Request("open_port", OpenPort)
FREE_PORT = Request("free_port", Nothing)
SAMPLE = Request("sample", HostSampled)
REACH = Request("reach", HostsReached)
FILE_PART = Request("file_part", Payload, MOST_PART)
