"""Reads every byte of a data set that is in place, and compares it with the manifest."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable

from .draft import is_intact, same_link
from .manifest import CHUNK, File, encoded
from .scan import read_part
from .sets import Kept

MOST_NAMED = 20


def damage(kept: Kept, alive: Callable[[], object] = lambda: None) -> list[str]:
    """The damage of each file, at most MOST_NAMED lines. Marks the files: a push repairs them.

    `alive`: called for each file; may raise to end the work.
    """
    lines: list[str] = []
    top = os.fsencode(kept.folder)
    expected = set()
    for file in (kept.manifest.files[index] for index in kept.wanted):
        alive()
        expected.add(path := os.path.join(top, encoded(file.path)))
        if wrong := _wrong(path, file):
            _mark(path)
            lines.append(f"{file.path!r}: {wrong}")
    for link in kept.manifest.links:
        expected.add(path := os.path.join(top, encoded(link.path)))
        if not same_link(path, link):
            lines.append(f"{link.path!r}: the link is gone, or another")
    for folder, _, names in os.walk(top):
        extra = (os.path.join(folder, name) for name in names)
        lines += [
            f"{os.fsdecode(os.path.relpath(path, top))!r}: is not of the set"
            for path in extra
            if path not in expected
        ]
    return lines if len(lines) <= MOST_NAMED else [*lines[:MOST_NAMED], f"and {len(lines) - MOST_NAMED} more"]


def _wrong(path: bytes, file: File) -> str:
    """The damage of a file; empty if it is right."""
    if not os.path.lexists(path):
        return "it is gone"
    try:
        for number, digest in enumerate(file.chunks):
            length = min(CHUNK, file.size - number * CHUNK)
            if hashlib.sha256(read_part(path, number * CHUNK, length)).hexdigest() != digest:
                return f"other bytes than were sent, from {number * CHUNK} on"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "" if is_intact(path, file) else "its bytes are right, but not its size, mode or time"


def _mark(path: bytes) -> None:
    """Give a damaged file another time, so that a push does not take it as unchanged."""
    with contextlib.suppress(OSError):
        os.utime(path)
