"""Equal things of many ranks or hosts as one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


def fold(items: Iterable[tuple[Key, Value]]) -> list[tuple[list[Key], Value]]:
    """The keys of each value, in their order; what most share comes first, so what is odd comes last."""
    groups: dict[Value, list[Key]] = {}
    for key, value in items:
        groups.setdefault(value, []).append(key)
    return [(keys, value) for value, keys in sorted(groups.items(), key=lambda group: -len(group[1]))]
