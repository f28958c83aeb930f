"""The columns of a terminal, and those that a text takes on it."""

from __future__ import annotations

import os
import shutil
import unicodedata
from itertools import accumulate, takewhile
from typing import TextIO


def columns_of(stream: TextIO) -> int:
    """The columns of this terminal, which may be that of standard error; not of $COLUMNS."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # no terminal, or no file
        columns = 0
    return columns or shutil.get_terminal_size().columns


def width_of(stream: TextIO) -> int | None:
    """The columns of this stream if it is a terminal; None for a pipe or file, whose lines have any width."""
    return columns_of(stream) if stream.isatty() else None


def cells(text: str) -> int:
    """The columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) > 0 for letter in text)


def cut(text: str, columns: int) -> str:
    """The text, with an ellipsis if it is wider than so many columns."""
    if cells(text) <= columns:
        return text
    ends = accumulate(map(cells, text))
    kept = takewhile(lambda pair: pair[1] < columns, zip(text, ends, strict=True))
    return f"{''.join(letter for letter, _ in kept)}…"
