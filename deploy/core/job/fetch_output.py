"""Fetches a file that the program has written into $MUSTER_OUT, from a host of a job that has just ended."""

from __future__ import annotations

import time

from ..connect.channel import Channel
from ..connect.requests.attempt import FETCH, FETCHED, PING
from ..errors import MusterError

METRICS = ("metrics.jsonl", "steps.jsonl")
"""The files that the folder of a run gets when the job has ended."""
MOST_BYTES = 1 << 26  # of a file
# Time limits for one part, and for all parts together. The head's agent ends itself after 12 s without a ping
# (core/agent/supervisor.py), and the driver sends none while it waits for a part.
PART_SECONDS, ALL_SECONDS = 10.0, 300.0
# A slow link delivers a small part in time; large parts need fewer round trips.
LEAST_PART, QUICK_SECONDS = 1 << 16, 2.0


def fetched(head: Channel, name: str, seconds: float, largest: int = MOST_BYTES) -> bytes:
    """A file in $MUSTER_OUT of a host, within these seconds; of a larger one only its begin."""
    content, most = bytearray(), LEAST_PART
    deadline = time.monotonic() + seconds
    while len(content) < largest:
        head.post(PING)
        began = time.monotonic()
        left = min(PART_SECONDS, deadline - began)
        if left <= 0:
            raise MusterError(f"{name} took more than {seconds:.0f} s", host=head.host)
        start = len(content)
        part = head.ask(FETCH, path=f"out/{name}", start=start, most=most, seconds=left).payload
        content += part
        if len(part) < most:
            break
        quick = time.monotonic() - began < QUICK_SECONDS
        most = min(2 * most, FETCHED) if quick else max(most // 2, LEAST_PART)
    return bytes(content)
