"""The collectives of one group, one after the other: run by a caller that blocks, else by the queue's thread.

If a thread did the work for a caller that blocks, that caller would sleep until it is woken, which takes
longer than a small collective. So a caller that blocks runs what is first in the queue, unless the thread is
running it already. If the queue is empty, it runs its own collective at once, which needs no work handle.
Each group has its own queue, because two groups may be used in opposite orders on two ranks.

A callback of a collective's future may call collectives (powerSGD's does). They run at once, before what is
queued: otherwise their place would depend on how far each rank has come, and the ranks would disagree.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch.distributed.distributed_c10d import Work

from .buffers import gpus_of
from .caller import uncompiled
from .exceptions import MpiBackendError, TimedOutError, breaks_group, with_name


@uncompiled
class CollectiveWork(Work):
    """One collective of a queue: `name` is torch's, `run` performs it, `result` are its output tensors.

    `finish(work, seconds)` returns when the work is done, and raises after so many seconds; 0 means no limit.
    """

    def __init__(
        self,
        finish: Callable[[CollectiveWork, float], None],
        name: str,
        run: Callable[[], None],
        result: Any,
        seconds: float,
        note: int,
        when_done: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self.name, self.seconds, self.note = name, seconds, note
        self._finish = finish
        self._when_done = when_done
        self.done = False
        self.settled = False  # whether the waiting caller, or the future, has received the result or error
        self._run = run
        self._result = result
        self._error: BaseException | None = None
        self._future: torch.futures.Future[Any] | None = None
        self._published = False
        self._lock = threading.Lock()

    def run(self) -> None:
        """Perform the collective in the calling thread; `wait` raises its error."""
        try:
            self._run()
        except BaseException as error:
            self.fail(error)
            if not isinstance(error, Exception):  # Ctrl-C belongs to the thread that got it
                raise
        finally:
            self._run = lambda: None  # releases the inputs
            if self._when_done is not None:
                self._when_done()

    def fail(self, error: BaseException) -> None:
        self._error = with_name(self.name, error)
        self._error.__cause__ = error

    def publish(self) -> None:
        """Resolve the future. Its callbacks may wait for another collective, so the queue is free by now."""
        with self._lock:
            self._published = True
            future = self._future
        if future is not None:
            self._resolve(future)

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """Return when the work is done; raises its error, or TimedOutError after `timeout`, if one is given.

        After TimedOutError the collective is still under way: MPI cannot take it back.
        """
        self._finish(self, timeout.total_seconds())
        self.settled = True
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self.done

    def is_success(self) -> bool:
        return self.done and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> Any:
        self.wait()
        return self._result

    def get_future(self) -> torch.futures.Future[Any]:
        with self._lock:
            if self._future is not None:
                return self._future
            # With its devices, a future keeps the streams of its callbacks and readers in order.
            future: torch.futures.Future[Any] = torch.futures.Future(devices=gpus_of(self._result))
            self._future = future
            published = self._published
        if published:
            self._resolve(future)
        return future

    def _resolve(self, future: torch.futures.Future[Any]) -> None:
        self.settled = True
        if self._error is not None:
            future.set_exception(self._error)
        else:
            future.set_result(self._result)


class Finished(Work):
    """The handle of a collective that was complete before its call returned."""

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True


class Coalesced(Work):
    """One handle for several collectives."""

    def __init__(self, works: list[Work]) -> None:
        super().__init__()
        self._works = works
        self.settled = False

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """Return when all are done; `timeout` is for each."""
        for work in self._works:
            work.wait(timeout)
        self.settled = True
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)


EVERY = 512  # collectives between two comparisons of their order between the ranks (order.py)
_this_thread, _now = threading.get_ident, time.monotonic


class Running(NamedTuple):
    """The collective that is under way; `number` counts from 1 and is the same on every rank."""

    name: str
    seconds: float
    """Its time-out."""
    since: float
    """When it began, on time.monotonic's clock."""
    number: int


