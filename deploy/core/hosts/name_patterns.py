"""Ranges of host names: `node[01-16,20]` is node01 to node16 and node20. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from ..text.text import clip

MAX_HOSTS = 4096
MOST_NAMES = 4 * MAX_HOSTS  # of an option, where a host may be named twice
LONGEST_NAME = 253  # of the Domain Name System
_RANGE = re.compile(r"\[([^\[\]]*)\]")


class InvalidValue(ValueError):
    """An invalid value. The text names the expected one."""


def all_names(text: str) -> set[str]:
    """The names of `node[1-3],gpu-a`, MOST_NAMES at most."""
    names: set[str] = set()
    made = 0
    for pattern in _patterns(text):
        more = expand(pattern)
        names |= {*more}
        made += len(more)
        if made > MOST_NAMES:
            raise InvalidValue(f"more than {MOST_NAMES} names")
    return names


def _patterns(text: str) -> list[str]:
    """`node[1,3],gpu-a` -> node[1,3], gpu-a: split at the commas outside of brackets."""
    parts = [""]
    for piece in re.split(r"(\[[^\[\]]*\])", text):
        first, *more = piece.split(",") if not piece.startswith("[") else (piece,)
        parts[-1] += first
        parts += more
    return [part.strip() for part in parts]


def expand(pattern: str) -> list[str]:
    """`node[01-03,7]` -> node01, node02, node03, node7; several brackets multiply."""
    pieces = _RANGE.split(pattern)
    if any("[" in text or "]" in text for text in pieces[::2]):
        raise InvalidValue(f"a range is written node[01-16], got {clip(pattern)!r}")
    if sum(map(len, pieces[::2])) + len(pieces) // 2 > LONGEST_NAME:
        raise InvalidValue(f"a name has at most {LONGEST_NAME} characters, got {clip(pattern)!r}")
    choices = [_ranges(piece) if index % 2 else piece for index, piece in enumerate(pieces)]
    size = 1  # known before a single name is made
    for choice in choices:
        if not isinstance(choice, str):
            size *= sum(last - first + 1 for first, last, _ in choice)
        if size > MAX_HOSTS:
            raise InvalidValue(f"{clip(pattern)} is more than {MAX_HOSTS} hosts")
    texts = ([choice] if isinstance(choice, str) else [*_numbers(choice)] for choice in choices)
    return ["".join(parts) for parts in itertools.product(*texts)]


def _ranges(text: str) -> list[tuple[int, int, int]]:
    """`01-03,7` -> (1, 3, 2), (7, 7, 1): first, last, and the width, which is that of the first number."""
    ranges: list[tuple[int, int, int]] = []
    size = 0
    for part in text.split(","):
        if size > MAX_HOSTS:
            break  # the caller refuses it
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip())
        if not match:
            raise InvalidValue(f"a range is written [01-16] or [1,3,5-7], got [{clip(part)}]")
        first, last = match.group(1), match.group(2) or match.group(1)
        if int(last) < int(first):
            raise InvalidValue(f"a range goes upwards, got [{part}]")
        if int(last) - int(first) >= MAX_HOSTS:
            raise InvalidValue(f"[{part}] is more than {MAX_HOSTS} hosts")
        ranges.append((int(first), int(last), len(first)))
        size += int(last) - int(first) + 1
    return ranges


def _numbers(ranges: Sequence[tuple[int, int, int]]) -> Iterator[str]:
    for first, last, width in ranges:
        yield from (str(number).zfill(width) for number in range(first, last + 1))
