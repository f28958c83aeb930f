"""Which thread has the lock for which the main thread of a rank waits, where the interpreter shows it.

muster_console.py loads this for a question of the agent. Only an RLock shows its owner, in its text; the
locks of `logging` and of a Condition are such locks. Standard library only, Python 3.9.
"""

from __future__ import annotations

import linecache
import re
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

_KINDS = (type(threading.RLock()), threading._PyRLock)  # type: ignore[attr-defined]
_OWNER = re.compile(r"owner=(\d+)")
MOST_FRAMES = 3
"""The innermost frames may be of `threading` itself."""


def holder() -> str:
    """`thread 'writer' in save (a.py:3)`; empty if the main thread waits for no such lock."""
    main = threading.main_thread().ident
    frames = sys._current_frames()
    frame = frames.get(main or 0)
    for _ in range(MOST_FRAMES):
        if frame is None:
            break
        for lock in _locks(frame):
            owner = int(found[1]) if (found := _OWNER.search(repr(lock))) else 0
            if owner and owner != main:
                return _described(owner, frames.get(owner))
        frame = frame.f_back
    return ""


def _locks(frame: FrameType) -> Iterator[Any]:
    """The RLocks that the line of a frame names, as variables or as attributes."""
    words = set(re.findall(r"\w+", linecache.getline(frame.f_code.co_filename, frame.f_lineno)))
    names = {**frame.f_globals, **frame.f_locals}
    values = [names[word] for word in words if word in names]
    for value in values:
        attributes = getattr(value, "__dict__", {})
        inside = [attributes[word] for word in words if word in attributes]
        for each in (value, *inside):
            lock = getattr(each, "_lock", each) if isinstance(each, threading.Condition) else each
            if isinstance(lock, _KINDS):
                yield lock


def _described(owner: int, frame: FrameType | None) -> str:
    name = next((thread.name for thread in threading.enumerate() if thread.ident == owner), "")
    if frame is None:
        return "a thread that has ended"
    while frame.f_back and frame.f_code.co_filename.startswith((sys.prefix, "<")):
        frame = frame.f_back
    path = frame.f_code.co_filename.rpartition("/")[2]
    return f"thread {name!r} in {frame.f_code.co_name} ({path}:{frame.f_lineno})"
