"""Waits for events. The bound only catches hangs: on a slow machine no test result depends on it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 100.0  # seconds; processes that tests start in order to end them live longer


def wait_until(
    look: Callable[[], T],
    what: str | Callable[[], str],
    *,
    patience: float = PATIENCE,
    pause: float | None = None,
) -> T:
    """Call `look` until its result is true, and return the result; on time-out the failure names `what`.

    `pause`: seconds between two looks. Without it three times as long as the look took, from 0.05 to 1 s: a
    look may run programs in containers, and take the processor from what it waits for.
    """
    began = time.monotonic()
    deadline = began + patience
    while not (seen := look()):
        ended = time.monotonic()
        if ended > deadline:
            raise AssertionError(f"not within {patience:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(min(1.0, max(0.05, 3 * (ended - began))) if pause is None else pause)
        began = time.monotonic()
    return seen


def read_until(process: subprocess.Popen[str], word: str, times: int) -> list[str]:
    """Read a process's output until `times` lines contain the word; return the lines."""
    assert process.stdout is not None
    lines: list[str] = []
    while sum(word in line for line in lines) < times:
        lines.append(process.stdout.readline())
        assert lines[-1], f"it ended before {times} lines with {word!r}:\n{''.join(lines)}"
    return lines
