"""Passes the driver's standard input to rank 0, like mpirun: part by part, each when the last was read.

So input that rank 0 does not read stays in its source, and neither this machine nor the host has to hold it.
"""

from __future__ import annotations

import os
import threading

from ..connect.channel import Channel
from ..connect.requests.launch import STDIN

PART = 1 << 16  # bytes; small enough to be written to a host that reads nothing any more


class Input:
    """Reads a file descriptor from the start of rank 0 on and sends it, in the end an empty part."""

    def __init__(self, source: int) -> None:
        self._source = source
        self._sent = self._over = False
        self._taken = threading.Event()

    def begin(self, rank: int, channel: Channel) -> None:
        """Begin to send: the rank has started on the host of this channel."""
        threading.Thread(target=self._pass_on, args=(rank, channel), name="stdin", daemon=True).start()

    def taken(self, *, still_read: bool) -> bool:
        """Note that the rank has read the last part, and may read more. False if nothing was sent."""
        if not self._sent or self._over:
            return False
        self._sent, self._over = False, not still_read
        self._taken.set()
        return True

    def _pass_on(self, rank: int, channel: Channel) -> None:
        while not self._over:
            try:
                part = os.read(self._source, PART)
            except OSError:  # it was closed
                part = b""
            self._sent = True
            self._taken.clear()
            channel.post(STDIN, part, rank=rank)
            if not part:
                return
            self._taken.wait()
