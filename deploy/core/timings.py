"""Measures a start: the begin and end of each of its parts. A restart begins with the failure before it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .wire import clock

NOTICE, OLD_RANKS, PAUSE = "notice of the failure", "end of the old ranks", "records, and pause"
INNER = frozenset(
    {
        "Python and the command line",
        "tree",
        "imports meanwhile",
        "connection",
        "agent",
        "clocks",
        "addresses",
        "plan",
    }
)
"""The parts of a start that are short, or within another one: no verdict names them."""
OF_THE_END = frozenset({NOTICE, OLD_RANKS, PAUSE})
"""The parts of a restart that are before its start."""


@dataclass(frozen=True)
class TimedPart:
    """A part of a start. Times are seconds from the start of this process, or from the failure before.

    Work on all hosts lasts from the first begin to the last end; `slowest`: the host that ended last.
    """

    name: str
    began: float
    ended: float
    slowest: str = ""


class Timings:
    """Notes when each part of a start began and ended; parts may overlap, and threads may note them."""

    def __init__(self, since: float | None = None) -> None:
        """`since`: the time of the failure before a restart, in seconds since the epoch."""
        age = _age_of_process() if since is None else clock.now() - since
        self._zero = time.monotonic() - age
        self._noted: list[TimedPart] = []

    def now(self) -> float:
        """Seconds from the start of this process, or from the failure."""
        return time.monotonic() - self._zero

    @contextlib.contextmanager
    def part(self, name: str, host: str = "") -> Iterator[None]:
        """Note the time that this context takes, for this host if it is for one."""
        began = self.now()
        try:
            yield
        finally:
            self.note(name, began, host)

    def note(self, name: str, began: float, host: str = "") -> None:
        """A part that began then has ended now."""
        self._noted.append(TimedPart(name, began, self.now(), host))

    def note_at(self, name: str, began: float, ended: float) -> None:
        """A part lasted between these times, in seconds since the epoch."""
        zero = clock.now() - self.now()
        self._noted.append(TimedPart(name, began - zero, max(began, ended) - zero))

    def parts(self) -> tuple[TimedPart, ...]:
        """Each part once, by when it ended."""
        merged = []
        for name in dict.fromkeys(part.name for part in self._noted):
            same = [part for part in self._noted if part.name == name]
            last = max(same, key=lambda part: part.ended)
            slowest = last.slowest if len(same) > 1 else ""
            merged.append(TimedPart(name, min(part.began for part in same), last.ended, slowest))
        return tuple(sorted(merged, key=lambda part: part.ended))


def _age_of_process() -> float:
    """Seconds since this process was started (proc_pid_stat(5), starttime); 0 if unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
        started = int(text.rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
    return 0.0
