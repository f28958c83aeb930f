"""Limits of time: the measured seconds, how far the load stretches a limit, and when a limit is enforced.

`make test` must not depend on how fast or busy the machine is, so it only records figures. `make soak`, on a
quiet machine, enforces every limit (SOAK=1). tests/conftest.py shows and keeps the figures.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

SOAK = os.environ.get("SOAK") == "1"
MOST = 2.0  # largest factor by which load stretches a limit


@dataclass(frozen=True)
class Figure:
    """The seconds that something took, its limit, and the limit stretched by the load."""

    what: str
    seconds: float | None
    limit: float
    bound: float
    load: float


taken: list[Figure] = []
"""The figures of the running test; tests/conftest.py empties the list after each test."""


def stretched(
    limit: float, excludes: float = math.inf, *, what: str = "", seconds: float | None = None
) -> float:
    """Return the limit for this machine's load, at most twice as long.

    With more than two processes waiting for each core, no limit can be met. `excludes` is the time that the
    fallback takes which the limit must rule out: a stretched limit that reaches it proves nothing, and fails
    the test.
    """
    load = os.getloadavg()[0]
    bound = limit * min(MOST, max(1.0, load / (2 * (os.cpu_count() or 1))))
    taken.append(Figure(what, seconds, limit, bound, load))
    assert bound < excludes, (
        f"at a load of {load:.1f} the limit of {limit:g} s is {bound:.1f} s, and the fallback that it "
        f"excludes takes {excludes:g} s: run this test on a quieter machine"
    )
    return bound


def hold(what: str, seconds: float, limit: float, *, excludes: float = math.inf) -> None:
    """Record how long `what` took; in `make soak`, fail if that is over the limit."""
    if not SOAK:
        taken.append(Figure(what, seconds, limit, limit, os.getloadavg()[0]))
        return
    bound = stretched(limit, excludes, what=what, seconds=seconds)
    assert seconds <= bound, f"{what}: {seconds:.2f} s, and the limit is {bound:.1f} s"
