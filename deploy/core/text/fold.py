"""Group ranks or hosts with equal values, and write their names as ranges."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain, zip_longest
from typing import NamedTuple, TypeVar

from .text import ranges

Key = TypeVar("Key")
Value = TypeVar("Value")
# What differs between equal messages of hosts: addresses, fingerprints, ports, names. Each repetition has a
# bound: hosts write these texts, and could otherwise choose one that takes quadratic time.
_VARIES = re.compile(
    r"(?P<own>\d{1,3}(?:\.\d{1,3}){3}(?![\w.-]*\w)|(?=[\da-f:]{0,37}::|(?:[\da-f]{1,4}:){7})[\da-f]{1,4}(?::[\da-f]{0,4}){2,7}"
    r"|SHA256:[\w+/]{43}|(?<=port )\d{1,5})|\w[\w-]*(?:\.[\w-]+)*"
)
LONGEST_VALUES = 120


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
    runs = ranges(numbers, width)
    return f"{stem}{runs}{rest}" if runs.isdigit() else f"{stem}[{runs}]{rest}"


class HostMessage(NamedTuple):
    """A message about a host, or about several as ranges, and the remedy."""

    host: str
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.host}: {self.text}; {self.remedy}" if self.remedy else f"{self.host}: {self.text}"


def fold_messages(messages: Iterable[HostMessage]) -> list[HostMessage]:
    """Equal messages as one: `node[001-998]: cannot connect to 10.0.0.[1-998]`.

    Messages are equal if they differ only in the host's own name, in addresses, ports and fingerprints of
    keys, which are shown as ranges too. The remedy is that of the first host, so that its commands can be
    copied.
    """
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], list[tuple[HostMessage, tuple[str, ...]]]] = {}
    for message in messages:
        (text, values), (remedy, _) = _apart(message.host, message.text), _apart(message.host, message.remedy)
        groups.setdefault((text, remedy), []).append((message, values))
    folded = []
    for (fixed, _), group in groups.items():
        shown = (_together(column) for column in zip(*(values for _, values in group), strict=True))
        whole = "".join(chain.from_iterable(zip_longest(fixed, shown, fillvalue="")))
        folded.append(
            HostMessage(fold_names(message.host for message, _ in group), whole, group[0][0].remedy)
        )
    return folded


def _apart(host: str, text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The parts of a text that are equal for all hosts, and the values between these parts."""
    fixed, values, end = [], [], 0
    for match in _VARIES.finditer(text):
        is_name = match[0] == host or (host and match[0].startswith(f"{host}."))
        if value := match["own"] or (host if is_name else ""):
            fixed.append(text[end : match.start()])
            values.append(value)
            end = match.start() + len(value)
    return (*fixed, text[end:]), tuple(values)


def _together(values: tuple[str, ...]) -> str:
    text, different = fold_names(values), len({*values})
    return text if len(text) <= LONGEST_VALUES else f"{values[0]} and {different - 1} more"
