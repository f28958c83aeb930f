"""Ends the job when a collective cannot end on its own: a rank has left, or does not come in time.

MPI cannot take back a collective that has begun, so an exception would reach nobody: the thread that should
get it is inside MPI. So this prints which rank waits where and for whom, and ends every rank.

A rank that has left the program, or has not yet entered a collective, cannot be asked over MPI, so the ranks
use the key-value store. Each rank that waits visits it in turn, so that the whole group makes a few requests
a second, however many ranks it has. One rank that finds the reason is enough: it ends the job for all.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NoReturn

from .exceptions import TimedOutError
from .library import abort_job, wait_until
from .work_queue import Running, WorkQueue


class Presence:
    """One rank's access to the entries of its group; any method may raise RuntimeError, as torch's stores do.

    `prefix` starts its keys. No other group of the job has had it: a store may outlive a group of the same
    name.
    """

    def __init__(self, store: Any, prefix: str, rank: int, size: int) -> None:
        self._store, self._prefix = store, prefix
        self.rank, self.size = rank, size
        self._read = 0  # number of `left` entries that this rank has read

    @classmethod
    def create(cls, store: Any, prefix: str, rank: int, size: int) -> Presence | None:
        """Return the rank's access, or None where torch gives only a placeholder for a store."""
        try:
            store.check([prefix])
        except (AttributeError, RuntimeError):
            return None
        return cls(store, prefix, rank, size)

    def wait_in(self, number: int) -> None:
        self._store.set(self._waiting(number, self.rank), "")

    def stop_waiting_in(self, number: int) -> None:
        self._store.delete_key(self._waiting(number, self.rank))

    def absent(self, number: int) -> list[int]:
        """Return the other ranks that have not written that they wait in collective `number`."""
        return self._without_entry(number, [rank for rank in range(self.size) if rank != self.rank])

    def _without_entry(self, number: int, ranks: list[int]) -> list[int]:
        """Ask for all keys in one request, and if any is missing, for each half separately."""
        if not ranks or self._store.check([self._waiting(number, rank) for rank in ranks]):
            return []
        if len(ranks) == 1:
            return ranks
        middle = len(ranks) // 2
        return self._without_entry(number, ranks[:middle]) + self._without_entry(number, ranks[middle:])

    def leave(self, completed: int) -> None:
        """Write that this rank takes part in nothing after its first `completed` collectives."""
        entry = self._store.add(f"{self._prefix}/left", 1)
        self._store.set(f"{self._prefix}/left/{entry}", f"{self.rank} {completed}")

    def newly_left(self) -> dict[int, int]:
        """Return the ranks that left since the last call, each with the collectives that it completed."""
        left = {}
        while self._store.check([key := f"{self._prefix}/left/{self._read + 1}"]):
            rank, completed = self._store.get(key).split()
            left[int(rank)] = int(completed)
            self._read += 1
        return left

    def _waiting(self, number: int, rank: int) -> str:
        return f"{self._prefix}/waiting/{number}/{rank}"


_NAP = 0.002  # seconds between two requests


class MonitoredBarrier:
    """The monitored barriers of a group, of which `prefix` starts the keys; the words are Gloo's.

    They only use the store, so they cannot get stuck in MPI, and an exception can name who did not come.
    """

    def __init__(self, store: Any, prefix: str, rank: int, size: int) -> None:
        self._store, self._prefix = store, prefix
        self._rank, self._size = rank, size
        self._number = 0

    def wait(self, seconds: float, *, wait_all_ranks: bool) -> None:
        """Return when all ranks have come; raises TimedOutError after `seconds`.

        Rank 0 waits for the others, and names the first that did not come, or all with `wait_all_ranks`.
        """
        self._number += 1
        self._store.set(self._key(self._rank), "")
        deadline = time.monotonic() + seconds
        if self._rank == 0:
            self._lead(seconds, deadline, wait_all_ranks=wait_all_ranks)
        else:
            self._follow(seconds, deadline)
        self._store.delete_key(self._key(self._rank))

    def _lead(self, seconds: float, deadline: float, *, wait_all_ranks: bool) -> None:
        absent: list[int] = []
        for rank in range(1, self._size):
            if not self._comes(self._key(rank), deadline):
                absent.append(rank)
                if not wait_all_ranks:
                    break
        self._store.set(self._key("result"), "failed" if absent else "passed")
        if self._number > 1 and not absent:  # all have read the result before
            self._store.delete_key(f"{self._prefix}/{self._number - 1}/result")
        if absent:
            words = f"Rank{'s' * (len(absent) > 1)} {', '.join(map(str, absent))} failed to pass"
            raise TimedOutError(
                f"Rank 0 timed out in monitoredBarrier: {words} monitoredBarrier in {seconds * 1000:g} ms"
            )

    def _follow(self, seconds: float, deadline: float) -> None:
        result = self._key("result")
        if not self._comes(result, deadline) or self._store.get(result) != b"passed":
            raise TimedOutError(
                f"Rank {self._rank} successfully reached monitoredBarrier, but received errors while waiting "
                f"for send/recv from rank 0, in {seconds * 1000:g} ms: another rank did not come"
            )

    def _comes(self, key: str, deadline: float) -> bool:
        while not self._store.check([key]):
            if time.monotonic() > deadline:
                return False
            time.sleep(_NAP)
        return True

    def _key(self, of: int | str) -> str:
        return f"{self._prefix}/{self._number}/{of}"


