"""Fetches a file of a host, such as one that the program of a job has written into $MUSTER_OUT."""

from __future__ import annotations

import time

from ..connect.channel import Channel
from ..connect.requests import FILE_PART, MOST_PART, PING
from ..errors import MusterError

MOST_BYTES = 1 << 26  # of a file
# Time limits for one part, and for all parts together. The head's agent ends itself after 12 s without a ping
# (core/agent/supervisor.py), and the driver sends none while it waits for a part.
PART_SECONDS, ALL_SECONDS = 10.0, 300.0
# A slow link delivers a small part in time; large parts need fewer round trips.
LEAST_PART, QUICK_SECONDS = 1 << 16, 2.0


def fetched(head: Channel, path: str, seconds: float, largest: int = MOST_BYTES) -> bytes:
    """A file of a host, within these seconds; of a larger one, more than `largest` bytes. b"" for none."""
    content, most = bytearray(), LEAST_PART
    deadline = time.monotonic() + seconds
    while len(content) <= largest:
        head.post(PING)
        began = time.monotonic()
        left = min(PART_SECONDS, deadline - began)
        if left <= 0:
            raise MusterError(f"{path} took more than {seconds:.0f} s", host=head.host)
        part = head.ask(FILE_PART, path=path, start=len(content), most=most, seconds=left).payload
        content += part
        if len(part) < most:
            break
        quick = time.monotonic() - began < QUICK_SECONDS
        most = min(2 * most, MOST_PART) if quick else max(most // 2, LEAST_PART)
    return bytes(content)
