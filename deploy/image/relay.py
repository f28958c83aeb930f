"""Who gets a file from whom: a tree below the first host, which alone gets it from here. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

WIDTH = 2
"""How many hosts one host gives to at once."""


def ancestors(hosts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """For every host but the first: its parent, and as further choices its parents' up to the first."""
    chains: dict[str, tuple[str, ...]] = {}
    for index, host in enumerate(hosts[1:], start=1):
        parent = hosts[(index - 1) // WIDTH]
        chains[host] = (parent, *chains.get(parent, ()))
    return chains


def by_what_is_there(have: Mapping[str, int]) -> list[str]:
    """The hosts with those first that have most of a file already; otherwise in their own order."""
    return sorted(have, key=lambda host: -have[host])
