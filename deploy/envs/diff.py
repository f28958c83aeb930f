"""Differences between hosts that should be alike: facts in, differences out. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..console.fold import fold, fold_names

ABSENT = "none"
# The stack first, then the system by name, then the packages.
_FIRST = ("Python", "torch", "torch's CUDA", "NCCL of torch", "driver", "kernel", "glibc")


@dataclass(frozen=True)
class HostDifference:
    """A fact that differs between hosts: each value with its hosts, most hosts first."""

    what: str
    values: Mapping[str, tuple[str, ...]]


def differences(hosts: Mapping[str, Mapping[str, str]]) -> list[HostDifference]:
    """Every fact that differs between hosts. An empty value counts as absent."""
    differing = []
    for what in sorted({name for facts in hosts.values() for name in facts}, key=_order):
        values = fold((host, facts.get(what) or ABSENT) for host, facts in hosts.items())
        if len(values) > 1:
            differing.append(HostDifference(what, {value: tuple(names) for names, value in values}))
    return differing


def _order(what: str) -> tuple[int, str]:
    if what in _FIRST:
        return _FIRST.index(what), ""
    return len(_FIRST) + what.startswith("package "), what


def as_text(differing: Sequence[HostDifference], hosts: int) -> str:
    """A line for each difference: `kernel: 6.1 on node[1-2]; 6.8 on node3`."""
    if not differing:
        return f"nothing differs between {hosts} hosts\n"
    lines = []
    for difference in differing:
        values = (f"{value} on {fold_names(names)}" for value, names in difference.values.items())
        lines.append(f"{difference.what}: {'; '.join(values)}\n")
    return "".join(lines)
