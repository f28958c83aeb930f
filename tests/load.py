"""Limits of time: what each came to, how far the load stretched it, and when it is held.

`make test` must not depend on how fast or busy the machine is: there a figure is written down, no more.
`make soak`, on a quiet machine, holds every limit (SOAK=1). tests/conftest.py shows and keeps the figures.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

SOAK = os.environ.get("SOAK") == "1"
MOST = 2.0  # times a limit, however busy the machine is


@dataclass(frozen=True)
class Figure:
    """How long something took, its limit, and the limit as the load stretched it; all in seconds."""

    what: str
    seconds: float | None
    limit: float
    bound: float
    load: float


taken: list[Figure] = []
"""The figures of the test that runs; tests/conftest.py empties it after each."""


def stretched(
    limit: float, excludes: float = math.inf, *, what: str = "", seconds: float | None = None
) -> float:
    """Return the limit for this machine's load, at most twice as long.

    With more than two processes waiting for each core, nothing is in time. `excludes` is the time that a
    fallback takes which the limit rules out: a bound that reaches it would prove nothing, and fails the test.
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
    """Write down what took how long; in `make soak`, fail if that is over its limit."""
    if not SOAK:
        taken.append(Figure(what, seconds, limit, limit, os.getloadavg()[0]))
        return
    bound = stretched(limit, excludes, what=what, seconds=seconds)
    assert seconds <= bound, f"{what}: {seconds:.2f} s, and the limit is {bound:.1f} s"
