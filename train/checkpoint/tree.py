"""A state as a tree of dicts, lists and tuples, whose leaves are tensors and plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def mapped(tree: Any, change: Callable[[str, Any], Any], name: str = "") -> Any:
    """Return `tree` in new dicts, lists and tuples, with the result of change(name, leaf) for each leaf.

    The name of a leaf is its path, /model/0.weight.
    """
    if isinstance(tree, Mapping):
        return {key: mapped(value, change, f"{name}/{key}") for key, value in tree.items()}
    if type(tree) in {list, tuple}:
        return type(tree)(mapped(value, change, f"{name}/{number}") for number, value in enumerate(tree))
    return change(name, tree)


def leaves(tree: Any) -> list[Any]:
    """Return the leaves of `tree`."""
    found: list[Any] = []
    mapped(tree, lambda _, leaf: found.append(leaf))
    return found
