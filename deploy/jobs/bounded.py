"""Reads files that a host may have written, and holds no more of them in memory than a bound.

A few kilobytes of gzip become megabytes, and a megabyte of JSON becomes many times its size as objects. So
what a file grows to is counted while it is read, and the values of a JSON text before they are made.
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
"""The most that bytes of gzip may grow by: samples grow by less than a tenth of that."""
MOST_TEXT = 1 << 24
"""Bytes of a text or JSON file that is read as a whole: launch.json of 100 000 source files is smaller."""
MOST_VALUES = 1 << 20
"""Values of such a JSON file."""
VALUE = 64
"""About how many bytes of memory a value of JSON takes beside its text."""


class TooLargeError(ValueError):
    """A file has more than is read of it."""


class Room:
    """The memory that the values of some JSON texts may still take, in bytes."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, size: int) -> bool:
        """Take so many bytes; False if there are not so many left, and then none are taken."""
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


def unzipped_content_of(path: Path, most: int = MOST_TEXT) -> bytes:
    """The content of a gzip file. TooLargeError if there are more bytes than `most`; else as `unzipped`."""
    content = bytearray()
    with path.open("rb") as file:
        for piece in unzipped(file):
            if len(content) + len(piece) > most:
                raise TooLargeError(f"it has more than {most >> 20} MiB")
            content += piece
    return bytes(content)


def value_of(content: bytes) -> Any:
    """The value of a JSON text. ValueError for what is none, TooLargeError for one of too many values."""
    if values_in(content) > MOST_VALUES:
        raise TooLargeError(f"it has more than {MOST_VALUES} values")
    return json.loads(content.decode(errors="replace"))


def pieces_of(file: BinaryIO) -> Iterator[bytes]:
    """The content of an open file, in pieces."""
    while piece := file.read(PIECE):
        yield piece


def unzipped(file: BinaryIO) -> Iterator[bytes]:
    """What is in an open gzip file, in pieces of at most PIECE bytes.

    EOFError for a file that is cut, zlib.error for one that is damaged, TooLargeError for one that grows
    more than MOST_RATIO times.
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
    """The lines of a file without their newlines. In place of a line longer than `longest` there is b""."""
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
