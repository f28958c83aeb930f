"""The collectives of one group, one after the other: run by a caller that waits, else by the lane's thread.

A caller that waits would only sleep while a thread does the work and wakes it, which costs more than a small
collective. So whoever waits runs what stands first in the queue, unless the thread has begun it already.
Where nothing is queued that is his own, which needs no Work. Each group has a lane of its own: two groups may
be used in opposite orders on two ranks.

A callback of a collective's future may use collectives of its own (powerSGD's do). They come at once, before
what is queued: otherwise the order would depend on how far each rank had come, and the ranks would disagree.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from .errors import MpiBackendError, TimedOutError, breaks_group, explained
from .work import CollectiveWork


class Running(NamedTuple):
    """The collective of a lane that is under way: what it is, and how many had begun when it had."""

    name: str
    seconds: float
    """Its time-out."""
    since: float
    """When it began, on time.monotonic's clock."""
    number: int


class Lane:
    """A queue of collectives, in the order that all ranks agree on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.broken: BaseException | None = None
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._queue: deque[CollectiveWork] = deque()
        self._holder: int | None = None  # the thread that runs a collective, or the callbacks of one
        self._running: Running | None = None
        self._number = 0  # how many have begun; the same on every rank in the same collective
        self._thread: threading.Thread | None = None
        self._closed = False

    def run_now(self, name: str, seconds: float, run: Callable[[], None]) -> bool:
        """Run a collective for a caller that waits, if nothing else is queued or under way; returns whether.

        Raises what went wrong, as the wait of a Work does.
        """
        with self._lock:
            if self._holder is not None or self._queue or self.broken is not None or self._closed:
                return False
            self._holder = threading.get_ident()
            self._begin(name, seconds)
        failed: BaseException | None = None
        try:
            run()
        except BaseException as error:
            failed = explained(name, error)
            if not isinstance(error, Exception):  # Ctrl-C is for the thread that it came to
                raise
            raise failed from error
        finally:
            with self._lock:
                self._running = self._holder = None
                self._note(failed)
                self._changed.notify_all()
        return True

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

    def look(self) -> Running | None:
        """Return what runs."""
        return self._running

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
            self._begin(work.name, work.seconds)
        try:
            work.run()
        finally:
            with self._lock:
                self._running, work.done = None, True
                self._note(work.exception())
                self._changed.notify_all()
            work.publish()

    def _begin(self, name: str, seconds: float) -> None:
        self._number += 1
        self._running = Running(name, seconds, time.monotonic(), self._number)

    def _note(self, error: BaseException | None) -> None:
        """After an error inside MPI, nothing goes any more."""
        if error is not None and breaks_group(error):
            self.broken = error
            self._drop()

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
