"""How long things may take on a machine that has other things to do."""

from __future__ import annotations

import os


def stretched(limit: float) -> float:
    """The limit on this machine: with more than two processes waiting for each core, nothing is in time."""
    return limit * max(1.0, os.getloadavg()[0] / (2 * (os.cpu_count() or 1)))
