"""A monotonic clock. Muster orders failures by it; they may be milliseconds apart."""

from __future__ import annotations

import time

# This clock also runs while a machine is suspended; macOS has it under the other name.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady() -> float:
    """Seconds since this machine was started; core/agent/rank.py reads the same clock."""
    return time.clock_gettime(_CLOCK)


_EPOCH = time.time() - steady()


def now() -> float:
    """Seconds since the epoch by the steady clock, set to the time of day when this process began."""
    return _EPOCH + steady()
