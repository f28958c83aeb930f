"""Numbers, ranges, exit codes and tables as text for people."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from itertools import groupby

from .terminal import harmless


def count(number: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def clip(text: str, most: int = 80) -> str:
    """A text from outside, as short as a message can quote it."""
    return text if len(text) <= most else f"{text[:most]}..."


def describe_code(code: int) -> str:
    """`exit status 3`, or `SIGKILL (9)` for -9."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"{signal.Signals(-code).name} ({-code})"
    except ValueError:
        return f"signal {-code}"


def status_of(code: int) -> int:
    """The exit status of an exit code: 128 + n for signal n, as a shell says it; 0 for 0 alone.

    The kernel keeps the lowest eight bits of a status: a record with 256 would look like a success. What no
    process can have ended with is 1.
    """
    status = code if code >= 0 else 128 - code
    return status if status <= 255 else 1


def span(ranks: Sequence[int]) -> str:
    """`ranks 0-3,5` for 0, 1, 2, 3, 5; `rank 4`; nothing for none."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {ranges(ranks)}" if ranks else ""


def ranges(numbers: Sequence[int]) -> str:
    """`0-3,5` for 0, 1, 2, 3, 5."""
    runs = [
        [number for _, number in group]
        for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def table(rows: Iterable[Sequence[str]], *, left: int | None = None) -> list[str]:
    """A line for each row, with each column as wide as its widest cell.

    The first `left` columns, by default all, are aligned to the left; the others, with numbers, to the right.
    """
    cells = [[harmless(cell) for cell in row] for row in rows]
    columns: list[list[str]] = []
    for number, column in enumerate(zip(*cells, strict=True)):
        width = max(map(len, column))
        align = str.ljust if left is None or number < left else str.rjust
        columns.append([align(cell, width) for cell in column])
    return ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]
