"""A clock that nobody sets: which of two failures was first may be a matter of milliseconds."""

from __future__ import annotations

import time

# It also goes on while a machine is suspended; macOS has it under the other name.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady() -> float:
    """Seconds since some moment of this machine's past; deploy/agent/job/rank.py has the same."""
    return time.clock_gettime(_CLOCK)


_EPOCH = time.time() - steady()


def now() -> float:
    """Seconds since the epoch by that clock: as the time of day was when this process began."""
    return _EPOCH + steady()
