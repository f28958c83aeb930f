"""Group ranks or hosts with equal values, and write their names as ranges."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


def fold(items: Iterable[tuple[Key, Value]]) -> list[tuple[list[Key], Value]]:
    """The keys of each value, in their order. The value with the most keys comes first."""
    groups: dict[Value, list[Key]] = {}
    for key, value in items:
        groups.setdefault(value, []).append(key)
    return [(keys, value) for value, keys in sorted(groups.items(), key=lambda group: -len(group[1]))]


def fold_names(names: Iterable[str]) -> str:
    """`node[1-3,5],head`: names that differ only in their last number become a range, in their order."""
    parts = [re.fullmatch(r"(.*?)(\d{1,9})(\D*)", name) or (name,) for name in dict.fromkeys(names)]
    numbered = [part.groups() for part in parts if isinstance(part, re.Match)]
    padded = {(stem, rest, len(number)) for stem, number, rest in numbered if number.startswith("0")}
    stems: dict[tuple[str, str, int], list[int]] = {}
    for part in parts:
        if isinstance(part, re.Match):
            stem, number, rest = part.groups()
            # node1, node01 and node001 are three hosts; node10 may follow node09, and node010 node009.
            widths = range(len(number), 0, -1)
            width = next((width for width in widths if (stem, rest, width) in padded), 0)
            stems.setdefault((stem, rest, width), []).append(int(number))
        else:
            stems.setdefault((part[0], "", -1), [])  # no width: node beside node1
    return ",".join(_range(stem, rest, width, numbers) for (stem, rest, width), numbers in stems.items())


def _range(stem: str, rest: str, width: int, numbers: list[int]) -> str:
    if not numbers:
        return stem
    runs = [
        [number for _, number in group]
        for _, group in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])
    ]
    words = [
        f"{run[0]:0{width}d}" if len(run) == 1 else f"{run[0]:0{width}d}-{run[-1]:0{width}d}" for run in runs
    ]
    return f"{stem}{words[0]}{rest}" if len(numbers) == 1 else f"{stem}[{','.join(words)}]{rest}"
