"""Waiting for an event. The bound is for hangs alone: no test passes or fails by it on a slow machine."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 100.0  # seconds; what a test starts to be ended would live longer than that


def wait_until(
    look: Callable[[], T],
    what: str | Callable[[], str],
    *,
    patience: float = PATIENCE,
    pause: float = 0.05,
) -> T:
    """Look again and again until what is seen is true, and return it; fail with `what` did not come."""
    deadline = time.monotonic() + patience
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {patience:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(pause)
    return seen


def read_until(process: subprocess.Popen[str], word: str, times: int) -> list[str]:
    """Read what a process prints until so many lines have the word in them; returns the lines."""
    assert process.stdout is not None
    lines: list[str] = []
    while sum(word in line for line in lines) < times:
        lines.append(process.stdout.readline())
        assert lines[-1], f"it ended before {times} lines with {word!r}:\n{''.join(lines)}"
    return lines
