"""Numbers with units, ranges, exit codes and tables as text for people."""

from __future__ import annotations

import difflib
import math
import re
import signal
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TextIO

from .columns import cells, width_of
from .terminal import harmless

QUOTE = "        | "
"""The beginning of a quoted line in a verdict."""
_SIZES = (("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_DURATIONS = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def number(value: float, digits: int = 4) -> str:
    """A number with so many digits: 1,234, 0.0123, 1.2e-05, 12.3M."""
    if not math.isfinite(value):
        return str(value)
    absolute = abs(value)
    for unit, bound in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if absolute >= bound:
            return f"{value / bound:.{digits}g}{unit}"
    if absolute >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2e}" if absolute and absolute < 1e-3 else f"{value:.{digits}g}"


def size(number_of_bytes: float) -> str:
    """`1.5 GiB`, `64 MiB`, `512 B`."""
    for unit, bound in _SIZES:
        if number_of_bytes >= bound:
            return f"{number_of_bytes / bound:.1f}".removesuffix(".0") + f" {unit}"
    return f"{number_of_bytes:.0f} B"


def percent(share: float) -> str:
    """`83 %` for 0.83."""
    return f"{share * 100:.0f} %"


def duration(seconds: float) -> str:
    """`12.5 ms`, `1.4 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if 0 < seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 59.95:
        return f"{max(0.0, seconds):.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    for long, unit, below, small in _DURATIONS:
        if whole >= long:
            return f"{whole // long} {unit} {whole % long // below} {small}"
    return f"{whole} s"


def count(number: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def clip(text: str, most: int = 80) -> str:
    """A text from outside, short enough to quote in a message."""
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
    """The exit status of an exit code: 128 + n for signal n, as in a shell; 0 only for 0.

    The kernel keeps the lowest eight bits of a status: a record with 256 would look like a success. A status
    that no process can have becomes 1.
    """
    status = code if code >= 0 else 128 - code
    return status if status <= 255 else 1


def span(ranks: Sequence[int]) -> str:
    """`ranks 0-3,5` for 0, 1, 2, 3, 5; `rank 4`; nothing for none."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {ranges(ranks)}" if ranks else ""


def still_saving(ranks: Sequence[int]) -> str:
    """`ranks 0-1 still handle SIGTERM`; nothing for none."""
    return f"{span(ranks)} still handle{'s' * (len(ranks) == 1)} SIGTERM" if ranks else ""


def ranges(numbers: Iterable[int], width: int = 0) -> str:
    """`0-3,5` for 0, 1, 2, 3, 5; with leading zeros up to `width`."""
    runs = [
        [f"{number:0{width}d}" for _, number in group]
        for _, group in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])
    ]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else run[0] for run in runs)


def table(rows: Iterable[Sequence[str]], *, left: int | None = None) -> list[str]:
    """A line for each row, with each column as wide as its widest cell.

    The first `left` columns, by default all, are aligned to the left; the others, with numbers, to the right.
    """
    safe = [[harmless(cell) for cell in row] for row in rows]
    columns: list[list[str]] = []
    for index, column in enumerate(zip(*safe, strict=True)):
        width = max(map(len, column))
        align = str.ljust if left is None or index < left else str.rjust
        columns.append([align(cell, width) for cell in column])
    return ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]


_BREAK = re.compile(r"(?<!\d) | (?!(?:m?s|min|h|d|%|[KMGTP]?i?B)\b)")


def wrapped(line: str, columns: int) -> list[str]:
    """The line in parts that are no wider than so many columns, divided between its words.

    A longer word is not divided, so that paths can be copied. A number stays with its unit. Parts after the
    first are indented; those of the quoted lines of a verdict continue the quote.
    """
    quoted = line.startswith(QUOTE)
    start = len(QUOTE) if quoted else len(line) - len(line.lstrip())
    indent = QUOTE if quoted else " " * (start + 2 if start else 8)
    parts: list[list[str]] = [[]]
    width, has_words = start, False
    for word in _BREAK.split(line[start:]):
        takes = cells(word)
        if has_words and width + 1 + takes > columns and len(indent) + takes <= columns:
            parts.append([])
            width, has_words = len(indent), False
        width += takes + bool(parts[-1])
        parts[-1].append(word)
        has_words = has_words or bool(word)
    *broken, last = map(" ".join, parts)
    first, *more = (*(part.rstrip() for part in broken), last)
    return [line[:start] + first, *(indent + part for part in more)]


def fitted(text: str, stream: TextIO) -> str:
    """The text made harmless; for a terminal its lines are divided between words, no wider than it."""
    lines: Iterable[str] = map(harmless, text.split("\n"))
    if columns := width_of(stream):
        lines = (part for line in lines for part in wrapped(line, columns))
    return "\n".join(lines)


def nearest(text: str, candidates: Iterable[str]) -> str:
    """`; did you mean ...?` with the most similar candidate; empty if none is similar."""
    matches = difflib.get_close_matches(text, candidates, n=1, cutoff=0.7)
    return f"; did you mean {matches[0]}?" if matches else ""
