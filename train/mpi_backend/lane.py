"""The collectives of one group, one after the other: run by a caller that waits, else by the lane's thread.

A caller that waits would only sleep while a thread does the work and wakes it, which costs more than a small
collective. So whoever waits runs what stands first in the queue, unless the thread has begun it already. Each
group has a lane of its own: two groups may be used in opposite orders on two ranks.

A callback of a collective's future may use collectives of its own (powerSGD's do). They come at once, before
what is queued: otherwise the order would depend on how far each rank had come, and the ranks would disagree.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from train.mpi_backend.errors import MpiBackendError, TimedOutError
from train.mpi_backend.work import CollectiveWork


class Lane:
    """A queue of collectives, in the order that all ranks agree on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.broken: BaseException | None = None
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._queue: deque[CollectiveWork] = deque()
        self._holder: int | None = None  # the thread that runs a collective, or the callbacks of one
        self._running: CollectiveWork | None = None
        self._since = 0.0  # when it began, on time.monotonic's clock
        self._number = 0  # how many have begun; the same on every rank in the same collective
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, work: CollectiveWork, *, waits: bool) -> None:
        """Queue `work`; `waits` says that the caller has nothing to do meanwhile: then it is done on return.

        Raises what went wrong then, or MpiBackendError if nothing goes any more in this group.
        """
        with self._lock:
            if self.broken is not None:
                raise MpiBackendError(f"{work.name}: this group cannot go on after: {self.broken}")
            if self._closed:
                raise MpiBackendError(f"{work.name}: this process group has been destroyed")
            in_callback = self._holder == threading.get_ident()
            if not in_callback:
                self._queue.append(work)
                if not waits:
                    self._wake()
            head = self._take() if waits and not in_callback else None
        if in_callback:
            self._perform(work)
        elif head is not None:
            self._run(head)
        if waits:
            work.wait()

    def finish(self, work: CollectiveWork, seconds: float = 0.0) -> None:
        """Return when `work` is done, after running what is in front of it; raises TimedOutError.

        Who gives a time-out only looks on, as a collective that has begun cannot be left.
        """
        deadline = time.monotonic() + seconds if seconds else None
        while not work.done:
            with self._lock:
                if work.done:
                    return
                in_callback = self._holder == threading.get_ident()
                head = None if deadline else self._take()
                if head is None:
                    self._look_on(work, deadline)
            if head is not None:
                (self._perform if in_callback else self._run)(head)

    def look(self) -> tuple[CollectiveWork | None, int, float]:
        """Return what runs, its number, and for how many seconds."""
        with self._lock:
            return self._running, self._number, time.monotonic() - self._since

    def _look_on(self, work: CollectiveWork, deadline: float | None) -> None:
        if self._queue:
            self._wake()
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimedOutError(f"{work.name}: has Timed out , but is still under way")
        self._changed.wait(left)

    def _take(self) -> CollectiveWork | None:
        """Take the first of the queue, unless another thread is at it."""
        me = threading.get_ident()
        if self._holder not in {None, me} or not self._queue:
            return None
        self._holder = me
        return self._queue.popleft()

    def _run(self, work: CollectiveWork) -> None:
        """Run what was taken, then let the next one go."""
        try:
            self._perform(work)
        finally:
            with self._lock:
                self._holder = None
                self._changed.notify_all()

    def _perform(self, work: CollectiveWork) -> None:
        with self._lock:
            self._running, self._since = work, time.monotonic()
            self._number += 1
        try:
            work.run()
        finally:
            with self._lock:
                self._running, work.done = None, True
                if work.breaks_group():
                    self.broken = work.exception()
                    self._drop()
                self._changed.notify_all()
            work.publish()

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name=f"mpi {self.name}", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _loop(self) -> None:
        while True:
            with self._lock:
                while (head := self._take()) is None:
                    if self._closed:
                        return
                    self._changed.wait()
            self._run(head)

    def _drop(self) -> None:
        """Fail everything in the queue."""
        while self._queue:
            work = self._queue.popleft()
            work.fail(MpiBackendError(f"not begun, as this group cannot go on after: {self.broken}"))
            work.done = True
            work.publish()

    def abort(self, reason: BaseException) -> None:
        """Begin nothing more; what runs in MPI cannot be stopped."""
        with self._lock:
            self.broken = self.broken or reason
            self._drop()
            self._changed.notify_all()

    def close(self, seconds: float) -> bool:
        """Finish what is queued and end the thread; returns whether that was possible within `seconds`."""
        deadline = time.monotonic() + seconds
        with self._lock:
            while (self._queue or self._holder) and (left := deadline - time.monotonic()) > 0:
                self._wake()
                self._changed.wait(left)
            self._closed = True
            idle = not self._queue and self._holder is None
            self._changed.notify_all()
        if self._thread is not None and idle:
            self._thread.join()
        return idle