class WorkQueue:
    """The collectives of a group, in the order in which every rank calls them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.broken: BaseException | None = None
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # something has ended
        self._waiting = 0  # threads that wait for that
        self._added = threading.Condition(self._lock)  # there is something for the queue's thread
        self._queue: deque[CollectiveWork] = deque()
        self._holder: int | None = None  # the thread that runs a collective or its callbacks
        self._running: tuple[str, float, float, int] | None = None  # the fields of Running
        self.begun = 0  # collectives; in the same collective, the same number on every rank
        self.notes: Any = deque(maxlen=0)  # those of an Order, if one is kept
        self.compare: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None
        self._closed = False

    def run_now(
        self, name: str, seconds: float, note: int, run: Callable[..., object], *arguments: Any
    ) -> bool:
        """Run a collective for a caller that blocks; returns False if something else is queued or under way.

        `note` is that of order.py. Raises what went wrong, as `wait` of a work handle does.
        """
        with self._lock:
            if self._holder is not None or self._queue or self.broken is not None or self._closed:
                return False
            self._holder = _this_thread()
            self._begin(name, seconds, note)
        failed: BaseException | None = None
        try:
            run(*arguments)
        except BaseException as error:
            failed = with_name(name, error)
            if not isinstance(error, Exception):  # Ctrl-C belongs to the thread that got it
                raise
            raise failed from error
        finally:
            with self._lock:
                self._running = self._holder = None
                if failed is not None:
                    self._note(failed)
                if self._waiting or self._queue:
                    self._wake_all()
        return True

    def add(self, work: CollectiveWork, *, blocks: bool) -> None:
        """Queue `work`; if the caller `blocks`, it is done on return, and what went wrong is raised.

        Raises MpiBackendError if this group is broken or was destroyed.
        """
        with self._lock:
            if self.broken is not None:
                raise MpiBackendError(f"{work.name}: this group is unusable after: {self.broken}")
            if self._closed:
                raise MpiBackendError(f"{work.name}: this process group has been destroyed")
            in_callback = self._holder == threading.get_ident()
            if not in_callback:
                self._queue.append(work)
                if not blocks:
                    self._wake()
            head = self._take() if blocks and not in_callback else None
        if in_callback:
            self._perform(work)
        elif head is not None:
            self._run(head)
        if blocks:
            work.wait()

    def finish(self, work: CollectiveWork, seconds: float = 0.0) -> None:
        """Return when `work` is done, after running what is before it in the queue.

        With a time-out in `seconds` this thread only waits, because it could not leave a collective in time;
        raises TimedOutError.
        """
        deadline = time.monotonic() + seconds if seconds else None
        while not work.done:
            with self._lock:
                if work.done:
                    return
                in_callback = self._holder == threading.get_ident()
                head = None if deadline else self._take()
                if head is None:
                    self._wait_for_change(work, seconds, deadline)
            if head is not None:
                (self._perform if in_callback else self._run)(head)

    def look(self) -> Running | None:
        """Return the running collective; this takes no lock."""
        running = self._running
        return None if running is None else Running(*running)

    def _wait_for_change(self, work: CollectiveWork, seconds: float, deadline: float | None) -> None:
        if self._queue:
            self._wake()
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimedOutError(f"{work.name}: Timed out after {seconds:g} s, and is still running")
        self._wait(left)

    def _wait(self, seconds: float | None) -> None:
        """Release the lock until something has ended, or so many seconds have passed."""
        self._waiting += 1
        try:
            self._changed.wait(seconds)
        finally:
            self._waiting -= 1

    def _wake_all(self) -> None:
        self._changed.notify_all()
        self._added.notify()

    def _take(self) -> CollectiveWork | None:
        """Take the first of the queue, unless another thread is running one."""
        me = threading.get_ident()
        if self._holder not in {None, me} or not self._queue:
            return None
        self._holder = me
        return self._queue.popleft()

    def _run(self, work: CollectiveWork) -> None:
        """Run what `_take` returned, then let another thread take the next."""
        try:
            self._perform(work)
        finally:
            with self._lock:
                self._holder = None
                if self._waiting or self._queue:
                    self._wake_all()

    def _perform(self, work: CollectiveWork) -> None:
        with self._lock:
            self._begin(work.name, work.seconds, work.note)
        try:
            work.run()
        finally:
            with self._lock:
                self._running, work.done = None, True
                self._note(work.exception())
                self._changed.notify_all()
            work.publish()

    def _begin(self, name: str, seconds: float, note: int) -> None:
        self.begun += 1
        self.notes.append(note)
        if not self.begun % EVERY:
            self.compare()
        self._running = name, seconds, _now(), self.begun

    def _note(self, error: BaseException | None) -> None:
        if error is not None and breaks_group(error):
            self.broken = error
            self._drop()

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name=f"mpi {self.name}", daemon=True)
            self._thread.start()
        self._added.notify()

    def _loop(self) -> None:
        while True:
            with self._lock:
                while (head := self._take()) is None:
                    if self._closed:
                        return
                    self._added.wait()
            self._run(head)

    def _drop(self) -> None:
        while self._queue:
            work = self._queue.popleft()
            work.fail(MpiBackendError(f"not started: this group is unusable after: {self.broken}"))
            work.done = True
            work.publish()

    def abort(self, reason: BaseException) -> None:
        """Start no further collective; one that runs in MPI cannot be stopped."""
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
                self._wait(left)
            self._closed = True
            idle = not self._queue and self._holder is None
            self._changed.notify_all()
            self._added.notify()
        if self._thread is not None and idle:
            self._thread.join()
        return idle
