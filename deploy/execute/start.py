"""The start of a launch: which ranks have not reported, and how far each of their hosts has come."""

from __future__ import annotations

import time
from itertools import groupby

from ..console.text import span
from ..result import Failure
from .state import State


class Start:
    """Gives every rank its time to start."""

    def __init__(self, state: State, seconds: float) -> None:
        self._state, self._seconds = state, seconds
        state.deadlines.after(seconds, self._judge)

    def _judge(self) -> None:
        state = self._state
        state.catch_up()
        if state.all_started or state.failures:
            return
        reason = f"{self._missing()} had not started after {self._seconds:.0f} s"
        state.fail(Failure("start", reason, 3, at=time.time(), tail=tuple(state.launcher_tail)))

    def _missing(self) -> str:
        """`rank 1 (node1: mpirun started), ranks 2-3 (node2: daemon asked for)`."""
        state = self._state
        unstarted = [place for rank, place in state.places.items() if rank not in state.started]
        return ", ".join(
            f"{span([place.rank for place in places])} ({host}: {state.phases[host]})"
            for host, places in groupby(unstarted, lambda place: place.host)
        )
