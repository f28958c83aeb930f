"""One group as the watchdog sees it: how long its collective has waited, and whether it can still end.

Each rank that waits visits the store in turn, so that the whole group makes a few requests a second, however
many ranks it has. One rank that finds the reason is enough: it ends the job for all.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from .presence import Presence
from .work_queue import Running, WorkQueue

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
            return self.out_of_order()
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

    def out_of_order(self) -> str:
        """Return the verdict of the order, with the group."""
        return f"group {self.queue.name}: {self.order.verdict}."

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
