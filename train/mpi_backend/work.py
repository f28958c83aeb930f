"""Work handles: what torch.distributed returns for a collective that is under way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed.distributed_c10d import Work

from .exceptions import with_name
from .streams import gpus_of
from .uncompiled import uncompiled


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
            self._run = _nothing  # releases the inputs
            if self._when_done is not None:
                self._when_done()

    def fail(self, error: BaseException) -> None:
        """End the work with `error`."""
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
        """Return a future of the list of tensors."""
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


def _nothing() -> None:
    pass


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
