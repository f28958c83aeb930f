"""Measures the offset of a host's clock from this machine's."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..wire.clock import now
from .requests.hosts import Time

ROUNDS, LEAST_ROUNDS, SECONDS, PRECISION = 8, 3, 0.25, 0.001


def measure_offset(ask: Callable[[], Time], *, steady: bool) -> tuple[float, float]:
    """The offset, positive if the host's clock is fast, and its uncertainty, in seconds.

    `steady`: not the time of day, but the monotonic clocks. The error is at most half a round trip, so the
    quickest of several round trips counts.
    """
    measured: list[tuple[float, float]] = []
    began = time.monotonic()
    while len(measured) < ROUNDS:
        late = time.monotonic() - began > SECONDS and len(measured) >= LEAST_ROUNDS
        if late or (measured and min(measured)[0] < PRECISION):
            break
        sent = now() if steady else time.time()
        answer = ask()
        host_time = answer.steady if steady else answer.time
        received = now() if steady else time.time()
        measured.append(((received - sent) / 2, host_time - (sent + received) / 2))
    uncertainty, offset = min(measured)
    return offset, uncertainty