LOOK = 0.5  # seconds between two looks of the watchdog
PATIENCE = 1.0  # seconds for which a collective may wait before its rank visits the store
VISITS = 2.0  # of all ranks of a group, a second
_NAMED = 8  # ranks in a message


@dataclass(slots=True, eq=False)
class Watched:
    """A queue of collectives, and what this rank knows of the other ranks."""

    queue: WorkQueue
    rank: int
    size: int
    presence: Presence | None
    order: Any = None
    """The group's Order."""
    started: float = field(default_factory=time.monotonic)
    _visits: int = 0  # turns of this rank that have passed
    _visiting: bool = False
    _entered: int | None = None  # the collective in which this rank has written that it waits
    _left: dict[int, int] = field(default_factory=dict)

    @property
    def period(self) -> float:
        """Seconds from one of this rank's turns to its next."""
        return max(LOOK, self.size / VISITS)

    def due(self, now: float) -> bool:
        """Return whether this rank should visit the store at `now`, on time.monotonic's clock."""
        turns = int((now - self.started - self.rank / VISITS) // self.period) + 1
        if self.presence is None or self._visiting or turns <= self._visits:
            return False
        self._visits = turns
        return _waiting(self.queue.look(), now) is not None or self._entered is not None

    def visit_in_background(self, now: float) -> None:
        """Start `visit` in a thread: a store that does not answer must not delay a time-out."""
        self._visiting = True
        threading.Thread(target=self.visit, args=(now,), name="mpi store", daemon=True).start()

    def visit(self, now: float) -> None:
        """Write in which collective this rank waits, delete what it wrote before, and read who has left."""
        try:
            if self.presence is not None:
                self._visit(self.presence, now)
        except RuntimeError:
            # The store is gone, perhaps with rank 0. This group may go on without it, up to its time-out.
            self.presence = None
        finally:
            self._visiting = False

    def _visit(self, presence: Presence, now: float) -> None:
        running = _waiting(self.queue.look(), now)
        number = running.number if running else None
        if self._entered not in {None, number}:
            presence.stop_waiting_in(self._entered or 0)
            self._entered = None
        if number is not None:
            if self._entered is None:
                presence.wait_in(number)
                self._entered = number
            # A new dict each time: the watchdog's thread may be going through the former one.
            self._left = {**self._left, **presence.newly_left()}

    def leave(self, *, all_leave: bool = False) -> None:
        """Write that this rank takes part in nothing more, unless `all_leave`, and delete what it wrote."""
        with suppress(RuntimeError):  # the store is gone, so nobody can read it any more
            if self.presence is not None and not all_leave:
                self.presence.leave(self.queue.begun)
            if self.presence is not None and self._entered is not None:
                self.presence.stop_waiting_in(self._entered)

    def verdict(self, now: float) -> str | None:
        """Return why the job must end: unlike collectives, or one that will never end; None if it may."""
        if self.order is not None and (self.order.settled(), self.order.verdict)[1]:
            return f"group {self.queue.name}: {self.order.verdict}."
        running = _waiting(self.queue.look(), now)
        if running is None:
            return None
        gone = sorted(rank for rank, completed in self._left.items() if completed < running.number)
        if gone:
            reason = f"{_ranks(gone)} left the group"
        elif now - running.since > running.seconds + LOOK:
            reason = f"the time-out is {running.seconds:g} s, and {self._absent(running)}"
        else:
            return None
        if self.queue.look() != running:
            return None
        return (
            f"rank {self.rank} has waited {now - running.since:.1f} s in {running.name}, "
            f"number {running.number} of group {self.queue.name}: {reason}. "
            "MPI cannot leave a collective, so the job ends."
        )

    def _absent(self, running: Running) -> str:
        """Name the absent ranks, if the store answers and every rank has had its turn to write."""
        absent: list[int] = []
        presence = self.presence
        if presence is not None and running.seconds >= self.period + PATIENCE:
            asking = threading.Thread(
                target=lambda: absent.extend(_ask(presence, running.number)), name="mpi store", daemon=True
            )
            asking.start()
            asking.join(PATIENCE)
        return f"{_ranks(absent)} did not come" if absent else "another rank did not come"


def _waiting(running: Running | None, now: float) -> Running | None:
    return running if running is not None and now - running.since >= PATIENCE else None


def _ask(presence: Presence, number: int) -> list[int]:
    try:
        return presence.absent(number)
    except RuntimeError:
        return []


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:_NAMED]))
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"


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
        _end(f"group {watched.queue.name}: {watched.order.verdict}.")
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
