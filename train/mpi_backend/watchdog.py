"""Ends the job when a collective cannot end by itself: a rank has left, or does not come in time.

MPI cannot take back a collective that has begun, so an exception would reach nobody: the thread that it is
for is inside MPI. What is left is to say which rank waits where and for whom, and to end every rank.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
from dataclasses import dataclass
from types import TracebackType

from ..job.failure import end_job
from .board import Board
from .lane import Lane

_LOOK = 0.5  # seconds between two looks at the lanes
_PATIENCE = 1.0  # seconds for which a collective may wait before its rank says so on the board
_LEAVING = 10.0  # seconds for what is still queued when the program ends


@dataclass(slots=True)
class Watched:
    """A lane, and what is known of it."""

    lane: Lane
    rank: int
    board: Board | None
    said: int = -1  # the number of the collective in which this rank has said that it waits

    def verdict(self) -> str | None:
        """Return why the collective that runs will never end; None if it may."""
        running = self.lane.look()
        waited = time.monotonic() - running.since if running else 0.0
        if running is None or waited < _PATIENCE:
            return None
        try:
            reason = self._ask_board(running.number)
        except RuntimeError:  # torch's stores raise subclasses of it
            reason = "the store, on rank 0 or its host, answers no more"
        if reason is None and waited > running.seconds + _LOOK:
            reason = f"the time-out is {running.seconds:g} s, and {self._absent(running.number)}"
        if reason is None or self.lane.look() is not running:
            return None
        return (
            f"rank {self.rank} has waited {waited:.1f} s in {running.name}, number {running.number} of group "
            f"{self.lane.name}: {reason}. MPI cannot leave a collective, so the job ends."
        )

    def _ask_board(self, number: int) -> str | None:
        if self.board is None:
            return None
        if self.said != number:
            self.said = number
            self.board.come(number)
        left = self.board.left()
        return f"{_ranks(left)} left the program" if left else None

    def _absent(self, number: int) -> str:
        missing = self.board.missing(number) if self.board else []
        return f"{_ranks(missing)} did not come" if missing else "another rank did not come"


class Watchdog:
    """One thread for all groups of this process."""

    def __init__(self) -> None:
        self._watched: dict[Lane, Watched] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._failed = False

    def watch(self, lane: Lane, rank: int, board: Board | None) -> None:
        with self._lock:
            self._watched[lane] = Watched(lane, rank, board)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="mpi watchdog", daemon=True)
                self._thread.start()
                atexit.register(self._leave)
                self._chain_excepthook()

    def forget(self, lane: Lane) -> None:
        with self._lock:
            self._watched.pop(lane, None)

    def _loop(self) -> None:
        while True:
            time.sleep(_LOOK)
            with self._lock:
                watched = list(self._watched.values())
            for one in watched:
                verdict = one.verdict()
                if verdict:
                    sys.stderr.write(f"error: {verdict}\n")
                    end_job(1)

    def _chain_excepthook(self) -> None:
        """Notice an exception that nobody catches. The report comes first: torch prints it after its hook."""
        others = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self._failed = True
            others(kind, error, trace)

        sys.excepthook = hook

    def _leave(self) -> None:
        """End this rank's part before MPI_Finalize, which waits for all ranks, does so for ever."""
        with self._lock:
            watched = list(self._watched.values())
        if not watched:
            return
        if self._failed or not all(one.lane.close(_LEAVING) for one in watched):
            end_job(1)
        for one in watched:
            if one.board:
                _try_to_leave(one.board)


def _try_to_leave(board: Board) -> None:
    try:
        board.leave()
    except RuntimeError:
        return  # the store has gone with rank 0; nobody can look there any more


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


watchdog = Watchdog()
