"""The newest figures of a training on this host: the last line of `steps.jsonl` in the output folder."""

from __future__ import annotations

import contextlib
import json
import math
import os
from typing import Any

from ...common.frames import Frame

NAME = "steps.jsonl"
FIGURES = ("loss", "step_seconds", "samples_per_second", "time")
MOST_TAIL = 1 << 13


class Training:
    """Reads the file again when it has grown. A program writes it: it may hold anything."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, NAME)
        self._size = -1
        self._newest: Frame | None = None

    def read(self) -> Frame | None:
        """The step, and what is known of it; None as long as there is none."""
        try:
            size = os.stat(self._path).st_size
        except OSError:
            return None
        if size != self._size:
            with contextlib.suppress(OSError):
                self._newest = last_step(_tail(self._path, size)) or self._newest
                self._size = size
        return self._newest


def last_step(tail: bytes) -> Frame | None:
    """The figures of the last whole line that has a step; numbers that JSON does not have are left out."""
    for line in reversed(tail.split(b"\n")[:-1]):
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict) and type(step := record.get("step")) is int and step >= 0:
                known = {name: record[name] for name in FIGURES if _is_number(record.get(name))}
                return {"step": step, **known}
    return None


def _is_number(value: Any) -> bool:
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return known and math.isfinite(value) and abs(value) < 1e300


def _tail(path: str, size: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(max(0, size - MOST_TAIL))
        return file.read(MOST_TAIL)
