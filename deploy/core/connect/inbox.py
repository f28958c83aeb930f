"""The queue of hosts' reports that are not read yet, bounded in bytes for all hosts together."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from queue import Empty

from .reports import Event, RankOutput, Report

MOST_BYTES = 1 << 24
LEAST_SHARE = 1 << 18
OVERHEAD = 512  # bytes in memory of a small report, beside the bytes that it came in
MOST_OVERTAKING = 64  # a host that lies may send other reports forever; then lines have their turn too


class Inbox:
    """Events in the order in which they came, except that the output of ranks waits for all other events.

    So output does not delay the report of a rank's end. A host whose share is full waits; the others do not:
    ranks that print faster than the driver writes are slowed down.
    """

    def __init__(self, hosts: int = 1) -> None:
        self._share = max(LEAST_SHARE, MOST_BYTES // max(1, hosts))
        self._events: deque[Event] = deque()
        self._lines: deque[Event] = deque()
        self._overtaken = 0
        """The number of events in a row that were taken while lines waited."""
        self._closed = False
        self._held: Counter[str] = Counter()
        self._changed = threading.Condition()

    def put(self, event: Event, *, wait: bool = True) -> None:
        """Add an event, as soon as its host has room; at once if `wait` is false."""
        with self._changed:
            while wait and not self._closed and self._held[event.host] >= self._share:
                self._changed.wait()
            if self._closed:
                return
            self._held[event.host] += event.size + OVERHEAD
            (self._lines if isinstance(event.report, RankOutput) else self._events).append(event)
            self._changed.notify_all()

    def get(self, timeout: float | None = None) -> Event:
        """The next event; `queue.Empty` if none comes within so many seconds, None for any time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not len(self):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise Empty
                self._changed.wait(left)
            event = self._next()
            self._held[event.host] -= event.size + OVERHEAD
            self._changed.notify_all()
            return event

    def forget(self, but: tuple[type[Report], ...]) -> None:
        """Drop all events except reports of these kinds."""
        with self._changed:
            self._events = deque(event for event in self._events if isinstance(event.report, but))
            self._lines.clear()
            self._held = Counter()
            for event in self._events:
                self._held[event.host] += event.size + OVERHEAD
            self._changed.notify_all()

    def close(self) -> list[Event]:
        """Accept no more events, and let no host wait; returns the unread ones."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            return [*self._events, *self._lines]

    def _next(self) -> Event:
        turn = not self._events or (self._lines and self._overtaken >= MOST_OVERTAKING)
        self._overtaken = 0 if turn or not self._lines else self._overtaken + 1
        return (self._lines if turn else self._events).popleft()

    def __len__(self) -> int:
        return len(self._events) + len(self._lines)
