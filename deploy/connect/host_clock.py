"""Measures how far the clock of a host is ahead of this machine's."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..common.clock import now
from .requests.hosts import Time

ROUNDS, LEAST_ROUNDS, SECONDS, PRECISION = 8, 3, 0.25, 0.001


def clock_ahead(ask: Callable[[], Time], *, steady: bool) -> tuple[float, float]:
    """How far the host's clock is ahead of this one, and how wrong that may be, in seconds.

    `steady`: not the time of day, but the monotonic clocks. The error is at most half a round trip, so the
    quickest of several round trips counts.
    """
    measured: list[tuple[float, float]] = []
    began = time.monotonic()
    while len(measured) < ROUNDS:
        late = time.monotonic() - began > SECONDS and len(measured) >= LEAST_ROUNDS
        if late or (measured and min(measured)[0] < PRECISION):
            break
        asked = now() if steady else time.time()
        answer = ask()
        host_time = answer.steady if steady else answer.time
        answered = now() if steady else time.time()
        measured.append(((answered - asked) / 2, host_time - (asked + answered) / 2))
    uncertainty, ahead = min(measured)
    return ahead, uncertainty
