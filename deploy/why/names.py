"""The names of process groups, where groups of different ranks share one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

UNSAID = "?"  # muster_ring.UNSAID


def names_apart(said: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
    """A name of its own for each group that has its name in common with a group of other ranks.

    `said`: the name of each group with its ranks. `split_group` of torch 2.6 calls all its parts the same.
    """
    by_name: dict[str, set[str]] = {}
    for name, ranks in said:
        by_name.setdefault(name, set()).add(ranks)
    return {
        (name, ranks): f"{name} of ranks {ranks}"
        for name, lists in by_name.items()
        if len(lists) > 1
        for ranks in lists - {"", UNSAID}
    }
