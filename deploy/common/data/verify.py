"""Reads every byte of a data set that is in place, and says what is not as its manifest says."""

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
    """What is wrong with each damaged file, at most MOST_NAMED lines. Marks the files: a push repairs them.

    `alive`: called for each file; may raise to end the work.
    """
    found: list[str] = []
    top = os.fsencode(kept.folder)
    expected = set()
    for file in (kept.manifest.files[index] for index in kept.wanted):
        alive()
        expected.add(path := os.path.join(top, encoded(file.path)))
        if wrong := _wrong(path, file):
            _mark(path)
            found.append(f"{file.path!r}: {wrong}")
    for link in kept.manifest.links:
        expected.add(path := os.path.join(top, encoded(link.path)))
        if not same_link(path, link):
            found.append(f"{link.path!r}: the link is gone, or another")
    for place, _, names in os.walk(top):
        extra = (os.path.join(place, name) for name in names)
        found += [
            f"{os.fsdecode(os.path.relpath(path, top))!r}: is not of the set"
            for path in extra
            if path not in expected
        ]
    return found if len(found) <= MOST_NAMED else [*found[:MOST_NAMED], f"and {len(found) - MOST_NAMED} more"]


def _wrong(path: bytes, file: File) -> str:
    """What is wrong with a file; empty if nothing is."""
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
    """Give a damaged file another time: no push takes it as unchanged then."""
    with contextlib.suppress(OSError):
        os.utime(path)
