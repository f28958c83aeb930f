"""Reads files that a host may have written, with a limit for the memory that they take.

A megabyte of JSON becomes many times its size as objects, so the reader counts the values of a JSON text
before it makes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..wire.files import open_regular
from ..wire.frames import values_in

PIECE = 1 << 16
LONGEST_LINE = 1 << 20
MOST_TEXT = 1 << 24
"""Bytes of a text or JSON file that is read as a whole. launch.json of 100 000 source files is smaller."""
MOST_VALUES = 1 << 20
"""Values of such a JSON file."""
VALUE = 64
"""About how many bytes of memory a value of JSON takes beside its text."""


class TooLargeError(ValueError):
    """A file exceeds a limit of its reader."""


class Room:
    """The bytes of memory that the values of JSON texts may still take."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, size: int) -> bool:
        """Take so many bytes, and return True; False, and nothing taken, if fewer are left."""
        fits = size <= self.left
        self.left -= size if fits else 0
        return fits


def memory_of(text: bytes) -> int:
    """About how many bytes of memory the values of a JSON text take; counted without making them."""
    return len(text) + VALUE * values_in(text)


def content_of(path: Path, most: int = MOST_TEXT) -> bytes:
    """The content of a file. TooLargeError if it has more bytes than `most`."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise TooLargeError(f"it has more than {most >> 20} MiB")
    return content


def value_of(content: bytes) -> Any:
    """The value of a JSON text. ValueError for invalid JSON, TooLargeError for too many values."""
    if values_in(content) > MOST_VALUES:
        raise TooLargeError(f"it has more than {MOST_VALUES} values")
    return json.loads(content.decode(errors="replace"))


def pieces_of(file: BinaryIO) -> Iterator[bytes]:
    """The content of an open file, in pieces."""
    while piece := file.read(PIECE):
        yield piece


def lines_of(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a file without their newlines. A line longer than LONGEST_LINE becomes b""."""
    rest, is_longer = b"", False
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield b"" if is_longer or len(line) > LONGEST_LINE else line
            is_longer = False
        if len(rest) > LONGEST_LINE:
            rest, is_longer = b"", True
    if rest or is_longer:
        yield b"" if is_longer else rest
