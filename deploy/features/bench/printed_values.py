"""Reads the output of the programs of a benchmark: JSON lines, untrusted as all output of hosts. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from ...core.decode import MALFORMED, AtMost, Between, Like, from_json

RankNumber = Annotated[int, Between(0, 1 << 20)]
Seconds = Annotated[float, Between(1e-9, 1e6)]
Rate = Annotated[float, Between(1e-9, 1e18)]
"""Per second."""
Count = Annotated[int, Between(0, 1 << 62)]
Word = Annotated[str, AtMost(16), Like(r"[a-z0-9_]+")]
MOST_LINE = 4096
"""Characters; the programs print shorter lines."""

_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class About:
    """The line of rank 0 about a benchmark between ranks."""

    ranks: Annotated[int, Between(1, 1 << 20)]
    backend: Word
    device: Word


@dataclass(frozen=True)
class LinkLine:
    """The line of a rank about its link to rank `to`."""

    to: RankNumber
    latency_s: Seconds
    bytes_per_s: Rate


def values(text: str, bench: str, kind: type[_Kind], most: int) -> tuple[list[_Kind], str]:
    """The values of the lines of one kind, at most `most`, and the problem of the first wrong line, if any.

    Other lines, such as warnings of a library, are skipped.
    """
    found: list[_Kind] = []
    for line in _named(text, bench):
        if len(found) == most:
            return found, f"more than {most} lines of {bench}"
        try:
            found.append(from_json(kind, line))
        except MALFORMED as error:
            return found, f"malformed line of {bench}: {error}"
    return found, ""


def _named(text: str, bench: str) -> Iterator[Mapping[str, Any]]:
    for line in text.split("\n"):
        if line.startswith('{"bench"') and len(line) <= MOST_LINE:
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict) and value.get("bench") == bench:
                yield value
