"""Reads files that a host may have written, with a limit for the memory that they take.

A few kilobytes of gzip become megabytes, and a megabyte of JSON becomes many times its size as objects. So
the reader counts unpacked bytes while it reads, and the values of a JSON text before it makes them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..common.frames import values_in

GZIP = 31  # zlib's window bits for gzip
PIECE = 1 << 16
LONGEST_LINE = 1 << 20
MOST_RATIO = 256
"""The largest expansion of gzip: samples expand by less than a tenth of that."""
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
    with path.open("rb") as file:
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


def unzipped(file: BinaryIO) -> Iterator[bytes]:
    """The unpacked content of an open gzip file, in pieces of at most PIECE bytes.

    EOFError for a truncated file, zlib.error for a damaged one, TooLargeError for one that expands more than
    MOST_RATIO times.
    """
    unpacker, begun = zlib.decompressobj(GZIP), False
    room = LONGEST_LINE
    for piece in pieces_of(file):
        room += MOST_RATIO * len(piece)
        packed = piece if begun else piece.lstrip(b"\0")  # zeros after a member fill a block
        while packed:
            plain = unpacker.decompress(packed, PIECE)
            packed, begun = unpacker.unconsumed_tail, True
            room -= len(plain)
            if room < 0:
                raise TooLargeError(f"it grows to more than {MOST_RATIO} times its size")
            yield plain
            if unpacker.eof:  # another member may follow
                packed = unpacker.unused_data.lstrip(b"\0")
                unpacker, begun = zlib.decompressobj(GZIP), False
    if begun:
        raise EOFError("it ends in the middle")


def lines_of(pieces: Iterable[bytes], longest: int = LONGEST_LINE) -> Iterator[bytes]:
    """The lines of a file without their newlines. A line longer than `longest` becomes b""."""
    rest, is_longer = b"", False
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield b"" if is_longer or len(line) > longest else line
            is_longer = False
        if len(rest) > longest:
            rest, is_longer = b"", True
    if rest or is_longer:
        yield b"" if is_longer else rest
