"""Judges whether the agent of a host works on a request that may take hours, or only says that it is busy."""

from __future__ import annotations

import time

from ..common.frames import Frame

STUCK_SECONDS = 900.0
"""Longer than a disk needs to write what a machine's memory holds for it (fsync(2))."""


class Work:
    """The processor time of an agent's thread, as its busy reports give it; a host may lie about it."""

    def __init__(self) -> None:
        self._seen, self._at = 0.0, time.monotonic()

    def answered(self) -> None:
        """An answer has come."""
        self._at = time.monotonic()

    def hear(self, busy: Frame) -> None:
        """Take in a report that the agent is busy."""
        cpu = busy.get("cpu")
        if isinstance(cpu, int | float) and cpu > self._seen:
            self._seen, self._at = cpu, time.monotonic()

    def is_stuck(self, since: float) -> bool:
        """Whether the agent has done nothing for too long; it was asked at `since` (time.monotonic)."""
        return time.monotonic() - max(self._at, since) > STUCK_SECONDS


def explained() -> tuple[str, str]:
    """What is wrong with such a host, and what to do."""
    minutes = STUCK_SECONDS / 60
    return (
        f"its agent has been busy for {minutes:.0f} min and did nothing",
        "does a disk or network file system there not answer? df -h, dmesg; then the same command again",
    )
