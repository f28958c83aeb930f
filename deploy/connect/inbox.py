"""What hosts have reported and nobody has looked at yet: one queue for all hosts, bounded in bytes."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from queue import Empty

from .reports import Event

MOST_BYTES = 1 << 24
LEAST_SHARE = 1 << 18
OVERHEAD = 512  # of a small report, beside the bytes that it came in


class Inbox:
    """Events in the order in which they came. A host whose share is full waits; the others do not.

    So ranks that print faster than the driver writes are slowed down, and a host that floods slows itself.
    """

    def __init__(self, hosts: int = 1) -> None:
        self._share = max(LEAST_SHARE, MOST_BYTES // max(1, hosts))
        self._events: deque[Event] = deque()
        self._held: Counter[str] = Counter()
        self._changed = threading.Condition()

    def put(self, event: Event, *, wait: bool = True) -> None:
        """Add an event, as soon as its host has room; at once if it must not wait."""
        with self._changed:
            while wait and self._held[event.host] >= self._share:
                self._changed.wait()
            self._held[event.host] += event.size + OVERHEAD
            self._events.append(event)
            self._changed.notify_all()

    def get(self, timeout: float | None = None) -> Event:
        """The oldest event; `queue.Empty` if none comes within so many seconds, None for any time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._events:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise Empty
                self._changed.wait(left)
            event = self._events.popleft()
            self._held[event.host] -= event.size + OVERHEAD
            self._changed.notify_all()
            return event

    def __len__(self) -> int:
        return len(self._events)
