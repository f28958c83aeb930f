"""The tree in which hosts pass on a file. Only the first host gets it from this machine. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

WIDTH = 2
"""To how many hosts a host gives at once."""


def ancestors(hosts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """For every host but the first: its parent, then as further choices the parent's own ancestors."""
    chains: dict[str, tuple[str, ...]] = {}
    for index, host in enumerate(hosts[1:], start=1):
        parent = hosts[(index - 1) // WIDTH]
        chains[host] = (parent, *chains.get(parent, ()))
    return chains


def most_complete_first(have: Mapping[str, int]) -> list[str]:
    """The hosts, sorted by how much of a file they have already, most first; else in their order."""
    return sorted(have, key=lambda host: -have[host])
