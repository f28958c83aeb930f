"""Ends the job when a collective cannot end on its own: a rank has left, or does not come in time.

MPI cannot take back a collective that has begun, so an exception would reach nobody: the thread that should
get it is inside MPI. So this prints which rank waits where and for whom, and ends every rank.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
from types import TracebackType
from typing import NoReturn

from .exceptions import TimedOutError
from .library import abort_job
from .waiting import wait_until
from .watched import LOOK, PATIENCE, Watched
from .work_queue import WorkQueue

_CLOSING = 10.0  # seconds for what is still queued when the program ends
_TOGETHER = 1.0  # seconds within which the ranks of a group usually leave it


class Watchdog:
    """One thread for all groups of this process."""

    def __init__(self) -> None:
        self._watched: dict[WorkQueue, Watched] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._failed = False

    def watch(self, watched: Watched) -> None:
        """Watch the collectives of a group until `forget`."""
        with self._lock:
            self._watched[watched.queue] = watched
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="mpi watchdog", daemon=True)
                self._thread.start()
                atexit.register(self._leave)
                self._chain_excepthook()

    def forget(self, queue: WorkQueue) -> bool:
        """Stop watching a group, which this rank leaves; returns whether all other ranks leave it too."""
        with self._lock:
            watched = self._watched.pop(queue, None)
        return watched is not None and _leave(watched, _start_to_leave(watched))

    def _loop(self) -> None:
        while True:
            time.sleep(LOOK)
            with self._lock:
                groups = list(self._watched.values())
            for watched in groups:
                now = time.monotonic()
                verdict = watched.verdict(now)
                if verdict:
                    _end(verdict)
                if watched.due(now):
                    watched.visit_in_background(now)

    def _chain_excepthook(self) -> None:
        """Notice an uncaught exception, after the other hooks, one of which prints the report."""
        others = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self._failed = True
            others(kind, error, trace)

        sys.excepthook = hook

    def _leave(self) -> None:
        """Leave every group before MPI_Finalize, which waits for ranks that may wait for this one."""
        with self._lock:
            groups = list(self._watched.values())
        if not groups:
            return
        if self._failed or not all(watched.queue.close(_CLOSING) for watched in groups):
            abort_job(1)
        started = [(watched, _start_to_leave(watched)) for watched in groups]
        for watched, is_leaving in started:
            if not _leave(watched, is_leaving) and watched.rank == 0 and is_leaving:
                # As a rule this process serves the store. MPI_Finalize would wait for the other ranks anyway;
                # wait here until each has had a turn to read who left.
                _all_left(watched, PATIENCE + min(watched.period, _CLOSING) + 2 * LOOK)


def _start_to_leave(watched: Watched) -> bool:
    """Begin the last comparison of a group, which each rank joins when it leaves; False if it cannot."""
    if watched.order is None or watched.queue.broken is not None:
        return False
    watched.order.compare(leaving=True)
    return True


def _leave(watched: Watched, is_leaving: bool) -> bool:
    """Return whether all ranks leave the group now; else tell the others in the store that this one does.

    As a rule all ranks leave at once, and the store ends with rank 0. So only a rank that leaves much earlier
    than another writes to the store. Ends the job if the ranks called unlike collectives.
    """
    all_leave = is_leaving and _all_left(watched, _TOGETHER)
    if all_leave and watched.order.verdict:
        _end(watched.out_of_order())
    watched.leave(all_leave=all_leave)
    return all_leave


def _all_left(watched: Watched, seconds: float) -> bool:
    try:
        wait_until(
            lambda: watched.order.settled() or bool(watched.order.verdict), seconds, "leaving the group"
        )
    except TimedOutError:
        return False
    return True


def _end(verdict: str) -> NoReturn:
    sys.stderr.write(f"error: {verdict}\n")
    abort_job(1)


watchdog = Watchdog()
